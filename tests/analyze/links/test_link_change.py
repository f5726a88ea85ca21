"""Links that become slow in the middle of a job: which one, since when, and what is no change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.simulate import Delay
from distprof.analyze.links.link_change import find_change
from distprof.analyze.links.slow_link import explain_link, find_slow_links, measure_needed
from distprof.analyze.replay.counterfactual import replay_without
from distprof.facts.run import Phase
from tests.analyze.links.linked_runs import FOUR, Strategy, find, measure, set_readings, simulate_run
from tests.factories import MS

pytestmark = pytest.mark.slow


LATER = dataclasses.replace(FOUR, num_steps=40, slow_from_step=15, jitter_ratio=0.02)
GROWN = "transfers between hosts take longer than before, and nothing else does"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_a_link_that_became_slow_is_measured_against_its_past_and_probed_again(strategy: Strategy) -> None:
    job = dataclasses.replace(LATER, strategy=strategy)
    measured_steps, cycles = measure(simulate_run(job))
    (suspect,) = find_slow_links(measured_steps, cycles)
    assert suspect.hosts == ("host-2",)
    assert cycles.steps[suspect.acts].tolist() == list(range(15, 40))
    assert measure_needed(measured_steps, cycles, suspect) is None
    assert explain_link(measured_steps, suspect) == f"{GROWN}; a probe at the end of the job finds this link slow"
    _, healthy = measure(simulate_run(dataclasses.replace(job, slow_hosts={}, slow_from_step=0)))
    true_ns = float(cycles.cycle_ns.mean() - healthy.cycle_ns.mean())
    saved_ns = float((cycles.cycle_ns - replay_without(cycles, [suspect.removal])).mean())
    assert saved_ns == pytest.approx(true_ns, rel=0.05)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp"])
def test_of_a_job_that_died_only_hsdps_groups_tell_which_link_became_slow(strategy: Strategy) -> None:
    """Probed at the start, every link was well; so all hosts are named unless some transfers are as fast as ever."""
    run = set_readings(simulate_run(dataclasses.replace(LATER, strategy=strategy)), 10e9, 10e9, 10e9, last=())
    measured_steps, cycles = measure(run)
    (suspect,) = find_slow_links(measured_steps, cycles)
    assert suspect.hosts == (("host-2",) if strategy == "hsdp" else ("host-0", "host-1", "host-2", "host-3"))
    assert explain_link(measured_steps, suspect) == GROWN


def test_transfers_that_grew_are_none_of_links_that_a_probe_finds_as_fast_as_before() -> None:
    run = simulate_run(LATER)
    assert find(set_readings(run, 10e9, 10e9, 10e9)) == []
    (all_slow,) = find(set_readings(run, 10e9, 10e9, 10e9, last=(5e9, 5e9, 5e9)))  # rank 0's link, or what they share
    assert all_slow.hosts == ("host-0", "host-1", "host-2", "host-3")
    hsdp = simulate_run(dataclasses.replace(LATER, strategy="hsdp"))
    assert find(set_readings(hsdp, 10e9, 10e9, 10e9, last=(2.5e9, 10e9, 10e9))) == []  # slower transfers end elsewhere


def test_of_two_links_that_became_slow_the_slower_one_sets_the_pace() -> None:
    """Transfers grew from 2.5 to 10 ms: with the slower link repaired, they take 6.25 ms; with both, 2.5."""
    run = simulate_run(dataclasses.replace(LATER, num_ranks=24, jitter_ratio=0))
    slower, slow = find(set_readings(run, *[10e9] * 5, last=(10e9, 2.5e9, 4e9, 10e9, 10e9)))
    assert (slower.hosts, slow.hosts) == (("host-2",), ("host-3",))
    for suspect, took_ns in ((slower, 3.75 * MS), (slow, 3.75 * MS)):
        assert suspect.removal.transfer_ns is not None
        assert suspect.removal.transfer_ns[:, -1, 0] == pytest.approx(took_ns, abs=100)


def test_if_the_ranks_own_work_slows_down_with_the_transfers_it_is_not_the_network() -> None:
    slower = tuple(Delay(rank=rank, phase=Phase.FORWARD, delay_ns=250 * MS, first_step=15) for rank in range(16))
    assert find(simulate_run(LATER)) and not find(simulate_run(dataclasses.replace(LATER, delays=slower)))


def test_a_change_has_to_last() -> None:
    level = np.repeat([10.0, 14.0], [20, 20])
    noise = np.random.default_rng(2).normal(0, 0.5, 40)
    assert find_change(level) == 20 and find_change(level + noise) == 20
    assert find_change(-level) is None and find_change(level[:15]) is None
    burst = np.where((np.arange(40) >= 15) & (np.arange(40) < 25), 14.0, 10.0)
    assert find_change(burst + noise) is None
    assert find_change(np.repeat([10.0, 12.0], [20, 20])) is None


def test_drift_is_no_change() -> None:
    """A first-order autoregression wanders by a third of its mean."""
    draws = np.random.default_rng(5)
    found = 0
    for _ in range(500):
        values = np.zeros(100)
        for step in range(1, 100):
            values[step] = 0.9 * values[step - 1] + draws.normal(0, 0.1 * np.sqrt(1 - 0.9**2))
        found += find_change(10 * np.exp(values)) is not None
    assert found <= 5
