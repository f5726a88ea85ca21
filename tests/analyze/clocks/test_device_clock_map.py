"""Device clocks: their times on rank 0's host clock, the bound, and the check by the ends of common collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.clocks.device_clock import (
    DeviceClockMap,
    map_device_clocks,
    note_device_clocks,
    report_device_clocks,
)
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, ClockReading, CollectiveKind, Collectives, Phase, Run
from tests.factories import USUAL_NS, make_run

S, MS, US = 10**9, 10**6, 10**3
BASE_NS = 40 * 86_400 * S
"""A host that was started forty days ago."""
Anchors = Sequence[tuple[float, float, float]]
"""(device, host, bound) of one rank, each at the end of another step."""
FAR = {"clock_readings": (ClockReading(rank=1, at_ns=BASE_NS, offset_ns=3 * S, bound_ns=40 * US),)}
TWO_HOSTS: Mapping[int, Mapping[str, Any]] = {0: {"host": "a"}, 1: {"host": "b"}}


def make_device_run(
    anchors: Sequence[Anchors], ends: FloatArray | None = None, *, kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    meta: Mapping[str, Any] | None = None, infos: Mapping[int, Mapping[str, Any]] | None = None, num_steps: int = 12,
) -> Run:  # fmt: skip
    """Steps of a second from the first anchor on; the ends of a collective in each, ``[num_ranks, num_steps]``."""
    columns = {
        name: np.full((len(anchors), num_steps), np.nan)
        for name in ("anchor_device_ns", "anchor_host_ns", "anchor_bound_ns")
    }
    for rank, own in enumerate(anchors):
        for step, values in enumerate(own):
            for name, value in zip(columns, values, strict=True):
                columns[name][rank, step] = value
    begins = np.array([[own[0][0] if own else 0.0] for own in anchors]) + np.arange(num_steps) * float(S)
    run = make_run(
        num_ranks=len(anchors), num_steps=num_steps, device_ns=USUAL_NS, meta=meta, infos=infos,
        columns={**columns, "begin_device_ns": begins},
    )  # fmt: skip
    if ends is None:
        return run
    times = ends[:, :, None]
    return structs.replace(run, device_collectives=(Collectives(
        group="world", ranks=np.arange(len(anchors)), size=len(anchors), kinds=(kind,), phases=(Phase.BACKWARD,),
        sizes_bytes=(4 * 10**6,), steps=np.arange(ends.shape[1]), arrival_ns=times - MS, end_ns=times,
        exposed_ns=np.zeros(times.shape), clock=Clock.DEVICE,
    ),))  # fmt: skip


def see(seconds: float, *, ahead_ns: float = 0.0, drift: float = 0.0, bound_ns: float = 10 * US) -> tuple[float, ...]:
    """An anchor of a device whose clock was 0 when its host's was `BASE_NS`."""
    return (seconds * S * (1 + drift) + ahead_ns, BASE_NS + seconds * S, bound_ns)


def test_between_two_anchors_the_drift_is_measured_and_the_bounds_of_device_and_host_add() -> None:
    """By hand: rank 1's device gains 20 us a second on its host, which is 3 s ahead of rank 0's."""
    near = [see(0, bound_ns=4 * US), see(10, bound_ns=4 * US)]
    far = [(0, BASE_NS + 3 * S, 6 * US), (10 * S + 200 * US, BASE_NS + 13 * S, 8 * US)]
    clocks = map_device_clocks(make_device_run([near, far], meta=FAR, infos=TWO_HOSTS))
    assert clocks.to_host(1, [0, 5 * S + 100 * US]).tolist() == [BASE_NS + 3 * S, BASE_NS + 8 * S]
    assert clocks.to_reference(1, [0, 5 * S + 100 * US]).tolist() == [BASE_NS, BASE_NS + 5 * S]
    assert clocks.to_reference(0, 5 * S) == BASE_NS + 5 * S
    # after 5 s: 4 + 5 us and 7 + 5 us by the anchors, 40 us and 500 us by the one reading of the far host's clock
    assert float(clocks.pair_bound_ns(0, 1, BASE_NS + 5 * S)) == pytest.approx(561 * US, rel=2e-4)
    assert clocks.worst_host_bound_ns(1, 0, 10 * S) == pytest.approx(12 * US, rel=2e-4)
    assert clocks.worst_bound_ns(1, 0, 5 * S) == pytest.approx(552 * US, rel=2e-4)


def test_beyond_the_anchors_the_rate_is_that_of_the_whole_run() -> None:
    """By hand, 20 s before the first of the anchors at 0, 1, ... 10 s: 3 * 10 + 2 * 10 us, and 20 us of wandering."""
    jitter_ns = [9 * US, *[0, -3 * US] * 4, 0, 9 * US]
    clocks = map_device_clocks(make_device_run([[see(step, ahead_ns=ahead) for step, ahead in enumerate(jitter_ns)]]))
    assert clocks.to_reference(0, 9 * US - 20 * S) == BASE_NS - 20 * S
    assert float(clocks.devices.bound_ns(0, BASE_NS - 20 * S)) == pytest.approx(70 * US, rel=2e-4)


def test_two_devices_of_one_host_are_compared_by_their_anchors_alone() -> None:
    clocks = map_device_clocks(make_device_run([[see(0), see(10)]] * 2))
    assert float(clocks.pair_bound_ns(0, 1, BASE_NS)) == pytest.approx(20 * US, rel=2e-4)


def test_one_anchor_holds_for_ever_and_is_trusted_less_and_less() -> None:
    clocks = map_device_clocks(make_device_run([[see(0)]]))
    assert clocks.to_reference(0, 7 * S) == BASE_NS + 7 * S
    assert clocks.worst_bound_ns(0, 0, 7 * S) == pytest.approx(710 * US, rel=2e-4)  # 100 parts per million


def test_without_anchors_or_without_the_hosts_clocks_nothing_is_compared() -> None:
    clocks = map_device_clocks(make_device_run([[see(0)], []]))
    assert np.isnan(clocks.to_reference(1, [0.0, S])).all() and clocks.pair_bound_ns(0, 1, BASE_NS) == np.inf
    assert clocks.worst_bound_ns(1, 0, S) == np.inf
    apart = map_device_clocks(make_device_run([[see(0)], [see(0)]], infos=TWO_HOSTS))
    assert apart.to_host(1, 0) == BASE_NS and np.isnan(apart.to_reference(1, 0))
    assert apart.pair_bound_ns(0, 1, BASE_NS) == np.inf


WRONG = {
    "the first": ({0: MS}, 11), "one in the middle": ({5: MS}, 11), "the last, back": ({11: -MS}, 11),
    "two in a row, alike": ({4: MS, 5: MS}, 10), "by little": ({6: 150 * US}, 11),
    "as many as not": (dict.fromkeys(range(6), MS), 0),
}  # fmt: skip


@pytest.mark.parametrize(("wrong_ns", "kept"), WRONG.values(), ids=WRONG)
def test_anchors_that_contradict_the_others_are_left_out(wrong_ns: dict[int, int], kept: int) -> None:
    anchors = [see(step, ahead_ns=wrong_ns.get(step, 0), drift=20e-6) for step in range(12)]
    (found,) = report_device_clocks(make_device_run([anchors]))
    assert (found.anchors, found.anchors_left_out) == (kept, 12 - kept)
    note = f"rank 0: {12 - kept} reading(s) of the device clock contradict the others and are left out"
    assert note_device_clocks([found]) == [note]
    if not kept:
        assert found.drift_ratio is found.host_bound_ns is found.bound_ns is None
        return
    assert found.drift_ratio == pytest.approx(20e-6)
    clocks, seconds = map_device_clocks(make_device_run([anchors])), np.linspace(0, 11, 45)
    off_ns = clocks.to_reference(0, seconds * S * (1 + 20e-6)) - (BASE_NS + seconds * S)
    assert np.abs(off_ns).max() <= 2


def test_an_anchor_that_says_far_less_than_its_neighbours_is_not_used() -> None:
    """The host was interrupted between its two readings of the clock."""
    anchors = [see(step, bound_ns=900 * US if step == 4 else 10 * US) for step in range(12)]
    (found,) = report_device_clocks(make_device_run([anchors]))
    assert (found.anchors, found.anchors_left_out) == (11, 0)
    assert found.host_bound_ns == pytest.approx(11 * US, rel=2e-4)  # between the seconds 3 and 5


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(10**12), 10**12), st.floats(-45e-6, 45e-6)), min_size=1, max_size=3),
    st.integers(0, 2**32), st.integers(1, 12),
)  # fmt: skip
def test_the_truth_is_within_the_bound(devices: list[tuple[int, float]], seed: int, num_anchors: int) -> None:
    """Devices with an offset and a drift, read by brackets of any width, anywhere in which the truth lies."""
    draws = np.random.default_rng(seed)
    anchors = []
    for offset_ns, drift in devices:
        true_ns = np.cumsum(draws.uniform(S, 3 * S, num_anchors))
        half_ns = np.round(np.exp(draws.uniform(np.log(US), np.log(200 * US), num_anchors)))
        host_ns = BASE_NS + np.round(true_ns + draws.uniform(-1, 1, num_anchors) * half_ns)
        anchors.append([*zip(np.round(offset_ns + true_ns * (1 + drift)), host_ns, half_ns + 2, strict=True)])
    clocks = map_device_clocks(make_device_run(anchors))
    assert not clocks.num_left_out.any()
    at_ns = np.linspace(0, 40 * S, 41)
    found = []
    for position, (offset_ns, drift) in enumerate(devices):
        found.append(clocks.to_reference(position, offset_ns + at_ns * (1 + drift)) - BASE_NS)
        own_ns = clocks.devices.bound_ns(position, BASE_NS + at_ns)
        assert (np.abs(found[-1] - at_ns) <= own_ns * 1.001 + 2).all()
        apart_ns = np.abs(found[-1] - found[0])
        assert (apart_ns <= clocks.pair_bound_ns(0, position, BASE_NS + at_ns) * 1.001 + 4).all()


def check(gap_ns: FloatArray | float, **options: Any) -> tuple[DeviceClockMap, Run]:
    """Two devices of one host, known to 10 us each, whose collectives end that far apart; their offsets differ."""
    ends = np.stack([np.zeros(12), np.broadcast_to(gap_ns, 12)]) + np.arange(12) * S + 300 * MS
    ends[1] += 5 * S
    anchors = [[see(step) for step in range(12)], [see(step, ahead_ns=5 * S) for step in range(12)]]
    run = make_device_run(anchors, ends, **options)
    return map_device_clocks(run), run


def test_ends_that_agree_change_nothing() -> None:
    clocks, run = check(np.array([3 * US, -4 * US, 6 * US, 900 * US] * 3))  # the median, by hand: 4.5 us
    assert list(clocks.checks) == [1]
    found = clocks.checks[1]
    assert (found.against, found.gap_ns, found.agrees, found.wider_ns) == (0, 4.5 * US, True, 0)
    assert found.bound_ns == pytest.approx(20.6 * US, rel=2e-3)  # 0.3 s from the nearest anchor
    report = analyze(run)
    assert report.device_clocks[1].bound_ns == pytest.approx(10.5 * US, rel=2e-3)
    assert not [note for note in report.coverage.notes if "device clocks" in note]


def test_ends_that_disagree_give_the_wider_bound_and_a_note() -> None:
    clocks, run = check(-200.0 * US)
    assert float(clocks.pair_bound_ns(0, 1, BASE_NS + S)) == pytest.approx(200 * US)
    assert float(clocks.pair_bound_ns(1, 1, BASE_NS + S)) == pytest.approx(20 * US, rel=2e-3)
    report = analyze(run)
    first, second = report.device_clocks
    assert (first.agrees, first.against, second.agrees, second.against) == (None, None, False, 0)
    assert second.end_gap_ns == pytest.approx(-200 * US)
    assert second.host_bound_ns == pytest.approx(10.5 * US, rel=2e-3)  # the anchors do not know better
    assert second.bound_ns == pytest.approx(200 * US)
    assert report.coverage.notes[0] == (
        "common collectives end farther apart on rank 1 and rank 0 than their device clocks can be wrong: "
        "the distance is taken as the bound"
    )


def test_a_skew_of_the_ends_themselves_widens_the_bound_without_a_complaint() -> None:
    clocks, _ = check(35.0 * US)
    assert clocks.checks[1].agrees and clocks.checks[1].wider_ns == pytest.approx(35 * US)


@pytest.mark.parametrize("kind", [CollectiveKind.OTHER, CollectiveKind.ALL_TO_ALL])
def test_collectives_that_some_ranks_leave_early_check_nothing(kind: CollectiveKind) -> None:
    assert check(200.0 * US, kind=kind)[0].checks == {}


def test_too_few_common_ends_check_nothing() -> None:
    seen = np.where(np.arange(12) < 7, 200.0 * US, np.nan)
    assert check(seen)[0].checks == {}
    assert list(check(np.where(np.arange(12) < 8, 200.0 * US, np.nan))[0].checks) == [1]


def test_each_rank_is_checked_against_the_lowest_that_it_has_a_group_with() -> None:
    anchors = [[see(step) for step in range(12)]] * 4
    run = make_device_run(anchors, np.tile(np.arange(12) * float(S), (4, 1)))
    (world,) = run.device_collectives
    parts = [[2, 3], [0, 2]]
    tables = tuple(
        structs.replace(world, group=str(part), ranks=np.array(part), size=2, arrival_ns=world.arrival_ns[part],
                            end_ns=world.end_ns[part], exposed_ns=world.exposed_ns[part])
        for part in parts
    )  # fmt: skip
    checks = map_device_clocks(structs.replace(run, device_collectives=tables)).checks
    assert {position: found.against for position, found in checks.items()} == {2: 0, 3: 2}


def test_a_rank_without_anchors_is_in_the_report_and_a_job_without_any_has_no_device_clocks() -> None:
    report = analyze(make_device_run([[see(step, drift=31e-6) for step in range(12)], []]))
    first, second = report.device_clocks
    assert (first.anchors, second.anchors, second.bound_ns, second.agrees) == (12, 0, None, None)
    assert first.drift_ratio == pytest.approx(31e-6) and first.bound_ns == first.host_bound_ns
    apart = analyze(make_device_run([[see(0), see(1)]] * 2, infos=TWO_HOSTS)).device_clocks
    assert [item.bound_ns is None for item in apart] == [False, True] and apart[1].host_bound_ns is not None
    assert analyze(make_run()).device_clocks == ()
