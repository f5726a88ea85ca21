"""Capturing: what reaches nsys, and how its work is judged. The nsys is a small program that notes how it is called."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

import pytest

from distprof.cli.capture.command import Ranks, make_command, read_ranks, read_request, read_runs_dir
from distprof.cli.capture.job import judge, make_folder, require_nsys
from distprof.errors import DataError, UsageError
from distprof.traces.nsys.nsys_tool import Nsys, export_sqlite, find_nsys, read_numbers
from tests.ranks import REPOSITORY, make_environment

FAKE_NSYS = f"""#!{sys.executable}
import json, os, pathlib, sqlite3, sys
log = pathlib.Path(os.environ["FAKE_LOG"])
with log.open("a") as file:
    file.write(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}) + "\\n")
value = lambda name: next(text.partition("=")[2] for text in sys.argv if text.startswith(name + "="))
if sys.argv[1] == "--version":
    print("NVIDIA Nsight Systems version " + os.environ.get("FAKE_VERSION", "2025.1.1.131-251135540420v0"))
elif sys.argv[1] == "profile":
    if "no report" not in os.environ.get("FAKE_FAULT", ""):
        pathlib.Path(value("--output").replace("%%", "%") + ".nsys-rep").write_bytes(b"report")
    sys.exit(int(os.environ.get("FAKE_EXIT", "0")))
elif sys.argv[1] == "export":
    if "no export" in os.environ.get("FAKE_FAULT", ""):
        sys.exit("the file is not whole")
    base = sqlite3.connect(sys.argv[sys.argv.index("--output") + 1])
    base.execute("CREATE TABLE NVTX_EVENTS (text)")
    base.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    block = chr(0).join(["A=b", "HF_TOKEN=" + os.environ.get("FAKE_LEAK", ""), ""])
    base.execute("INSERT INTO StringIds VALUES (1, ?)", [block if "FAKE_LEAK" in os.environ else "forward"])
    base.commit()
"""


class Place:
    """A folder with a fake nsys in it, and what that was called with."""

    def __init__(self, path: Path) -> None:
        self.path, self.log, self.nsys = path, path / "calls", path / "nsys"
        self.nsys.write_text(FAKE_NSYS)
        self.nsys.chmod(self.nsys.stat().st_mode | stat.S_IXUSR)

    def capture(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own = make_environment(NSYS=str(self.nsys), NPROC="2", FAKE_LOG=str(self.log), **environment)
        return subprocess.run(
            [sys.executable, "-m", "distprof.cli.capture", *arguments], cwd=self.path, env=own, capture_output=True,
            text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def read_calls(self) -> dict[str, dict[str, object]]:
        calls = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return {call["arguments"][0]: call for call in calls}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_capture_is_run_judged_exported_and_reported(place: Place) -> None:
    """Of a job that fails, and beside a process whose secret nsys has read nevertheless."""
    secrets = {"HF_TOKEN": "canary-hf", "FAKE_LEAK": "canary-neighbour"}
    done = place.capture("-t", "cuda,nvtx,osrt", "--", "train=gpt2_tiny", PLAIN="kept", FAKE_EXIT="9", **secrets)
    (folder,) = (place.path / "runs").iterdir()
    report, export = folder / "capture.nsys-rep", folder / "capture.sqlite"
    assert folder.name.endswith("_nsys") and {*folder.iterdir()} == {report, export}
    environment = place.read_calls()["profile"]["environment"]
    assert isinstance(environment, dict)
    assert "HF_TOKEN" not in environment and environment["PLAIN"] == "kept"
    assert environment["NSYS_NVTX_PROFILER_REGISTER_ONLY"] == "0"
    assert "canary-hf" not in place.log.read_text() + done.stdout + done.stderr
    assert b"canary-neighbour" not in export.read_bytes() and report.stat().st_mode & 0o077 == 0
    said = done.stderr.splitlines()
    assert "distprof: kept out of the capture: HF_TOKEN (nsys writes the environment into its report)" in said
    shown = [path.relative_to(place.path) for path in (report, export)]
    assert f"distprof: {shown[0]}: contains HF_TOKEN of other processes: do not share it (the SQLite is clean)" in said
    assert f"distprof: the capture: {shown[0]}, {shown[1]}" in said
    assert "contains no NVTX range" in done.stderr
    assert done.returncode == 9, "the job's own exit code"
    alone = place.capture("--no-report", "--", "train=gpt2_tiny", "runs_dir=alone")
    assert alone.returncode == 0 and "sqlite" in alone.stderr and "distprof report" not in alone.stdout + alone.stderr
    assert [path.suffix for path in sorted(next((place.path / "alone").iterdir()).iterdir())] == [
        ".nsys-rep",
        ".sqlite",
    ]


@pytest.mark.parametrize(
    ("faults", "code", "said"),
    [
        ({"FAKE_FAULT": "no report"}, 1, "nsys wrote no report, regardless of its exit code"),
        ({"FAKE_FAULT": "no report", "FAKE_EXIT": "7"}, 1, "the job ended with exit code 7"),
        ({"FAKE_FAULT": "no export"}, 1, "the file is not whole"),
        ({"NSYS": "/no/such/nsys"}, 2, "nsys: not found"),
        ({"FAKE_VERSION": "2023.4.4.54-x", "NVTX": "0.2.12"}, 2, "silently records nothing from nvtx 0.2.12"),
        ({"NPROC": "two"}, 2, "NPROC=two"),
        ({"NNODES": "2"}, 2, "set MASTER_ADDR"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_what_goes_wrong_is_one_line(place: Place, faults: dict[str, str], code: int, said: str) -> None:
    if "NVTX" in faults:
        pretend_package(place.path / "site", "nvtx", faults["NVTX"])
        faults = {**faults, "PYTHONPATH": os.pathsep.join([str(place.path / "site"), str(REPOSITORY)])}
    own = make_environment(**{"NSYS": str(place.nsys), "NPROC": "2", "FAKE_LOG": str(place.log), **faults})
    done = subprocess.run(
        [sys.executable, "-m", "distprof.cli.capture", "--", "train=gpt2_tiny"], cwd=place.path, env=own,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def pretend_package(site: Path, name: str, version: str) -> None:
    """Makes a package be of a version, for `importlib.metadata`."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_secret_override_never_reaches_nsys(place: Place) -> None:
    done = place.capture("--", "train=gpt2_tiny", "+logger.password=canary-password")
    assert done.returncode == 2 and "logger.password: contains a secret" in done.stderr
    assert "canary-password" not in done.stderr and "profile" not in place.read_calls()


def run_profile(*arguments: str, ranks: Ranks | None = None) -> list[str]:
    return make_command(
        read_request(arguments), ranks or Ranks(per_node=2), nsys="nsys", folder=Path("/runs/100% new's_nsys")
    )


def test_one_nsys_stands_around_torchrun() -> None:
    command = run_profile("--", "train=gpt2_tiny")
    torchrun = command.index("torch.distributed.run")
    assert command[:2] == ["nsys", "profile"] and "--standalone" in command[torchrun:]
    profile = set(command[2:torchrun])
    assert {
        "--trace=cuda,nvtx", "--cuda-graph-trace=node", "--capture-range=nvtx", "--nvtx-capture=measured@distprof",
        "--capture-range-end=stop", "--output=/runs/100%% new's_nsys/capture",
    } <= profile  # fmt: skip
    assert command[-4:] == ["-m", "distprof", "train=gpt2_tiny", r"run_dir='/runs/100% new\'s_nsys/run'"]


def test_per_rank_there_is_one_nsys_inside_torchrun_for_each() -> None:
    command = run_profile("--per-rank", "--", "train=gpt2_tiny")
    assert command[0] == sys.executable and "--per-rank" not in command
    nsys = command.index("nsys")
    assert command.index("--no-python") < nsys < command.index("distprof")
    assert any(text.endswith("/capture-rank%q{RANK}") for text in command[nsys:])


@pytest.mark.parametrize(
    ("given", "unset"),
    [
        (["-t", "nvtx"], "--trace"),
        (["-tnvtx"], "--trace"),
        (["--trace=nvtx"], "--trace"),
        (["--trace", "nvtx"], "--trace"),
        (["-s", "process-tree"], "--sample"),
        (["--capture-range-end=none"], "--capture-range-end"),
        (["-c", "cudaProfilerApi"], "--capture-range"),
        (["-c", "cudaProfilerApi"], "--nvtx-capture"),
        (["--cuda-graph-trace=graph"], "--cuda-graph-trace"),
    ],
)
def test_an_option_that_is_given_is_not_given_twice(given: list[str], unset: str) -> None:
    command = run_profile(*given, "--", "x=1")
    assert not any(text.startswith(f"{unset}=") for text in command if text not in given)
    others = {"--trace", "--sample", "--capture-range"} - {unset} - ({"--capture-range"} if "-c" in given else set())
    assert all(any(text.startswith(f"{name}=") for text in command) for name in others)
    assert " ".join(given) in " ".join(command)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-t", "nvtx", "train=gpt2_tiny"], "--"),
        (["-o", "x", "--"], "-o: distprof sets it"),
        (["--output=x", "--"], "runs_dir=FOLDER"),
        (["--", "profile=off"], "profile=off: without NVTX"),
        (["--", "profile=kernels"], "cannot both trace CUDA"),
        (["-c", "cudaProfilerApi", "--", "device=cpu"], "-c cudaProfilerApi: a job on the CPU never calls it"),
        (["--capture-range=cudaProfilerApi", "--", "device=cpu"], "never start"),
    ],
)
def test_a_request_that_cannot_work_is_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_request(arguments)


def test_without_options_the_dashes_may_be_left_out() -> None:
    assert read_request(["train=gpt2_tiny"]) == read_request(["--", "train=gpt2_tiny"])


def test_a_run_folder_that_is_named_is_left_alone() -> None:
    assert run_profile("--", "run_dir=mine")[-1] == "run_dir=mine"
    assert read_runs_dir(["runs_dir=a", "runs_dir='b c'", "name=x"]) == "b c" and read_runs_dir([]) == "runs"


def test_ranks_come_from_the_environment_else_from_the_gpus() -> None:
    assert read_ranks({}, num_gpus=0).per_node == 2
    assert read_ranks({}, num_gpus=8).per_node == 8
    assert read_ranks({"NPROC": "3"}, num_gpus=8).per_node == 3
    nodes = read_ranks({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a"}, num_gpus=4)
    assert " ".join(nodes.rendezvous) == "--nnodes 2 --node-rank 1 --master-addr a --master-port 29500"
    assert make_name(nodes) == "2026-01-02_03-04-05_nsys-node1"


def make_name(ranks: Ranks) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return make_folder(folder, ranks, now=datetime(2026, 1, 2, 3, 4, 5)).name


@pytest.mark.parametrize("node", ["", "2", "-1", "x"])
def test_a_node_needs_its_number(node: str) -> None:
    with pytest.raises(UsageError, match="NODE_RANK"):
        read_ranks({"NNODES": "2", "NODE_RANK": node, "MASTER_ADDR": "a"}, num_gpus=1)


def test_a_second_capture_of_the_same_second_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    now, ranks = datetime(2026, 1, 2), Ranks(per_node=1)
    first, second = (make_folder(str(tmp_path), ranks, now=now) for _ in range(2))
    assert second.name == f"{first.name}-2"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="set runs_dir"):
        make_folder(str(tmp_path / "file"), ranks, now=now)


def test_reports_are_counted_and_empty_ones_are_none(tmp_path: Path) -> None:
    request, ranks = read_request(["--per-rank", "--", "x=1"]), Ranks(per_node=2)
    (tmp_path / "capture-rank0.nsys-rep").write_bytes(b"report")
    (tmp_path / "capture-rank1.nsys-rep").touch()
    with pytest.raises(DataError, match=r"1 of 2 reports.*GiB free"):
        judge(tmp_path, request, ranks, 0)
    (tmp_path / "capture-rank1.nsys-rep").write_bytes(b"report")
    assert len(judge(tmp_path, request, ranks, 0)) == 2


def test_versions_are_compared_as_numbers() -> None:
    old, new = Nsys(path="nsys", version="2024.2.3.38-x"), Nsys(path="nsys", version="2024.4.1.61-x")
    assert old.drops_ranges_of("0.2.12") and old.drops_ranges_of("0.2.13") and old.drops_ranges_of("0.10.0")
    assert not old.drops_ranges_of("0.2.11") and not old.drops_ranges_of("0.2.9") and not new.drops_ranges_of("0.2.13")
    assert not old.drops_ranges_of(None) and not Nsys(path="nsys", version=None).drops_ranges_of("0.2.13")
    assert read_numbers("2.13.0+cpu") == (2, 13, 0) and read_numbers("x") == ()


def test_an_nsys_that_would_record_nothing_is_refused() -> None:
    old = Nsys(path="nsys", version="2024.2.3.38-x")
    assert require_nsys(old, "0.2.11") is old
    for nsys, nvtx in ((None, "0.2.11"), (old, "0.2.12"), (old, None)):
        with pytest.raises(UsageError, match=r"nsys|nvtx"):
            require_nsys(nsys, nvtx)


def test_nsys_is_found_by_name_and_by_path(place: Place) -> None:
    found = find_nsys({"PATH": str(place.path)})
    assert found is not None and found.path == str(place.nsys)
    assert (
        find_nsys({"PATH": "/nowhere"}) is None
        and find_nsys({"NSYS": "/nowhere/nsys", "PATH": str(place.path)}) is None
    )


def test_an_export_is_judged_by_its_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LOG", str(place.log))
    nsys, target = Nsys(path=str(place.nsys), version="1"), place.path / "a.sqlite"
    target.write_text("an older export")
    export_sqlite(nsys, place.path / "a.nsys-rep", target)
    assert target.read_bytes().startswith(b"SQLite format 3")
    monkeypatch.setenv("FAKE_FAULT", "no export")
    with pytest.raises(DataError, match="the file is not whole"):
        export_sqlite(nsys, place.path / "a.nsys-rep", target)
    assert not target.exists()
