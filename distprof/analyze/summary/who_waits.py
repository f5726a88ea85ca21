"""Who waits for whom? The time that ranks stand still in collectives, by who came last to them."""

from __future__ import annotations

import numpy as np

from distprof.analyze.stats.measured_steps import MeasuredSteps
from distprof.analyze.summary.waits import Waits, list_waits
from distprof.facts.run import Collectives, FloatArray, IntArray
from distprof.report.page_report import WhoWaits

MAX_ROWS, MAX_COLUMNS = 12, 32


def measure_who_waits(measured_steps: MeasuredSteps) -> WhoWaits | None:
    """The matrix over all groups. None: collectives were not recorded, or nobody stood still in them."""
    count = len(measured_steps.run.ranks)
    each = max(-(-count // MAX_COLUMNS), 1)
    column = np.arange(count) // each
    stood_ns = np.zeros((count + 1, column[-1] + 1 if count else 0))  # the last row: nobody for certain
    for table, steps, waits in list_waits(measured_steps):
        _add(stood_ns, column, table, steps, waits)
    if not stood_ns.any():
        return None
    stood_ns /= np.bincount(column)
    order = np.argsort(-stood_ns[:count].sum(axis=1), kind="stable")
    order = order[stood_ns[order].any(axis=1)]
    shown, rest = order[:MAX_ROWS], order[MAX_ROWS:]
    rows = [stood_ns[shown], *([stood_ns[rest].sum(axis=0)[None]] if len(rest) else [])]
    unclear = bool(stood_ns[count].any())
    numbers = measured_steps.numbers
    return WhoWaits(
        last=(*(numbers[position] for position in shown.tolist()), *([None] if len(rest) else [])), unclear=unclear,
        each=each, stood_ns=np.concatenate([*rows, *([stood_ns[count:]] if unclear else [])]),
    )  # fmt: skip


def _add(stood_ns: FloatArray, column: IntArray, table: Collectives, steps: IntArray, waits: Waits) -> None:
    """Adds a table's means over the steps in which every wait is known. If members are missing, one of them may have
    come last."""
    own_ns = np.clip(np.minimum(waits.wait_ns, np.nan_to_num(table.exposed_ns[:, steps])), 0, None)
    known = np.isfinite(own_ns).all(axis=(0, 2))
    if not known.any():
        return
    own_ns, last = own_ns[:, known], waits.last[:, known]
    certain = last.any(axis=0) & (table.size <= len(table.ranks))
    who = np.where(certain, table.ranks[last.argmax(axis=0)], len(stood_ns) - 1)
    members = column[table.ranks]
    for place in np.unique(members).tolist():
        of_column_ns = own_ns[members == place].sum(axis=0) / known.sum()
        stood_ns[:, place] += np.bincount(who.reshape(-1), weights=of_column_ns.reshape(-1), minlength=len(stood_ns))
