"""`distprof watch` beside folders that grow step by step, by a made-up clock."""

from __future__ import annotations

import io
import os
import pty
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from rich.console import Console

from benchmarks.fuzz.cases import make_case
from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.cli.parser import run_verb
from distprof.cli.watch import command, watcher
from distprof.cli.watch.command import find_next, find_run
from distprof.cli.watch.keyboard import Keyboard, open_keyboard
from distprof.cli.watch.watcher import Watcher
from distprof.errors import DataError, UsageError
from distprof.facts.run import Launch, Phase, Run
from distprof.render.sections.verdict import describe_verdict
from distprof.render.terminal.watch_screen import describe_watch_line, fit_watch_screen
from distprof.storage.generations import find_latest_run
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import rank_path, read_run, write_meta
from tests.factories import MS

LATE = Delay(rank=2, phase=Phase.DATA, delay_ns=20 * MS, first_step=40)
JOB = SimulatedJob(num_ranks=4, ranks_per_host=4, num_steps=130, delays=(LATE,))


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class GrowingJob:
    """A simulated job that writes its steps when told to."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder, self.run, self.lives, self.done = folder, run, [True] * len(run.ranks), 0
        (folder / "ranks").mkdir(parents=True)
        write_meta(folder, run.meta)
        self.writers = [
            StreamWriter(
                rank_path(folder, info.rank), run_id=run.meta.run_id, world_size=run.meta.world_size,
                info=structs.replace(info, ended=None),
            )
            for info in run.ranks
        ]  # fmt: skip

    def write(self, steps: int, ranks: list[int] | None = None) -> None:
        for rank in range(len(self.writers)) if ranks is None else ranks:
            rows = self.run.rows[rank, self.done : self.done + steps].round()
            self.writers[rank].write_steps(list(rows), [None] * len(rows))
        self.done += steps

    def end(self, *ranks: int, ended: str = "completed") -> None:
        for rank in ranks:
            self.writers[rank].write_end(ended, error=None, traceback=None, rows_lost=0, notes=())
            self.lives[rank] = False


@pytest.fixture(scope="module")
def simulated() -> Run:
    return simulate(JOB, seed=3, truth=False).run


@pytest.fixture
def job(tmp_path: Path, simulated: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[GrowingJob]:
    """Which ranks live is told by the job, since this process holds all their locks."""
    here = os.uname().nodename
    ranks = tuple(structs.replace(info, host=here) for info in simulated.ranks)
    made = GrowingJob(tmp_path / "run", structs.replace(simulated, ranks=ranks))

    def is_held(descriptor: int) -> bool:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        return made.lives[int(Path(name).stem.removeprefix("rank-"))]

    monkeypatch.setattr("distprof.facts.writer_liveness.is_held", is_held)
    yield made
    for writer in made.writers:
        writer.close()


@pytest.fixture(autouse=True)
def given_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By how much a command has lowered its priority, which this process could not raise again."""
    found: list[int] = []
    monkeypatch.setattr("os.nice", found.append)
    return found


def do_at_once(work: Callable[[], None]) -> None:
    work()


def open_watcher(job: GrowingJob, clock: Clock, start: watcher.Start = do_at_once) -> Watcher:
    return Watcher(job.folder, now_s=clock, start=start)


def test_a_delay_that_begins_in_mid_run_is_named_while_the_job_runs(job: GrowingJob) -> None:
    clock, said = Clock(), []
    watched = open_watcher(job, clock)
    for _ in range(6):
        job.write(20)
        clock.now_s += 3
        progress = watched.look()
        report, age_s, problem = watched.report
        assert report is not None and (age_s, problem) == (0.0, "") and not progress.over
        assert describe_verdict(report) == describe_verdict(analyze(read_run(job.folder)))
        said.append(report.verdict.rank)
    assert said[:2] == [None] * 2 and said[-3:] == [2] * 3
    assert (progress.steps_done, progress.steps_total) == (120, None)


def test_the_report_is_made_again_after_20_steps_or_30_s_and_not_without_a_pause(
    job: GrowingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, takes_s, made = Clock(), [0.0], list[float]()

    def analyze_slowly(run: Run) -> None:
        made.append(clock.now_s)
        clock.now_s += takes_s[0]

    monkeypatch.setattr(watcher, "analyze", analyze_slowly)
    watched = open_watcher(job, clock)

    def look(steps: int, after_s: float) -> int:
        """How many reports are made."""
        before = len(made)
        job.write(steps)
        clock.now_s += after_s
        watched.look()
        return len(made) - before

    assert [look(5, 1.0), look(19, 3.0), look(1, 1.0)] == [1, 0, 1]
    assert [look(20, 1.0), look(0, 1.5)] == [0, 1]  # two seconds at least lie between
    takes_s[0] = 10.0
    assert look(20, 5.0) == 1
    takes_s[0] = 0.0
    assert [look(20, 39.0), look(0, 2.0)] == [0, 1]  # 40 s are left free after one that took 10 s
    assert [look(0, 29.0), look(0, 2.0)] == [0, 1]  # no new step, but 30 s


def test_no_report_is_begun_before_the_last_is_done(job: GrowingJob) -> None:
    clock, works = Clock(), list[Callable[[], None]]()
    watched = open_watcher(job, clock, works.append)
    for _ in range(3):
        job.write(20)
        clock.now_s += 40
        watched.look()
    assert len(works) == 1 and watched.report[0] is None
    works[0]()
    clock.now_s += 40
    watched.look()
    assert len(works) == 2 and watched.report[0] is not None


def test_each_rank_is_as_fresh_as_its_last_row(job: GrowingJob) -> None:
    clock = Clock()
    watched = open_watcher(job, clock)
    job.write(5)
    watched.look()
    for _ in range(3):
        clock.now_s += 5
        job.write(1, [0, 1, 3])
        ages_s = [rank.fresh_s for rank in watched.look().ranks]
    assert ages_s[:2] + ages_s[3:] == [0.0] * 3 and ages_s[2] == pytest.approx(15.0, abs=1.0)  # at first by the file


def test_a_killed_job_is_over_and_says_so(
    job: GrowingJob, capsys: pytest.CaptureFixture[str], given_up: list[int]
) -> None:
    job.write(30)
    watched = open_watcher(job, Clock())
    assert not watched.look().over
    job.lives[2] = False
    assert not watched.look().over  # the others may go on for a while
    job.end(0, 1, 3, ended="failed")
    assert run_verb(["watch", str(job.folder), "--plain"]) == 0 and given_up == [10]
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "the job has ended: ranks 0-1, 3 failed, rank 2 gone without an end (killed?)" in said
    assert "rank 2 is missing after step 29: its stream ends abruptly (killed?)" in said


def test_the_kernel_tells_whether_a_rank_lives(tmp_path: Path, simulated: Run) -> None:
    """Without any stand-in: a process that writes, and is killed."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        info = structs.replace(simulated.ranks[0], host=os.uname().nodename)
        alone = structs.replace(simulated.meta, world_size=1)
        job = GrowingJob(tmp_path / "run", structs.replace(simulated, meta=alone, ranks=(info,)))
        job.write(30)
        os.write(told, b".")
        signal.pause()
    try:
        os.read(ready, 1)
        watched = Watcher(tmp_path / "run", now_s=Clock(), start=do_at_once)
        alive = watched.look()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ([rank.state for rank in alive.ranks], alive.over) == (["running"], False)
    dead = watched.look()
    assert ([rank.state for rank in dead.ranks], dead.over, dead.steps_done) == (["gone"], True, 30)
    for end in (ready, told):
        os.close(end)


def test_plain_lines_come_with_each_new_report_and_the_last_with_the_end(
    job: GrowingJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    watched = open_watcher(job, clock)

    class Steps(Keyboard):
        turns = 0

        def wait(self, limit_s: float) -> bool:
            self.turns += 1
            clock.now_s += 3
            job.write(10)
            if self.turns == 8:
                job.end(0, 1, 2, 3)
            return False

    job.write(20)
    monkeypatch.setattr(command, "Watcher", lambda *_, **__: watched)
    last = command._print_lines(watched, Steps([]))
    assert last is not None and last.over
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"step {step}" for step in (20, 40, 60, 80, 100)]
    assert "the job has completed 100 steps" in lines[-1] and "rank 2 is" in lines[-1]


def test_a_screen_is_left_with_q_and_stays(job: GrowingJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.write(40)
    watched = open_watcher(job, Clock())

    class Quits(Keyboard):
        def wait(self, limit_s: float) -> bool:
            return True

    console = Console(width=80, height=24, force_terminal=True, color_system=None, legacy_windows=False)
    assert command._show_screen(watched, job.folder, console, Quits([])) is None
    out = capsys.readouterr().out
    live, _, last = out.partition("\x1b[?1049l")  # the alternate screen is left
    assert live.startswith("\x1b[?1049h") and "q leaves; everything: distprof report" in live
    assert "step 40" in last and "everything: distprof report" in last and "q leaves" not in last


@pytest.mark.parametrize(
    ("ended", "restarts_left", "comes", "said"),
    [
        ("failed", 1, True, True), ("failed", 1, False, True), ("failed", 0, False, False),
        ("completed", 1, False, False),
    ],
)  # fmt: skip
def test_ranks_that_may_be_started_again_are_waited_for(
    job: GrowingJob, capsys: pytest.CaptureFixture[str], ended: str, restarts_left: int, comes: bool, said: bool
) -> None:
    launch = Launch(agents=("a0a0",), job=0, restarts=(0,), restarts_left=restarts_left)
    write_meta(job.folder, structs.replace(job.run.meta, launch=launch))
    clock, again = Clock(), job.folder / "generation-1"

    class Waits(Keyboard):
        turns = 0

        def wait(self, limit_s: float) -> bool:
            self.turns += 1
            clock.now_s += limit_s
            if comes and self.turns == 5:
                again.mkdir()
                write_meta(again, job.run.meta)
            return False

    job.write(20)
    job.end(0, 1, 2, 3, ended=ended)
    last = open_watcher(job, clock).look()
    assert last.over
    assert find_next(job.folder, last, Waits([]), now_s=clock) == (again if comes else None)
    assert ("may be started again; waiting for 120 s" in capsys.readouterr().err) == said
    assert clock.now_s == 1000.0 + (2.5 if comes else command.RESTART_WAIT_S if said else 0)
    if comes:  # which is the newest, and may be there already when the one before is seen to have ended
        assert find_next(job.folder, last, Waits([]), now_s=clock) == again


def test_a_run_that_is_not_there_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], simulated: Run
) -> None:
    clock, waits = Clock(), []

    class Waits(Keyboard):
        def wait(self, limit_s: float) -> bool:
            clock.now_s += limit_s
            waits.append(limit_s)
            if len(waits) == 4:
                (tmp_path / "late").mkdir()
                write_meta(tmp_path / "late", simulated.meta)
            return False

    assert find_run(tmp_path / "late", 30, Waits([]), now_s=clock) == tmp_path / "late"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"distprof: watch: {tmp_path}/late: no run folder yet; waiting for 30 s"]
    with pytest.raises(UsageError, match="no run folder there after 3 s"):
        find_run(tmp_path / "never", 3, Waits([]), now_s=clock)
    assert run_verb(["watch", str(tmp_path / "never"), "--wait", "0"]) == 2
    assert "never: no run folder there (no run.json)" in capsys.readouterr().err


def test_without_a_name_the_run_that_runs_or_else_the_latest_is_taken(
    tmp_path: Path, simulated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_latest_run(tmp_path / "runs") is None
    for name, started in (("b", "2026-01-01"), ("a", "2026-01-03"), ("c", "2026-01-02")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_meta(tmp_path / "runs" / name, structs.replace(simulated.meta, started_utc=started))
    (tmp_path / "runs" / "d").mkdir()
    (tmp_path / "runs" / "e").mkdir()
    (tmp_path / "runs" / "e" / "run.json").write_text("{")
    assert find_latest_run(tmp_path / "runs") == tmp_path / "runs" / "a"
    monkeypatch.setattr("distprof.storage.generations.is_running", lambda folder: folder.name in "bc")
    assert find_latest_run(tmp_path / "runs") == tmp_path / "runs" / "c"
    assert find_latest_run(tmp_path / "runs" / "b") == tmp_path / "runs" / "b"


def test_keys_and_a_resized_window_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "rb") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("os.tcgetpgrp", lambda descriptor: os.getpgrp())
        before = signal.getsignal(signal.SIGTERM)
        with open_keyboard() as keyboard:
            os.write(ours, b"x")
            assert not keyboard.wait(60.0)
            os.kill(os.getpid(), signal.SIGWINCH)
            assert not keyboard.wait(60.0)
            os.write(ours, b"q")
            assert keyboard.wait(60.0)
        assert signal.getsignal(signal.SIGTERM) == before
    os.close(ours)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", range(12))
def test_what_no_rank_would_write_is_shown_or_refused(number: int, tmp_path: Path) -> None:
    make_case(number, 7, ("streams",), tmp_path)
    for folder in (path.parent for path in tmp_path.glob("*/run.json")):
        try:
            watched = Watcher(folder, now_s=Clock(), start=do_at_once)
            progress = watched.look()
            watched.finish()
        except DataError:
            continue
        report, _, problem = watched.report
        console = Console(file=io.StringIO(), width=80, height=24, color_system=None)
        screen = fit_watch_screen(progress, report, console, report_age_s=0.0, problem=problem, foot="q")
        shown = "".join(segment.text for segment in screen.segments) + describe_watch_line(progress, report)
        assert not [letter for letter in shown if letter < " " and letter != "\n"]


def test_the_folder_of_a_report_that_fails_is_still_shown(job: GrowingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: Any) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(watcher, "analyze", fail)
    job.write(30)
    watched = open_watcher(job, Clock())
    assert watched.look().steps_done == 30
    report, _, problem = watched.report
    assert report is None and problem.startswith("no report: ZeroDivisionError: made up")


def test_the_report_is_made_on_a_thread_of_its_own(job: GrowingJob) -> None:
    names: list[str] = []
    done = threading.Event()

    def note(work: Callable[[], None]) -> None:
        def run() -> None:
            work()
            names.append(threading.current_thread().name)
            done.set()

        watcher.start_thread(run)

    job.write(30)
    watched = open_watcher(job, Clock(), note)
    watched.look()
    assert done.wait(60) and names == ["distprof-watch-report"] and watched.report[0] is not None
    assert np.isfinite(watched.report[1])
