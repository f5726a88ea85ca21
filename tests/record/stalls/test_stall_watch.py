"""A rank whose steps stop ending: noticed before its group's time-out, and its last state written and read."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.run import COLUMN, PHASE_CODE, Phase, Stretch
from distprof.facts.stand import GroupState, Message, Pending, StoppedRank
from distprof.record.collectives.flight_recorder import OWN_GROUP, describe_pending
from distprof.record.gather import step_writer
from distprof.record.stalls import stall_watch
from distprof.record.stalls.rank_state import add_progress, read_rank_state
from distprof.record.stalls.stall_watch import LOOKS, STALL_RATIO, Peers, StallWatch, read_timeout_s
from distprof.record.step.stretches import StretchContext
from distprof.render.sections.ends import describe_ends
from distprof.storage.last_state import drop_place, open_place
from distprof.storage.rank_stream import StreamWriter, read_stream
from tests.factories import make_run
from tests.record.gather.test_step_writer import make_step_writer, record
from tests.storage.test_rank_stream import INFO

DEFAULT, OWN = ["0", "default_pg"], ["1", OWN_GROUP]
RING = {
    "entries": [
        {"time_created_ns": 1, "retired": True, "profiling_name": "nccl:broadcast", "process_group": DEFAULT},
        {"time_created_ns": 2, "retired": False, "profiling_name": "gloo:gather", "process_group": OWN},
        {
            "time_created_ns": 3, "retired": False, "profiling_name": "nccl:all_reduce", "collective_seq_id": 17,
            "is_p2p": False, "process_group": DEFAULT,
        },
        {"time_created_ns": 4, "retired": False, "profiling_name": "nccl:all_gather", "process_group": DEFAULT},
    ]
}  # fmt: skip
PENDING = "nccl:all_reduce, number 17 of group default_pg"


def make_watch(position: list[object], told: list[float], *, timeout_s: float = 10.0, **more: Any) -> StallWatch:
    return StallWatch(position=lambda: tuple(position), timeout_s=timeout_s, stalled=told.append, lost=print, **more)


def test_a_stall_is_told_once_and_before_the_time_out() -> None:
    position: list[object] = [0, True]
    told: list[float] = []
    watch = make_watch(position, told)
    for step in range(3 * LOOKS):
        position[0] = step // (LOOKS - 1)  # slow steps, and none too slow
        watch.look()
    assert told == []
    for _ in range(3 * LOOKS):
        watch.look()
    assert told == [10.0 * STALL_RATIO]
    assert STALL_RATIO * (LOOKS + 1) / LOOKS < 0.9  # of the time-out have passed at most
    position[1] = False  # between two steps it may stall too
    for _ in range(LOOKS + 1):
        watch.look()
    assert len(told) == 2


def test_what_fails_in_it_ends_neither_the_watch_nor_training() -> None:
    said: list[str] = []
    watch = StallWatch(position=int, timeout_s=1.0, stalled=lambda seconds: 1 / 0, lost=said.append)
    for _ in range(2 * LOOKS):
        watch.look()
    assert said == ["the last state was not written: ZeroDivisionError: division by zero"]


def test_the_pending_collective_is_the_oldest_of_trainings_own() -> None:
    assert describe_pending(RING) == PENDING
    assert describe_pending({"entries": RING["entries"][:2]}) is None and describe_pending(None) is None


def test_the_time_out_is_that_of_the_default_group(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backend:
        class options:  # noqa: N801
            _timeout = timedelta(minutes=2)

    class Longer:
        class options:  # noqa: N801
            _timeout = timedelta(minutes=30)

    class Group:
        _device_types = ("cpu", "cuda")
        kinds: dict[str, object] = {"cpu": Longer, "cuda": Backend}  # noqa: RUF012

        def _get_backend(self, device: str) -> object:
            return self.kinds[device]

    monkeypatch.setattr(stall_watch.dist.distributed_c10d, "_get_default_group", Group)
    assert read_timeout_s() == 120.0  # the shorter one: of NCCL by default ten minutes, of gloo thirty
    Group.kinds["cuda"] = object()  # a backend that does not tell
    assert read_timeout_s() is None


def test_fault_03_what_a_rank_wrote_before_it_was_aborted_says_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NCCL's watchdog aborts it, while the main thread is inside of C code."""
    monkeypatch.setattr(step_writer, "read_ring", lambda: RING)
    path = tmp_path / "rank-00000.jsonl"
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        recorder, writer, _ = make_step_writer(path, [])
        done = threading.Event()

        def save(stalled_s: float) -> None:
            writer.save_state(stalled_s)
            done.set()

        record(recorder, 0)
        recorder.begin_step(1, warmup=False)
        recorder.enter(PHASE_CODE[Phase.BACKWARD])
        StallWatch(position=lambda: recorder.step, timeout_s=0.01, stalled=save, lost=print).start()
        done.wait(60)
        os.abort()
    os.waitpid(child, 0)
    stream = read_stream(path)
    assert [row[COLUMN["step"]] for row in stream.rows] == [0] and stream.info.ended is None
    assert stream.info.error == f"no step had ended for 0.008 s, in step 1, backward, waiting for {PENDING}"
    ring = json.loads((tmp_path / "flight_recorder-rank-00000.json").read_text())
    assert len(ring["entries"]) == 4


@pytest.mark.parametrize("then", ["step", "end"])
def test_a_stall_that_passes_leaves_no_trace_and_no_step_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(step_writer, "read_ring", lambda: RING)
    path = tmp_path / "rank-00000.jsonl"
    recorder, writer, _ = make_step_writer(path, [])
    record(recorder, 0)
    writer.save_state(480.0)
    assert str(read_stream(path).info.error).startswith("no step had ended for 480 s, between two steps")
    if then == "step":
        record(recorder, 1)
    rows = writer.take(False)
    assert [row[COLUMN["step"]] for row in rows] == [0, 1][: 1 + (then == "step")]  # rank 0 gets what it has not got
    assert writer.take(False) == []
    if then == "end":
        writer.end("completed")
    stream = read_stream(path)
    assert stream.info.error is None and len(stream.rows) == len(rows)
    assert (tmp_path / "flight_recorder-rank-00000.json").exists() == (then == "step")
    writer.save_state(480.0)  # after the end there is nothing to write to
    assert then == "step" or read_stream(path).info.ended == "completed"


def test_a_suspicion_that_is_taken_back_is_void_at_once_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_writer, "read_ring", lambda: RING)
    recorder, writer, _ = make_step_writer(tmp_path / "a", [])
    record(recorder, 0)
    stand = structs.replace(writer.read_stand(10.0), suspected=True)
    writer.save_state(stand.stalled_s, stand=stand)
    assert read_stream(tmp_path / "a").info.stand == stand and stand.source == "ring"
    writer.void_state()
    writer.count_passed(31.0)
    stream = read_stream(tmp_path / "a")
    assert (stream.info.stand, stream.info.error, stream.warnings) == (None, None, ())
    writer.save_state(None, stand=structs.replace(stand, stalled_s=None))
    assert str(read_stream(tmp_path / "a").info.error).startswith("another rank suspects a hang, between two steps")
    writer.end("terminated", error="SIGTERM")
    info = read_stream(tmp_path / "a").info
    assert info.stand is not None and info.stand.stalled_s is None
    assert info.notes == ("1 suspected hang, which ended 31 s after it was suspected",)


@pytest.mark.parametrize("ended", ["failed", "terminated"])
@pytest.mark.parametrize("passes", [False, True])
def test_a_rank_that_ends_early_still_says_whether_it_had_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str, passes: bool
) -> None:
    monkeypatch.setattr(step_writer, "read_ring", lambda: RING)
    recorder, writer, _ = make_step_writer(tmp_path / "a", [])
    recorder.begin_step(0, warmup=False)
    recorder.enter(PHASE_CODE[Phase.BACKWARD])
    writer.save_state(480.0)
    recorder.end_step(failed=not passes)
    writer.take(False)
    writer.end(ended, error="RuntimeError: gloo: Timed out")
    stand = read_stream(tmp_path / "a").info.stand
    assert stand is not None and (stand.stalled_s, stand.inside) == ((None, False) if passes else (480.0, True))
    assert stand.phase == (None if passes else Phase.BACKWARD) and stand.source == "ring"


def test_a_stall_that_is_noticed_late_does_not_hide_the_collective_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine: the collective has timed out already, and the ring has it as over."""
    over = [{**entry, "retired": True} for entry in RING["entries"]]
    monkeypatch.setattr(step_writer, "read_ring", lambda: {"entries": over})
    for between in (False, True):
        path = tmp_path / f"{between}"
        recorder, writer, _ = make_step_writer(path, [])
        record(recorder, 3)
        if not between:
            recorder.begin_step(4, warmup=False)
            recorder.enter(PHASE_CODE[Phase.BACKWARD])
        writer.save_state(3.2)
        if not between:
            recorder.end_step(failed=True)
        writer.take(False)
        try:
            raise RuntimeError("gloo: Timed out")
        except RuntimeError as error:
            writer.end("failed", error="RuntimeError: gloo: Timed out", raised=error)
        stand = read_stream(path).info.stand
        assert stand is not None and stand.where is not None and stand.where.startswith("test_stall_watch.py:")
        assert (stand.stalled_s, stand.inside) == (3.2, not between)
        assert [group.pending.kind for group in stand.groups if group.pending is not None] == ["all_gather"]


def test_where_a_rank_stood_when_it_was_interrupted_is_kept_unless_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_writer, "read_ring", lambda: RING)
    for passes in (False, True):
        path = tmp_path / f"{passes}"
        recorder, writer, _ = make_step_writer(path, [])
        recorder.begin_step(4, warmup=False)
        recorder.enter(PHASE_CODE[Phase.BACKWARD])
        writer.keep_interrupted_state()
        monkeypatch.setattr(step_writer, "read_ring", lambda: {**RING, "entries": []})  # what it waited for has failed
        recorder.end_step(failed=not passes)
        writer.take(False)
        error = KeyboardInterrupt()
        writer.end("terminated", error="KeyboardInterrupt", raised=error)
        stand = read_stream(path).info.stand
        assert stand is not None and (stand.step, stand.phase) == (4, None if passes else Phase.BACKWARD)
        assert bool(stand.groups) is not passes
        monkeypatch.setattr(step_writer, "read_ring", lambda: RING)


def test_between_two_steps_the_stretch_is_told(tmp_path: Path) -> None:
    recorder, _, _ = make_step_writer(tmp_path / "a", [])
    record(recorder, 0)
    with StretchContext(recorder, Stretch.EVALUATION):
        stand = read_rank_state(recorder, -1)
    assert (stand.step, stand.inside, stand.phase) == (0, False, "evaluation")


def test_progress_is_counted_by_group_and_backend_and_in_the_open_step(tmp_path: Path) -> None:
    recorder, _, _ = make_step_writer(tmp_path / "a", [])
    recorder.timeline.now = time.monotonic_ns
    made_ns = time.time_ns()
    recorder.begin_step(5, warmup=False)

    def make(number: int, name: str, group: list[str], **more: Any) -> dict[str, Any]:
        entry = {"time_created_ns": made_ns + number * 10**9, "retired": True, "profiling_name": name}
        return {**entry, "collective_seq_id": number, "is_p2p": False, "process_group": group, **more}

    entries = [
        make(-1, "gloo:barrier", DEFAULT), make(9, "gloo:gather", OWN, retired=False), make(1, "nccl:barrier", DEFAULT),
        make(2, "nccl:_all_gather_base", DEFAULT), make(3, "nccl:all_reduce", ["4", "tensor"]),
        make(4, "nccl:_all_gather_base", DEFAULT, retired=False), make(5, "nccl:all_reduce", DEFAULT, retired=False),
        make(6, "nccl:send", DEFAULT, is_p2p=True, retired=False),
    ]  # fmt: skip
    stand = add_progress(read_rank_state(recorder, -1, stalled_s=480.0), recorder, {"entries": entries})
    assert stand.groups == (
        GroupState(
            group="default", backend="nccl", ranks=None, issued=5,
            pending=Pending(number=4, kind="all_gather", in_step=3, waited_s=0.0),
        ),
        GroupState(group="default", backend="gloo", ranks=None, issued=-1, pending=None),
        GroupState(group="tensor 4", backend="nccl", ranks=None, issued=3, pending=None),
    )  # fmt: skip
    failed = add_progress(read_rank_state(recorder, -1, failed=True), recorder, {"entries": entries[:4]}, broken=True)
    assert failed.groups[0].pending == Pending(number=2, kind="all_gather", in_step=2, waited_s=0.0)
    entries = [make(6, "nccl:recv 1<-3", DEFAULT, is_p2p=True, retired=False), make(-30, "nccl:barrier", DEFAULT)]
    entries[1]["retired"] = False
    late = add_progress(read_rank_state(recorder, -1), recorder, {"entries": entries})
    assert late.message == Message(kind="recv", peer=3)
    assert late.groups[0].pending is not None and (late.groups[0].pending.waited_s or 0.0) >= 30.0


def test_a_busy_writer_does_not_keep_the_state_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_writer, "read_ring", lambda: None)
    monkeypatch.setattr(step_writer, "BUSY_GRACE_S", 0.01)
    recorder, writer, _ = make_step_writer(tmp_path / "a", [])
    record(recorder, 0)
    with writer._taking:  # as a thread that reads the device and never comes back
        writer.save_state(1.0)
    assert read_stream(tmp_path / "a").info.error == "no step had ended for 1 s, between two steps"


def test_the_report_says_where_a_rank_stood() -> None:
    stood = "no step had ended for 480 s, in step 12, backward, waiting for " + PENDING
    run = make_run(num_ranks=3, infos={rank: {"ended": None, "error": stood} for rank in (0, 1)})
    (line,) = describe_ends(analyze(run))
    assert "ranks 0" in line and stood in line


def test_closing_ends_the_watch() -> None:
    watch = make_watch([0], [], timeout_s=3600.0)
    watch.start()
    watch.close()
    watch.join(30)
    assert not watch.is_alive()


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
    assert peers.list_stopped() == ()
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    frame = {"filename": "/home/me/train.py", "line": 7, "name": "read"}
    told = [{"os_thread_id": 1, "frames": []}, {"os_thread_id": child, "frames": [frame]}]
    (tmp_path / "py-spy").write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    where = "train.py:7 read"
    assert peers.list_stopped() == (StoppedRank(rank=1, stack=(where,), where=where),) and not peers.have_died()
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho 'Permission denied' >&2; exit 1\n")
    assert peers.list_stopped() == (StoppedRank(rank=1, stack=(), where=None),)
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
