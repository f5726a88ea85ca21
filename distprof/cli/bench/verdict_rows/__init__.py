"""The jobs of ``distprof bench verdicts``: each row draws jobs of one kind at random."""

from distprof.cli.bench.verdict_rows.row import Row
from distprof.cli.bench.verdict_rows.rows import ROWS

__all__ = ["ROWS", "Row"]
