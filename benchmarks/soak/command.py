"""The soak: ranks train while they are killed, stopped, delayed, cut off, or cannot write, for as long as one likes."""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.soak.cut_links import can_cut, cut_links
from benchmarks.soak.folder_check import (
    UNDISTURBED_STEPS,
    Counts,
    Rows,
    check_rows,
    check_verdict,
    count_steps,
    find_folder,
    list_pids,
)
from benchmarks.soak.leftovers import (
    list_ports,
    list_processes,
    list_shared,
    list_sockets,
    list_unused,
    read_other_cpu_s,
)
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError
from distprof.storage.generations import find_newest, read_generations
from distprof.storage.run_folder import rank_path
from distprof.storage.run_tail import RankTail

PROGRAM = Path(__file__).parent / "program.py"
LIMIT_S = 120.0
"""What takes longer is a failure: a start of the ranks, a restart, the end of a job."""
LOOK_S = 0.2
HELD_S = 1.5
"""How long a rank is stopped, or cannot write."""
DELAYED_STEPS, SETTLE_STEPS = UNDISTURBED_STEPS + 20, 10
QUIET_RATIO = 0.05
"""Of the cores' time: where others take more, a rank that is named may well have been slow."""
MOST_RESTARTS = 3
"""Of one job; then another one begins."""
CUT = "cut link"
EVENTS = ("kill", "stop", "delay", "full disk", CUT)
DESCRIPTION = f"""\
Trains gloo ranks under torchrun's elastic agent, with distprof attached, and disturbs them at random: a rank is
killed, and all are started again; stopped for a while; delayed in each step; cut off from the others, all its
connections to them at once, so that training fails and is started again (needs root and iproute2; elsewhere it is
killed instead); or cannot write any more, and is then killed (a limit on the size of files stands in for a full disk).
After every event it checks that the run folder is readable, that no row that had been flushed is lost, and that the
verdict names nobody for the {UNDISTURBED_STEPS} or more undisturbed steps before, and the delayed rank for delayed
steps; where others used more than {QUIET_RATIO:.0%} of the cores' time meanwhile, a wrong one is only counted. After
every job it checks that each start is a generation, that the last one completed, and that no process, port or file in
shared memory is left. Exit code 1: something of this failed.
"""


def add_soak(subjects: argparse._SubParsersAction[Any]) -> None:
    """Adds the benchmark to the command line."""
    soak = subjects.add_parser("soak", help="ranks that are disturbed at random", description=DESCRIPTION)
    soak.add_argument("--minutes", type=float, default=2.0, help="how long; the job at hand is ended (default: 2)")
    soak.add_argument("--seed", type=int, default=0, help="of the events (default: 0)")
    soak.add_argument("--ranks", type=int, default=2, help="processes on this machine (default: 2)")
    soak.add_argument("--events", type=int, help="end after so many, too")


def run_soak(options: argparse.Namespace) -> int:
    """Runs jobs until the time is over, and prints what was seen."""
    counts, draws, until_s = Counts(), random.Random(options.seed), time.monotonic() + 60 * options.minutes
    shared = list_shared()
    with tempfile.TemporaryDirectory(prefix="distprof-soak-") as place:
        for number in range(1_000_000):
            done = sum(counts.events.values())
            left = None if options.events is None else options.events - done
            if time.monotonic() >= until_s or left == 0 or len(counts.failures) > 20:
                break
            folder = Path(place, str(number))
            folder.mkdir()
            job = SoakJob(folder, options.ranks, draws, counts)
            try:
                job.run(until_s, left)
            except DistprofError as error:
                counts.failures.append(str(error))
            finally:
                job.end()
    counts.failures += [f"/dev/shm/{name}: left over" for name in list_unused(list_shared() - shared)]
    events = ", ".join(f"{count} {name}" for name, count in sorted(counts.events.items())) or "none"
    print(f"events: {events}; jobs: {number}")
    print(f"rows read: {counts.rows:,}; flushed rows lost: {counts.rows_lost}")
    print(f"verdicts: {counts.verdicts}, of which name a rank on a machine that others used: {counts.busy}")
    print(f"failures: {len(counts.failures)}")
    for line in counts.failures:
        print(f"  {line}")
    return EXIT_FAILED if counts.failures else EXIT_OK


class SoakJob:
    """One job under torchrun, from its start to its end."""

    def __init__(self, place: Path, ranks: int, draws: random.Random, counts: Counts) -> None:
        """Starts it in a folder of its own."""
        self._place, self._ranks, self._draws, self._counts = place, ranks, draws, counts
        self._mark = f"DISTPROF_SOAK={uuid.uuid4().hex}"
        self._restarts, self._rows, self._first = 0, Rows(), 0
        self._tails: dict[Path, RankTail] = {}
        self._others = (0.0, time.monotonic())
        name, _, value = self._mark.partition("=")
        environment = os.environ | {name: value, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        launch += [f"--max-restarts={MOST_RESTARTS}"]
        self._log = (place / "log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, *launch, "-m", "distprof.attach", f"runs_dir={place}/runs",
              "profile.window_s=0.2", "profile.keep_steps=1000000", str(PROGRAM), str(place)],
            env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, until_s: float, events: int | None) -> None:
        """Disturbs it until the time is over, so many events are done, or it may not be started again; ends it.

        Raises:
            DistprofError: It did not go on, or could not be read.
        """
        self._wait("the first steps", lambda: find_folder(self._place / "runs") is not None)
        folder = find_folder(self._place / "runs")
        assert folder is not None
        self._others, count = self._read_others(), 0
        while time.monotonic() < until_s and count != events and self._restarts < MOST_RESTARTS:
            self._train(folder, self._first + UNDISTURBED_STEPS + SETTLE_STEPS)
            last, quiet = count_steps(folder, self._tails)[1], self._was_quiet()
            check_verdict(folder, self._first, last, None, self._counts, quiet=quiet)
            self._rows = check_rows(folder, self._rows, self._counts)
            event = self._draws.choice(EVENTS)
            event = "kill" if event == CUT and not can_cut() else event
            self._counts.events[event] = self._counts.events.get(event, 0) + 1
            self._disturb(folder, event, self._draws.randrange(self._ranks))
            self._rows = check_rows(folder, self._rows, self._counts)
            count += 1
        self._finish(folder)

    def _disturb(self, folder: Path, event: str, rank: int) -> None:
        pids = [*list_pids(folder)]
        pid = pids[rank]
        kill = partial(os.kill, pid, signal.SIGKILL)
        if event == "kill":
            self._restart(folder, kill)
        elif event == CUT:
            self._restart(folder, lambda: cut_links(pid, [other for other in pids if other != pid]))
        elif event == "stop":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(HELD_S)
            os.kill(pid, signal.SIGCONT)
        elif event == "delay":
            first, self._others = count_steps(folder, self._tails)[1], self._read_others()
            (self._place / f"delay-{rank}").touch()
            self._train(folder, first + DELAYED_STEPS)
            begin, end = first + SETTLE_STEPS, first + DELAYED_STEPS
            check_verdict(folder, begin, end, rank, self._counts, quiet=self._was_quiet())
            (self._place / f"delay-{rank}").unlink()
        else:
            size = rank_path(find_newest(folder), rank).stat().st_size
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 100, before[1]))
            time.sleep(HELD_S)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
            self._restart(folder, kill)  # it writes nothing more
        steps = count_steps(folder, self._tails)[1]
        self._train(folder, steps + 2 * SETTLE_STEPS)
        self._first, self._others = count_steps(folder, self._tails)[1], self._read_others()

    def _read_others(self) -> tuple[float, float]:
        """CPU time of everything but this job and these checks, and when it was read, s."""
        return read_other_cpu_s([os.getpid(), *list_processes(self._mark)]), time.monotonic()

    def _was_quiet(self) -> bool:
        """Whether others left the machine to the ranks since the undisturbed stretch began."""
        (before_s, began_s), (after_s, now_s) = self._others, self._read_others()
        return after_s - before_s < QUIET_RATIO * (now_s - began_s) * (os.cpu_count() or 1)

    def _restart(self, folder: Path, disturb: Callable[[], object]) -> None:
        self._rows = check_rows(folder, self._rows, self._counts)
        self._restarts += 1
        disturb()
        self._train(folder, SETTLE_STEPS)

    def _train(self, folder: Path, steps: int) -> None:
        def is_there() -> bool:
            number, done = count_steps(folder, self._tails)
            return number == self._restarts and done >= steps

        self._wait(f"step {steps} of generation {self._restarts}", is_there)

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not holds():
            if self._process.poll() is not None or time.monotonic() > until_s:
                said = (self._place / "log").read_text(errors="replace")[-1500:]
                raise DistprofError(f"{self._place}: {what} did not come; exit code {self._process.returncode}: {said}")
            time.sleep(LOOK_S)

    def _finish(self, folder: Path) -> None:
        sockets = list_sockets(list_processes(self._mark))
        (self._place / "stop").touch()
        try:
            code = self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise DistprofError(f"{folder}: the job does not end") from None
        self._rows = check_rows(folder, self._rows, self._counts)
        run, _ = read_generations(folder)
        found, ended = sorted([*run.others, run.generation]), {info.ended for info in run.ranks}
        if code or found != [*range(self._restarts + 1)] or ended != {"completed"}:
            self._counts.failures.append(f"{folder}: exit code {code}, generations {found}, the ranks ended {ended}")
        if not (folder / "report.json").exists():
            self._counts.failures.append(f"{folder}: no report was written")
        left = [*list_processes(self._mark), *list_ports(sockets)]
        if left:
            self._counts.failures.append(f"{folder}: processes or ports are left over: {left}")

    def end(self) -> None:
        """Ends whatever of it still lives."""
        for pid in list_processes(self._mark):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
