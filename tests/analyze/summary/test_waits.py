"""Waits and transfers by collective: an example by hand, on one clock, on two, and on clocks nobody compared."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.analyze.summary.waits import report_waits
from distprof.facts.run import ClockReading, CollectiveKind, Collectives, Phase, Run
from distprof.render.sections.verdict import list_waits
from distprof.report.wait_report import WaitReport
from tests.factories import make_run

BEGIN = 10**12
ARRIVAL = np.array([[[100.0, 500.0]], [[180.0, 500.0]]])
"""Rank 1 is 80 late into the first; into the second both come together."""


def make_waits_run(*, shift: int = 0, readings: tuple[ClockReading, ...] = (), hosts: int = 1) -> Run:
    clock = BEGIN + np.array([0, shift])[:, None, None]
    table = Collectives(
        group="default", ranks=np.arange(2), size=2, kinds=(CollectiveKind.ALL_REDUCE,) * 2,
        phases=(Phase.BACKWARD,) * 2, sizes_bytes=(8, 16), steps=np.array([1]), arrival_ns=clock + ARRIVAL,
        end_ns=clock + np.array([[[230.0, 520.0]], [[240.0, 530.0]]]), exposed_ns=np.array([[[0, 20.0]], [[0, 30.0]]]),
    )  # fmt: skip
    infos = {rank: {"host": f"host-{rank % hosts}"} for rank in range(2)}
    run = make_run(num_steps=2, infos=infos, meta={"clock_readings": readings})
    return structs.replace(run, collectives=(table,))


def get_report(run: Run) -> WaitReport:
    (report,) = report_waits(choose_measured_steps(run))
    return report


def test_waits_by_hand() -> None:
    report = get_report(make_waits_run())
    assert (report.group, report.kind, report.phase) == ("default", "all_reduce", "backward")
    assert (report.count_per_step, report.bytes_per_step, report.steps_used) == (2, 24, 1)
    assert report.wait_ns == (40, 0)  # (80 + 0) / 2: per collective
    assert report.transfer_ns == (50 + 20) / 2  # 230 - 180 on rank 0, 520 - 500
    assert report.exposed_ns == (20, 30)
    assert report.last_ratio == (0, 0.5)  # together is nobody's
    assert report.bound_ns == 0


def test_transfers_are_of_the_steps_in_which_all_ends_are_seen_and_waits_of_all() -> None:
    """As in long jobs, in which buckets are seen to end in some steps only, and more often at the begin."""
    run = make_waits_run()
    (table,) = run.collectives
    twice = {name: np.repeat(getattr(table, name), 2, axis=1) for name in ("arrival_ns", "end_ns", "exposed_ns")}
    twice["end_ns"][:, 1] = np.nan
    twice["arrival_ns"][1, 1, 0] += 1000
    both = structs.replace(table, steps=np.array([1, 2]), **twice)
    run = structs.replace(make_run(num_steps=3), collectives=(both,))
    report = get_report(run)
    assert (report.steps_used, report.wait_ns, report.last_ratio) == (2, (290, 0), (0, 0.5))  # (80 + 0 + 1,080 + 0) / 4
    assert (report.ended_steps, report.transfer_ns, report.exposed_ns) == (1, (50 + 20) / 2, (20, 30))


def read_twice(offset_ns: int, bound_ns: int) -> tuple[ClockReading, ...]:
    return tuple(
        ClockReading(rank=1, at_ns=at, offset_ns=offset_ns, bound_ns=bound_ns) for at in (BEGIN, BEGIN + 10_000)
    )


@pytest.mark.parametrize(("bound_ns", "wait_ns", "last"), [(10, (40, 0), 0.5), (200, (None, None), 0)])
def test_another_clock_is_set_right_and_closer_than_its_bound_nobody_waits_or_is_last(
    bound_ns: int, wait_ns: tuple[float | None, ...], last: float
) -> None:
    report = get_report(make_waits_run(shift=3_000_000, readings=read_twice(3_000_000, bound_ns), hosts=2))
    assert report.wait_ns == pytest.approx(wait_ns)
    assert report.last_ratio == (0, last)
    assert bound_ns <= report.bound_ns < bound_ns + 1


def test_clocks_that_nobody_compared_are_not_compared() -> None:
    assert report_waits(choose_measured_steps(make_waits_run(hosts=2))) == []


def test_warmup_steps_are_left_out() -> None:
    run = make_waits_run()
    (table,) = run.collectives
    warm = structs.replace(run, collectives=(structs.replace(table, steps=np.array([0])),))
    assert report_waits(choose_measured_steps(warm)) == []


def test_on_a_device_the_host_knows_no_arrivals() -> None:
    run = make_waits_run()
    (table,) = run.collectives
    unseen = np.full_like(table.end_ns, np.nan)
    issued = structs.replace(table, end_ns=unseen, exposed_ns=unseen)
    assert report_waits(choose_measured_steps(structs.replace(run, collectives=(issued,)))) == []


def test_with_a_member_missing_waits_are_at_least_and_nobody_is_last() -> None:
    """A third rank that nobody recorded may have arrived at 220: then rank 0 waited 120, and the transfer took 10."""
    run = make_waits_run()
    (table,) = run.collectives
    run = structs.replace(run, collectives=(structs.replace(table, size=3),))
    report = get_report(run)
    assert report.members_missing == 1
    assert report.wait_ns == (40, 0) and report.exposed_ns == (20, 30)  # what the members measured themselves stands
    assert report.transfer_ns is None and report.last_ratio == (None, None)
    (row,) = list_waits(analyze(run))
    assert row[-4:] == ["at least 0 ms to 40 ns", "n/a", "n/a: 1 of 3 missing", ""]
    whole = get_report(make_waits_run())
    assert whole.members_missing == 0 and whole.transfer_ns == 35


def test_missing_members_are_noted_by_group() -> None:
    run = make_waits_run()
    (table,) = run.collectives
    notes = analyze(structs.replace(run, collectives=(structs.replace(table, size=3),))).coverage.notes
    assert any("members of default (1 of 3) are missing: waits are at least" in note for note in notes)
    assert not any("members are missing" in note for note in analyze(run).coverage.notes)


def test_many_groups_that_do_the_same_share_a_row_with_what_is_worst_of_them() -> None:
    run = make_waits_run()
    (table,) = run.collectives
    for number, rows in ((4, 4), (5, 1)):
        tables = tuple(
            structs.replace(table, group=f"pair {index}", end_ns=table.end_ns + 10 * index) for index in range(number)
        )
        shown = list_waits(analyze(structs.replace(run, collectives=tables)))
        assert len(shown) == rows
    assert shown == [
        ["all_reduce in backward", "5 groups", "2", "24 B", "0 ms to 40 ns", "35 ns to 75 ns", "rank 1: 50.0 %", ""]
    ]
