"""PyTorch's own ring of collectives as a second witness, and what is kept of it after a failure."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from distprof.facts.run import KINDS, CollectiveKind
from distprof.facts.segments import Segments
from distprof.record.collectives import flight_recorder
from distprof.record.collectives.flight_recorder import MAX_FILE_BYTES, OWN_GROUP, find_unseen, keep_ring, read_ring
from distprof.record.step.step_record import SeenCollective, StepRecord

STEP_NS = 1_000_000_000  # far longer than the machine may halt between the readings of two clocks


def make_record(begin_ns: int, kinds: list[int], **changes: Any) -> StepRecord:
    """A step that issued collectives of these kinds."""
    values: dict[str, Any] = {
        "step": 0, "warmup": False, "failed": False, "micro_steps": 1, "tokens": 1, "step_host_ns": STEP_NS,
        "phase_host_ns": [0] * 8, "segments_lost": 0, "scalars": (None, None),
        "segments": Segments(begin_ns=begin_ns, codes=(7,), durations_ns=(STEP_NS,)),
        "collectives": [SeenCollective(kind, 0, 1, 8, begin_ns + 1, None, None) for kind in kinds],
    }  # fmt: skip
    return StepRecord(**{**values, **changes})


def make_ring(names: list[str], num_steps: int, begin_ns: int, **changes: Any) -> dict[str, Any]:
    """A ring in which every step has these operations, in its middle."""
    wall_ns = time.time_ns() - time.monotonic_ns()
    entries = [
        {"time_created_ns": begin_ns - STEP_NS + wall_ns, "thread_id": "1", "profiling_name": "gloo:barrier"},
        *(
            {
                "time_created_ns": begin_ns + step * STEP_NS + STEP_NS // 2 + wall_ns, "thread_id": "1",
                "profiling_name": name, "is_p2p": False, **changes,
            }
            for step in range(num_steps)
            for name in names
        ),
    ]  # fmt: skip
    return {"entries": entries, "complete_since_ns": entries[0]["time_created_ns"]}


def test_what_the_ring_has_and_distprof_has_not_is_a_note() -> None:
    begin_ns = time.monotonic_ns()
    records = [make_record(begin_ns + step * STEP_NS, [0]) for step in range(4)]
    ring = make_ring(["gloo:all_reduce", "gloo:broadcast", "gloo:broadcast"], 4, begin_ns)
    unseen = find_unseen(ring, records)
    assert unseen is not None and unseen.per_step == 2
    assert "last 4 steps" in unseen.note and unseen.note.endswith(": 8 others")
    others = [make_record(begin_ns + step * STEP_NS, [0, KINDS.index(CollectiveKind.OTHER)]) for step in range(4)]
    assert find_unseen(ring, others) is None  # one call for DDP's buffers makes a broadcast for each type of them
    assert find_unseen(make_ring(["gloo:all_reduce"], 4, begin_ns), records) is None
    assert find_unseen(ring, records[:2]) is None  # too few to say anything
    warm = [make_record(begin_ns + step * STEP_NS, [0], warmup=True) for step in range(4)]
    assert find_unseen(ring, warm) is None and find_unseen(None, records) is None


@pytest.mark.parametrize(
    "changes",
    [{"is_p2p": True}, {"thread_id": str(threading.get_ident())}, {"process_group": ["2", OWN_GROUP]}],
)
def test_messages_between_two_and_distprofs_own_do_not_count(changes: dict[str, Any]) -> None:
    begin_ns = time.monotonic_ns()
    records = [make_record(begin_ns + step * STEP_NS, []) for step in range(4)]
    assert find_unseen(make_ring(["gloo:broadcast"], 4, begin_ns, **changes), records) is None
    assert find_unseen(make_ring(["gloo:broadcast"], 4, begin_ns), records) is not None


@pytest.mark.parametrize(("busy", "hides"), [(0, False), (1, False), (2, False), (3, True), (4, True)])
def test_what_another_thread_issues_in_few_steps_hides_nobody_and_is_said(busy: int, hides: bool) -> None:
    begin_ns = time.monotonic_ns()
    records = [make_record(begin_ns + step * STEP_NS, [0]) for step in range(4)]
    ring = make_ring(["gloo:all_reduce"], 4, begin_ns)
    ring["entries"] += make_ring(["gloo:all_gather"] * 5, busy, begin_ns, thread_id="22")["entries"][1:]
    alone = find_unseen(ring, records)
    assert (alone is not None) == (busy > 0)
    unseen = find_unseen(ring, records, {21, 22})
    if hides:
        assert unseen == alone and alone is not None and alone.per_step == 5 * busy / 4
    elif busy:
        assert unseen is not None and unseen.per_step == 0
        assert unseen.note.startswith(f"in {busy} of the last 4 steps another thread of the script issued collectives")
    else:
        assert unseen is None


def test_ddps_map_of_used_parameters_hides_nobody() -> None:
    begin_ns = time.monotonic_ns()
    records = [make_record(begin_ns + step * STEP_NS, []) for step in range(4)]
    ints, floats = (make_ring(["gloo:all_reduce"], 4, begin_ns, input_dtypes=[name]) for name in ("Int", "Float"))
    assert find_unseen(ints, records) is None and find_unseen(floats, records) is not None


def test_steps_older_than_the_ring_and_reductions_that_gloo_takes_apart_say_nothing() -> None:
    begin_ns = time.monotonic_ns()
    ring = make_ring(["gloo:all_reduce", "gloo:all_reduce"], 4, begin_ns)
    scatter = [make_record(begin_ns + step * STEP_NS, [1]) for step in range(4)]
    assert find_unseen(ring, scatter) is None
    older = [make_record(begin_ns - (10 - step) * STEP_NS, [0]) for step in range(4)]
    assert find_unseen(ring, older) is None


def test_a_ring_that_is_too_long_loses_its_oldest_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"time_created_ns": place, "frames": "x" * 5000} for place in range(2000)]
    monkeypatch.setattr(flight_recorder, "read_ring", lambda: {"version": "1", "entries": entries})
    keep_ring(tmp_path / "rank-00003.jsonl")
    (path,) = tmp_path.iterdir()
    assert path.name == "flight_recorder-rank-00003.json" and path.stat().st_size < MAX_FILE_BYTES
    kept = json.loads(path.read_text())
    assert kept["version"] == "1" and kept["entries"][-1]["time_created_ns"] == 1999 and len(kept["entries"]) > 500


def pretend_rings(monkeypatch: pytest.MonkeyPatch, **rings: object) -> None:
    """Makes torch return these rings, by the names of its functions."""
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = lambda name=name: json.dumps(rings[name])  # noqa: E731
        monkeypatch.setattr(flight_recorder.torch._C._distributed_c10d, name, dump, raising=False)


def make_entries(name: str, times_ns: list[int], *, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"record_id": first + index, "time_created_ns": at_ns, "profiling_name": name, "thread_id": "1"}
        for index, at_ns in enumerate(times_ns)
    ]  # fmt: skip


def test_the_collectives_of_nccl_are_in_another_ring_and_both_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gloo, nccl = make_entries("gloo:barrier", [30, 10]), make_entries("nccl:all_reduce", [20, 40])
    rings = {
        "_dump_fr_trace_json": {"version": "2.10", "pg_status": {"0": 1}, "entries": gloo},
        "_dump_nccl_trace_json": {"version": "2.10", "pg_status": {"0": 2}, "entries": nccl},
    }
    pretend_rings(monkeypatch, **rings)
    ring = read_ring()
    assert ring is not None and [entry["time_created_ns"] for entry in ring["entries"]] == [10, 20, 30, 40]
    assert [ring["rings"][name]["pg_status"]["0"] for name in ("gloo", "nccl")] == [1, 2]
    keep_ring(tmp_path / "rank-00000.jsonl")
    kept = json.loads((tmp_path / "flight_recorder-rank-00000.json").read_text())
    assert {entry["profiling_name"] for entry in kept["entries"]} == {"gloo:barrier", "nccl:all_reduce"}
    rings["_dump_fr_trace_json"]["entries"] = []
    pretend_rings(monkeypatch, **rings)  # a job whose gloo groups were never used
    ring = read_ring()
    assert ring is not None and [entry["time_created_ns"] for entry in ring["entries"]] == [20, 40]


def test_two_rings_are_complete_from_where_both_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring from which nothing was overwritten says nothing about where the other begins."""
    begin_ns, wall_ns = time.monotonic_ns(), time.time_ns() - time.monotonic_ns()
    inside_ns = [begin_ns + wall_ns + step * STEP_NS + STEP_NS // 2 for step in range(8)]
    late = {"entries": make_entries("gloo:barrier", [inside_ns[-1]])}
    pretend_rings(
        monkeypatch, _dump_fr_trace_json=late,
        _dump_nccl_trace_json={"entries": make_entries("nccl:broadcast", inside_ns[4:], first=9)},
    )  # fmt: skip
    records = [make_record(begin_ns + step * STEP_NS, []) for step in range(8)]
    unseen = find_unseen(read_ring(), records)
    assert unseen is not None and "last 3 steps" in unseen.note and unseen.note.endswith(": 4 others")


def test_a_torch_without_a_ring_has_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        flight_recorder.torch._C._distributed_c10d, "_dump_fr_trace_json", lambda: "not JSON", raising=False
    )
    assert read_ring() is None
    monkeypatch.delattr(flight_recorder.torch._C._distributed_c10d, "_dump_fr_trace_json")
    assert read_ring() is None
    keep_ring(tmp_path / "rank-00000.jsonl")
    assert [*tmp_path.iterdir()] == []
