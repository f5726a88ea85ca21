"""Jobs on two hosts that differ as real hosts do: in clocks and links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distprof.analyze import analyze
from distprof.analyze.clocks.clocks import map_clocks
from distprof.facts.run import Run
from distprof.report.wait_report import CauseReport
from distprof.storage.run_folder import read_run
from tests.two_hosts import TwoHostsJob, fork_on_two_hosts

pytestmark = [pytest.mark.root, pytest.mark.live]

MS, S = 10**6, 10**9
JOB = ("train=gpt2_tiny", "train.steps=12", "train.warmup_steps=2", "logger=none", "hardware.peak=none")
LATE = ("inject.rank=1", "inject.phase=data", "inject.delay_ms=200")
FAR = 2
"""A rank on host b."""
LIMITED_BYTES_PER_S = 100e6 / 8


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> TwoHostsJob:
    """Host b's monotonic clock is 3 s ahead; the cable is as fast as the machine; rank 1 is late."""
    return fork_on_two_hosts((*JOB, *LATE), tmp_path_factory.mktemp("ahead"), clock_ahead_s=3)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> TwoHostsJob:
    """Host b sends at most 100 Mbit/s; the hosts share the machine's clock and, as containers may, their name."""
    return fork_on_two_hosts(JOB, tmp_path_factory.mktemp("limited"), mbit_per_s=100, same_name=True)


@pytest.fixture(scope="module")
def limited_and_ahead(tmp_path_factory: pytest.TempPathFactory) -> TwoHostsJob:
    """Both at once; and a rank on host b is late. The cable lets ranks go 100 ms apart, so of the 150 ms of one that
    may go early the others wait for some only."""
    late = (f"inject.rank={FAR}", "inject.phase=data", "inject.delay_ms=150")
    return fork_on_two_hosts((*JOB, *late), tmp_path_factory.mktemp("both"), mbit_per_s=100, clock_ahead_s=3)


@pytest.fixture(scope="module")
def late_far(tmp_path_factory: pytest.TempPathFactory) -> TwoHostsJob:
    """A rank on host b is late by 15 ms of steps of about 75 ms; its clock is ahead."""
    late = (f"inject.rank={FAR}", "inject.phase=data", "inject.delay_ms=15", "train.steps=50")
    return fork_on_two_hosts((*JOB, *late), tmp_path_factory.mktemp("far"), clock_ahead_s=3)


def read(job: TwoHostsJob) -> Run:
    assert job.exits == (0, 0), "\n".join(job.outputs)
    run = read_run(job.folder)
    assert [info.host for info in run.ranks] in (
        ["host-a"] * 2 + ["host-b"] * 2,
        ["host-a (1)"] * 2 + ["host-a (2)"] * 2,
    )
    assert [info.ended for info in run.ranks] == ["completed"] * 4 and not run.warnings
    return run


def test_a_clock_three_seconds_ahead_is_recovered_within_its_bound(ahead: TwoHostsJob) -> None:
    run = read(ahead)
    readings = run.meta.clock_readings
    assert [reading.rank for reading in readings] == [0, 1, 2, 3] * 2  # at the start and at the end
    for reading in readings:
        truth_ns = 3 * S if reading.rank >= 2 else 0  # a time namespace shifts the clock of its kernel exactly
        assert abs(reading.offset_ns - truth_ns) <= reading.bound_ns
        assert (reading.bound_ns == 0) == (reading.rank < 2)
        assert reading.bound_ns < S / 10  # the bound says something: steps of a slow machine take longer
    clocks, begin_ns = map_clocks(run), run.column("begin_host_ns")
    assert clocks.clock.tolist() == [0, 0, 1, 1] and clocks.comparable(0, 1, 2, 3)
    assert (begin_ns[2] - begin_ns[0]).min() > 2 * S  # as recorded, host b is ahead
    for position in (2, 3):
        there_ns = clocks.to_reference(position, begin_ns[position])
        assert (abs(there_ns - (begin_ns[position] - 3 * S)) <= clocks.bound_ns(position, there_ns)).all()


def test_hosts_that_share_a_clock_need_no_bound(limited: TwoHostsJob) -> None:
    run = read(limited)
    assert [(reading.offset_ns, reading.bound_ns) for reading in run.meta.clock_readings] == [(0, 0)] * 8


def test_a_limited_link_is_seen_and_another_is_not_limited(limited: TwoHostsJob, ahead: TwoHostsJob) -> None:
    (slow,), (fast,) = read(limited).meta.link_readings, read(ahead).meta.link_readings
    assert slow.rank == fast.rank == 2
    assert LIMITED_BYTES_PER_S / 10 < slow.bytes_per_s < 1.2 * LIMITED_BYTES_PER_S
    assert fast.bytes_per_s > 4 * LIMITED_BYTES_PER_S


@pytest.mark.parametrize("job", ["limited", "limited_and_ahead"])
def test_a_limited_link_is_to_blame_and_no_rank(job: str, request: pytest.FixtureRequest) -> None:
    """Whatever the clocks show."""
    run = read(request.getfixturevalue(job))
    report = analyze(run)
    verdict, why = report.verdict, (run.meta.link_readings, run.meta.last_link_readings, report.causes, report.waits)
    assert (verdict.kind, verdict.rank, verdict.critical) == ("slow_link", None, True), why
    assert set(verdict.hosts) == {info.host for info in run.ranks} and len(verdict.hosts) == 2


def test_a_limited_link_and_a_late_rank_are_both_listed_the_larger_first(limited_and_ahead: TwoHostsJob) -> None:
    causes = list_named(limited_and_ahead)
    link, rank = causes[:2]
    assert (link.kind, set(link.hosts), link.critical) == ("slow_link", {"host-a", "host-b"}, True)
    assert (rank.kind, rank.rank, rank.phase) == ("slow_rank", FAR, "data")
    assert link.saved_after_others_ns.value > rank.saved_after_others_ns.value > 20 * MS


def test_a_slightly_late_rank_on_the_far_host_is_found(late_far: TwoHostsJob) -> None:
    verdict = analyze(read(late_far)).verdict
    assert (verdict.kind, verdict.rank, verdict.phase) == ("slow_rank", FAR, "data")
    assert not [cause for cause in list_named(late_far) if cause.kind == "slow_link"]


def list_named(job: TwoHostsJob) -> list[CauseReport]:
    """The causes with a name, the largest first."""
    causes = analyze(read(job)).causes
    assert causes is not None
    return [cause for cause in causes.causes if cause.kind not in ("jitter", "communication")]


def test_with_a_clock_ahead_a_slow_rank_is_found_all_the_same(ahead: TwoHostsJob) -> None:
    verdict = analyze(read(ahead)).verdict
    assert (verdict.kind, verdict.rank, verdict.phase) == ("slow_rank", 1, "data")


def test_nothing_of_the_hosts_is_left(limited: TwoHostsJob, ahead: TwoHostsJob) -> None:
    assert limited.folder.is_dir() and ahead.folder.is_dir()
    assert not list(Path("/run/netns").glob(f"distprof-{os.getpid()}-*"))
