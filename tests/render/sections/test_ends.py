"""Streams without an end: who is still at work, who is gone, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from distprof.analyze import analyze
from distprof.facts.writer_liveness import LastWrite
from distprof.render.html.html import render_html
from distprof.render.sections.ends import describe_ends
from tests.factories import make_run

AT = "2026-01-02T03:04:05+00:00"
WRITTEN, BEFORE = f", last written at {AT}", "before this report"


def make_silent(ago_s: float, *, lives: bool | None) -> dict[str, Any]:
    return {"ended": None, "last_write": LastWrite(at_utc=AT, ago_s=ago_s, writer_lives=lives)}


def test_an_interrupt_is_called_one() -> None:
    infos = {rank: {"ended": "terminated", "error": "KeyboardInterrupt"} for rank in range(2)}
    assert describe_ends(analyze(make_run(infos=infos))) == ["ranks 0-1 were interrupted after step 3"]


@pytest.mark.parametrize(
    ("infos", "lines"),
    [
        ({0: make_silent(3, lives=True), 1: make_silent(5, lives=True)},
         [f"ranks 0-1 are still running{WRITTEN}, 3 s {BEFORE}"]),
        ({0: make_silent(3, lives=True), 1: make_silent(600, lives=True)},
         [f"ranks 0-1 are still running{WRITTEN}, 3 s {BEFORE} (rank 1: 10 min)"]),
        ({0: make_silent(8_000, lives=True)},
         [f"rank 0 is still running{WRITTEN}, 2 h {BEFORE}"]),
        ({1: make_silent(200_000, lives=None)},
         [f"rank 1 stopped recording after step 3 (killed, or still running elsewhere){WRITTEN}, 2 days {BEFORE}"]),
        ({0: make_silent(3, lives=True), 1: make_silent(130, lives=False)},
         [f"rank 1 is missing after step 3: its stream ends abruptly (killed?){WRITTEN}, 2 min {BEFORE}",
          f"rank 0 is still running{WRITTEN}, 3 s {BEFORE}"]),
    ],
)  # fmt: skip
def test_fault_39_a_stream_without_an_end_tells_whether_its_writer_lives(
    infos: dict[int, dict[str, Any]], lines: list[str]
) -> None:
    report = analyze(make_run(infos=infos))
    assert describe_ends(report) == lines
    missing = tuple(rank for rank, info in infos.items() if not info["last_write"].writer_lives)
    assert report.coverage.ranks_missing == missing and not report.coverage.complete
    assert ("<td>running</td>" in render_html(report)) == (len(missing) < len(infos))


@pytest.mark.parametrize(
    ("error", "told"),
    [("exit code 0", "exited with code 0"), ("the process ended inside a step", "ended inside a step")],
)  # fmt: skip
def test_a_rank_that_ends_by_itself_is_not_said_to_be_terminated(error: str, told: str) -> None:
    report = analyze(make_run(infos={1: {"ended": "terminated", "error": error}}))
    assert describe_ends(report) == [f"rank 1 {told} after step 3"]
