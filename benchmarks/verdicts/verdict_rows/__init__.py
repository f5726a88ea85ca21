"""The jobs of ``python -m benchmarks verdicts``: each row draws jobs of one kind at random."""

from benchmarks.verdicts.verdict_rows.pipelines import PipelineRow
from benchmarks.verdicts.verdict_rows.row import Row
from benchmarks.verdicts.verdict_rows.rows import ALL_ROWS, ROWS, AnyRow

__all__ = ["ALL_ROWS", "ROWS", "AnyRow", "PipelineRow", "Row"]
