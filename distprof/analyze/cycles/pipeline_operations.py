"""What every rank did for each micro-batch, what it sent to whom, and which receive belongs to which send.

A loop says which micro-batch a stage computes, but not which one it sends. What is sent is what was computed last, and
what is received is what the sender says or, where the two cannot be matched, what is computed next. An exchange inside
a forward or a backward, as of sequence parallelism, is none between stages.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from distprof.analyze.clocks.clocks import ClockMap, map_clocks
from distprof.analyze.clocks.device_clock import DeviceClockMap, map_device_clocks
from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.micro_batches import OPERATION_CODE, UNKNOWN, OperationKind, RankOperations
from distprof.facts.operations import NUMBERS, Kind
from distprof.facts.run import Clock

_FORWARD, _BACKWARD, _WEIGHT, _SEND, _RECEIVE, _ = (OPERATION_CODE[kind] for kind in OperationKind)


_OTHER = NUMBERS[Kind.OTHER]
_COMPUTES = {
    _FORWARD: NUMBERS[Kind.FORWARD], _BACKWARD: NUMBERS[Kind.BACKWARD], _WEIGHT: NUMBERS[Kind.BACKWARD],
}  # fmt: skip
_SENDS = {_FORWARD: NUMBERS[Kind.FORWARD_SEND], _BACKWARD: NUMBERS[Kind.BACKWARD_SEND]}
_RECEIVES = {_FORWARD: NUMBERS[Kind.FORWARD_RECV], _BACKWARD: NUMBERS[Kind.BACKWARD_RECV]}
_RECEIVE_OF = {_SENDS[kind]: _RECEIVES[kind] for kind in _SENDS}


class PipelineOperations(Struct, frozen=True, kw_only=True):
    """The operations of the steps that count, one element each, rank by rank in the order in which they began."""

    rank: IntArray
    dp: IntArray
    """The replica: ranks that send to each other, counted by their lowest rank."""
    pp: IntArray
    """Where the rank stands in the pipeline, counted from 0; `UNKNOWN`: it cannot be told."""
    tp: IntArray
    """0: a pipeline's sends and receives show no others."""
    step: IntArray
    """The number of its step."""
    kind: IntArray
    """Position in `distprof.facts.operations.KINDS`."""
    clock: Clock
    """On which everything was timed: device where some ranks exchange on GPUs."""
    start_ns: FloatArray
    """On rank 0's host clock; of a rank whose clock is not known against it, on its own."""
    duration_ns: FloatArray
    """NaN: it was not seen to end."""
    micro_batch: IntArray
    """`UNKNOWN`: none."""
    chunk: IntArray
    """Which of the rank's stages, counted from 0; `UNKNOWN` of anything but a forward or a backward."""
    peer: IntArray
    """The other rank; `UNKNOWN`: none, or any."""
    waited_ns: FloatArray
    """How long the rank stood still for it."""
    weights: BoolArray
    """Whether it is the backward of the weights alone."""
    partner: IntArray
    """The receive of a send, or the send of a receive, as a position in these arrays; `UNKNOWN`: not matched."""
    missed_ns: FloatArray
    """The part of ``waited_ns`` in which the partner had not yet begun; NaN: no partner, or clocks too far apart."""
    left_out: tuple[str, ...]
    """Which steps are not among these, and why, a sentence each."""
    failures: tuple[str, ...]
    """Why sends and receives were not matched, a sentence each. Empty: all were."""


MOST_LEFT_OUT_RATIO = 0.25
"""Share of the steps that may be left out because the numbers of sends and receives differ. In more, that is no step in
which something was not seen: ranks count steps differently, or distprof does not see all exchanges."""


def list_operations(measured_steps: MeasuredSteps) -> PipelineOperations | None:
    """The operations of the steps that count. None: nothing was sent between forwards and backwards, or nothing
    that was received went into one, as where ranks add up their gradients themselves."""
    there = _choose(measured_steps)
    if not there:
        return None
    position = np.concatenate([np.full(len(each.step), at) for at, each in there])
    columns = {
        name: np.concatenate([getattr(each, name) for _, each in there]) for name in RankOperations.__struct_fields__
    }
    whole = RankOperations(**columns)
    labels = [_label(each) for _, each in there]
    kind, micro_batch = (np.concatenate(parts) for parts in zip(*labels, strict=True))
    received = whole.kind == _RECEIVE
    if received.any() and not np.isin(kind[received], [*_RECEIVES.values()]).any():
        return None
    rank, timed = np.array(measured_steps.numbers, dtype=np.int64)[position], bool(whole.on_device.any())
    clocks = map_device_clocks(measured_steps.run) if timed else map_clocks(measured_steps.run)
    start_ns = np.concatenate([_shift(clocks, at, each.start_ns) for at, each in there])
    slack_ns = _bound_clocks(clocks, there)
    partner, failures, apart = match_exchanges(rank, whole, start_ns, slack_ns=slack_ns)
    left_out: tuple[str, ...] = ()
    if 0 < len(apart) <= MOST_LEFT_OUT_RATIO * len(np.unique(whole.step)):
        left_out = (f"{len(apart):,} step(s) are left out, in which a rank sends more than another receives, or less",)
        kept = np.flatnonzero(~np.isin(whole.step, apart))
        whole, position, rank, start_ns = choose_operations(whole, kept), position[kept], rank[kept], start_ns[kept]
        kind, micro_batch = kind[kept], micro_batch[kept]
        partner, failures, _ = match_exchanges(rank, whole, start_ns, slack_ns=slack_ns)
    taken = (whole.kind == _RECEIVE) & (partner >= 0)
    kind[taken] = [_RECEIVE_OF.get(code, _OTHER) for code in kind[partner[taken]].tolist()]
    micro_batch[taken] = micro_batch[partner[taken]]
    if not (np.isin(kind, list(_SENDS.values()))).any():
        return None
    dp, pp, chunk = _locate(rank, kind, whole)
    return PipelineOperations(
        rank=rank, dp=dp, pp=pp, tp=np.zeros_like(rank), step=whole.step, kind=kind, start_ns=start_ns,
        clock=Clock.DEVICE if timed else Clock.HOST,
        duration_ns=whole.duration_ns, micro_batch=micro_batch, chunk=chunk, peer=whole.peer,
        waited_ns=whole.waited_ns, weights=whole.kind == _WEIGHT, partner=partner,
        missed_ns=_measure_missed(clocks, position, whole, start_ns, partner), left_out=left_out, failures=failures,
    )  # fmt: skip


def _choose(measured_steps: MeasuredSteps) -> list[tuple[int, RankOperations]]:
    """By position of the rank, the operations of the steps that count, in the order in which they began: of those steps
    that all ranks have kept or, where there are none, of all. Where some are on the device clock, only those.
    """
    counted = measured_steps.run.column("step")[:, measured_steps.counted]
    there = [(at, each) for at, each in enumerate(measured_steps.run.operations) if each is not None]
    if any(each.on_device.any() for _, each in there):
        there = [(at, choose_operations(each, np.flatnonzero(each.on_device))) for at, each in there]
    steps = [np.intersect1d(each.step, counted[np.isfinite(counted)]) for _, each in there]
    shared = functools.reduce(np.intersect1d, steps) if steps else np.empty(0)
    found = []
    for (at, own), known in zip(there, steps, strict=True):
        kept = np.flatnonzero(np.isin(own.step, shared if len(shared) else known))
        kept = kept[np.lexsort((own.start_ns[kept], own.step[kept]))]
        if len(kept):
            found.append((at, choose_operations(own, kept)))
    return found


def choose_operations(own: RankOperations, places: IntArray) -> RankOperations:
    """Some of a rank's operations, in this order."""
    return RankOperations(**{name: getattr(own, name)[places] for name in RankOperations.__struct_fields__})


def _label(own: RankOperations) -> tuple[IntArray, IntArray]:
    """Kind and micro-batch of each operation of a rank, as far as it tells by itself."""
    computes = np.flatnonzero(np.isin(own.kind, list(_COMPUTES)))
    passes = computes[own.kind[computes] != _WEIGHT]
    kind, micro_batch = np.full(len(own.kind), _OTHER), own.micro_batch.copy()
    kind[computes] = [_COMPUTES[code] for code in own.kind[computes].tolist()]
    if not len(passes):
        return kind, micro_batch
    ends_ns, places = own.start_ns + np.nan_to_num(own.duration_ns), np.arange(len(own.kind))
    inside_of = np.searchsorted(computes, places) - 1
    inside = (inside_of >= 0) & (own.start_ns < ends_ns[computes[inside_of]])
    before = np.searchsorted(passes, places) - 1
    after = np.maximum(before + 1, np.searchsorted(own.start_ns[passes], ends_ns))
    for code, near, names in ((_SEND, before, _SENDS), (_RECEIVE, after, _RECEIVES)):
        there = (own.kind == code) & ~inside & (near >= 0) & (near < len(passes))
        at = passes[np.clip(near, 0, len(passes) - 1)]
        there &= own.step[at] == own.step
        kind[there] = [names[each] for each in own.kind[at[there]].tolist()]
        micro_batch[there] = own.micro_batch[at[there]]
    return kind, micro_batch


def match_exchanges(
    rank: IntArray, own: RankOperations, start_ns: FloatArray, *, slack_ns: float
) -> tuple[IntArray, tuple[str, ...], IntArray]:
    """Matches sends and receives by the two ranks, the direction, the tag, and the order in a step.

    Args:
        rank: The rank of each operation.
        own: The operations of all ranks.
        start_ns: When each began, on one clock.
        slack_ns: How far two ranks' readings of it may be apart.

    Returns:
        Each one's partner, why some have none, and in which steps the numbers of some differ.
    """
    sends, receives = (np.flatnonzero(own.kind == code) for code in (_SEND, _RECEIVE))
    anyone = int((own.peer[receives] < 0).sum())
    receives = receives[own.peer[receives] >= 0]
    places = [
        (rank[sends], own.peer[sends]), (own.peer[receives], rank[receives]),
    ]  # fmt: skip
    keys, codes = _number_keys(
        [np.concatenate(parts) for parts in zip(*places, strict=True)]
        + [np.concatenate([column[sends], column[receives]]) for column in (own.tag, own.step)]
    )
    steps = {*map(tuple, _number_keys([rank, own.step])[1].tolist())}
    kept = np.array(
        [(source, step) in steps and (target, step) in steps for source, target, _, step in codes.tolist()], dtype=bool
    )
    of_sends, of_receives = keys[: len(sends)], keys[len(sends) :]
    differs = np.bincount(of_sends, minlength=len(codes)) != np.bincount(of_receives, minlength=len(codes))
    parted = {"their numbers differ": differs & kept}
    first = _order(sends, of_sends, ~differs & kept, own)
    second = _order(receives, of_receives, ~differs & kept, own)
    key = keys[np.searchsorted(sends, first)] if len(first) else first
    unequal = np.zeros(len(codes), dtype=bool)
    unequal[key[own.size_bytes[first] != own.size_bytes[second]]] = True
    parted["their sizes differ"] = unequal
    too_early = np.zeros(len(codes), dtype=bool)
    too_early[key[start_ns[second] + own.duration_ns[second] < start_ns[first] - slack_ns]] = True
    # Then the two ranks do not count steps alike, or not the same things: so it is in the other direction, too.
    pairs, _ = _number_keys([codes[:, :2].min(axis=1), codes[:, :2].max(axis=1), codes[:, 3]])
    too_early = np.isin(pairs, pairs[too_early])
    parted["something was received before it was sent, so the order is another one"] = too_early & ~unequal
    partner = np.full(len(rank), UNKNOWN)
    good = ~(unequal | too_early)[key] if len(key) else np.zeros(0, dtype=bool)
    partner[first[good]], partner[second[good]] = second[good], first[good]
    return partner, _describe(parted, codes, anyone), np.unique(codes[differs & kept, 3])


def _number_keys(columns: list[IntArray]) -> tuple[IntArray, IntArray]:
    """The number of each row's key, and the keys: `np.unique` of rows, at a tenth of its cost."""
    order = np.lexsort(columns[::-1])
    ranked = np.stack(columns, axis=1)[order]
    new = np.ones(len(ranked), dtype=bool)
    new[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    keys = np.empty(len(ranked), dtype=np.int64)
    keys[order] = np.cumsum(new) - 1
    return keys, ranked[new]


def _order(places: IntArray, keys: IntArray, good: BoolArray, own: RankOperations) -> IntArray:
    """The places whose keys are good, by key and in the order in which they were issued."""
    chosen = good[keys]
    places, keys = places[chosen], keys[chosen]
    ordered: IntArray = places[np.lexsort((own.start_ns[places], keys))]
    return ordered


def _describe(parted: dict[str, BoolArray], codes: IntArray, anyone: int) -> tuple[str, ...]:
    told = []
    for why, which in parted.items():
        if which.any():
            source, target, _, step = codes[int(np.argmax(which))].tolist()
            number = int(which.sum())
            told.append(
                f"sends of rank {source} to rank {target} in step {step} are not matched: {why}"
                + (f"; so are {number - 1:,} others" if number > 1 else "")
            )
    if anyone:
        told.append(f"{anyone:,} receives are not matched: they take what any rank sends")
    return tuple(told)


def _bound_clocks(clocks: ClockMap | DeviceClockMap, there: Sequence[tuple[int, RankOperations]]) -> float:
    """How far the readings of two ranks may be apart; inf: not known."""
    found = [0.0]
    for at, own in there:
        own_ns = own.start_ns if isinstance(clocks, DeviceClockMap) else _shift(clocks, at, own.start_ns)
        bound_ns = clocks.worst_bound_ns(at, float(own_ns.min()), float(own_ns.max()))
        found.append(float(np.nan_to_num(bound_ns, nan=np.inf)))
    return 2 * max(found)


def _shift(clocks: ClockMap | DeviceClockMap, position: int, start_ns: FloatArray) -> FloatArray:
    shifted = clocks.to_reference(position, start_ns)
    return np.where(np.isnan(shifted), start_ns, shifted)


def _measure_missed(
    clocks: ClockMap | DeviceClockMap, position: IntArray, own: RankOperations, start_ns: FloatArray, partner: IntArray
) -> FloatArray:
    """How much of its wait a rank had behind it when its partner began, where clocks are nearer than that wait."""
    missed_ns = np.full(len(partner), np.nan)
    matched = np.flatnonzero(partner >= 0)
    other = partner[matched]
    waited_ns = own.waited_ns[matched]
    from_ns = start_ns[matched] + np.nan_to_num(own.duration_ns[matched]) - waited_ns
    missed_ns[matched] = np.clip(start_ns[other] - from_ns, 0.0, waited_ns)
    number, pairs = _number_keys([position[matched], position[other]])
    if not len(pairs):
        return missed_ns
    middle_ns = float(np.median(start_ns[matched]))
    bounds_ns = np.array([float(clocks.pair_bound_ns(one, two, middle_ns)) for one, two in pairs.tolist()])
    mean_ns = np.bincount(number, weights=waited_ns) / np.bincount(number)
    far = (bounds_ns > 0) & ~(bounds_ns <= _CLOSE_RATIO * mean_ns)
    missed_ns[matched[far[number]]] = np.nan
    return missed_ns


_CLOSE_RATIO = 0.1
"""Two clocks are compared if the error is at most this part of what is measured."""


def _locate(rank: IntArray, kind: IntArray, own: RankOperations) -> tuple[IntArray, IntArray, IntArray]:
    """Replica, place in the pipeline and chunk of each operation."""
    sent = np.isin(kind, [*_SENDS.values(), *_RECEIVES.values()]) & (own.peer >= 0)
    _, pairs = _number_keys([rank[sent], own.peer[sent]])
    replica = {each: each for each in np.union1d(rank, pairs).tolist()}  # some peers may have recorded nothing
    for _ in range(len(replica)):
        before = dict(replica)
        for source, target in pairs.tolist():
            replica[source] = replica[target] = min(replica[source], replica[target])
        if before == replica:
            break
    number = {lowest: at for at, lowest in enumerate(sorted({*replica.values()}))}
    forward = np.isin(kind, [_SENDS[_FORWARD]]) & (own.peer >= 0)
    follows = _number_keys([rank[forward], own.peer[forward]])[1].tolist()
    parts = {each: slice(*np.searchsorted(rank, [each, each + 1])) for each in np.unique(rank).tolist()}
    known = {each: np.unique(own.stage[part][own.stage[part] >= 0]) for each, part in parts.items()}
    place = _follow(list(replica), follows)
    place |= {each: int(stages[0]) for each, stages in known.items() if len(stages)}
    chunk = np.full(len(rank), UNKNOWN)
    computed = np.isin(kind, list(_COMPUTES.values()))
    for each, stages in known.items():
        these = np.flatnonzero(computed[parts[each]]) + parts[each].start
        chunk[these] = np.searchsorted(stages, own.stage[these]) if len(stages) else 0
    here, at = np.unique(rank, return_inverse=True)
    dp = np.array([number[replica[each]] for each in here.tolist()], dtype=np.int64)
    return dp[at], np.array([place.get(each, UNKNOWN) for each in here.tolist()], dtype=np.int64)[at], chunk


def _follow(ranks: list[int], follows: list[list[int]]) -> dict[int, int]:
    """Where each rank stands: behind whoever sends it activations. Empty: they go round."""
    place = dict.fromkeys(ranks, 0)
    for _ in range(len(ranks) + 1):
        before = dict(place)
        for source, target in follows:
            place[target] = max(place.get(target, 0), place.get(source, 0) + 1)
        if before == place:
            return place
    return {}
