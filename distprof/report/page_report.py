"""What the page draws of every rank and step: tables small enough to travel in it, whatever the size of the job."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from distprof.facts.arrays import FloatArray


class StepBlocks(Struct, frozen=True, kw_only=True):
    """Means by blocks of steps, ns; NaN: not measured in the block."""

    columns_each: int
    """A block is of so many columns of the page; the last one may be of fewer."""
    used: tuple[int, ...]
    """Over how many steps each block's means are."""
    mean_ns: Mapping[str, FloatArray]
    """By quantity, ``[num_rows, num_blocks]``."""


class WhoWaits(Struct, frozen=True, kw_only=True):
    """Who stands still in collectives, and who came last to them."""

    last: tuple[int | None, ...]
    """Global rank of each row, the one that is waited for longest first; None: all other ranks together."""
    unclear: bool
    """Whether the last row is of collectives to which nobody came last by more than the clocks can tell."""
    each: int
    """A column is of so many ranks, consecutive in ``Report.ranks``; the last one may be of fewer."""
    stood_ns: FloatArray
    """How long a rank of the column stood still per step until the row's rank came, ``[num_rows, num_columns]``, mean
    over the ranks of the column: of each collective the shorter of its wait and what of it stopped its compute."""
    by_block: StepBlocks | None
    """The same, "stood", with ``num_rows * num_columns`` rows. None: the job has too many ranks, or steps of one block.
    """


class PageReport(Struct, frozen=True, kw_only=True):
    """Times on the headline's clock, ns; NaN: not measured. It is no part of ``report.json``."""

    clock: str
    """The clock of every time here."""
    ranks_each: int
    """A row is of so many ranks, consecutive in ``Report.ranks``; the last one may be of fewer."""
    steps_each: int
    """A column is of so many consecutive steps; the last one may be of fewer."""
    steps: tuple[int, ...]
    """Number of the first step of each column."""
    shown: tuple[int, ...]
    """Number of the step that ``mean_ns`` shows of each column: the one with the longest mean."""
    measured: tuple[bool, ...]
    """Whether that step counts: no warm-up, not failed, recorded."""
    mean_ns: Mapping[str, FloatArray]
    """Mean over ranks of the step and of each phase in that step, ``[num_columns]``."""
    cells_ns: Mapping[str, FloatArray]
    """By quantity, the longest time of each row and column, ``[num_rows, num_columns]``: "step"; "own", which is the
    step without exposed communication; "wait", which is exposed communication; and every phase."""
    excess_ns: FloatArray
    """What a step would lose to each rank if all the others worked like the median of them: its own time above theirs
    and, where the host clock tells, that between the steps; a step in which it is below counts 0; mean over the
    measured steps, ``[num_ranks]``."""
    excess_by_block: StepBlocks | None
    """"excess" of each rank. None: as of `WhoWaits`, or it is not known."""
    phases_by_block: StepBlocks | None
    """Of each rank "step" and, where they were recorded, the phases that take time. None: as of `WhoWaits`."""
    who_waits: WhoWaits | None
    """None: collectives were not recorded, or nobody stood still in them."""
    places: tuple[tuple[str, tuple[int | None, ...]], ...]
    """The dimensions in which ranks have a place, by name, and that of each: of the mesh or, without one, of the
    pipeline. None: the rank has no place."""
