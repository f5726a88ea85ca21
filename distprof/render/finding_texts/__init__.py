"""Findings in words: one function per rule makes title, evidence, consequence and remedy from a finding's numbers."""

from __future__ import annotations

from distprof.render.finding_texts import host, idle, kernels, products, ranges
from distprof.render.finding_texts.parts import FigureText, FindingText, describe_lack
from distprof.report.finding_report import Finding

__all__ = ["FigureText", "FindingText", "describe_finding", "describe_lack"]

WORDS = {**products.WORDS, **kernels.WORDS, **idle.WORDS, **host.WORDS, **ranges.WORDS}
"""By the name of the rule."""


def describe_finding(finding: Finding) -> FindingText:
    """A finding in words; names in it are cut and safe to show on a terminal."""
    return WORDS[finding.rule](finding)
