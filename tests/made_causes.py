"""Causes made by hand: a test chooses what each costs, so that it knows what the report must say."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from distprof.analyze import analyze
from distprof.report.report import Report
from distprof.report.wait_report import Cause, CauseReport, Causes, Estimate, Evidence, Pattern, Verdict, VerdictKind
from tests.factories import MS, make_run

STEP_NS = 100 * MS
FIRST, LAST = 10, 59
"""Of fifty steps."""
UNNAMED = (VerdictKind.JITTER, VerdictKind.COMMUNICATION)


def make_estimate(percent: float) -> Estimate:
    """An interval of a tenth to either side."""
    return Estimate(value=percent / 100, low=percent / 110, high=percent / 90)


def scale(share: Estimate) -> Estimate:
    """The same in nanoseconds of a step."""
    return Estimate(value=share.value * STEP_NS, low=share.low * STEP_NS, high=share.high * STEP_NS)


def make_cause(kind: VerdictKind, lost: float, *, alone: float | None = None, **changes: Any) -> CauseReport:
    """A cause that costs ``lost`` percent of a step and, once the others are gone, ``alone`` percent."""
    lost_ratio, alone_ratio = make_estimate(lost), make_estimate(lost if alone is None else alone)
    late = kind in (VerdictKind.SLOW_RANK, VerdictKind.SLOW_HOST)
    usual: dict[str, Any] = {
        "kind": kind, "rank": None, "phase": "forward" if late else None, "hosts": (), "cause": Cause.COMPUTE,
        "pattern": Pattern.PERSISTENT if late else None, "first_step": FIRST, "last_step": LAST, "whole": True,
        "events": None, "period": None, "late_ns": 20.0 * MS if late else None,
        "saved_if_only_this_ns": scale(lost_ratio), "saved_if_only_this_ratio": lost_ratio,
        "saved_after_others_ns": scale(alone_ratio), "saved_after_others_ratio": alone_ratio,
        "joint_ns": (lost_ratio.value + alone_ratio.value) / 2 * STEP_NS, "critical": False,
    }  # fmt: skip
    return CauseReport(**{**usual, **changes})


def make_verdict(told: CauseReport | None, **changes: Any) -> Verdict:
    """The verdict that tells about a cause; of nobody if there is none."""
    usual: dict[str, Any] = {
        "kind": VerdictKind.NONE, "critical": False, "confirmed": None, "pattern": None, "rank": None, "phase": None,
        "cause": None, "hosts": (), "late_ns": None, "lost_ns": scale(make_estimate(0.3)),
        "lost_ratio": make_estimate(0.3), "waited_ns": None, "held_ratio": None, "clock": "host", "steps_used": 50,
        "reason": "no rank is slower than the others beyond noise", "evidence": (),
    }  # fmt: skip
    if told is not None:
        names = ("kind", "critical", "pattern", "rank", "phase", "cause", "hosts", "late_ns")
        usual |= {name: getattr(told, name) for name in names} | {"reason": "the evidence says so"}
        usual |= {"lost_ns": told.saved_if_only_this_ns, "lost_ratio": told.saved_if_only_this_ratio}
    if told is not None and told.late_ns is not None:
        signs = (Evidence(label="own time", rank_ns=told.late_ns + MS, others_ns=float(MS), agree_ratio=1.0),)
        usual |= {"confirmed": True, "waited_ns": 140.0 * MS, "held_ratio": 0.3, "evidence": signs}
    return Verdict(**{**usual, **changes})


def make_report(causes: Sequence[CauseReport], *, num_ranks: int = 8, hosts: int = 1, **verdict: Any) -> Report:
    """A report with these causes; the verdict tells about the first with a name, else about jitter if it is there."""
    told = next((cause for cause in causes if cause.kind not in UNNAMED), None)
    told = told or next((cause for cause in causes if cause.kind is VerdictKind.JITTER), None)
    explained_ns, remainder_ns = sum(cause.joint_ns for cause in causes), 1.5 * MS
    listed = Causes(
        causes=tuple(causes), step_ns=STEP_NS, ideal_ns=STEP_NS - explained_ns - remainder_ns, remainder_ns=remainder_ns
    )
    return structs.replace(_make_base(num_ranks, hosts), causes=listed, verdict=make_verdict(told, **verdict))


@functools.cache
def _make_base(num_ranks: int, hosts: int) -> Report:
    infos = {rank: {"host": f"host-{rank * hosts // num_ranks}"} for rank in range(num_ranks)}
    return analyze(make_run(num_ranks=num_ranks, num_steps=LAST + 1, num_warmup=FIRST, infos=infos))
