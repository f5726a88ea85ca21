"""The jobs of ``python -m benchmarks verdicts``: each row draws jobs of one kind at random."""

from benchmarks.verdicts.verdict_rows.row import Row
from benchmarks.verdicts.verdict_rows.rows import ROWS

__all__ = ["ROWS", "Row"]
