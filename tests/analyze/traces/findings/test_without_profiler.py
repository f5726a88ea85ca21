"""A profiler that makes the host slower makes a device idle that is busy without it: by hand, and at random."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.analyze import analyze
from distprof.analyze.traces.findings.evidence import measure_busy_ns
from distprof.analyze.traces.findings.idle import AT_MOST
from distprof.analyze.traces.findings.rules import check_rules
from distprof.analyze.traces.findings.without_profiler import remove_profiler
from distprof.facts.run import COLUMN
from distprof.facts.trace_summary import HostState, TraceSummary
from distprof.render.finding_texts import describe_finding, describe_lack
from tests.analyze.traces.findings.synthetic_summaries import make_device, make_rank, make_traced
from tests.factories import MS


def make_slowed(**changes_ms: float) -> TraceSummary:
    """Two steps of 100 ms in the window, of which the device is busy for 46: it waits for the host for 50."""
    usual = {"idle_communication": 0, "idle_host": 100, "idle_launch": 8, "idle_unknown": 0}
    states = {HostState.OPERATORS: 60 * MS, HostState.UNKNOWN: 40 * MS}
    return make_rank(device=make_device(**usual | changes_ms), idle_host_in=states)


def list_said(step_ms: float | None, item: TraceSummary) -> tuple[dict[str, float], dict[str, str]]:
    """The shares of findings about an idle device, and why rules about it were not checked."""
    found, lacking = check_rules(make_traced(item), None if step_ms is None else step_ms * MS)
    idle = ("host_bound", "launch_gaps")
    return (
        {each.rule: each.share_ratio for each in found if each.rule in idle},
        {each.rule: describe_lack(each) for each in lacking if each.rule in idle},
    )


def test_idle_time_of_the_profilers_making_is_no_finding() -> None:
    item = make_slowed()
    assert list_said(None, item) == ({"host_bound": 0.5}, {})
    shares, why = list_said(50, item)  # of 50 ms without the profiler the device is busy for 46
    assert shares == {} and why == {
        "host_bound": "the profiler made the steps longer than others, and in those the device idles at most 8.0 %"
    }


def test_of_idle_time_that_is_left_without_the_profiler_it_is_said_that_it_is_the_most() -> None:
    (finding,) = (each for each in check_rules(make_traced(make_slowed()), 80 * MS)[0] if each.rule == "host_bound")
    assert finding.share_ratio == pytest.approx(34 / 80) and AT_MOST in finding.traits
    text = describe_finding(finding)
    assert text.title == "The device waits for the host up to 42.5 % of the step"
    assert "is idle for up to 34.0 ms per step" in text.consequence
    assert text.consequence.endswith("The profiler made the steps longer; that much may be idle in steps without it.")
    assert [figure.numbers["idle_ns"] / MS for figure in finding.figures] == pytest.approx([20.4, 13.6])


def test_launch_gaps_are_cut_as_well() -> None:
    item = make_slowed(idle_host=8, idle_launch=100)
    assert list_said(None, item)[0] == {"launch_gaps": 0.5} and list_said(50, item)[0] == {}
    assert list_said(80, item)[0] == pytest.approx({"launch_gaps": 34 / 80})


def test_steps_as_long_as_those_in_the_window_change_nothing() -> None:
    item = make_slowed()
    assert (
        remove_profiler(item, 100 * MS) is item
        and remove_profiler(replace(item, num_steps=0), MS).device == item.device
    )
    assert list_said(100, item) == list_said(None, item)


@given(
    st.tuples(*[st.integers(0, 40)] * 5), st.integers(1, 300),
    st.sampled_from(["idle_host_ns", "idle_launch_ns", "idle_unknown_ns"]),
)  # fmt: skip
def test_no_idle_time_grows_and_none_exceeds_what_is_left(parts: tuple[int, ...], step_ms: int, name: str) -> None:
    names = ("memory", "idle_communication", "idle_host", "idle_launch", "idle_unknown")
    item = make_rank(device=make_device(**dict(zip(names, parts, strict=True)), span=201))
    cut = remove_profiler(item, step_ms * MS).device
    assert cut is not None and item.device is not None
    busy_ns = measure_busy_ns(item)
    assert getattr(cut, name) <= getattr(item.device, name) and cut.span_ns <= item.device.span_ns
    assert getattr(cut, name) + busy_ns <= max(cut.span_ns, busy_ns)
    assert cut.span_ns == min(max(2 * step_ms * MS, busy_ns), item.device.span_ns)


@pytest.mark.parametrize(("traced", "named"), [(True, False), (False, True)], ids=["own window", "a trace alone"])
def test_a_report_compares_with_its_own_steps_and_a_trace_alone_has_no_others(traced: bool, named: bool) -> None:
    run = make_traced(make_slowed())
    rows = run.rows.copy()
    rows[:, :, [COLUMN["step_host_ns"], COLUMN["begin_host_ns"]]] = [50 * MS, 0]
    rows[:, :, COLUMN["begin_host_ns"]] = [10**12 + 50 * MS * step for step in range(rows.shape[1])]
    activity = analyze(replace(run, rows=rows, traced_rows=run.rows if traced else None)).activity
    assert activity is not None and ("host_bound" in [each.rule for each in activity.findings]) is named
