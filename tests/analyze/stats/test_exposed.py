"""Exposed communication that nothing in a trace tells of is not measured; what ranges tell of it is."""

from __future__ import annotations

import pytest
from rich.console import Console

from distprof.analyze import analyze
from distprof.render.terminal.terminal import render_terminal
from distprof.report.report import Report
from distprof.traces.assemble import assemble_run
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import trace_rank
from tests.factories import make_run
from tests.traces.reduce.synthetic_traces import SyntheticTrace

NOTE = "exposed communication is not measured: on the host clock"


def report(*names: str, device: bool = False) -> Report:
    """One of two ranks, two steps of 100 ns, in each a range of every name, side by side."""
    made = SyntheticTrace()
    for begin_ns in (0, 100):
        made.range(f"ProfilerStep#{begin_ns // 100}", begin_ns, begin_ns + 100)
        for place, name in enumerate(names):
            made.range(name, begin_ns + 20 * place, begin_ns + 20 * place + 15)
        if device:
            made.launch("gemm", begin_ns + 1, begin_ns + 5, begin_ns + 90)
    return analyze(assemble_run([trace_rank(made.build(world_size=2), NameMap())]))


def test_a_trace_of_a_cpu_does_not_tell_what_was_waited_for() -> None:
    found = report("forward", "backward", "gloo:all_reduce")
    assert (found.headline.exposed_ratio, found.headline.exposed_ns, found.headline.busiest) == (None, None, None)
    assert sum(note.startswith(NOTE) for note in found.coverage.notes) == 1
    assert {phase.phase for phase in found.phases} == {"forward", "backward", "other"}
    assert max(step.identity_error_ratio or 0 for step in found.steps) == 0


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "grad sync"])
def test_a_range_for_it_tells(name: str) -> None:
    found = report("forward", name)
    assert found.headline.exposed_ratio == pytest.approx(0.15) and found.headline.exposed_ns == 15
    assert not any(note.startswith(NOTE) for note in found.coverage.notes)


def test_on_a_device_none_is_none() -> None:
    found = report("forward", device=True)
    assert (found.headline.clock, found.headline.exposed_ratio) == ("device", 0)
    assert not any(note.startswith(NOTE) for note in found.coverage.notes)


def test_a_live_rank_measures_it_and_may_find_none() -> None:
    found = analyze(make_run(host_ns={"forward": 100, "backward": 200}))
    assert (found.headline.exposed_ratio, found.headline.exposed_ns) == (0, 0)


def test_what_begins_after_the_last_step_is_no_warmup(capsys: pytest.CaptureFixture[str]) -> None:
    made = SyntheticTrace()
    for begin_ns in (100, 200):
        made.range(f"ProfilerStep#{begin_ns // 100}", begin_ns, begin_ns + 90)
        made.range("forward", begin_ns, begin_ns + 30)
    for begin_ns in (10, 195, 300, 400):  # before the steps, between them, and after them
        made.range("forward", begin_ns, begin_ns + 5)
    found = analyze(assemble_run([trace_rank(made.build(), NameMap())]))
    assert found.activity is not None
    (forward,) = [item for item in found.activity.ranges if item.name == "forward"]
    assert (forward.count, forward.warmup_count, forward.outside_count, forward.host_ns) == (2, 1, 3, 60)
    render_terminal(found, Console(width=100))
    shown = " ".join(capsys.readouterr().out.split())
    assert "3 ranges began between two steps or after the last one and are left out: forward" in shown
