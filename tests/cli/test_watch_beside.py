"""The live view in a child process of rank 0, beside folders that grow step by step."""

# ruff: noqa: F811  # fixtures

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest
from rich.console import Console

from distprof.cli.watch import beside
from distprof.cli.watch.beside import IDLE_S, Parent, feed_page, watch_beside
from tests.cli.test_watch_command import GrowingJob, do_at_once, given_up, job, simulated  # noqa: F401  # fixtures


class ScriptedParent(Parent):
    """Goes on for so many looks, and lets the job write in between."""

    def __init__(self, looks: int, between: Callable[[], None], *, dies: bool = False) -> None:
        super().__init__(os.getppid(), -1)
        self.looks, self.between, self.dies = looks, between, dies

    def wait(self, limit_s: float) -> bool:
        self.between()
        self.looks -= 1
        self.died = self.dies and not self.looks
        return not self.looks


@pytest.fixture(autouse=True)
def _reports_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.cli.watch.watcher.Watcher.__init__.__kwdefaults__", {"start": do_at_once})


def open_console(*, terminal: bool) -> Console:
    return Console(width=100, height=40, force_terminal=terminal, color_system=None, legacy_windows=False)


def test_where_there_is_no_terminal_a_line_comes_with_each_new_report(
    job: GrowingJob,
    capfd: pytest.CaptureFixture[str],
) -> None:
    watch_beside(job.folder, ScriptedParent(4, lambda: job.write(20)), open_console(terminal=False))
    lines = capfd.readouterr().out.splitlines()
    assert lines and all(line.startswith("distprof: live: step ") for line in lines)
    assert not [line for line in lines if "\x1b" in line or "gone" in line]


def test_on_a_terminal_it_is_a_band_that_goes_with_the_view(
    job: GrowingJob,
    capfd: pytest.CaptureFixture[str],
) -> None:
    job.write(20)
    watch_beside(job.folder, ScriptedParent(2, lambda: job.write(40)), open_console(terminal=True))
    drawn, _, left = capfd.readouterr().out.rpartition("\x1b7")
    assert "distprof, live" in drawn and "step 60" in drawn and "rank 3" in drawn and "everything: distprof" in drawn
    assert "\x1b[?1049h" not in drawn and "\n" not in drawn  # neither another screen, nor lines of the job's
    assert left.endswith("\x1b[J\x1b[r\x1b8")


def test_in_a_window_that_becomes_too_small_the_job_has_all_of_it(
    job: GrowingJob, capfd: pytest.CaptureFixture[str]
) -> None:
    console, sizes = open_console(terminal=True), iter([40, 12, 40])

    def resize() -> None:
        console.height = next(sizes)

    job.write(20)
    watch_beside(job.folder, ScriptedParent(3, resize), console)
    drawn = capfd.readouterr().out
    assert drawn.count("distprof, live") == 2 and drawn.endswith("\x1b[J\x1b[r\x1b8")
    assert not list(sizes) and drawn.count("\x1b[r") == 1


def test_that_rank_0_is_gone_is_said_after_the_band(
    job: GrowingJob,
    capfd: pytest.CaptureFixture[str],
) -> None:
    job.write(20)
    watch_beside(job.folder, ScriptedParent(2, lambda: job.write(10), dies=True), open_console(terminal=True))
    assert capfd.readouterr().out.rpartition("\x1b8")[2].startswith("distprof: live: rank 0 is gone; step 40, ")


def test_the_page_gets_a_line_of_json_at_each_look(job: GrowingJob, capfd: pytest.CaptureFixture[str]) -> None:
    job.write(80)
    feed_page(job.folder, ScriptedParent(3, lambda: job.write(20)))
    first, *_, last = map(json.loads, capfd.readouterr().out.splitlines())
    assert first["facts"][0][1].startswith("step 80, ") and last["facts"][0][1].startswith("step 120, ")
    assert "rank 2 is" in last["verdict"] and last["next"].startswith("next: ") and last["critical"]
    ranks = last["ranks"]
    assert [row[0] for row in ranks["rows"]] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert ranks["heads"][:3] == ["ms", "step", "own"] and ranks["phases"][0] == "data"
    step_ns = float(ranks["rows"][2][1]) * 1e6
    assert sum(ranks["bars"][2]) == pytest.approx(step_ns, rel=0.01)
    assert len(last["times"]) == 120 and "in the last 120 steps" in last["span"]


def test_the_page_s_process_ends_when_nobody_asks_any_more(
    job: GrowingJob, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = ScriptedParent(10, lambda: None)

    def age() -> None:
        parent.asked_s -= IDLE_S / 2

    monkeypatch.setattr(parent, "between", age)
    feed_page(job.folder, parent)
    assert capfd.readouterr().out.count("\n") == 2 and parent.looks == 8


def test_the_view_ends_with_a_word_of_rank_0_with_its_pipe_and_with_its_process() -> None:
    heard, told = os.pipe()
    parent = Parent(os.getppid(), heard)
    assert not parent.wait(0.0)
    parent.asked_s = 0.0
    os.write(told, b"?")
    assert not parent.wait(0.0) and parent.asked_s > 0.0
    os.write(told, b"?.")
    assert parent.wait(60.0) and not parent.died
    os.close(told)
    assert parent.wait(60.0) and parent.died
    os.close(heard)
    heard, told = os.pipe()
    orphan = Parent(os.getpid(), heard)  # a process that is not the parent of this one any more
    assert orphan.wait(60.0) and orphan.died
    for end in (heard, told):
        os.close(end)


def test_the_process_leaves_interrupts_to_rank_0_and_survives_no_folder(
    tmp_path: os.PathLike[str],
    monkeypatch: pytest.MonkeyPatch,
    given_up: list[int],
) -> None:
    handled: dict[int, object] = {}
    monkeypatch.setattr("signal.signal", lambda number, handler: handled.update({number: handler}))
    monkeypatch.setattr("sys.argv", ["beside", str(tmp_path), str(os.getppid())])
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        beside.main()
    assert handled[signal.SIGINT] is signal.SIG_IGN and given_up == [10]
