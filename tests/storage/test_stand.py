"""Where a rank stood, on disk: as it was written, until a step or a good end follows, and never as anyone likes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distprof.facts.plain import make_plain
from distprof.facts.stand import GroupState, Pending, RankState
from distprof.storage.rank_stream import StreamWriter, read_stream
from distprof.storage.record_lines import encode_line
from tests.storage.test_rank_stream import INFO, make_row

GROUP = GroupState(
    group="tensor 3", backend="nccl", ranks=(0, 2), issued=17,
    pending=Pending(number=16, kind="all_gather", in_step=None),
)  # fmt: skip
STAND = RankState(
    source="ring", step=4, inside=True, phase="backward", stalled_s=480.0, stack=("train.py:41 step",),
    where="train.py:41 step", groups=(GROUP,),
)  # fmt: skip


def make_writer(path: Path) -> StreamWriter:
    writer = StreamWriter(path, run_id="r", world_size=3, info=INFO)
    writer.write_steps([make_row(0)], [None])
    writer.write_state("in step 4", stand=STAND)
    return writer


def end(writer: StreamWriter, ended: str) -> None:
    writer.write_end(ended, error=None, traceback=None, rows_lost=0, notes=())


def test_it_is_read_as_it_was_written_also_before_and_after_an_early_end(tmp_path: Path) -> None:
    writer = make_writer(tmp_path / "a")
    assert read_stream(tmp_path / "a").info.stand == STAND
    end(writer, "failed")
    assert read_stream(tmp_path / "a").info.stand == STAND
    writer.write_state("in step 5", stand=RankState(source="none", step=5, inside=True, phase=None))
    info = read_stream(tmp_path / "a").info
    assert info.stand is not None and (info.stand.step, info.ended, info.error) == (5, "failed", None)


@pytest.mark.parametrize("then", ["a step", "a good end"])
def test_what_goes_on_makes_it_void(then: str, tmp_path: Path) -> None:
    writer = make_writer(tmp_path / "a")
    writer.write_steps([make_row(1)], [None]) if then == "a step" else end(writer, "completed")
    assert read_stream(tmp_path / "a").info.stand is None


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "hearsay"}, {"step": -1}, {"step": 2**60}, {"stalled_s": -1.0}, {"stack": [1]}, {"mood": "good"},
        {"stack": ["x"] * 100}, {"groups": [make_plain(GROUP)] * 100}, {"groups": [{"group": "x"}]}, {"inside": None},
        {"groups": [{**make_plain(GROUP), "ranks": [-1]}]}, {"groups": [{**make_plain(GROUP), "ranks": ["0"]}]},
        {"groups": [{**make_plain(GROUP), "pending": {"number": -1, "kind": "x", "in_step": None}}]},
    ],
)  # fmt: skip
def test_what_makes_no_sense_leaves_the_words(changes: dict[str, Any], tmp_path: Path) -> None:
    make_writer(tmp_path / "a").close()
    stand = {**make_plain(STAND), **changes}
    with (tmp_path / "a").open("ab") as file:
        file.write(encode_line({"type": "state", "error": "in step 5", "stand": stand}))
    info = read_stream(tmp_path / "a").info
    assert (info.error, info.stand) == ("in step 5", None)
