"""From a `distprof.facts.run.Run` to a `distprof.report.report.Report`: pure functions, one file per question."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distprof.facts.run import Run
    from distprof.report.report import Report


def analyze(run: Run) -> Report:
    """As `distprof.analyze.make_report.analyze`, which is loaded with all it asks only now: of what a job imports at
    its start, on every rank, a third would be for this."""
    from distprof.analyze.make_report import analyze as make_report

    return make_report(run)
