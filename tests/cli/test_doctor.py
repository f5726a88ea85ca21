"""The doctor's checks on synthetic machines, with every state of every check; and on this real machine."""

from __future__ import annotations

import ctypes
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from distprof.cli.doctor import machine, probe, software
from distprof.cli.doctor.check_result import Check, MachineResult, State
from distprof.cli.doctor.command import CHECKS, count_states, describe, run_checks, show
from distprof.cli.doctor.probe import UNLIMITED, ClockFacts, Facts, Gpu, Limit, TorchFacts
from distprof.cli.doctor.probe_torch import probe_torch, read_driver_cuda
from distprof.cli.parser import run_verb
from distprof.facts.plain import make_plain
from distprof.traces.nsys.nsys_tool import Nsys

GIB = 2**30
A100 = Gpu(name="NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB)
CLOCK = ClockFacts(resolution_ns=1, read_cost_ns=30, source="tsc", synchronised=True, max_error_us=1500)
ON_GPUS = TorchFacts(
    version="2.7.1+cu126", cuda="12.6", hip=None, cuda_available=True, cuda_problem=None, driver_cuda="12.8",
    gpus=(A100,) * 4, nccl="2.26.2", distributed=True, gloo=True, seconds_to_import=2.0,
)  # fmt: skip
ON_CPU = structs.replace(
    ON_GPUS, version="2.7.1+cpu", cuda=None, cuda_available=False, driver_cuda=None, gpus=(), nccl=None
)
HEALTHY = Facts(
    python=(3, 12, 3), packages={"torch": "2.7.1", "nvtx": "0.2.11", "wandb": "0.31.0", "accelerate": "1.15.0"},
    torch=ON_GPUS, driver="570.86.15", nsys=Nsys(path="/opt/nsys", version="2025.1.1.131-251135540420v0"),
    wandb_login=True, environment={"GLOO_SOCKET_IFNAME": "eth0"}, cores=64, clock=CLOCK,
    governors={"performance": 64}, scaling_driver="acpi-cpufreq", shm_bytes=64 * GIB,
    open_files=Limit(soft=1_048_576, hard=1_048_576), locked_memory=Limit(soft=UNLIMITED, hard=UNLIMITED),
    core_files=Limit(soft=0, hard=UNLIMITED), core_pattern="core", perf_event_paranoid=1, infiniband=True,
    runs_dir="runs", free_bytes=500 * GIB, hostname="node7", addresses=("10.0.0.7",),
)  # fmt: skip


def change(**changes: Any) -> Facts:
    """A healthy machine except for these facts; ``torch__x`` is torch's ``x``, ``env`` the environment."""
    inner = {name.removeprefix("torch__"): changes.pop(name) for name in list(changes) if name.startswith("torch__")}
    if inner:
        changes["torch"] = structs.replace(changes.get("torch", ON_GPUS), **inner)
    if "env" in changes:
        changes["environment"] = changes.pop("env")
    return structs.replace(HEALTHY, **changes)


def without(package: str) -> dict[str, str]:
    return {name: version for name, version in HEALTHY.packages.items() if name != package}


OK, WARNING, PROBLEM, ABSENT = State.OK, State.WARNING, State.PROBLEM, State.ABSENT
OLD_NSYS = Nsys(path="/opt/nsys", version="2024.2.3.38-x")
GPUS = (A100, Gpu(name="Tesla T4", memory_bytes=16 * GIB))


def SLOWLY(*, computing: float, without_core: float | None) -> Facts:  # noqa: N802 - as the cases' other facts
    """Importing torch took 30 s, of which so many were spent on a core, and waiting for one."""
    spent = {"torch__seconds_computing": float(computing), "torch__seconds_without_core": without_core}
    return change(torch__seconds_to_import=30.0, **spent)


CASES: list[tuple[Check, Facts, State, str]] = [
    (software.check_python, HEALTHY, OK, "3.12.3"),
    (software.check_python, change(python=(3, 11, 0)), OK, "3.11.0"),
    (software.check_python, change(python=(3, 14, 0)), PROBLEM, "3.11 to 3.13"),
    (software.check_python, change(python=(3, 10, 9)), PROBLEM, "3.10.9"),
    (software.check_torch, HEALTHY, OK, "built for CUDA 12.6"),
    (software.check_torch, change(torch=ON_CPU), OK, "built for CPU"),
    (software.check_torch, change(torch=None, packages={}), PROBLEM, "not installed"),
    (software.check_torch, change(torch=None, torch_problem="no libgomp"), PROBLEM, "does not load: no libgomp"),
    (software.check_torch, change(torch__version="2.5.1"), PROBLEM, "2.6 or newer"),
    (software.check_torch, change(torch__version="2.13.0"), OK, "2.13.0"),
    (software.check_torch, change(torch__seconds_to_import=30.0), WARNING, "waiting for files"),
    (software.check_torch, SLOWLY(computing=4, without_core=2), WARNING, "local disk"),
    (
        software.check_torch,
        SLOWLY(computing=4, without_core=25),
        WARNING,
        "25 s of it without a core: the machine is busy",
    ),
    (software.check_torch, SLOWLY(computing=14, without_core=14), WARNING, "the machine is busy"),
    (software.check_torch, SLOWLY(computing=28, without_core=1), OK, "computing"),
    (software.check_torch, SLOWLY(computing=28, without_core=None), OK, "computing"),
    (software.check_distributed, HEALTHY, OK, "gloo, NCCL"),
    (software.check_distributed, change(torch__distributed=False), PROBLEM, "without torch.distributed"),
    (software.check_distributed, change(torch__gloo=False), PROBLEM, "without gloo"),
    (software.check_distributed, change(torch=None), ABSENT, "does not load"),
    (software.check_cuda, HEALTHY, OK, "4 GPU(s)"),
    (software.check_cuda, change(torch=ON_CPU, driver=None), ABSENT, "no NVIDIA driver"),
    (software.check_cuda, change(torch=None), ABSENT, "does not load"),
    (software.check_cuda, change(torch=ON_CPU), PROBLEM, "built without CUDA"),
    (software.check_cuda, change(torch__cuda_available=False, torch__cuda_problem="too old"), PROBLEM, "too old"),
    (software.check_cuda, change(torch__cuda_available=False, env={"CUDA_VISIBLE_DEVICES": ""}), WARNING, "unset CUDA"),
    (software.check_driver, HEALTHY, OK, "up to CUDA 12.8"),
    (software.check_driver, change(torch__driver_cuda="12.2"), OK, "12.2"),
    (software.check_driver, change(torch__driver_cuda="11.8"), PROBLEM, "too old"),
    (software.check_driver, change(driver=None), ABSENT, "none"),
    (software.check_nccl, HEALTHY, OK, "2.26.2"),
    (software.check_nccl, change(torch__nccl=None), PROBLEM, "gloo"),
    (software.check_nccl, change(torch=ON_CPU), ABSENT, "no GPU"),
    (software.check_nsys, HEALTHY, OK, "2025.1.1"),
    (software.check_nsys, change(nsys=None), ABSENT, "install Nsight Systems"),
    (software.check_nsys, change(nsys=Nsys(path="/x/nsys", version=None)), WARNING, "/x/nsys: prints no version"),
    (software.check_nvtx, HEALTHY, OK, "0.2.11"),
    (software.check_nvtx, change(nsys=None), OK, "no nsys here"),
    (software.check_nvtx, change(packages=without("nvtx")), WARNING, "pip install"),
    (software.check_nvtx, change(packages={"nvtx": "0.2.13"}), OK, "records its ranges"),
    (software.check_nvtx, change(packages={"nvtx": "0.2.13"}, nsys=OLD_NSYS), PROBLEM, "records none of its ranges"),
    (software.check_wandb, HEALTHY, OK, "logged in"),
    (software.check_wandb, change(wandb_login=False), OK, "offline"),
    (software.check_wandb, change(packages=without("wandb")), WARNING, "pip install wandb"),
    (software.check_accelerate, HEALTHY, OK, "1.15.0"),
    (software.check_accelerate, change(torch=ON_CPU), WARNING, "from FSDP to DDP"),
    (software.check_accelerate, change(torch=None), ABSENT, "does not load"),
    (software.check_accelerate, change(packages=without("accelerate")), ABSENT, "pip install accelerate"),
    (software.check_threads, HEALTHY, OK, "not set"),
    (software.check_threads, change(torch=ON_CPU), WARNING, "export OMP_NUM_THREADS=32"),
    (software.check_threads, change(torch=ON_CPU, cores=2), OK, "2 core(s)"),
    (software.check_threads, change(torch=None), ABSENT, "64 core(s)"),
    (software.check_threads, change(env={"OMP_NUM_THREADS": "16"}), OK, "fit"),
    (software.check_threads, change(env={"OMP_NUM_THREADS": "17"}), WARNING, "export OMP_NUM_THREADS=16"),
    (software.check_threads, change(env={"OMP_NUM_THREADS": "all"}), WARNING, "not a number"),
    (software.check_max_connections, HEALTHY, OK, "not set"),
    (software.check_max_connections, change(env={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}), OK, "=8"),
    (software.check_max_connections, change(env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}), WARNING, "share one queue"),
    (software.check_max_connections, change(env={"CUDA_DEVICE_MAX_CONNECTIONS": "64"}), WARNING, "1 to 32"),
    (software.check_launch_blocking, HEALTHY, OK, "not set"),
    (software.check_launch_blocking, change(env={"CUDA_LAUNCH_BLOCKING": "0"}), OK, "ahead"),
    (software.check_launch_blocking, change(env={"CUDA_LAUNCH_BLOCKING": "1"}), PROBLEM, "unset CUDA_LAUNCH_BLOCKING"),
    (software.check_debug_output, HEALTHY, OK, "off"),
    (software.check_debug_output, change(env={"NCCL_DEBUG": "WARN"}), OK, "off"),
    (software.check_debug_output, change(env={"NCCL_DEBUG": "info"}), WARNING, "unset NCCL_DEBUG for"),
    (software.check_debug_output, change(env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}), WARNING, "=DETAIL"),
    (software.check_collective_timing, HEALTHY, OK, "no timing"),
    (software.check_collective_timing, change(env={"TORCH_NCCL_ENABLE_TIMING": "1"}), WARNING, "=1"),
    (software.check_collective_timing, change(env={"TORCH_NCCL_BLOCKING_WAIT": "true"}), WARNING, "BLOCKING_WAIT"),
    (software.check_transports, HEALTHY, OK, "none"),
    (software.check_transports, change(env={"NCCL_P2P_DISABLE": "1"}), WARNING, "unset NCCL_P2P_DISABLE"),
    (software.check_transports, change(env={"NCCL_P2P_DISABLE": "1"}, torch=ON_CPU), ABSENT, "no GPU"),
    (machine.check_gpus, HEALTHY, OK, "4 x NVIDIA A100-SXM4-80GB 80.0 GiB"),
    (machine.check_gpus, change(torch__gpus=GPUS), WARNING, "1 x Tesla T4 16.0 GiB"),
    (machine.check_gpus, change(torch=None), ABSENT, "none"),
    (machine.check_peak, HEALTHY, OK, "312 TFLOP/s (NVIDIA A100 datasheet"),
    (machine.check_peak, change(torch__gpus=(Gpu(name="Nova X1", memory_bytes=1),)), WARNING, "Nova X1 is not in the"),
    (machine.check_peak, change(torch=ON_CPU), ABSENT, "no table"),
    (machine.check_clock, HEALTHY, OK, "1 ns resolution, 30 ns per reading, tsc"),
    (machine.check_clock, change(clock=structs.replace(CLOCK, read_cost_ns=1500)), WARNING, "1500 ns per reading"),
    (machine.check_clock, change(clock=structs.replace(CLOCK, resolution_ns=10**6)), WARNING, "clocksource"),
    (machine.check_time_of_day, HEALTHY, OK, "off by 1.5 ms at most"),
    (machine.check_time_of_day, change(clock=structs.replace(CLOCK, synchronised=False)), WARNING, "chrony"),
    (machine.check_time_of_day, change(clock=structs.replace(CLOCK, synchronised=None)), ABSENT, "does not say"),
    (machine.check_governor, HEALTHY, OK, "performance on 64 core(s)"),
    (machine.check_governor, change(governors={"powersave": 64}), WARNING, "cpupower"),
    (machine.check_governor, change(governors={"powersave": 64}, scaling_driver="intel_pstate"), OK, "powersave"),
    (machine.check_governor, change(governors={"performance": 1, "ondemand": 63}), WARNING, "ondemand on 63"),
    (machine.check_governor, change(governors={}), ABSENT, "does not say"),
    (machine.check_shared_memory, HEALTHY, OK, "64.0 GiB"),
    (machine.check_shared_memory, change(shm_bytes=64 * 2**20), WARNING, "--shm-size"),
    (machine.check_shared_memory, change(shm_bytes=None), ABSENT, "not mounted"),
    (machine.check_open_files, HEALTHY, OK, "1,048,576"),
    (machine.check_open_files, change(open_files=Limit(soft=UNLIMITED, hard=UNLIMITED)), OK, "unlimited"),
    (machine.check_open_files, change(open_files=Limit(soft=1024, hard=524_288)), WARNING, "ulimit -n 65536"),
    (machine.check_open_files, change(open_files=Limit(soft=1024, hard=1024)), WARNING, "limits.conf"),
    (machine.check_locked_memory, HEALTHY, OK, "unlimited"),
    (machine.check_locked_memory, change(locked_memory=Limit(soft=65536, hard=65536)), WARNING, "64.0 KiB"),
    (machine.check_locked_memory, change(locked_memory=Limit(soft=0, hard=0), infiniband=False), OK, "no RDMA"),
    (machine.check_core_files, HEALTHY, OK, "0 B (at most unlimited)"),
    (machine.check_core_files, change(core_files=Limit(soft=UNLIMITED, hard=UNLIMITED)), WARNING, "ulimit -c 0"),
    (
        machine.check_core_files,
        change(core_files=Limit(soft=UNLIMITED, hard=UNLIMITED), core_pattern="|/usr/lib/systemd/systemd-coredump"),
        OK,
        "into a program",
    ),
    (machine.check_perf_events, HEALTHY, OK, "=1"),
    (machine.check_perf_events, change(perf_event_paranoid=4), WARNING, "sysctl"),
    (machine.check_perf_events, change(perf_event_paranoid=4, nsys=None), ABSENT, "=4"),
    (machine.check_perf_events, change(perf_event_paranoid=None), ABSENT, "does not say"),
    (machine.check_disk, HEALTHY, OK, "500.0 GiB free for runs/"),
    (machine.check_disk, change(free_bytes=GIB), WARNING, "1.0 GiB"),
    (machine.check_disk, change(free_bytes=2**20), PROBLEM, "runs_dir="),
    (machine.check_disk, change(runs_dir_problem="/x may not be written"), PROBLEM, "/x may not be written"),
    (machine.check_disk, change(free_bytes=None), ABSENT, "unknown"),
    (machine.check_hostname, HEALTHY, OK, "gloo on eth0"),
    (machine.check_hostname, change(env={}), OK, "node7 is 10.0.0.7"),
    (machine.check_hostname, change(env={}, addresses=("127.0.1.1",)), OK, "for several set GLOO_SOCKET_IFNAME"),
    (machine.check_hostname, change(env={}, addresses=()), WARNING, "does not resolve"),
]


@pytest.mark.parametrize(
    ("check", "facts", "state", "said"), CASES, ids=[f"{case[0].__name__}-{case[2].name}" for case in CASES]
)
def test_a_check_says(check: Check, facts: Facts, state: State, said: str) -> None:
    finding = check(facts)
    assert (finding.state, said in f"{finding.found} {finding.meaning} {finding.fix}") == (state, True), finding
    assert finding.meaning and bool(finding.fix) >= (state in (WARNING, PROBLEM))


def test_every_check_is_shown_and_tried_in_good_and_bad() -> None:
    shown = [check for checks in CHECKS.values() for check in checks]
    written = {
        value for module in (software, machine) for name, value in vars(module).items() if name.startswith("check_")
    }
    assert len(shown) == len(set(shown)) and set(shown) == written == {case[0] for case in CASES}
    for check in shown:
        states = {case[2] for case in CASES if case[0] is check}
        assert OK in states and states & {WARNING, PROBLEM}, check.__name__


def test_a_healthy_machine_is_healthy_and_names_are_told_apart() -> None:
    findings = [finding for found in run_checks(HEALTHY).values() for finding in found]
    assert {finding.state for finding in findings} == {OK}
    assert len({finding.name for finding in findings}) == len(findings)


def render(findings: dict[str, list[MachineResult]], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show(findings, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_what_is_to_be_done_is_readable_at_every_width(width: int) -> None:
    bad = change(env={"CUDA_LAUNCH_BLOCKING": "1"}, shm_bytes=2**26, free_bytes=2**20, torch=None, torch_problem="x")
    text = render(run_checks(bad), width)
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    for finding in (finding for found in run_checks(bad).values() for finding in found):
        assert finding.name in flat, finding.name
    assert "3 problems, 1 warning" in flat and "unset CUDA_LAUNCH_BLOCKING" in flat
    assert ("supported" in flat) == (width == 200), "what is well is explained only where there is room"


def test_json_holds_every_finding() -> None:
    findings = run_checks(HEALTHY)
    document = json.loads(json.dumps(describe(findings), allow_nan=False))
    assert document["counts"]["ok"] == len(document["findings"]) == sum(map(len, findings.values()))
    first = document["findings"][0]
    assert first["group"] == "software" and set(first) == {"group", "name", "state", "found", "meaning", "fix"}
    assert count_states(findings)[PROBLEM] == 0


@pytest.mark.parametrize(("shm_bytes", "broken", "code"), [(GIB, False, 0), (2**20, False, 0), (GIB, True, 1)])
def test_the_exit_code_is_1_for_a_problem_only(
    shm_bytes: int, broken: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = change(shm_bytes=shm_bytes, python=(3, 14, 0) if broken else (3, 12, 0), hostname="evil\x1b[31m canary-key")
    facts = structs.replace(facts, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "canary-key"}, addresses=())
    monkeypatch.setattr("distprof.cli.doctor.command.gather_facts", lambda runs_dir: facts)
    monkeypatch.setenv("WANDB_API_KEY", "canary-key")
    assert run_verb(["doctor"]) == code
    assert run_verb(["doctor", "--json"]) == code
    said = capsys.readouterr().out
    assert "canary" not in said and "\x1b" not in said and "evil" in said


def test_torch_that_does_not_answer_is_a_finding() -> None:
    answer = json.dumps(make_plain(ON_GPUS))
    assert probe.read_answer(f"a line of someone else\n{answer}\n", "", 0) == (ON_GPUS, None)
    for said, complaint, ended, reason in (
        ("", "Traceback\nImportError: libcudnn.so.9\n", 1, "ImportError: libcudnn.so.9"),
        ("", "", -11, "ended with exit code -11"),
        ("{", "", 0, "invalid answer"),
        ('{"version": 1}', "", 0, "invalid answer"),
    ):
        facts, problem = probe.read_answer(said, complaint, ended)
        assert facts is None and problem is not None and reason in problem


def test_the_own_torch_is_described_as_it_is() -> None:
    import torch

    facts, problem = probe.read_answer(json.dumps(probe_torch()), "", 0)
    assert problem is None and facts is not None
    assert facts.version == torch.__version__ and facts.cuda == torch.version.cuda
    assert len(facts.gpus) == torch.cuda.device_count() and facts.gloo


def test_this_machine_is_examined_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torn to pieces')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "canary-key")
    facts = probe.gather_facts(str(tmp_path / "not" / "yet" / "there"))
    assert facts.torch is None and facts.torch_problem == "ImportError: torn to pieces"
    assert facts.python == sys.version_info[:3] and facts.cores >= 1 and (facts.free_bytes or 0) > 0
    assert facts.runs_dir_problem is None and "canary" not in repr(facts)
    assert 0 < facts.clock.read_cost_ns < 10**9 and facts.clock.resolution_ns >= 1
    states = {finding.name: finding.state for found in run_checks(facts).values() for finding in found}
    assert states["torch"] is PROBLEM and states["distributed"] is ABSENT


def test_a_folder_that_is_a_file_is_no_place_for_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    facts = structs.replace(HEALTHY, runs_dir_problem=probe._locate_folder(tmp_path / "runs")[1])
    assert machine.check_disk(facts).found == f"{tmp_path / 'runs'} is not a folder"


@pytest.mark.parametrize(
    ("code", "number", "expected"), [(0, 13000, "13.0"), (0, 12040, "12.4"), (0, 0, None), (3, 13000, None)]
)
def test_the_driver_itself_says_which_cuda_it_knows(
    code: int, number: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802 CUDA's name
            out._obj.value = number
            return code

    monkeypatch.setattr(ctypes, "CDLL", Driver)
    assert read_driver_cuda() == expected


def test_without_a_driver_its_cuda_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert read_driver_cuda() is None
