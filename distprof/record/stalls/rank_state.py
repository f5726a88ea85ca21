"""Where this rank stands, seen from another thread while no step ends: phase, stack, and progress in collectives."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, Literal

import torch.distributed as dist
from msgspec import structs
from torch.distributed import distributed_c10d

from distprof.facts.run import PHASES
from distprof.facts.stand import MAX_GROUPS, GroupState, Message, Pending, RankState
from distprof.record.collectives.flight_recorder import OWN_GROUP
from distprof.record.stalls.stacks import read_stack
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord

MAX_MEMBERS = 2048
"""Of a group that is listed, unless it has all ranks: the record is one line."""
_IN_RING = re.compile(r"nccl:(send|recv) \d+(?:->|<-)(\d+)")


def read_rank_state(
    recorder: Recorder, thread: int, *, stalled_s: float | None = None, failed: bool = False
) -> RankState:
    """Where the training thread stands; needs nothing from torch.

    Args:
        recorder: Its recorder.
        thread: Its identifier; its stack stays unknown if that is the caller.
        stalled_s: How long no step has ended.
        failed: An exception has just left the last step.
    """
    position = recorder.timeline.count - 1
    phase: str | None = PHASES[recorder.running_code] if recorder.recording and position >= 0 else None
    if not (recorder.open or failed) and (stretches := recorder.between.stretches):
        phase = str(stretches[-1])
    other = thread != threading.get_ident()
    stack, where = read_stack(thread) if other else ((), None)
    step = recorder.timeline.place[0]
    return RankState(
        source="none", step=step if step >= 0 else None, inside=recorder.open or failed, phase=phase,
        stalled_s=stalled_s, stack=stack, where=where, message=read_message(thread) if other else None,
    )  # fmt: skip


def describe_position(recorder: Recorder) -> str:
    """Where the training thread is, seen from another thread."""
    if not recorder.open:
        return "between two steps" if recorder.timeline.place[0] >= 0 else "before the first step"
    position = recorder.timeline.count - 1
    phase = f", {PHASES[recorder.running_code]}" if recorder.recording and position >= 0 else ""
    return f"in step {recorder.step}{phase}"


def has_passed(stalled: RankState, record: StepRecord) -> bool:
    """Whether a step has ended since."""
    step = -1 if stalled.step is None else stalled.step
    return record.step > step or (record.step == step and stalled.inside and not record.failed)


def add_progress(
    stand: RankState, recorder: Recorder, ring: Mapping[str, Any] | None, *, broken: bool = False
) -> RankState:
    """Adds how far the rank is in the collectives of its process groups.

    Args:
        stand: From `read_rank_state`, for the step that is still open.
        recorder: The rank's.
        ring: From `distprof.record.collectives.flight_recorder.read_ring`. None: nothing is added.
        broken: The newest collective has failed, which the ring does not show.
    """
    if ring is None:
        return stand
    if broken:
        ring = {**ring, "entries": [*ring["entries"]]}
        index = max((index for index, entry in enumerate(ring["entries"]) if _is_users(entry)), default=None)
        if index is not None:
            ring["entries"][index] = {**ring["entries"][index], "retired": False}
    begin_ns = time.time_ns() - time.monotonic_ns() + recorder.timeline.stamps[0] if stand.inside else None
    known = [item for item in _read_ring(ring, begin_ns) if len(item.ranks or ()) <= MAX_MEMBERS]
    groups = sorted(known, key=lambda item: item.pending is None)
    message = stand.message or _find_pending_message(ring)
    return structs.replace(stand, source="ring", groups=tuple(groups[:MAX_GROUPS]), message=message)


def _find_pending_message(ring: Mapping[str, Any]) -> Message | None:
    ranks = _read_members()
    for entry in ring["entries"]:
        if entry.get("is_p2p") and entry.get("retired") is False:
            group = entry.get("process_group") or ("",)
            return parse_message(entry, ranks.get(str(group[0])))
    return None


def _read_ring(ring: Mapping[str, Any], begin_ns: int | None) -> list[GroupState]:
    """By process group and backend, whose numbers are their own; ``begin_ns``: of the open step, time of day."""
    entries: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for entry in ring["entries"]:
        if _is_users(entry):
            group = [str(part) for part in entry.get("process_group") or ("", "unknown")]
            backend = str(entry.get("profiling_name")).partition(":")[0]
            entries.setdefault((group[0], group[-1], backend), []).append(entry)
    ranks = _read_members()
    return [
        GroupState(
            group="default" if described == "default_pg" else f"{_describe(described)} {name}", backend=backend,
            ranks=ranks.get(name), issued=max(_number(entry) for entry in seen),
            pending=_find_pending(seen, begin_ns),
        )
        for (name, described, backend), seen in entries.items()
    ]  # fmt: skip


def _is_users(entry: Mapping[str, Any]) -> bool:
    return not entry.get("is_p2p") and OWN_GROUP not in (entry.get("process_group") or ())


def _describe(described: str) -> str:
    return described if described and described != "undefined" else "group"


def _number(entry: Mapping[str, Any]) -> int:
    return int(entry.get("collective_seq_id") or 0)


def _find_pending(seen: list[Mapping[str, Any]], begin_ns: int | None) -> Pending | None:
    entry = next((each for each in seen if each.get("retired") is False), None)
    if entry is None:
        return None
    kind = str(entry.get("profiling_name")).rpartition(":")[2].removeprefix("_").removesuffix("_base")
    made_ns = int(entry["time_created_ns"])
    since = {
        _number(each) for each in seen if begin_ns is not None and begin_ns <= int(each["time_created_ns"]) <= made_ns
    }
    in_step = len(since) if _number(entry) in since else None
    waited_s = max(time.time_ns() - made_ns, 0) / 1e9
    return Pending(number=_number(entry), kind=kind, in_step=in_step, waited_s=round(waited_s, 3))


def _read_members() -> dict[str, tuple[int, ...] | None]:
    """Global ranks by name of a process group; the default one has all."""
    try:
        world = distributed_c10d._world
        everyone = distributed_c10d._get_default_group()
        return {
            name: None if group is everyone else tuple(world.pg_group_ranks[group])
            for group, name in world.pg_names.items()
        }
    except (AttributeError, KeyError, RuntimeError, ValueError):  # another torch, or the group is gone
        return {}


def read_message(thread: int) -> Message | None:
    """The blocking ``send`` or ``recv`` that a thread is in: gloo's are in no ring of torch. None: it is in none.

    Args:
        thread: Its identifier, of another thread than the caller's.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if (kind := _CALLS.get(frame.f_code)) is not None:
            return Message(kind=kind, peer=_read_peer(frame, "dst" if kind == "send" else "src"))
        frame = frame.f_back
    return None


def parse_message(entry: Mapping[str, Any], ranks: tuple[int, ...] | None) -> Message | None:
    """A message of NCCL, from its entry in the Flight Recorder.

    Args:
        entry: Of the ring.
        ranks: Global ranks of its process group. None: all.
    """
    found = _IN_RING.match(str(entry.get("profiling_name")))
    if found is None:
        return None
    peer = int(found[2])
    if ranks is not None:
        peer = ranks[peer] if peer < len(ranks) else -1
    return Message(kind="send" if found[1] == "send" else "recv", peer=peer if peer >= 0 else None)


def _read_peer(frame: FrameType, name: str) -> int | None:
    """One argument, and no other: the peer's global rank."""
    peer = frame.f_locals.get(name)
    if type(peer) is int:
        return peer
    peer, group = frame.f_locals.get(f"group_{name}"), frame.f_locals.get("group")  # within that group
    if type(peer) is not int:
        return None
    try:
        return peer if group is None else int(dist.get_global_rank(group, peer))
    except (RuntimeError, ValueError):  # the group is gone
        return None


def _unwrap_code(function: Callable[..., Any]) -> CodeType:
    """Of a function of torch, without what logs its calls."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    return function.__code__


_CALLS: dict[CodeType, Literal["send", "recv"]] = {_unwrap_code(dist.send): "send", _unwrap_code(dist.recv): "recv"}
