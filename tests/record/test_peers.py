"""A rank that has died or been stopped is noticed by the others of its host; one that has ended is neither."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from distprof.record.peers import Peers
from distprof.record.stall_watch import StallWatch
from distprof.storage.last_position import drop_place, open_place
from distprof.storage.rank_stream import StreamWriter
from tests.storage.test_rank_stream import INFO


@pytest.mark.parametrize("ends", [False, True])
def test_a_killed_rank_has_died_once_and_one_that_ended_has_not(ends: bool, tmp_path: Path) -> None:
    stream = tmp_path / "rank-00001.jsonl"
    peers = Peers({1: stream, 2: tmp_path / "rank-00002.jsonl"})  # the other one never began
    assert not peers.have_died()
    (ready, begun), (wait, go) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        writer = StreamWriter(stream, run_id="r", world_size=3, info=INFO)
        open_place(stream)
        os.write(begun, b".")
        os.read(wait, 1)
        if ends:
            drop_place(stream)
            writer.close()
        os.kill(os.getpid(), signal.SIGKILL)
    os.read(ready, 1)
    assert not peers.have_died()
    assert peers.find_stopped() == ()
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    assert peers.find_stopped() == (1,) and not peers.have_died()
    os.kill(child, signal.SIGCONT)
    os.write(go, b".")
    os.waitpid(child, 0)
    assert [peers.have_died(), peers.have_died()] == [not ends, False]


def test_a_death_is_told_long_before_a_stall() -> None:
    told: list[float | None] = []
    watch = StallWatch(
        position=int, timeout_s=0.05, stalled=lambda stalled_s: (told.append(stalled_s), watch.close()), lost=print,
        died=lambda: True,
    )  # fmt: skip
    watch.run()
    assert told == [None]
