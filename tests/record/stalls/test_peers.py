"""A rank that has died or been stopped is noticed by the others of its host; one that has ended is neither."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from distprof.facts.stand import StoppedRank
from distprof.record.stalls.peers import Peers
from distprof.record.stalls.stall_watch import StallWatch
from distprof.storage.last_state import drop_place, open_place
from distprof.storage.rank_stream import StreamWriter
from tests.storage.test_rank_stream import INFO


@pytest.mark.parametrize("ends", [False, True])
def test_a_killed_rank_has_died_once_and_one_that_ended_has_not(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    frame = {"filename": "/home/me/train.py", "line": 7, "name": "read"}
    told = [{"os_thread_id": 1, "frames": []}, {"os_thread_id": child, "frames": [frame]}]
    (tmp_path / "py-spy").write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    where = "train.py:7 read"
    assert peers.find_stopped() == (StoppedRank(rank=1, stack=(where,), where=where),) and not peers.have_died()
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho 'Permission denied' >&2; exit 1\n")
    assert peers.find_stopped() == (StoppedRank(rank=1, stack=(), where=None),)
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
