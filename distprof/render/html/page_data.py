"""What the page's script draws, as one block of JSON in the page: numbers in tables, names as clean text."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

import numpy as np

from distprof.facts.arrays import FloatArray
from distprof.facts.run import Stretch
from distprof.render.colours import PHASE_COLOURS, RAMP
from distprof.render.sections.cause_words import name_cause
from distprof.render.units import clean_text
from distprof.report.page_report import PageReport, StepBlocks
from distprof.report.report import Report
from distprof.report.wait_report import LASTING_KINDS, Stall

NAME_LIMIT = 40
MAX_MARKS = 12
LEVELS = 65_534
"""Of a packed number: it is off by at most a 130,000th of the table's largest. One more stands for NaN."""


def embed_data(report: Report, page: PageReport) -> str:
    """The block, which cannot end before its end: no character in it has a meaning in HTML."""
    text = json.dumps(_collect(report, page), separators=(",", ":"), allow_nan=False)
    safe = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="data">{safe}</script>'


def _collect(report: Report, page: PageReport) -> dict[str, object]:
    hosts = list(dict.fromkeys(rank.host for rank in report.ranks))
    number = {host: index for index, host in enumerate(hosts)}
    return {
        "clock": page.clock,
        "ranks": [rank.rank for rank in report.ranks],
        "hosts": [clean_text(host, NAME_LIMIT) for host in hosts],
        "host": [number[rank.host] for rank in report.ranks],
        "places": [[clean_text(name, NAME_LIMIT), list(at)] for name, at in page.places],
        "excess": _pack(page.excess_ns),
        "step_ns": report.headline.step_mean_ns or 0,
        "ranks_each": page.ranks_each, "steps_each": page.steps_each,
        "steps": list(page.steps), "shown": list(page.shown), "measured": [int(each) for each in page.measured],
        "colours": {name: colour for name, colour in PHASE_COLOURS.items() if name in page.mean_ns},
        "ramp": RAMP,
        "means": _pack_tables(page.mean_ns), "cells": _pack_tables(page.cells_ns),
        "blocks": {
            "where": _pack_blocks(page.excess_by_block), "phases": _pack_blocks(page.phases_by_block),
            "who-waits": _pack_blocks(None if page.who_waits is None else page.who_waits.by_block),
        },
        "marks": _list_marks(report),
    }  # fmt: skip


def _pack_blocks(blocks: StepBlocks | None) -> dict[str, object] | None:
    if blocks is None:
        return None
    return {"each": blocks.columns_each, "used": list(blocks.used), "tables": _pack_tables(blocks.mean_ns)}


def _pack_tables(tables: Mapping[str, FloatArray]) -> dict[str, list[object]]:
    return {name: _pack(table) for name, table in tables.items()}


def _pack(table: FloatArray) -> list[object]:
    """The unit, ns, and the numbers as 16-bit integers of it in base64, little-endian; the largest integer is NaN."""
    known = np.isfinite(table)
    unit_ns = max(float(table[known].max(initial=0.0)), 1.0) / LEVELS
    levels = np.where(known, np.clip(np.nan_to_num(table), 0, None) / unit_ns, LEVELS + 1).round()
    return [unit_ns, base64.b64encode(levels.astype("<u2").tobytes()).decode()]


def _list_marks(report: Report) -> list[list[object]]:
    """Steps worth a mark: the worst, stalls, and where a cause begins or ends within the run."""
    found: list[list[object]] = []
    causes = () if report.causes is None else report.causes.causes
    for cause in causes:
        if not cause.whole and cause.kind in LASTING_KINDS:
            name = name_cause(cause, report=report)
            found += [[cause.first_step, f"{name} begins"], [cause.last_step, f"{name} ends"]]
    found += [[each.step, "the longest step"] for each in report.longest_steps[:1]]
    found += [[stall.step, _name_stall(stall)] for stall in sorted(report.stalls, key=lambda stall: -stall.lost_ns)]
    return _keep_first(found)[:MAX_MARKS]


def _name_stall(stall: Stall) -> str:
    """What all ranks do between steps by its name."""
    common = stall.rank is None and stall.phase in tuple(Stretch)
    return clean_text(stall.phase or "") if common else "stall"


def _keep_first(marks: Sequence[list[object]]) -> list[list[object]]:
    return list({mark[0]: mark for mark in reversed(marks)}.values())[::-1]
