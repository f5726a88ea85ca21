"""Which collective of one rank is which of another's? The groups' tables, woven into one order per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distprof.analyze.basis import Basis, BoolArray
from distprof.run import Collectives, FloatArray, IntArray, Phase

MAX_CELLS = 4_000_000
"""Ranks x steps x collectives that are looked at: of longer runs every n-th step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lined:
    """Every rank's collectives in its order of issue; one place means the same kind and phase on every rank."""

    positions: IntArray
    """Positions in ``Run.ranks``, ``[num_ranks]``."""
    steps: IntArray
    """``[num_steps]``"""
    parties: tuple[tuple[tuple[str, IntArray], ...], ...]
    """For each place the groups that meet there: name, and members as places on axis 0 below."""
    phases: tuple[Phase, ...]
    """``[num_collectives]``"""
    blocking: BoolArray
    """``[num_collectives]``"""
    arrival_ns: FloatArray
    """On the rank's own host clock, ``[num_ranks, num_steps, num_collectives]``; so are the next two."""
    end_ns: FloatArray
    exposed_ns: FloatArray


def line_up(basis: Basis) -> Lined | None:
    """Lines the collectives up, to the last that a rank waits for.

    Returns:
        None where the ranks do not issue the same kinds in the same order, or none is waited for.
    """
    tables = _choose_tables(basis)
    positions = np.flatnonzero(basis.present)
    steps = _find_steps(basis, tables, len(positions))
    if not len(steps):
        return None
    woven = [_weave(tables, int(position), steps) for position in positions]
    first = woven[0]
    if first is None or any(other is None or other.shape != first.shape for other in woven):
        return None
    shape = (len(positions), len(steps), len(first.order))
    arrival_ns, end_ns, exposed_ns = np.empty(shape), np.empty(shape), np.empty(shape)
    for row, item in enumerate(woven):
        assert item is not None
        arrival_ns[row], end_ns[row], exposed_ns[row] = item.arrival_ns, item.end_ns, item.exposed_ns
    blocking: BoolArray = np.nan_to_num(exposed_ns).max(axis=(0, 1)) > 0
    if not blocking.any():
        return None
    count = int(np.flatnonzero(blocking)[-1]) + 1
    parties = tuple(_find_parties(tables, woven, place) for place in range(count))
    return Lined(
        positions=positions, steps=steps, parties=parties, phases=tuple(phase for _, phase in first.shape[:count]),
        blocking=blocking[:count], arrival_ns=arrival_ns[:, :, :count], end_ns=end_ns[:, :, :count],
        exposed_ns=exposed_ns[:, :, :count],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Woven:
    shape: tuple[tuple[str, Phase], ...]
    order: tuple[int, ...]
    """The table of each place."""
    arrival_ns: FloatArray
    end_ns: FloatArray
    exposed_ns: FloatArray


def _choose_tables(basis: Basis) -> list[Collectives]:
    """Of every group the table that most counted steps follow."""
    best: dict[tuple[str, tuple[int, ...]], tuple[int, Collectives]] = {}
    for table in basis.run.collectives:
        key = (table.group, tuple(table.ranks.tolist()))
        used = int(basis.counted[table.steps].sum())
        if used > best.get(key, (0, None))[0]:
            best[key] = (used, table)
    return [table for _, table in best.values()]


def _find_steps(basis: Basis, tables: list[Collectives], num_ranks: int) -> IntArray:
    steps = np.flatnonzero(basis.counted)
    for table in tables:
        steps = np.intersect1d(steps, table.steps, assume_unique=True)
    widths = np.zeros(len(basis.present), dtype=np.int64)
    for table in tables:
        widths[table.ranks] += len(table.kinds)
    every = -(-len(steps) * num_ranks * int(widths.max(initial=1)) // MAX_CELLS)
    return steps[:: max(every, 1)]


def _weave(tables: list[Collectives], position: int, steps: IntArray) -> _Woven | None:
    own = [(number, table, int(row[0])) for number, table in enumerate(tables)
           if len(row := np.flatnonzero(table.ranks == position))]  # fmt: skip
    if not own:
        return None
    parts = [(table, row, np.searchsorted(table.steps, steps)) for _, table, row in own]
    arrival_ns = np.concatenate([table.arrival_ns[row, at] for table, row, at in parts], axis=1)
    end_ns = np.concatenate([table.end_ns[row, at] for table, row, at in parts], axis=1)
    exposed_ns = np.concatenate([table.exposed_ns[row, at] for table, row, at in parts], axis=1)
    shape = [(kind.value, phase) for _, table, _ in own for kind, phase in zip(table.kinds, table.phases, strict=True)]
    numbers = [number for number, table, _ in own for _ in table.kinds]
    order = np.argsort((arrival_ns - arrival_ns.min(axis=1, keepdims=True)).mean(axis=0), kind="stable")
    return _Woven(
        shape=tuple(shape[place] for place in order), order=tuple(numbers[place] for place in order),
        arrival_ns=arrival_ns[:, order], end_ns=end_ns[:, order], exposed_ns=exposed_ns[:, order],
    )  # fmt: skip


def _find_parties(
    tables: list[Collectives], woven: list[_Woven | None], place: int
) -> tuple[tuple[str, IntArray], ...]:
    members: dict[int, list[int]] = {}
    for row, item in enumerate(woven):
        assert item is not None
        members.setdefault(item.order[place], []).append(row)
    return tuple((tables[number].group, np.array(rows)) for number, rows in members.items())
