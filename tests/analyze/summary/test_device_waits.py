"""Waits and transfers on the device clock: an example by hand on three ranks whose clocks have nothing in common."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.cycles.device_collectives import compute_earliest_starts, measure_took
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.analyze.summary.waits import report_waits
from distprof.facts.run import Clock, CollectiveKind, Collectives, Phase, Run
from distprof.render.sections.verdict import list_waits
from tests.factories import make_run

US = 1_000.0
CLOCKS = np.array([0.0, 5e9, -3e6])[:, None, None]
"""What each rank's clock shows when rank 0's shows 0."""
ARRIVAL = US * np.array([[[100.0, 150.0]], [[130.0, 170.0]], [[110.0, 190.0]]])
"""The first bucket moves from 130 on, when rank 1 has come, and takes 50. The second one could start at 190, when rank
2 has come; on the others it has spun since the first was over at 180. It takes 20."""
OVER = US * np.array([180.0, 210.0])


def make_table(**changes: object) -> Collectives:
    usual: dict[str, object] = {
        "group": "default", "ranks": np.arange(3), "size": 3, "kinds": (CollectiveKind.ALL_REDUCE,) * 2,
        "phases": (Phase.BACKWARD,) * 2, "sizes_bytes": (8, 16), "steps": np.array([1]), "clock": Clock.DEVICE,
        "arrival_ns": CLOCKS + ARRIVAL, "end_ns": CLOCKS + OVER,
        "exposed_ns": US * np.array([[[0, 60.0]], [[0, 40.0]], [[0, 20.0]]]),
        "left_ns": CLOCKS + np.array([np.nan, OVER[1]]),
    }  # fmt: skip
    return Collectives(**{**usual, **changes})  # type: ignore[arg-type]


def make_device_run(*tables: Collectives, hosts: int = 3) -> Run:
    infos = {rank: {"host": f"host-{rank % hosts}"} for rank in range(3)}
    run = make_run(num_ranks=3, num_steps=2, infos=infos, device_ns={"backward": 1e6})
    return structs.replace(run, device_collectives=tables)


def test_a_collective_starts_when_its_stream_is_ready_and_the_one_before_is_over() -> None:
    table, steps = make_table(), np.array([0])
    assert (compute_earliest_starts(table, steps) - CLOCKS)[:, 0].tolist() == [
        [100 * US, 180 * US], [130 * US, 180 * US], [110 * US, 190 * US]
    ]  # fmt: skip
    assert measure_took(table, steps)[:, 0].tolist() == [[80 * US, 30 * US], [50 * US, 30 * US], [70 * US, 20 * US]]
    unseen = np.where(
        [[[True, False]]], np.nan, CLOCKS + OVER
    )  # the first end: then nothing is known to delay the second
    assert measure_took(make_table(end_ns=unseen), steps)[0, 0].tolist()[1] == 60 * US


def test_the_rank_that_took_least_came_last_and_the_others_waited() -> None:
    (report,) = report_waits(choose_measured_steps(make_device_run(make_table())))
    assert report.clock == "device"
    assert report.wait_ns == ((30 + 10) / 2 * US, (0 + 10) / 2 * US, (20 + 0) / 2 * US)
    assert report.transfer_ns == (50 + 20) / 2 * US
    assert report.last_ratio == (0, 0.5, 0.5)
    assert report.bound_ns == 0 and report.bytes_per_step == 24
    assert report.exposed_ns == (60 * US, 40 * US, 20 * US)
    assert report.busy_ns == (110 * US, 80 * US, 90 * US)  # from when each could start; rank 2 had a pause of 10


def test_closer_than_a_microsecond_nobody_is_last() -> None:
    near = make_table(arrival_ns=CLOCKS + US * np.array([[[100.0, 190.0]], [[101.0, 190.5]], [[100.0, 190.0]]]))
    (report,) = report_waits(choose_measured_steps(make_device_run(near)))
    assert report.last_ratio == (0, 0, 0)


def test_with_a_member_missing_the_transfer_is_not_known_and_waits_are_at_least() -> None:
    run = make_device_run(make_table(size=4))
    (report,) = report_waits(choose_measured_steps(run))
    assert report.transfer_ns is None and report.members_missing == 1
    assert report.last_ratio == (None, None, None)
    assert report.wait_ns == (20 * US, 5 * US, 10 * US)
    assert any("members of default (1 of 4) are missing" in note for note in analyze(run).coverage.notes)


def test_what_roots_leave_early_is_left_out() -> None:
    kinds = (CollectiveKind.OTHER, CollectiveKind.ALL_REDUCE)
    (report,) = report_waits(choose_measured_steps(make_device_run(make_table(kinds=kinds))))
    assert (report.kind, report.count_per_step) == ("all_reduce", 1)
    assert report.transfer_ns == 20 * US  # it still starts when the broadcast is over


def test_steps_in_which_an_end_was_not_seen_are_left_out() -> None:
    late = np.array([[[np.nan, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]])
    table = make_table(
        steps=np.array([1, 2]), arrival_ns=CLOCKS + ARRIVAL.repeat(2, axis=1),
        end_ns=np.concatenate([CLOCKS + OVER, CLOCKS + OVER + late], axis=1), exposed_ns=np.zeros((3, 2, 2)),
        left_ns=None,
    )  # fmt: skip
    run = structs.replace(make_run(num_ranks=3, num_steps=3, device_ns={"backward": 1e6}), device_collectives=(table,))
    (report,) = report_waits(choose_measured_steps(run))
    assert report.steps_used == 1 and report.transfer_ns == 35 * US


def test_groups_that_only_the_host_times_are_told_from_its_clock() -> None:
    shift = np.zeros((3, 1, 1))
    on_host = make_table(clock=Clock.HOST, left_ns=None, arrival_ns=shift + ARRIVAL, end_ns=shift + OVER)
    run = structs.replace(
        make_device_run(make_table(), hosts=1), collectives=(on_host, structs.replace(on_host, group="gloo"))
    )
    assert [(item.group, item.clock) for item in report_waits(choose_measured_steps(run))] == [
        ("default", "device"), ("gloo", "host")
    ]  # fmt: skip
    rows = list_waits(analyze(run))
    assert [row[0] for row in rows] == ["all_reduce in backward", "all_reduce in backward (host clock)"]
