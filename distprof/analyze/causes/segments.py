"""A rank's work in pieces that do not overlap: its parts, cut where collectives are issued within a part."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from distprof.analyze.causes.common_slowdown import find_speed, thin_ranks
from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.stats.statistics import find_median
from distprof.facts.run import OWN_PARTS, FloatArray

MIN_SHARE = 0.02
"""Of the cycle; shorter pieces tell little."""
MAX_CHANCE = 0.005
"""Of setting a piece aside as late by chance: family-wise over ranks and parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some of a part."""

    code: int
    """Index into `OWN_PARTS`."""
    own_ns: FloatArray
    """``[num_ranks, num_cycles]``"""
    whole: bool
    """It is all of the part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimes:
    """Own times without what the ranks' speed explains."""

    phase_ns: FloatArray
    gap_ns: FloatArray
    pieces: tuple[Piece, ...] | None
    """Of the parts that consist of several. None: speed explains nothing."""


def take_speed(cycles: SyncCycles, phase_ns: FloatArray, gap_ns: FloatArray) -> OwnTimes:
    """Takes out what the ranks' speed explains, if anything.

    Args:
        cycles: As recorded.
        phase_ns: Own time by part, less what is already explained otherwise,
            ``[num_ranks, num_cycles, len(OWN_PARTS)]``.
        gap_ns: Own time before each arrival, likewise.
    """
    as_is = OwnTimes(phase_ns=phase_ns, gap_ns=gap_ns, pieces=None)
    if len(phase_ns) < 2 or phase_ns.shape[1] < MIN_CYCLES:
        return as_is
    pieces = cut_parts(cycles, phase_ns, gap_ns, float(find_median(cycles.cycle_ns)))
    chance = MAX_CHANCE / (len(phase_ns) * max(len(pieces), 1))
    explained_ns = find_speed([piece.own_ns for piece in pieces], [piece.code for piece in pieces], chance)
    if explained_ns is None:
        return as_is
    phase_ns = phase_ns.copy()
    for piece, taken_ns in zip(pieces, explained_ns, strict=True):
        phase_ns[:, :, piece.code] -= taken_ns
    left = [
        dataclasses.replace(piece, own_ns=piece.own_ns - taken_ns)
        for piece, taken_ns in zip(pieces, explained_ns, strict=True) if not piece.whole
    ]  # fmt: skip
    return OwnTimes(
        phase_ns=phase_ns, gap_ns=gap_ns - _take_gaps(gap_ns, explained_ns.sum(axis=0)), pieces=tuple(left)
    )  # fmt: skip


def cut_parts(cycles: SyncCycles, phase_ns: FloatArray, gap_ns: FloatArray, whole_ns: float) -> list[Piece]:
    """The parts that take some time, in pieces.

    Args:
        cycles: As recorded.
        phase_ns: Own time by part, ``[num_ranks, num_cycles, num_parts]``; NaN: not measured.
        gap_ns: Own time before each arrival, ``[num_ranks, num_cycles, num_collectives]``.
        whole_ns: The usual cycle.
    """
    least_ns = MIN_SHARE * whole_ns
    parts = {
        code: phase_ns[:, :, code] for code in range(phase_ns.shape[2])
        if _find_usual(phase_ns[:, :, code]) >= least_ns
    }  # fmt: skip
    pieces = []
    for code, own_ns in parts.items():
        inner = [gap_ns[:, :, index] for index in _find_inner(cycles, code, gap_ns, least_ns)]
        rest_ns = own_ns - sum(inner, start=np.zeros(()))
        if inner and _find_usual(rest_ns) >= least_ns:
            pieces += [Piece(code=code, own_ns=each_ns, whole=False) for each_ns in (rest_ns, *inner)]
        else:
            pieces.append(Piece(code=code, own_ns=own_ns, whole=True))
    return pieces


def _find_usual(own_ns: FloatArray) -> float:
    return float(find_median(thin_ranks(own_ns)))


def _find_inner(cycles: SyncCycles, code: int, gap_ns: FloatArray, least_ns: float) -> list[int]:
    """The gaps that lie in one go through the part: both collectives are issued in it, and ranks do not wait for the
    first. A wait may be the end of a backward pass, after which another model's forward pass follows."""
    issued, part = cycles.issued, OWN_PARTS[code]
    return [
        index for index in range(1, len(issued))
        if issued[index - 1] == issued[index] == part and not cycles.blocking[index - 1]
        and _find_usual(gap_ns[:, :, index]) >= least_ns
    ]  # fmt: skip


def _take_gaps(gap_ns: FloatArray, explained_ns: FloatArray) -> FloatArray:
    """What speed explains, shared out over the gaps by how much each grows with it."""
    cause = explained_ns - explained_ns.mean(axis=1, keepdims=True)
    power = float((cause * cause).sum())
    grown = np.maximum(np.tensordot(cause, gap_ns, axes=2), 0.0) / power if power > 0 else np.zeros(gap_ns.shape[2])
    taken: FloatArray = explained_ns[:, :, None] * grown
    return taken
