"""Each rank, and what it sent."""

from __future__ import annotations

import numpy as np

from distprof.analyze import analyze
from distprof.facts.run import DeviceSnapshot
from tests.factories import drop_rows, make_run


def test_memory_is_the_largest_and_the_last() -> None:
    peaks, current = np.array([[5, 9, 9, 7], [1, 2, 3, 4]]), np.array([[4, 8, 6, 3], [1, 2, 3, 4]])
    run = drop_rows(make_run(columns={"memory_peak_bytes": peaks, "memory_bytes": current}), 1, 2)
    ranks = analyze(run).ranks
    assert [(rank.memory_peak_bytes, rank.memory_bytes) for rank in ranks] == [(9, 3), (2, 2)]
    assert [(rank.steps_recorded, rank.last_step) for rank in ranks] == [(4, 3), (2, 1)]


def test_memory_that_was_not_measured_is_none() -> None:
    (rank,) = analyze(make_run(num_ranks=1, columns={"memory_bytes": np.nan, "memory_peak_bytes": np.nan})).ranks
    assert (rank.memory_peak_bytes, rank.memory_bytes) == (None, None)


def test_who_and_how_it_ended() -> None:
    look = DeviceSnapshot(name="GPU", utilization_ratio=0.0, power_w=70.5, temperature_c=40, processes=1)
    infos = {
        0: {"snapshot": look, "ended": "failed", "error": "E", "traceback": "T", "rows_lost": 2},
        1: {"snapshot": None, "ended": None},
    }
    first, second = analyze(make_run(infos=infos)).ranks
    assert (first.device_name, first.device_utilization_ratio, first.device_power_w) == ("GPU", 0.0, 70.5)
    assert (first.device_memory_total_bytes, first.device_processes, first.pid) == (None, 1, 1000)
    assert (first.ended, first.error, first.traceback, first.rows_lost) == ("failed", "E", "T", 2)
    assert (second.rank, second.host, second.device_name, second.ended) == (1, "host-a", None, None)


def test_a_rank_without_rows_has_no_last_step() -> None:
    rank = analyze(drop_rows(make_run(), 1, 0)).ranks[1]
    assert (rank.steps_recorded, rank.last_step, rank.memory_bytes, rank.achieved_flops_per_s) == (0, None, None, None)


def test_kinds_that_were_seen_are_reported_with_what_could_be_told() -> None:
    columns = {
        "all_gather_count": [[26], [24]],
        "all_gather_bytes": 5e8,
        "all_gather_busy_host_ns": [[np.nan], [7]],
        "all_reduce_count": np.array([9, 1, 2, 3]),
    }
    reduce, gather = analyze(make_run(columns=columns)).communication
    assert (reduce.kind, reduce.count_per_step) == ("all_reduce", (2, 2))
    assert (gather.kind, gather.count_per_step, gather.bytes_per_step) == ("all_gather", (26, 24), (5e8, 5e8))
    assert gather.busy_host_ns == (None, 7)


def test_what_is_seen_to_end_in_some_steps_only_is_busy_as_in_those() -> None:
    columns = {
        "all_reduce_count": 2,
        "all_reduce_busy_host_ns": np.array([np.nan, np.nan, 50, 70]),
        "all_reduce_exposed_host_ns": np.array([10, 10, 20, 30]),
    }
    (reduce,) = analyze(make_run(columns=columns)).communication
    assert reduce.busy_host_ns == (60, 60) and reduce.overlapped_host_ns == (35, 35)
