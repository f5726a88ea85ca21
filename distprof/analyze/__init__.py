"""From a `distprof.run.Run` to a `distprof.report.Report`: pure functions, one file per question."""

from __future__ import annotations

from distprof.analyze.report import analyze

__all__ = ["analyze"]
