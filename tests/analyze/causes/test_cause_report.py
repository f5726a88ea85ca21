"""Who waits for whom, the device for its host or the host for its device: told by both clocks, not by lengths."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.analyze.causes.cause_report import waits_for_host
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.facts.run import Phase, Run
from distprof.render.sections.verdict import describe_verdict
from distprof.report.wait_report import Cause
from tests.factories import MS, make_run

STEPS = np.arange(1, 10)
DEVICE_NS = {"data": 1 * MS, "forward": 10 * MS, "backward": 20 * MS, "all_reduce": 2 * MS, "optimizer": 1 * MS}


def make(host_ns: dict[str, int], *, first_ahead_ns: int, anchors: bool = True, micro_steps: int = 1) -> Run:
    """Steps of 34 ms on the device, whose clock began 5 s after its host's; the host is so far ahead at their begin."""
    run = make_run(num_ranks=1, num_steps=10, host_ns=host_ns, device_ns=DEVICE_NS)
    begin_ns = np.arange(10) * 34.0 * MS
    run.column("begin_device_ns")[:] = begin_ns
    run.column("begin_host_ns")[:] = begin_ns + 5_000 * MS - first_ahead_ns
    run.column("micro_steps")[:] = micro_steps
    if anchors:
        for name, value in (("device", begin_ns), ("host", begin_ns + 5_000 * MS), ("bound", 1_000.0)):
            run.column(f"anchor_{name}_ns")[:] = value
    return run


def ask(run: Run, phase: Phase) -> bool | None:
    return waits_for_host(choose_measured_steps(run), 0, STEPS, phase)


def test_a_host_that_is_held_up_by_a_full_queue_is_not_what_the_device_waits_for() -> None:
    held_up = {**DEVICE_NS, "forward": 11 * MS, "all_reduce": 1 * MS}  # as long as the device, and 100 ms ahead of it
    assert ask(make(held_up, first_ahead_ns=100 * MS), Phase.FORWARD) is False


def test_a_device_that_is_right_behind_its_host_waits_for_it() -> None:
    assert ask(make(DEVICE_NS, first_ahead_ns=MS // 2), Phase.FORWARD) is True


def test_a_device_that_catches_up_in_forward_waits_there_although_it_is_behind_at_both_ends_of_the_step() -> None:
    """The host launches forward in 17 ms and backward in 4 ms, then looks at something for 11 ms."""
    slow_forward = {"data": 1 * MS, "forward": 17 * MS, "backward": 4 * MS, "optimizer": 1 * MS, "other": 11 * MS}
    assert ask(make(slow_forward, first_ahead_ns=7 * MS), Phase.FORWARD) is True
    assert ask(make(slow_forward, first_ahead_ns=7 * MS), Phase.BACKWARD) is False  # launched in a fifth of its time
    assert ask(make(slow_forward, first_ahead_ns=30 * MS), Phase.FORWARD) is False


def test_a_host_that_takes_less_is_never_what_the_device_waits_for() -> None:
    assert ask(make({**DEVICE_NS, "forward": 9 * MS}, first_ahead_ns=0), Phase.FORWARD) is False


def test_without_both_clocks_nobody_knows() -> None:
    assert ask(make(DEVICE_NS, first_ahead_ns=0, anchors=False), Phase.FORWARD) is None


def test_of_several_micro_steps_only_begin_and_end_are_known() -> None:
    slow_forward = {"data": 1 * MS, "forward": 17 * MS, "backward": 4 * MS, "optimizer": 1 * MS, "other": 11 * MS}
    assert ask(make(slow_forward, first_ahead_ns=7 * MS, micro_steps=4), Phase.FORWARD) is False


@pytest.mark.parametrize(
    ("ahead_ns", "anchors", "cause"),
    [(0, True, Cause.HOST), (100 * MS, True, Cause.COMPUTE), (100 * MS, False, None)],
    ids=["right-behind", "far-behind", "unknown"],
)
def test_the_verdict_blames_launching_only_where_that_is_so(ahead_ns: int, anchors: bool, cause: Cause | None) -> None:
    jitter = 1 + 0.01 * np.random.default_rng(0).standard_normal((4, 40))
    forward = np.where(np.arange(4)[:, None] == 1, 14.0, 10.0) * MS * jitter
    times = {**DEVICE_NS, "forward": forward, "all_reduce": 2 * MS + forward.max(axis=0) - forward}
    run = make_run(num_ranks=4, num_steps=40, host_ns=times, device_ns=times)
    begin_ns = np.arange(40) * 40.0 * MS
    run.column("begin_device_ns")[:] = begin_ns
    run.column("begin_host_ns")[:] = begin_ns + 5_000 * MS - ahead_ns
    if anchors:
        for name, value in (("device", begin_ns), ("host", begin_ns + 5_000 * MS), ("bound", 1_000.0)):
            run.column(f"anchor_{name}_ns")[:] = value
    verdict = analyze(run).verdict
    assert (verdict.rank, verdict.phase, verdict.cause) == (1, "forward", cause)
    assert ("launches too slowly" in describe_verdict(analyze(run))) == (cause is Cause.HOST)
