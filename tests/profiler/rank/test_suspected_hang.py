"""What rank 0 says when a hang is suspected, and when it is over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distprof.analyze import analyze
from distprof.profiler.rank.suspected_hang import _HangAnnouncer
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


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    writer: Any = SimpleNamespace(hold=lambda: None)
    announcer = _HangAnnouncer(tmp_path / "gone", said.append, writer)
    announcer.tell().join(60)
    (line,) = said
    assert line.startswith("distprof: a suspected hang is not described: ")
