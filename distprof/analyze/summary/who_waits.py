"""Who waits for whom? The time that ranks stand still in collectives, by who came last to them."""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.summary.step_blocks import Blocks
from distprof.analyze.summary.waits import Waits, list_waits
from distprof.facts.arrays import FloatArray, IntArray
from distprof.facts.run import Collectives
from distprof.report.page_report import WhoWaits

MAX_ROWS, MAX_COLUMNS = 12, 32


def measure_who_waits(measured_steps: MeasuredSteps, blocks: Blocks | None = None) -> WhoWaits | None:
    """The matrix over all groups, and by blocks. None: collectives were not recorded, or nobody stood still in them."""
    count = len(measured_steps.run.ranks)
    each = max(-(-count // MAX_COLUMNS), 1)
    column = np.arange(count) // each
    stood_ns = np.zeros((count + 1, column[-1] + 1 if count else 0))  # the last row: nobody for certain
    num_blocks = 0 if blocks is None else blocks.count
    number = np.full(measured_steps.run.rows.shape[1], num_blocks)  # the last one is for steps of no block
    if blocks is not None:
        number = np.where(blocks.number < 0, num_blocks, blocks.number)
    in_block_ns = np.zeros((num_blocks + 1, *stood_ns.shape))
    for table, steps, waits in list_waits(measured_steps):
        _add(stood_ns, in_block_ns, column, table, steps, waits, number)
    if not stood_ns.any():
        return None
    stood_ns /= np.bincount(column)
    in_block_ns /= np.bincount(column)
    order = np.argsort(-stood_ns[:count].sum(axis=1), kind="stable")
    order = order[stood_ns[order].any(axis=1)]
    shown, rest = order[:MAX_ROWS], order[MAX_ROWS:]
    unclear = bool(stood_ns[count].any())

    def choose(times_ns: FloatArray) -> FloatArray:
        """The rows that are shown, of ``[..., num_ranks + 1, num_columns]``."""
        parts = [times_ns[..., shown, :]]
        parts += [times_ns[..., rest, :].sum(axis=-2, keepdims=True)] if len(rest) else []
        return np.concatenate([*parts, *([times_ns[..., count:, :]] if unclear else [])], axis=-2)

    by_block = None
    if blocks is not None:
        chosen_ns = choose(in_block_ns[:-1]).reshape(num_blocks, -1).T
        by_block = blocks.pack(np.flatnonzero(measured_steps.counted & (number < num_blocks)), stood=chosen_ns)
    numbers = measured_steps.numbers
    return WhoWaits(
        last=(*(numbers[position] for position in shown.tolist()), *([None] if len(rest) else [])), unclear=unclear,
        each=each, stood_ns=choose(stood_ns), by_block=by_block,
    )  # fmt: skip


def _add(
    stood_ns: FloatArray, in_block_ns: FloatArray, column: IntArray, table: Collectives, steps: IntArray,
    waits: Waits, number: IntArray,
) -> None:  # fmt: skip
    """Adds a table's means over the steps in which every wait is known, and likewise of each block. If members are
    missing, one of them may have come last."""
    own_ns = np.clip(np.minimum(waits.wait_ns, np.nan_to_num(table.exposed_ns[:, steps])), 0, None)
    known = np.isfinite(own_ns).all(axis=(0, 2))
    if not known.any():
        return
    own_ns, last = own_ns[:, known], waits.last[:, known]
    certain = last.any(axis=0) & (table.size <= len(table.ranks))
    who = np.where(certain, table.ranks[last.argmax(axis=0)], len(stood_ns) - 1)
    members = column[table.ranks]
    block = number[table.steps[steps[known]]]
    sizes = np.bincount(block, minlength=len(in_block_ns))
    where = (block[:, None] * len(stood_ns) + who).reshape(-1)
    for place in np.unique(members).tolist():
        of_column_ns = own_ns[members == place].sum(axis=0).reshape(-1)
        sums_ns = np.bincount(where, weights=of_column_ns, minlength=in_block_ns[..., 0].size).reshape(len(sizes), -1)
        stood_ns[:, place] += sums_ns.sum(axis=0) / known.sum()
        in_block_ns[:, :, place] += np.divide(
            sums_ns, sizes[:, None], out=np.full(sums_ns.shape, np.nan), where=sizes[:, None] > 0
        )
