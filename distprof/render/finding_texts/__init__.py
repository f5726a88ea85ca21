"""Findings in words: one function per rule makes title, evidence, consequence and remedy from a finding's numbers."""

from __future__ import annotations

from collections.abc import Callable

from distprof.render.finding_texts import compute, host, idle, ranges
from distprof.render.finding_texts.not_checked import word_lack
from distprof.render.finding_texts.parts import FigureText, FindingText
from distprof.report.finding_report import Finding, RuleName

__all__ = ["FigureText", "FindingText", "word_finding", "word_lack"]

_WORDS: dict[RuleName, Callable[[Finding], FindingText]] = {
    RuleName.MATMUL_SHARE: compute.word_matmul_share,
    RuleName.FP32_MATMUL: compute.word_fp32_matmul,
    RuleName.EAGER_ATTENTION: compute.word_eager_attention,
    RuleName.OLDER_KERNELS: compute.word_older_kernels,
    RuleName.SMALL_ELEMENTWISE: compute.word_small_elementwise,
    RuleName.HOST_BOUND: idle.word_host_bound,
    RuleName.LAUNCH_GAPS: idle.word_launch_gaps,
    RuleName.EXPOSED_COMMUNICATION: idle.word_exposed_communication,
    RuleName.COPIES_IN_STEP: host.word_copies_in_step,
    RuleName.SYNC_IN_STEP: host.word_sync_in_step,
    RuleName.UNLIKE_SIBLINGS: ranges.word_unlike_siblings,
    RuleName.MEMORY_LIMIT: host.word_memory_limit,
    RuleName.HOST_IS_NOT_GPU: ranges.word_host_is_not_gpu,
    RuleName.WARMUP_IN_STATISTICS: ranges.word_warmup_in_statistics,
}


def word_finding(finding: Finding) -> FindingText:
    """A finding in words; names in it are cut and safe to show on a terminal."""
    return _WORDS[finding.rule](finding)
