"""The operations of one finished step on a pipeline's micro-batches. Runs on the background thread.

Where nothing says which micro-batch a stage computes, as in a loop written by hand, the phases do: each forward of a
stage begins after something was received, and ends before something is sent, so forwards with nothing sent, received
or differentiated between them belong to one micro-batch, as those of a model and of its loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from distprof.facts.micro_batches import OPERATION_CODE, UNKNOWN, OperationKind
from distprof.facts.run import COMMUNICATION_PHASES, PHASE_CODE, Phase
from distprof.facts.segments import Segments
from distprof.record.step.collective_log import Issued
from distprof.record.step.operation_log import LoggedOperations, OperationFacts
from distprof.storage.operation_records import StepOperations

_FORWARD, _BACKWARD, _WEIGHT, _SEND, _RECEIVE, _WAIT = (OPERATION_CODE[kind] for kind in OperationKind)
_EXCHANGES = (_SEND, _RECEIVE)
_PHASES = {PHASE_CODE[Phase.FORWARD]: _FORWARD, PHASE_CODE[Phase.BACKWARD]: _BACKWARD}
_COMMUNICATION = frozenset(PHASE_CODE[phase] for phase in COMMUNICATION_PHASES)

_Timed = tuple[OperationFacts, int | None, int]
"""What is known at once, duration and waiting, ns."""


def assemble_operations(
    logged: LoggedOperations | None,
    segments: Segments,
    issued: Issued,
    *,
    evaluated: bool,
    device: Segments | None = None,
) -> StepOperations | None:
    """Puts the operations of a step together. None: there are none, or not all are known.

    Args:
        logged: What was recorded since the step before.
        segments: Of the step.
        issued: The collectives of the step.
        evaluated: Whether the ranks evaluated since the step before, so that what came before the step is no part of
            its pipeline.
        device: The segments on the device clock, on which the operations are then, if they exchange there. None: not
            timed there.
    """
    if logged is None or logged.lost or segments.truncated or issued.lost:
        return None
    timed = list(_time_logged(logged))
    if evaluated:
        timed = [item for item in timed if item[0][-1] >= segments.begin_ns]
    ends_ns = [*accumulate(segments.durations_ns, initial=segments.begin_ns)][1:]
    if all(facts[0] in _EXCHANGES for facts, *_ in timed):
        moments_ns = sorted(ns for facts, duration_ns, _ in timed for ns in (facts[-1], facts[-1] + (duration_ns or 0)))
        timed += _read_phases(segments, ends_ns, moments_ns)
    if not any(facts[0] in _EXCHANGES for facts, *_ in timed):
        return None
    if logged.on_device:
        timed = [] if device is None else _move_to_device(timed, [segments.begin_ns, *ends_ns], device)
        if device is None or not timed:
            return None
        segments, ends_ns = device, [*accumulate(device.durations_ns, initial=device.begin_ns)][1:]
    timed = _add_waits(timed, segments, ends_ns, issued)
    timed.sort(key=lambda item: item[0][-1])
    return StepOperations(
        order=tuple(facts[:-1] for facts, *_ in timed), start_ns=[facts[-1] for facts, *_ in timed],
        duration_ns=[duration_ns for _, duration_ns, _ in timed], waited_ns=[waited_ns for *_, waited_ns in timed],
        on_device=logged.on_device,
    )  # fmt: skip


def _time_logged(logged: LoggedOperations) -> Iterable[_Timed]:
    for ticket, (facts, (own, waits_from_ns, end_ns)) in enumerate(
        zip(logged.facts, logged.times, strict=True), start=logged.first_ticket
    ):
        if ticket == own:
            yield facts, end_ns - facts[-1], end_ns - waits_from_ns
        elif facts[0] in _EXCHANGES:
            yield facts, None, 0


def _read_phases(segments: Segments, ends_ns: Sequence[int], moments_ns: Sequence[int]) -> list[_Timed]:
    """The forwards and backwards of a step by its phases, the n-th of each for the n-th micro-batch.

    Args:
        segments: Of the step.
        ends_ns: Of each.
        moments_ns: When something was sent or received, or had been waited for, ascending.
    """
    found: list[tuple[int, int, int]] = []  # kind, begin, end
    for code, duration_ns, end_ns in zip(segments.codes, segments.durations_ns, ends_ns, strict=True):
        begin_ns, kind = end_ns - duration_ns, _PHASES.get(code)
        last = found[-1] if found else None
        if kind is not None and last is not None and last[0] == kind and not _is_between(moments_ns, last[2], begin_ns):
            found[-1] = (kind, last[1], end_ns)
        elif kind is not None:
            found.append((kind, begin_ns, end_ns))
        elif last is not None and code in _COMMUNICATION and begin_ns == last[2]:
            found[-1] = (*last[:2], end_ns)
    numbers = {_FORWARD: 0, _BACKWARD: 0}
    timed: list[_Timed] = []
    for kind, begin_ns, end_ns in found:
        timed.append(((kind, numbers[kind], UNKNOWN, UNKNOWN, 0, 0, begin_ns), end_ns - begin_ns, 0))
        numbers[kind] += 1
    return timed


def _move_to_device(timed: Sequence[_Timed], host_ns: Sequence[int], device: Segments) -> list[_Timed]:
    """The operations on the device clock. Empty: some begin or end where the device has no time, as before its step.

    Args:
        timed: On the host clock.
        host_ns: The borders of the step's segments there.
        device: The same segments on the device clock.
    """
    device_ns = [*accumulate(device.durations_ns, initial=device.begin_ns)]
    known = dict(zip(reversed(host_ns), reversed(device_ns), strict=True))  # of equal borders, the first
    moved = list[_Timed]()
    for (*facts, begin_ns), duration_ns, waited_ns in timed:
        end_ns = begin_ns + (duration_ns or 0)
        begin, end, since = (known.get(ns) for ns in (begin_ns, end_ns, end_ns - waited_ns))
        if begin is None or end is None or since is None:
            return []
        kind, micro_batch, stage, peer, tag, size_bytes = facts
        moved.append(
            (
                (kind, micro_batch, stage, peer, tag, size_bytes, begin),
                None if duration_ns is None else end - begin, end - since,
            )
        )  # fmt: skip
    return moved


def _is_between(moments_ns: Sequence[int], begin_ns: int, end_ns: int) -> bool:
    return bool(np.searchsorted(moments_ns, begin_ns) < np.searchsorted(moments_ns, end_ns, side="right"))


def _add_waits(timed: Sequence[_Timed], segments: Segments, ends_ns: Sequence[int], issued: Issued) -> list[_Timed]:
    """The operations, with how long the rank stood still inside its forwards and backwards, and the waits for
    collectives that follow the last backward."""
    waits = {segment for segment, _ in issued.waits}
    held = {*waits, *issued.exchanges}
    still_ns = [  # how long the rank had stood still at the end of each segment
        *accumulate(
            duration_ns if at in held or code in _COMMUNICATION else 0
            for at, (code, duration_ns) in enumerate(zip(segments.codes, segments.durations_ns, strict=True))
        )
    ]
    begin_ns = segments.begin_ns
    since_ns = [0, *(ns - begin_ns for ns in ends_ns)]
    borders_ns = [(facts[-1] - begin_ns, facts[-1] - begin_ns + (ns or 0)) for facts, ns, _ in timed]
    before_ns, after_ns = np.interp(np.array(borders_ns, dtype=np.float64).T, since_ns, [0, *still_ns])
    full: list[_Timed] = [
        (facts, duration_ns, waited_ns if facts[0] in _EXCHANGES else int(inside_ns))
        for (facts, duration_ns, waited_ns), inside_ns in zip(timed, after_ns - before_ns, strict=True)
    ]
    passed_ns = [facts[-1] + (ns or 0) for facts, ns, _ in timed if facts[0] in (_BACKWARD, _WEIGHT)]
    last_ns = max(passed_ns, default=segments.begin_ns)
    for at in sorted(waits) if passed_ns else ():
        duration_ns = segments.durations_ns[at]
        if ends_ns[at] - duration_ns >= last_ns and segments.codes[at] not in _COMMUNICATION:
            facts = (_WAIT, UNKNOWN, UNKNOWN, UNKNOWN, 0, 0, ends_ns[at] - duration_ns)
            full.append((facts, duration_ns, duration_ns))
    return full
