"""Ranks by steps as an image and as a table, made smaller where there are many: every cell shows its longest time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from distprof.analyze.stats.measured_steps import subtract_exposed, sum_exposed
from distprof.analyze.summary.page import shrink
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, Run
from distprof.render.colours import RAMP
from distprof.render.units import format_time
from distprof.report.report import Report

IMAGE_CELLS = (256, 1024)
"""Most rows and columns of an image."""
IMAGE_PIXELS, CELL_PIXELS = (512, 1024), 16
"""Small maps are enlarged to about this height and width, their cells to at most this side."""
TABLE_CELLS = (64, 64)
"""Most ranks and steps of the table."""
TABLE_COLUMNS = ("rank", "step", "ranks", "steps", "clock", "step_ms", "own_ms", "exposed_ms")
"""``ranks`` and ``steps``: how many, from this rank and step on, the row has the longest times of."""
NOT_MEASURED = (190, 190, 190)
BRIGHT_PERCENT = 99.0
"""Of the cells; longer ones are as bright, so that one stall does not make everything else dark."""

Pixels = npt.NDArray[np.uint8]


class RankBySteps(Struct, frozen=True, kw_only=True):
    """Times of every rank in every step, without warm-up."""

    clock: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    step_ns: FloatArray
    """``[num_ranks, num_steps]``; NaN: not measured."""
    exposed_ns: FloatArray
    """Exposed communication, ``[num_ranks, num_steps]``; NaN: not measured."""

    @property
    def own_ns(self) -> FloatArray:
        """What a rank did not wait, ``[num_ranks, num_steps]``: ranks that wait for each other differ in this alone."""
        return subtract_exposed(self.step_ns, self.exposed_ns)


def collect_times(run: Run, report: Report) -> RankBySteps | None:
    """The step times of a report, and exposed communication as it defines it. None: there is no measured step."""
    if not report.ranks:
        return None
    counted = ~(run.column("warmup") == 1).any(axis=0) & np.isfinite(run.column("step")).any(axis=0)
    step_ns = np.array(report.step_times_ns, dtype=np.float64).reshape(len(report.ranks), -1)
    if not counted.any() or not np.isfinite(step_ns[:, counted]).any():
        return None
    numbers = np.nanmax(run.column("step")[:, counted], axis=0)
    return RankBySteps(
        clock=report.headline.clock,
        ranks=tuple(rank.rank for rank in report.ranks),
        steps=tuple(int(number) for number in numbers),
        step_ns=step_ns[:, counted],
        exposed_ns=sum_exposed(run.rows, Clock(report.headline.clock))[:, counted],
    )


def draw_heat_map(times_ns: FloatArray, what: str, clock: str) -> tuple[Pixels, str] | None:
    """An image, ``[height, width, 3]``, and its caption, which says what was made smaller.

    Args:
        times_ns: ``[num_ranks, num_steps]``; NaN: not measured.
        what: What takes the time.
        clock: Its clock.

    Returns:
        None: nothing was measured.
    """
    cells, sizes = shrink(times_ns, IMAGE_CELLS)
    there = np.isfinite(cells)
    if not there.any():
        return None
    low, high = float(cells[there].min()), float(np.percentile(cells[there], BRIGHT_PERCENT))
    place = np.clip((np.where(there, cells, low) - low) / (high - low if high > low else 1.0), 0, 1)
    stops = np.linspace(0, 1, len(RAMP))
    colours = np.stack([np.interp(place, stops, channel) for channel in zip(*RAMP, strict=True)], axis=-1)
    colours[~there] = NOT_MEASURED
    image = colours.round().astype(np.uint8)
    for axis, (count, pixels) in enumerate(zip(cells.shape, IMAGE_PIXELS, strict=True)):
        image = image.repeat(min(max(pixels // count, 1), CELL_PIXELS), axis=axis)
    merged = [
        f"each {line} is the longest of {size} {of}"
        for line, size, of in zip(("row", "column"), sizes, ("ranks", "steps"), strict=True)
        if size > 1
    ]
    scale = f"dark {format_time(low)}, bright {format_time(high)}" + (" or more" if cells[there].max() > high else "")
    grey = [] if there.all() else ["grey: not measured"]
    about = f"{what} by rank (down) and step (across), {clock} clock, without warm-up"
    return image, "; ".join([about, scale, *grey, *merged])


def list_cells(times: RankBySteps) -> list[list[float | str | None]]:
    """Rows of `TABLE_COLUMNS`; None: not measured."""
    step_ns, (ranks_each, steps_each) = shrink(times.step_ns, TABLE_CELLS)
    own_ns, _ = shrink(times.own_ns, TABLE_CELLS)
    exposed_ns, _ = shrink(times.exposed_ns, TABLE_CELLS)
    return [
        [
            times.ranks[first_rank], times.steps[first_step], min(ranks_each, len(times.ranks) - first_rank),
            min(steps_each, len(times.steps) - first_step), times.clock,
            *(None if np.isnan(table[row, column]) else round(table[row, column] / 1e6, 4)
              for table in (step_ns, own_ns, exposed_ns)),
        ]
        for row, first_rank in enumerate(range(0, len(times.ranks), ranks_each))
        for column, first_step in enumerate(range(0, len(times.steps), steps_each))
    ]  # fmt: skip


def draw_maps(times: RankBySteps | None) -> Iterator[tuple[str, Pixels, str]]:
    """The name, the image and the caption of each map."""
    if times is None:
        return
    own = ("heat_map/own", "own time, which is not spent waiting,", times.own_ns)
    step = ("heat_map/step", "step time", times.step_ns)
    for name, what, table in (
        own if np.isfinite(times.own_ns).any() else step,
        ("heat_map/exposed", "exposed communication", times.exposed_ns),
    ):
        if (drawn := draw_heat_map(table, what, times.clock)) is not None:
            yield name, *drawn
