"""`launch/slurm.sh` on a made-up Slurm: what it starts where, how it ends, and jobs of two nodes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.links.two_namespaces import ADDRESSES, DEVICE, enter, join_hosts
from distprof.storage.generations import read_generations
from distprof.storage.run_folder import read_run
from tests.fake_slurm import FakeSlurm
from tests.ranks import REPOSITORY, find_ports, make_environment, wait_until

SCRIPT = REPOSITORY / "launch" / "slurm.sh"
ARGUMENTS = ("--nodes", "2", "--gpus-per-node", "4", str(SCRIPT))
JOB = ("train=gpt2_tiny", "train.steps=6", "train.warmup_steps=2", "logger=none", "hardware.peak=none")
RECORDER = """#!{python}
import json, os, sys, time
words = sys.argv[1:]
with open({log!r}, "a") as log:
    node, again = os.environ.get("SLURM_NODEID"), os.environ.get("SLURM_RESTART_COUNT", "0")
    log.write(json.dumps([node, words, again]) + chr(10))
told = json.loads(os.environ.get("RECORDER", "{{}}"))
print("checked" if "doctor" in words else "", flush=True)
if "doctor" in words and node == "1":
    sys.exit(told.get("doctor", 0))
if "torch.distributed.run" in words and "doctor" not in words and again == "0" and "wait" in told:
    time.sleep(60)
sys.exit(told.get("torchrun", 0) if "torch.distributed.run" in words and "doctor" not in words else 0)
"""
"""A stand-in for Python that writes down what it was to run, and on which node."""


class Cluster(FakeSlurm):
    """A made-up cluster whose Python only writes down what it is called with."""

    def make_python(self) -> Path:
        python = self.place / "recorder"
        python.write_text(RECORDER.format(python=sys.executable, log=str(self.place / "log")))
        python.chmod(0o755)
        return python

    def start(self, *arguments: str, told: Mapping[str, Any] | None = None, **more: str) -> subprocess.Popen[str]:
        variables = {"PYTHON": str(self.make_python()), "RECORDER": json.dumps(told or {}), **more}
        environment = make_environment(**self.name_environment(), **variables)
        return subprocess.Popen(
            ["sbatch", *arguments], cwd=self.place, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def submit(self, *arguments: str, told: Mapping[str, Any] | None = None, **more: str) -> tuple[int, str]:
        """The exit code, and what was printed."""
        job = self.start(*arguments, told=told, **more)
        out, err = job.communicate(timeout=60)
        return job.returncode, out + err

    def list_started(self, *, again: int = 0) -> list[tuple[str | None, list[str]]]:
        """By node, the arguments of Python: the node's number, None of the batch script."""
        lines = (self.place / "log").read_text().splitlines()
        return sorted(((node, words) for node, words, count in map(json.loads, lines) if count == str(again)), key=str)

    def list_torchruns(self, *, again: int = 0, doctor: bool = False) -> list[list[str]]:
        """Of each node, the arguments of the torchrun that trains, or compares the nodes."""
        both = [words[2:] for _, words in self.list_started(again=again) if words[1] == "torch.distributed.run"]
        return [words for words in both if ("doctor" in words) == doctor]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(place=tmp_path / "cluster", nodes={"node0": ["env"], "node1": ["env"]})
    made.install()
    return made


def test_the_script_is_without_faults() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck on PATH")
    done = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_torchrun_is_started_on_every_node_and_they_meet_on_the_first(cluster: Cluster) -> None:
    code, said = cluster.submit(*ARGUMENTS, "train=gpt2_small", "name='a $b'")
    assert code == 0 and said.count("0: checked") == said.count("1: checked") == 1, said
    for number, words in enumerate(cluster.list_torchruns()):
        assert words == [
            "--rdzv-conf", f"is_host={1 - number}", "--local-addr", f"node{number}", "--nnodes", "2",
            "--nproc-per-node", "4", "--rdzv-backend", "c10d", "--rdzv-id", "77-0", "--rdzv-endpoint", "node0:15077",
            "--max-restarts", "0", "-m", "distprof", "train=gpt2_small", "name='a $b'",
        ]  # fmt: skip
    doctor = ["-m", "distprof", "doctor", "--runs-dir", "runs"]
    assert [item for item in cluster.list_started() if item[1] == doctor] == [("0", doctor), ("1", doctor)]
    for words in cluster.list_torchruns(doctor=True):
        assert words[words.index("--nproc-per-node") + 1] == "1" and "77-0-doctor" in words
        assert words[-5:] == ["distprof", "doctor", "--all-ranks", "--runs-dir", "runs"]
    assert len(cluster.list_started()) == 6
    (submitted,) = cluster.read_calls("sbatch")
    assert submitted["exclusive"] and submitted["ntasks_per_node"] == 1
    assert all(call["ntasks_per_node"] == 1 and call["cpu_bind"] == "none" for call in cluster.read_calls("srun"))


@pytest.mark.parametrize(
    ("given", "job"),
    [
        (["-m", "distprof.attach", "name=x", "train.py", "--epochs", "2"],
         ["-m", "distprof.attach", "name=x", "train.py", "--epochs", "2"]),
        (["train.py", "--lr", "1 e"], ["train.py", "--lr", "1 e"]),
        (["-m", "my.train", "--x"], ["-m", "my.train", "--x"]),
        ([], ["-m", "distprof"]),
    ],
    ids=["attach", "script", "module", "nothing"],
)  # fmt: skip
def test_what_runs_is_a_job_of_distprof_or_ones_own_script(given: list[str], job: list[str], cluster: Cluster) -> None:
    assert cluster.submit(*ARGUMENTS, *given)[0] == 0
    both = cluster.list_torchruns()
    assert len(both) == 2 and all(words[words.index("node0:15077") + 3 :] == job for words in both)


@pytest.mark.parametrize(
    ("gpus", "nproc", "ranks"), [("4", None, "4"), ("a100:8", None, "8"), (None, None, "1"), ("8", "3", "3")]
)
def test_there_is_a_rank_per_gpu_unless_told_otherwise(
    gpus: str | None, nproc: str | None, ranks: str, cluster: Cluster
) -> None:
    words = ["--nodes", "2", *(["--gpus-per-node", gpus] if gpus else []), str(SCRIPT)]
    more = {"NPROC": nproc} if nproc else {}
    assert cluster.submit(*words, MAX_RESTARTS="3", MASTER_PORT="29400", **more)[0] == 0
    first, _ = cluster.list_torchruns()
    assert first[first.index("--nproc-per-node") + 1] == ranks
    assert first[first.index("--max-restarts") + 1] == "3" and "node0:29400" in first


def test_nothing_is_trained_where_a_node_is_not_fit(cluster: Cluster) -> None:
    code, said = cluster.submit(*ARGUMENTS, told={"doctor": 1})
    assert code == 1 and said.endswith("distprof: a node is not fit, see above; PREFLIGHT=no starts all the same\n")
    assert not cluster.list_torchruns()


def test_without_a_preflight_the_ranks_start_at_once(cluster: Cluster) -> None:
    assert cluster.submit(*ARGUMENTS, told={"doctor": 1}, PREFLIGHT="no")[0] == 0
    assert len(cluster.list_started()) == len(cluster.list_torchruns()) == 2


def test_the_exit_code_is_that_of_the_ranks(cluster: Cluster) -> None:
    code, _ = cluster.submit(*ARGUMENTS, told={"torchrun": 7})
    assert code in (7, 143)  # srun ends the other task, and returns the highest code
    assert not [call for call in cluster.read_calls("scontrol") if call["words"][0] == "requeue"]


def test_outside_of_slurm_it_says_how_it_is_started(tmp_path: Path) -> None:
    environment = {name: value for name, value in make_environment().items() if not name.startswith("SLURM")}
    done = subprocess.run(
        [str(SCRIPT)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "") and "sbatch --nodes 2" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_on_usr1_the_ranks_end_and_the_job_queues_again(number: signal.Signals, cluster: Cluster) -> None:
    job = cluster.start("--requeue", "--signal=B:USR1@120", *ARGUMENTS, told={"wait": True})
    wait_until(lambda: (cluster.place / "log").exists() and len(cluster.list_torchruns()) == 2, [job])
    os.kill(int((cluster.place / "batch.pid").read_text()), number)
    out, err = job.communicate(timeout=60)
    requeued = [call["words"] for call in cluster.read_calls("scontrol") if call["words"][0] == "requeue"]
    if number == signal.SIGTERM:  # of scancel: it ends, and stays away
        assert job.returncode == 143 and not requeued, out + err
        return
    assert job.returncode == 0 and requeued == [["requeue", "77"]], out + err
    assert ["77-1" in words for words in cluster.list_torchruns(again=1)] == [True, True]  # another meeting


def launch(slurm: FakeSlurm, arguments: Sequence[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A real job of a rank on each of two nodes, which must succeed."""
    slurm.install()
    environment = make_environment(
        **slurm.name_environment(),
        PYTHON=sys.executable,
        OMP_NUM_THREADS="1",
        MASTER_PORT=str(find_ports(1)[0]),
        **more,
    )
    done = subprocess.run(
        ["sbatch", "--nodes", "2", str(SCRIPT), *arguments], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=280, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


FAILS_ONCE = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
import runpy
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    os.environ["FAILS_AT"] = "3"
runpy.run_path("loop.py", run_name="__main__")
"""
LOOP = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    if os.environ.get("FAILS_AT") == str(step):
        raise RuntimeError("the first start fails")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_job_that_is_started_again_leaves_one_run_with_a_generation_for_every_start(tmp_path: Path) -> None:
    """Two nodes that are addresses of this machine, one's own script, and a rank that fails the first time."""
    (tmp_path / "train.py").write_text(FAILS_ONCE)
    (tmp_path / "loop.py").write_text(LOOP)
    slurm = FakeSlurm(place=tmp_path / "slurm", nodes={"127.0.0.1": ["env"], "127.0.0.2": ["env"]})
    words = ["-m", "distprof.attach", "warmup_steps=1", "train.py"]
    launch(slurm, words, tmp_path, MAX_RESTARTS="1", GLOO_SOCKET_IFNAME="lo", PREFLIGHT="no")
    (folder,) = (tmp_path / "runs").iterdir()
    second, _ = read_generations(folder)
    assert "failed" in [info.ended for info in second.others[0].ranks] and second.generation == 1
    assert [info.ended for info in second.ranks] == ["completed"] * 2 and second.meta.world_size == 2
    listed = json.loads((folder / "report.json").read_text())["generations"]
    assert [item["restarts"] for item in listed] == [0, 1] and listed[1]["lost_ns"] > 0


@contextlib.contextmanager
def join_nodes(place: Path) -> Iterator[FakeSlurm]:
    """Two hosts; what each sees at ``/PLACE/local`` is a disk of its own."""
    local = place / "local"
    local.mkdir()
    with join_hosts(None) as names:
        nodes = {}
        for host, (name, address) in enumerate(zip(names, ADDRESSES, strict=True)):
            disk = place / f"disk-{host}"
            disk.mkdir()
            mount = ["sh", "-c", f'mount --bind "{disk}" "{local}" && exec "$@"', "sh"]
            nodes[address] = [*enter(name, f"host-{'ab'[host]}", ["--mount"]), *mount]
        yield FakeSlurm(place=place / "slurm", nodes=nodes)


@pytest.mark.root
@pytest.mark.slow
def test_a_job_on_two_hosts_is_one_run_without_a_shared_disk(tmp_path: Path) -> None:
    """With one, it is the job above."""
    with join_nodes(tmp_path) as slurm:
        runs = str(tmp_path / "local" / "deep")
        done = launch(slurm, JOB, tmp_path, GLOO_SOCKET_IFNAME=DEVICE, NODE_RUNS=runs)
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert [(info.host, info.ended) for info in sorted(run.ranks, key=lambda info: info.host)] == [
        ("host-a", "completed"), ("host-b", "completed"),
    ]  # fmt: skip
    assert run.warnings == () and run.rows.shape[:2] == (2, 8)
    assert run.collectives[0].ranks.tolist() == [0, 1]  # also of the rank that rank 0 has only sums of
    assert (folder / "report.html").exists()
    assert "\n0: " in done.stdout and "\n1: " in done.stdout and "\n2 hosts: " in done.stdout  # the preflight
    assert "(2 of 2 ranks, 1 from other hosts)" in done.stdout
    assert not list((tmp_path / "local").iterdir())  # the script itself sees neither host's disk
    assert all((tmp_path / f"disk-{host}" / "deep" / "77-0").is_dir() for host in (0, 1))
