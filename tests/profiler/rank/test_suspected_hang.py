"""What rank 0 says when a hang is suspected, and when it is over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.run import Run
from distprof.profiler.rank.suspected_hang import AGAIN_S, LOOKS_AGAIN, _HangAnnouncer
from distprof.storage import run_folder
from tests.analyze.summary.test_hang import make_group, make_hang, make_stand

SENTENCE = "no step had ended for 480 s: rank 1 did not come to"


@pytest.mark.parametrize("over", [False, True])
def test_the_sentence_is_said_unless_the_suspicion_is_over_and_its_end_only_after_it(
    over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_hang(make_stand(make_group(27, 27)), make_stand(make_group(26)))
    assert analyze(run).hang is not None
    monkeypatch.setattr(run_folder, "read_run", lambda folder: run)
    said: list[str] = []
    counted, held = list[float](), list[bool]()
    writer: Any = SimpleNamespace(count_passed=counted.append, hold=lambda: held.append(True))
    announcer = _HangAnnouncer(tmp_path, said.append, writer)
    if over:
        announcer.end(2.0)
    announcer._tell(0)
    announcer.end(21.0)
    announcer.end(4.0)  # of another one, which was over too soon to be told
    assert counted == [2.0] * over + [21.0, 4.0] and held == [True]
    if over:
        assert said == []
    else:
        first, second = said
        assert first.startswith(f"distprof: {SENTENCE}") and first.endswith(f"(distprof report {tmp_path})")
        assert second == "distprof: the suspected hang has ended, 21 s after it was suspected: steps go on"


@pytest.mark.parametrize(
    ("source", "ended"), [(None, None), ("place", None), ("none", None), ("ring", None), (None, "completed")]
)
def test_a_rank_that_has_not_written_where_it_stands_is_waited_for_so_long(
    source: Any, ended: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, comes = make_stand(make_group(27, 27)), make_stand(make_group(26))
    late = None if source is None else structs.replace(comes, source=source)
    runs = [make_hang(waits, late, rank1={"ended": ended})] * 3 + [make_hang(waits, comes)]
    reads, slept = list[int](), list[float]()

    def read(folder: Path) -> Run:
        reads.append(len(reads))
        return runs[min(reads[-1], 3)]

    monkeypatch.setattr(run_folder, "read_run", read)
    said, held = list[str](), list[bool]()
    writer: Any = SimpleNamespace(hold=lambda: held.append(True))
    _HangAnnouncer(tmp_path, said.append, writer, slept.append)._tell(0)
    waited = source != "ring" and ended is None
    assert slept == [AGAIN_S] * 3 * waited and len(reads) == len(held) == 1 + 3 * waited and len(said) == 1
    runs = [make_hang(waits, None)] * 4
    slept.clear()
    _HangAnnouncer(tmp_path, said.append, writer, slept.append)._tell(0)
    assert slept == [AGAIN_S] * LOOKS_AGAIN and len(said) == 2  # it never says


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    writer: Any = SimpleNamespace(hold=lambda: None)
    announcer = _HangAnnouncer(tmp_path / "gone", said.append, writer)
    announcer.tell().join(60)
    (line,) = said
    assert line.startswith("distprof: a suspected hang is not described: ")
