"""Does the job hang, and which rank did not come to which collective?

Collectives of a process group have the same number on all its ranks. A group waits for those of its members whose
newest number is below the oldest one that another member has pending. A member that does not say counts as one of them.
A rank that waits for a message waits for its peer, unless that is in the other end of it. To blame are those of them
that wait in nothing of the kind themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from distprof.facts.run import RankInfo, Run
from distprof.facts.stand import GroupState, Message, Pending, RankState
from distprof.report.hang_report import HangReport, PendingReport, RankStateReport, StandState

LONG_WAIT_S, LONG_WAIT_RATIO = 10.0, 10.0
"""So long, and so many times the median step, a rank that is stopped has waited for another one if the job hung."""
_Group = tuple[str, str]
"""Its name and backend."""


class _Wait(Struct, frozen=True, kw_only=True):
    """A collective that members of a process group wait in, or a message that one rank waits for."""

    group: str
    pending: Pending | None
    """None: it is a message."""
    message: Message | None = None
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    """The members that have not come to it, as far as known."""
    kinds: tuple[str, ...]
    """Of the collectives in which the waiting ones are."""


def report_hang(run: Run) -> HangReport | None:
    """Who waits for whom. None: no rank wrote that its steps had stopped ending, nobody waits for one that is dead, has
    failed because of one that had ended, or had waited for long when the job was stopped."""
    infos = {info.rank: info for info in run.ranks if info.source == "recorded"}
    stands = {rank: info.stand for rank, info in infos.items() if info.stand is not None}
    everyone = range(max([run.meta.world_size, *(rank + 1 for rank in infos)]))
    waits = _list_waits(stands, everyone)
    stalled = [stand.stalled_s for stand in stands.values() if stand.stalled_s is not None]
    dead = {rank for rank, info in infos.items() if info.ended is None and _lives(info) is False}
    ended = {rank for rank, info in infos.items() if info.ended is not None}
    failed = {rank for rank, info in infos.items() if info.ended == "failed"}
    lost = any(dead & {*wait.absent} or (ended & {*wait.absent} and failed & {*wait.waiting}) for wait in waits)
    waited_s = None if stalled or lost else _measure_long_wait(run, waits)
    if not (stalled or lost or waited_s):
        return None
    kind, wait, blamed = _choose(waits)
    first = stands[wait.waiting[0]] if wait is not None else None
    concerned = stands.keys() if wait is None else stands.keys() & {*wait.waiting, *blamed}
    return HangReport(
        kind=kind, absent=blamed, waiting=wait.waiting if wait is not None else (),
        collective=None if wait is None or wait.pending is None else _show(wait.group, wait.pending),
        message=None if wait is None or wait.message is None else wait.message.kind,
        step=None if first is None else first.step, inside=first is not None and first.inside,
        stalled_s=max(stalled, default=None), waited_s=waited_s,
        suspected=any(stands[rank].suspected for rank in concerned),
        states=tuple(_list_stands(run, infos, everyone, blamed)),
    )  # fmt: skip


def _list_waits(stands: Mapping[int, RankState], everyone: range) -> list[_Wait]:
    """One for each process group in which somebody waits, the one with most waiting first; then for each message."""
    groups_by_rank = {
        rank: {(item.group, item.backend): item for item in stand.groups} for rank, stand in stands.items()
    }  # fmt: skip
    groups: dict[_Group, list[tuple[int, GroupState]]] = {}
    for rank, items in groups_by_rank.items():
        for group, item in items.items():
            if item.pending is not None:
                groups.setdefault(group, []).append((rank, item))
    waits = [_summarise_wait(group, found, stands, groups_by_rank, everyone) for group, found in groups.items()]
    return [*sorted(waits, key=lambda wait: (-len(wait.waiting), wait.group)), *_list_messages(stands, everyone)]


def _measure_long_wait(run: Run, waits: Sequence[_Wait]) -> float | None:
    """How long ranks had waited for others, if that was long for this job, s."""
    waited_s = max((wait.pending.waited_s or 0.0 for wait in waits if wait.pending and wait.absent), default=0.0)
    steps_ns = run.column("step_host_ns")
    usual_s = 0.0 if np.isnan(steps_ns).all() else float(np.nanmedian(steps_ns)) / 1e9
    return waited_s if waited_s >= max(LONG_WAIT_S, LONG_WAIT_RATIO * usual_s) else None


def _list_messages(stands: Mapping[int, RankState], everyone: range) -> list[_Wait]:
    """The messages whose other end is not there. From any rank: nobody in particular is missing."""
    messages = {rank: stand.message for rank, stand in stands.items() if stand.message is not None}
    waits = []
    for rank, message in messages.items():
        if message.peer is None or message.peer not in everyone:
            continue
        other = messages.get(message.peer)
        if other is None or other.kind == message.kind or other.peer not in (rank, None):
            waits.append(_Wait(
                group="", pending=None, message=message, waiting=(rank,), absent=(message.peer,), kinds=(message.kind,)
            ))  # fmt: skip
    return waits


def _summarise_wait(
    group: _Group,
    found: Sequence[tuple[int, GroupState]],
    stands: Mapping[int, RankState],
    groups_by_rank: Mapping[int, Mapping[_Group, GroupState]],
    everyone: range,
) -> _Wait:
    pendings = {rank: item.pending for rank, item in found if item.pending is not None}
    oldest = min(pendings.values(), key=lambda pending: pending.number)
    waiting = {rank: pending for rank, pending in pendings.items() if pending.number == oldest.number}
    members = [rank for rank in found[0][1].ranks or _list_members(group, groups_by_rank, everyone) if rank in everyone]
    come = {
        rank for rank in members
        if rank in stands and _count_issued(stands[rank], groups_by_rank[rank], group) >= oldest.number
    }  # fmt: skip
    absent = [rank for rank in members if rank not in come]
    kinds = tuple(sorted({pending.kind for pending in waiting.values()}))
    return _Wait(group=group[0], pending=oldest, waiting=tuple(sorted(waiting)), absent=tuple(absent), kinds=kinds)


def _list_members(
    group: _Group, groups_by_rank: Mapping[int, Mapping[_Group, GroupState]], everyone: range
) -> Sequence[int]:
    """Of a group that is not listed: of another than the default one only those are known that told of it."""
    return everyone if group[0] == "default" else [rank for rank, groups in groups_by_rank.items() if group in groups]


def _count_issued(stand: RankState, group_stands: Mapping[_Group, GroupState], group: _Group) -> int:
    return group_stands[group].issued if stand.source == "ring" and group in group_stands else 0


def _choose(
    waits: Sequence[_Wait],
) -> tuple[Literal["absent", "circle", "mismatch", "together", "elsewhere"], _Wait | None, tuple[int, ...]]:
    """What kind of hang it is, the collective to name, and whom to blame."""
    held = {rank for wait in waits if wait.absent for rank in wait.waiting}
    for wait in waits:
        if blamed := tuple(rank for rank in wait.absent if rank not in held):
            return "absent", wait, blamed
    apart = next((wait for wait in waits if len(wait.kinds) > 1), None)
    if apart is not None:
        return "mismatch", apart, ()
    if held:
        return "circle", next(wait for wait in waits if wait.absent), ()
    return ("together", waits[0], ()) if waits else ("elsewhere", None, ())


def _show(group: str, pending: Pending) -> PendingReport:
    return PendingReport(kind=pending.kind, in_step=pending.in_step, number=pending.number, group=group)


def _list_stands(
    run: Run, infos: Mapping[int, RankInfo], everyone: range, blamed: Sequence[int]
) -> list[RankStateReport]:
    """Where every rank stands, ranks at the same place together; those to blame first, then the smaller groups."""
    steps = run.column("step")
    last = {
        info.rank: None if np.isnan(row).all() else int(np.nanmax(row))
        for info, row in zip(run.ranks, steps, strict=True)
    }  # fmt: skip
    stopped = {
        stopped_rank.rank: stopped_rank
        for info in infos.values()
        if info.stand is not None
        for stopped_rank in info.stand.stopped
    }
    places: dict[RankStateReport, list[int]] = {}
    for rank in everyone:
        info = infos.get(rank)
        place = _describe_stand(None if info is None else info.stand, _name_state(info), last.get(rank))
        if rank in stopped and place.state in ("silent", "gone", "unknown"):
            place = replace(place, state="stopped", stack=stopped[rank].stack, where=stopped[rank].where)
        if info is not None and place.state == "failed" and rank in blamed:
            place = replace(place, error=info.error)
        places.setdefault(place, []).append(rank)
    found = [replace(place, ranks=tuple(ranks)) for place, ranks in places.items()]
    return sorted(found, key=lambda item: (not {*item.ranks} & {*blamed}, len(item.ranks), item.ranks))


def _describe_stand(stand: RankState | None, state: StandState, last_step: int | None) -> RankStateReport:
    """A place without its ranks."""
    if stand is None:
        return RankStateReport(
            ranks=(), state=state, step=last_step, inside=False, phase=None, pending=None, message=None, peer=None,
            where=None, stack=(), error=None,
        )  # fmt: skip
    waits = next(((item.group, item.pending) for item in stand.groups if item.pending is not None), None)
    return RankStateReport(
        ranks=(), state=state, step=stand.step, inside=stand.inside, phase=stand.phase,
        pending=None if waits is None else _show(*waits), where=stand.where, stack=stand.stack, error=None,
        message=None if stand.message is None else stand.message.kind,
        peer=None if stand.message is None else stand.message.peer,
    )  # fmt: skip


def _name_state(info: RankInfo | None) -> StandState:
    if info is None:
        return "missing"
    if info.stand is not None and (info.stand.stalled_s is not None or (_wrote(info.stand) and info.ended is None)):
        return "stands"
    match info.ended:
        case "completed" | "failed" | "terminated":
            return info.ended
    lives = _lives(info)
    return "unknown" if lives is None else "silent" if lives else "gone"


def _wrote(stand: RankState) -> bool:
    return stand.source != "place"


def _lives(info: RankInfo) -> bool | None:
    return None if info.last_write is None else info.last_write.writer_lives
