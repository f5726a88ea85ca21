"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks.verdicts.verdict_rows.links import LINK_ROWS
from benchmarks.verdicts.verdict_rows.noise import NOISE_ROWS
from benchmarks.verdicts.verdict_rows.pipelines import PIPELINE_ROWS, PipelineRow
from benchmarks.verdicts.verdict_rows.ranks import RANK_ROWS
from benchmarks.verdicts.verdict_rows.row import Row
from benchmarks.verdicts.verdict_rows.unusual import UNUSUAL_ROWS

AnyRow = Row | PipelineRow
ROWS: dict[str, Row] = {row.name: row for row in (*RANK_ROWS, *NOISE_ROWS, *UNUSUAL_ROWS, *LINK_ROWS)}
"""By name."""
ALL_ROWS: dict[str, AnyRow] = {**ROWS, **{row.name: row for row in PIPELINE_ROWS}}
"""With those that are judged by their operations."""
