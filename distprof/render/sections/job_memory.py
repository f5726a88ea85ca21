"""The memory of a job's ranks by kind: predicted and measured, side by side."""

from __future__ import annotations

from distprof.render.sections.section_types import Section, make_columns
from distprof.render.units import format_bytes
from distprof.report.report import Report
from distprof.report.wait_report import Spread

WORDS = {
    "optimizer": "optimizer state", "communication": "communication buffers", "rest": "the rest",
    "peak": "the allocator's peak",
}  # fmt: skip
ONLY_MEASURED = ("rest", "peak")
"""Of an allocator; without one they have no row."""
HEADS = ("kind", "predicted", "measured", "least", "most")
NOTE = (
    "predicted: the most of a rank, by the configuration; measured: median of the ranks, and the least and the most of "
    "one rank where they differ; gradients when the optimizer begins, activations and gathered parameters when forward "
    "ends, so that not all are there at once"
)


def show_memory(report: Report) -> Section:
    """A row for each kind."""
    kinds = () if report.modules is None else report.modules.memory
    rows = [
        (
            WORDS.get(each.kind, each.kind), format_bytes(each.predicted_bytes.max),
            format_bytes(each.measured_bytes.median), *_show_ends(each.measured_bytes),
        )
        for each in kinds
        if each.kind not in ONLY_MEASURED or each.measured_bytes.max is not None
    ]  # fmt: skip
    return Section(
        key="job_memory", title="memory of a rank by kind: tensors of a training step",
        columns=make_columns(HEADS, rows, told_only=True), notes=(NOTE,) if rows else (),
    )  # fmt: skip


def _show_ends(spread: Spread) -> tuple[str, str]:
    if spread.min is None or spread.min == spread.max:
        return "", ""
    return f"{format_bytes(spread.min)}, rank {spread.min_rank}", f"{format_bytes(spread.max)}, rank {spread.max_rank}"
