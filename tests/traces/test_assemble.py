"""Traces of several ranks as one run: which ranks there are, how the clocks differ, and who held the others up."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.errors import DataError
from distprof.facts.plain import make_plain
from distprof.facts.run import COLUMN, Clock
from distprof.facts.trace import Trace
from distprof.render.html.html import render_html
from distprof.render.sections.coverage import describe_clocks
from distprof.traces.assemble import assemble_run, attach_traces
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import TracedRank, trace_rank
from tests.factories import make_run
from tests.traces.reduce.synthetic_jobs import MS, TRANSFER_NS, make_job
from tests.traces.reduce.synthetic_traces import SyntheticTrace

JITTER_NS = MS // 2


def trace_all(traces: list[Trace]) -> list[TracedRank]:
    return [trace_rank(trace, NameMap()) for trace in traces]


def rename(traced: TracedRank, **head: object) -> TracedRank:
    claim = structs.replace(traced.claim, head=structs.replace(traced.head, **head))  # type: ignore[arg-type]
    return structs.replace(traced, claim=claim)


def test_a_delayed_rank_is_named_with_its_phase_whatever_its_clock_shows() -> None:
    traces = make_job(
        num_ranks=4, num_steps=16, delay_ns={2: 20 * MS}, clock_ns={1: 3_000 * MS, 3: -7_000 * MS}, jitter_ns=JITTER_NS
    )
    report = analyze(assemble_run(trace_all(traces)))
    assert (report.verdict.kind, report.verdict.rank, report.verdict.phase) == ("slow_rank", 2, "forward")
    assert report.verdict.critical and report.verdict.clock == "device"
    assert report.verdict.lost_ns is not None and abs(report.verdict.lost_ns.value / (20 * MS) - 1) < 0.05
    (waits,) = report.waits
    assert waits.last_ratio[2] == 1.0
    assert all(abs(waits.wait_ns[rank] / (20 * MS) - 1) < 0.05 for rank in (0, 1, 3))  # type: ignore[operator]
    assert waits.transfer_ns is not None and abs(waits.transfer_ns / TRANSFER_NS - 1) < 0.01


def test_nobody_is_named_where_nobody_is_late() -> None:
    report = analyze(assemble_run(trace_all(make_job(num_ranks=4, num_steps=16, jitter_ns=JITTER_NS))))
    assert report.verdict.rank is None


def test_clocks_are_read_from_the_ends_of_collectives_and_durations_stay() -> None:
    apart = {1: 3_000 * MS, 2: -5}
    run = assemble_run(trace_all(make_job(num_ranks=3, num_steps=10, clock_ns=apart)))
    offsets = {reading.rank: reading.offset_ns for reading in run.meta.clock_readings}
    assert offsets == {0: 0, **apart}
    assert np.ptp(run.step_ns(Clock.HOST)[:, 1:], axis=0).max() == 0


def test_clocks_are_said_against_the_first_rank_that_is_there() -> None:
    traced = trace_all(make_job(num_ranks=3, num_steps=10, clock_ns={2: 70 * MS}))
    for first in (0, 1):
        told = describe_clocks(analyze(assemble_run(traced[first:])))
        assert told.startswith(f"against rank {first}: ") and "host of rank 2 +70.0 ms" in told


def test_missing_ranks_are_named_and_the_result_is_partial() -> None:
    report = analyze(assemble_run(trace_all(make_job(num_ranks=2, num_steps=16, world_size=128))))
    coverage = report.coverage
    assert report.verdict.rank is None and report.what_if == ()  # nor is it said what a change would buy them all
    assert (coverage.world_size, coverage.ranks_present, coverage.complete) == (128, (0, 1), False)
    assert coverage.ranks_missing == tuple(range(2, 128))
    assert any("distributedInfo" in note for note in coverage.notes)


def test_two_traces_of_one_rank_and_two_worlds_are_refused_by_name() -> None:
    first, second = trace_all(make_job(num_ranks=2, num_steps=2))
    with pytest.raises(DataError, match=r"rank0\.json and other\.json: both are of rank 0"):
        assemble_run([first, rename(second, rank=0, path="other.json")])
    with pytest.raises(DataError, match=r"rank0\.json is from a job of 2 ranks, rank1\.json from a job of 4 ranks"):
        assemble_run([first, rename(second, world_size=4)])


def test_ranks_that_nobody_names_are_counted_in_the_order_read() -> None:
    said = trace_all(make_job(num_ranks=3, num_steps=2))
    traced = [rename(item, rank=None, world_size=None, rank_source="order") for item in said]
    run = assemble_run([traced[0], rename(traced[1], rank=0), traced[2]])
    assert [info.rank for info in run.ranks] == [0, 1, 2]
    assert [item.head.path for item in run.activity] == ["rank1.json", "rank0.json", "rank2.json"]
    assert run.meta.world_size == 3


def test_a_trace_without_steps_is_a_report_of_the_whole_trace() -> None:
    (trace,) = make_job(num_ranks=1, num_steps=2)
    bare = structs.replace(trace, ranges=SyntheticTrace().build().ranges)
    report = analyze(assemble_run(trace_all([bare])))
    assert report.coverage.complete and report.coverage.ranks_present == (0,)
    assert report.headline.step_mean_ns is None
    assert any("no range is a step" in note for note in report.coverage.notes)


def test_traces_stand_beside_the_rows_of_the_run_they_belong_to() -> None:
    run = make_run(num_ranks=2, num_steps=3)
    traced = trace_all(make_job(num_ranks=2, num_steps=2))
    joined = attach_traces(run, traced)
    assert joined.rows is run.rows and joined.traced_rows is not None
    steps = joined.traced_rows[:, :, COLUMN["step"]]
    assert np.array_equal(steps[:, :2], run.column("step")[:, :2]) and np.isnan(steps[:, 2]).all()
    with pytest.raises(DataError, match="rank 5, but the run has 2 ranks"):
        attach_traces(run, [rename(traced[0], rank=5)])


def test_what_traces_do_not_tell_is_none_and_their_ranks_have_no_end() -> None:
    run = assemble_run(trace_all(make_job(num_ranks=2, num_steps=2)))
    assert (run.meta.strategy, run.meta.precision, run.meta.started_utc) == (None, None, None)
    assert [(info.source, info.ended, info.local_rank) for info in run.ranks] == [("trace", None, None)] * 2
    report = analyze(run)
    assert report.coverage.ranks_missing == () and {rank.source for rank in report.ranks} == {"trace"}
    plain = json.dumps(make_plain(report))
    assert '"n/a"' not in plain and '"traced"' not in plain
    page = render_html(report)
    assert "None" not in page and "started n/a" not in page and "<td>unknown</td>" not in page
