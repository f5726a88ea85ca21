"""From a `distprof.facts.run.Run` to a `distprof.report.report.Report`: pure functions, one file per question."""

from __future__ import annotations

from distprof.analyze.make_report import analyze

__all__ = ["analyze"]
