"""Rules that find in a run's traces what is worth changing and what is easily misread, one file per topic."""

from __future__ import annotations

from distprof.analyze.traces.findings.rules import RULES, find_findings

__all__ = ["RULES", "find_findings"]
