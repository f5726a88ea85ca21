"""Jobs that hang, each in its own way: the report names the rank that did not come, the collective, and the place.

The jobs run at the same time, two gloo ranks each, and rank 1 is the one to blame.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distprof.cli.parser import run_verb
from distprof.config.schema import HardwareConfig, ProfileConfig
from distprof.errors import EXIT_PARTIAL
from distprof.profiler.profiler import Profiler
from distprof.profiler.start import start_profiler
from distprof.world import Identity, World
from tests.ranks import prepare_server

RANKS, CULPRIT, LAST_STEP = 2, 1, 3
TIMEOUT_S = 4.0
LIMIT_S = 60.0
"""However busy this machine is."""


class Batches:
    """A data set that one rank may not get out of."""

    def __init__(self, endless: bool) -> None:
        self._endless = endless

    def read(self, step: int) -> torch.Tensor:
        while self._endless and step == LAST_STEP:
            pass
        return torch.full((4,), float(step))


def sleep_first() -> None:
    time.sleep(10 * LIMIT_S)


def train(profiler: Profiler, case: str, rank: int) -> None:
    """Two collectives in each step; the culprit comes to neither of the last step's, or only to the first."""
    culprit = rank == CULPRIT
    batches = Batches(culprit and case == "endless")
    for step in range(100):
        if culprit and case == "left" and step == LAST_STEP:
            return
        with profiler.step():
            with profiler.phase("data"):
                batch = batches.read(step)
            dist.all_reduce(batch)
            with profiler.phase("backward"):
                if culprit and step == LAST_STEP and case == "asleep":
                    sleep_first()
                elif culprit and step == LAST_STEP and case in ("stopped", "killed"):
                    os.kill(os.getpid(), signal.SIGSTOP if case == "stopped" else signal.SIGKILL)
                dist.all_reduce(batch)


def run_rank(rank: int, case: str, place: str) -> None:
    """One rank of a job that hangs."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=TIMEOUT_S)
    )
    identity = Identity(
        rank=rank, local_rank=rank, world_size=RANKS, local_world_size=RANKS, launched=True, restarts=0
    )  # fmt: skip
    world = World(identity=identity, host=os.uname().nodename, device=torch.device("cpu"), backend="gloo", notes=())
    job = start_profiler(
        world, name=case, strategy="plain", precision="fp32", config={}, run_dir=f"{place}/run", say=lambda text: None,
        profile=ProfileConfig(
            level="phases", nvtx=False, nvtx_module_depth=0, window_s=0.05, shadow_every=0, max_overhead_ratio=None
        ),
        hardware=HardwareConfig(peak="none"),
    )  # fmt: skip
    error: BaseException | None = None
    try:
        train(job.profiler, case, rank)
    except BaseException as raised:
        error = raised
    job.profiler.close(error)
    os._exit(0 if error is None else 1)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The run folder of a job whose ranks, all but the culprit, have ended."""
    server = prepare_server()
    places = {case: tmp_path_factory.mktemp(case) for case in ("asleep", "left", "endless", "stopped", "killed")}
    started: dict[str, list[BaseProcess]] = {}
    for case, place in places.items():
        started[case] = [server.Process(target=run_rank, args=(rank, case, str(place))) for rank in range(RANKS)]
        for process in started[case]:
            process.start()

    def wait(case: str) -> Path:
        for rank, process in enumerate(started[case]):
            if rank != CULPRIT:
                process.join(LIMIT_S)
                assert process.exitcode == 1
        return places[case] / "run"

    yield wait
    for processes in started.values():
        for process in processes:
            process.kill()
            process.join(LIMIT_S)


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
    """The first sentence that the report shows, and what report.json holds of the hang."""
    assert run_verb(["report", str(folder), "--width", "1000"]) == EXIT_PARTIAL
    first, *rest = capsys.readouterr().out.splitlines()
    hang: dict[str, Any] = json.loads((folder / "report.json").read_text())["hang"]
    assert "where ranks stood" in "\n".join(rest)
    assert first.partition(":")[0] in (folder / "report.html").read_text()
    return first, hang


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "collective", "state", "told"),
    [
        ("asleep", 2, "stands", "it stands in step 3, backward, at test_hangs.py:{line} sleep_first"),
        ("left", 1, "completed", "it has left its training loop and completed; last seen after step 2"),
        ("endless", 1, "stands", "it stands in step 3, data, at test_hangs.py:{line} read"),
        (
            "stopped", 2, "silent",
            "it does not answer (stopped, or in code that never releases Python's lock); last seen in step 3, backward",
        ),
        ("killed", 2, "gone", "it is gone (killed?); last seen in step 3, backward"),
    ],
)  # fmt: skip
def test_fault_03_the_report_names_who_did_not_come_to_which_collective(
    jobs: Callable[[str], Path], case: str, collective: int, state: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence, hang = report(jobs(case), capsys)
    absent, waiting = hang["stands"]
    line = "" if absent["where"] is None else absent["where"].partition(":")[2].split()[0]
    since = "" if case == "killed" else f"no step had ended for {0.8 * TIMEOUT_S:.1f} s: "
    which = f"all_reduce {collective} of step 3 (default group), which rank 0 waits for"
    assert sentence.rstrip() == f"{since}rank 1 did not come to {which}: {told.format(line=line)}"
    assert (hang["kind"], hang["absent"], hang["waiting"]) == ("absent", [CULPRIT], [0])
    assert (absent["ranks"], absent["state"], waiting["ranks"]) == ([CULPRIT], state, [0])
    assert waiting["pending"] == hang["collective"] and hang["collective"]["in_step"] == collective
    if state == "stands":  # the frames of the user's own code, and nothing else
        assert [frame.split()[1] for frame in absent["stack"]][1:] == ["train", "run_rank"]
    if case != "killed":
        assert [frame.split()[1] for frame in waiting["stack"] if "test_hangs.py" in frame] == ["train", "run_rank"]
        assert waiting["where"].endswith(" train")
