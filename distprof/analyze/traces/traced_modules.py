"""How long did each rank's host and device work in each module, according to traces?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distprof.analyze.stats.statistics import spread_over_ranks
from distprof.facts.run import FloatArray
from distprof.facts.trace_summary import ModuleTotal, TraceSummary
from distprof.report.trace_report import TracedModule, TracedModules

STAGES = ("forward", "backward", "recomputed")
CLOCKS = ("host", "device")
Key = tuple[str, str]
"""Name and class."""


def report_traced_modules(activity: Sequence[TraceSummary]) -> TracedModules | None:
    """Joins the ranks' modules by name and class. None: no trace tells modules apart."""
    traced = [item for item in activity if item.modules]
    if not traced:
        return None
    per_step = all(item.num_steps for item in traced)
    order: dict[Key, Key | None] = {}
    for item in traced:  # what a rank has alone comes last, each still before its submodules
        for row in item.modules:
            parent = None if row.parent is None else _name(item.modules[row.parent])
            order.setdefault(_name(row), parent)
    places = {key: place for place, key in enumerate(order)}
    figures = _fill(traced, places, per_step=per_step)
    numbers = [item.rank for item in traced]
    rows = tuple(
        TracedModule(
            name=key[0], kind=key[1], parent=None if parent is None else places[parent],
            **{field: spread_over_ranks(values[:, place], numbers) for field, values in figures.items()},
        )
        for place, (key, parent) in enumerate(order.items())
    )  # fmt: skip
    return TracedModules(ranks=tuple(numbers), per_step=per_step, rows=rows)


def _name(row: ModuleTotal) -> Key:
    return row.name, row.kind


def _fill(traced: Sequence[TraceSummary], places: dict[Key, int], *, per_step: bool) -> dict[str, FloatArray]:
    """Every figure of `TracedModule`, ``[num_ranks, num_modules]``; NaN: not measured, or no such module."""
    found: dict[str, FloatArray] = {}
    for rank, item in enumerate(traced):
        per = item.num_steps if per_step else 1
        for row in item.modules:
            for field, value in _list_figures(row).items():
                if field not in found:
                    found[field] = np.full((len(traced), len(places)), np.nan)
                if value is not None:
                    found[field][rank, places[_name(row)]] = value / per
    return found


def _list_figures(row: ModuleTotal) -> dict[str, int | None]:
    figures: dict[str, int | None] = {"calls": row.calls}
    for clock in CLOCKS:
        own, total = getattr(row, f"self_{clock}_ns"), getattr(row, f"total_{clock}_ns")
        figures[f"self_{clock}_ns"] = None if own is None else sum(own)
        figures[f"total_{clock}_ns"] = None if total is None else sum(total)
        for place, stage in enumerate(STAGES):
            figures[f"{stage}_{clock}_ns"] = None if total is None else total[place]
    return figures
