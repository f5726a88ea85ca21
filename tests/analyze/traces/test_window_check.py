"""Live phases against traced ones: by hand, in general, and with a trace that is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze.traces.merge_traces import check_window
from distprof.facts.run import COLUMN, PHASES, Run, make_rows
from tests.factories import MS, make_run

WINDOW = [0, 0, 1, 1, 1]
"""Of five steps the last three; the first of them is dropped, so that no trace has it."""


def make_traced(run: Run, factor: float = 1.0, clocks: tuple[str, ...] = ("host",)) -> Run:
    """The run with traces of its last two steps that say ``factor`` times what the rank has measured."""
    traced = make_rows(*run.rows.shape[:2])
    for clock in clocks:
        for name in ("step", *PHASES):
            column = COLUMN[f"{name}_{clock}_ns"]
            traced[:, 3:, column] = run.rows[:, 3:, column] * factor
    return structs.replace(run, traced_rows=traced)


def make_window(**changes: object) -> Run:
    return make_run(num_steps=5, columns={"window": np.array([WINDOW])}, **changes)  # type: ignore[arg-type]


def test_by_hand() -> None:
    forward = np.array([[20, 20, 90, 30, 40], [20, 20, 90, 50, 50]]) * MS
    run = make_traced(make_window(host_ns={"forward": forward, "backward": 60 * MS}))
    assert run.traced_rows is not None
    run.traced_rows[0, 3:, COLUMN["forward_host_ns"]] = [33 * MS, 44 * MS]
    checks = {(check.rank, check.phase): check for check in check_window(run)}
    assert list(checks) == [(rank, name) for rank in (0, 1) for name in ("step", "forward", "backward")]
    first = checks[0, "forward"]
    assert (first.clock, first.live_ns, first.trace_ns) == ("host", 35 * MS, 38.5 * MS)  # the dropped step is not in it
    assert first.difference_ratio == pytest.approx(0.1)
    assert checks[1, "forward"].live_ns == 50 * MS and checks[1, "forward"].difference_ratio == 0.0


def test_the_device_clock_goes_first_where_both_have_it() -> None:
    run = make_window(device_ns={"forward": 15 * MS, "all_reduce": 5 * MS})
    host = {check.clock for check in check_window(make_traced(run))}
    both = make_traced(run, clocks=("host", "device"))
    assert host == {"host"} and {check.clock for check in check_window(both)} == {"device"}
    assert both.traced_rows is not None
    both.traced_rows[:, :, COLUMN["all_reduce_device_ns"]] = np.nan  # that phase alone cannot be told from the trace
    clocks = {check.phase: check.clock for check in check_window(both)}
    assert clocks["all_reduce"] == "host" and clocks["forward"] == "device"


@given(st.floats(0.01, 100))
def test_a_trace_that_is_off_by_a_factor_is_off_by_it_everywhere(factor: float) -> None:
    checks = check_window(make_traced(make_window(), factor))
    assert len(checks) == 2 * 8  # the step and the seven phases of DDP, of two ranks
    for check in checks:
        assert check.difference_ratio == pytest.approx(factor - 1, abs=1e-9)


def test_what_is_in_the_trace_only_has_no_ratio() -> None:
    run = make_traced(make_window(host_ns={"forward": 10 * MS}))
    assert run.traced_rows is not None
    run.traced_rows[0, 3, COLUMN["optimizer_host_ns"]] = 4 * MS
    (found,) = [check for check in check_window(run) if check.phase == "optimizer"]
    assert (found.rank, found.live_ns, found.trace_ns, found.difference_ratio) == (0, 0.0, 2 * MS, None)


def test_without_facts_nothing_is_compared() -> None:
    assert check_window(make_window()) == ()  # no traces
    none = make_traced(make_window())
    assert check_window(structs.replace(none, traced_rows=make_rows(2, 5))) == ()  # none of the window
    outside = make_traced(make_run(num_steps=5))
    assert check_window(outside) == ()  # no window
    failed = make_traced(make_window())
    failed.rows[1, 3:, COLUMN["failed"]] = 1
    assert {check.rank for check in check_window(failed)} == {0}
    unknown = make_traced(make_window())
    unknown.rows[0, :, COLUMN["forward_host_ns"]] = np.nan
    assert (0, "forward") not in {(check.rank, check.phase) for check in check_window(unknown)}
