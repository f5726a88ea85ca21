"""PyTorch's Flight Recorder: ring buffers of this process's last collectives, written by torch itself.

At the end of a run it shows whether there were collectives that distprof did not see; after a failure it is kept for
the investigation. Reading it takes tens of ms and holds the GIL, so it is never read inside a step.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from distprof.facts.run import KINDS, CollectiveKind
from distprof.record.step.step_record import StepRecord
from distprof.storage.whole_file import write_whole

OWN_GROUP = "distprof"
"""Description of the process groups that distprof makes for itself; their collectives are not reported."""
MAX_FILE_BYTES = 4_000_000
MIN_STEPS = 3
"""Fewer steps in the ring are not enough to conclude anything."""
SELDOM_RATIO = 0.5
"""Of the steps: in so many at most, another thread of the script may issue collectives and training not wait for it, as
where a checkpoint is saved in the background."""
_DUMPS = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}
"""torch keeps the collectives of NCCL in a ring of their own."""
_SORTS = {
    CollectiveKind.ALL_REDUCE: "reductions", CollectiveKind.REDUCE_SCATTER: "reductions",
    CollectiveKind.ALL_GATHER: "gathers", CollectiveKind.ALL_TO_ALL: "others", CollectiveKind.OTHER: "others",
}  # fmt: skip


def read_ring() -> dict[str, Any] | None:
    """The entries of torch's rings, oldest first. None: this torch has none, or they are off or empty.

    ``complete_since_ns`` is the time from which every collective is in it; 0: none has been overwritten. With entries
    in both rings, ``rings`` has the rest of each as torch returns it.
    """
    rings = {name: ring for name, dump in _DUMPS.items() if (ring := _read_one(dump)) is not None}
    if len(rings) < 2:
        return next(iter(rings.values()), None)
    entries = sorted((entry for ring in rings.values() for entry in ring.pop("entries")), key=_read_time)
    since_ns = max(ring["complete_since_ns"] for ring in rings.values())
    return {"entries": entries, "complete_since_ns": since_ns, "rings": rings}


def _read_one(name: str) -> dict[str, Any] | None:
    dump = getattr(getattr(torch._C, "_distributed_c10d", None), name, None)
    if dump is None:
        return None
    try:
        ring: Any = json.loads(dump())
    except (RuntimeError, ValueError):
        return None
    if not isinstance(ring, dict):
        return None
    entries = ring.get("entries")
    if not entries or not all(isinstance(entry, dict) and "time_created_ns" in entry for entry in entries):
        return None
    entries.sort(key=_read_time)
    oldest = entries[0]
    return {**ring, "complete_since_ns": 0 if oldest.get("record_id") == 0 else _read_time(oldest)}


def _read_time(entry: Mapping[str, Any]) -> int:
    return int(entry["time_created_ns"])


def keep_ring(stream: Path, ring: Mapping[str, Any] | None = None) -> None:
    """Writes the ring next to a rank's stream, whole or not at all, without the oldest entries if it is too long.

    Args:
        stream: The rank's.
        ring: From `read_ring`. None: read now.
    """
    ring = ring or read_ring()
    if ring is None:
        return
    text = json.dumps(ring)
    if len(text) > MAX_FILE_BYTES:
        kept = len(ring["entries"]) * MAX_FILE_BYTES // len(text) * 9 // 10
        text = json.dumps({**ring, "entries": ring["entries"][-kept:]})
    with contextlib.suppress(OSError):
        write_whole(_name_file(stream), text)


def drop_ring(stream: Path) -> None:
    """Removes what `keep_ring` wrote during a stall that ended well."""
    with contextlib.suppress(OSError):
        _name_file(stream).unlink(missing_ok=True)


def _name_file(stream: Path) -> Path:
    return stream.with_name(f"flight_recorder-{stream.stem}.json")


def describe_pending(ring: Mapping[str, Any] | None) -> str | None:
    """The oldest collective without an end: ``nccl:all_reduce, number 17 of group default_pg``. None: there is none.

    Args:
        ring: From `read_ring`.
    """
    for entry in () if ring is None else ring["entries"]:
        group = entry.get("process_group") or ()
        if entry.get("retired") is False and OWN_GROUP not in group:
            number = entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")
            return f"{entry.get('profiling_name')}, number {number} of group {group[-1] if group else 'unknown'}"
    return None


class Unseen(NamedTuple):
    """Collectives that distprof did not see."""

    per_step: float
    """Of those that training may have waited for."""
    note: str


def find_unseen(
    ring: Mapping[str, Any] | None, records: Iterable[StepRecord], aside: Collection[int] = ()
) -> Unseen | None:
    """The collectives in finished steps that the ring has and distprof does not. None: there are none.

    Args:
        ring: From `read_ring`, called on the thread whose own collectives do not count.
        records: The last steps, in order.
        aside: Identifiers of the script's threads that issue collectives beside training.
    """
    if ring is None:
        return None
    entries = [
        entry for entry in ring["entries"]
        if not (entry.get("is_p2p") or OWN_GROUP in (entry.get("process_group") or ()) or _is_map_of_used(entry))
    ]  # fmt: skip
    if not all("thread_id" in entry for entry in entries):
        return None  # the collectives of distprof's own thread cannot be excluded
    entries = [entry for entry in entries if entry["thread_id"] != str(threading.get_ident())]
    wall_ns = time.time_ns() - time.monotonic_ns()
    oldest_ns = int(ring["complete_since_ns"]) - wall_ns
    whole = [record for record in records if not (record.failed or record.warmup) and record.collectives is not None]
    whole = [record for record in whole if record.segments.begin_ns >= oldest_ns]
    if len(whole) < MIN_STEPS:
        return None
    issued = [_choose(entries, record.segments.begin_ns + wall_ns, record.step_host_ns) for record in whole]
    threads = {str(thread) for thread in aside}
    beside = sum(any(item["thread_id"] in threads for item in items) for items in issued)
    if beside <= SELDOM_RATIO * len(whole):
        issued = [[item for item in items if item["thread_id"] not in threads] for items in issued]
    unseen = sum((_compare(record, items) for record, items in zip(whole, issued, strict=True)), Counter[str]())
    if unseen:
        names = ", ".join(f"{number} {name}" for name, number in sorted(unseen.items()))
        note = (
            f"PyTorch's Flight Recorder has collectives of the last {len(whole)} steps that distprof did not see, "
            f"probably issued by C++ or compiled code: {names}"
        )
        return Unseen(unseen.total() / len(whole), note)
    if beside:
        note = (
            f"in {beside} of the last {len(whole)} steps another thread of the script issued collectives, which are "
            "not recorded: training is taken not to wait for them"
        )
        return Unseen(0.0, note)
    return None


def _choose(entries: Iterable[Mapping[str, Any]], begin_ns: int, long_ns: int) -> list[Mapping[str, Any]]:
    """Those of one step."""
    return [item for item in entries if begin_ns <= _read_time(item) < begin_ns + long_ns]


def _is_map_of_used(entry: Mapping[str, Any]) -> bool:
    """What DDP sums with ``find_unused_parameters``."""
    # DDP's reducer issues it in C++ after the last bucket, and waits for it together with that: it hides nobody.
    return entry.get("input_dtypes") == ["Int"] and "all_reduce" in str(entry.get("profiling_name"))


def _compare(record: StepRecord, entries: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """How many more of each sort the ring has in one step."""
    there = Counter(_sort(str(entry.get("profiling_name", ""))) for entry in entries)
    seen = Counter(_SORTS[KINDS[item.kind]] for item in record.collectives or ())
    if any(KINDS[item.kind] is CollectiveKind.REDUCE_SCATTER for item in record.collectives or ()):
        del there["reductions"]  # gloo issues several all-reduces for one
    if seen["others"]:
        del there["broadcasts"]  # one call of DDP's makes several, one for each type of buffer
    there["others"] += there.pop("broadcasts", 0)
    del there["parts"]
    return there - seen


def _sort(name: str) -> str:
    for part, sort in (
        ("coalesced", "parts"), ("broadcast", "broadcasts"), ("barrier", "others"), ("all_reduce", "reductions"),
        ("reduce_scatter", "reductions"), ("all_gather", "gathers"),
    ):  # fmt: skip
        if part in name.lower():
            return sort
    return "others"
