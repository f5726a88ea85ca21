"""What is worth changing, and what would mislead: rules that look at the traces of a run, one file per section."""

from __future__ import annotations

from distprof.analyze.findings.rules import RULES, find_findings

__all__ = ["RULES", "find_findings"]
