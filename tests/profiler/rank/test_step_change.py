"""Whether steps take longer than before: changes by hand, and noise that is none."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.profiler.rank.step_change import BLOCK, LEAST_USUAL, MOST_USUAL, StepChange


def look(times_ns: list[int]) -> list[int]:
    """After which steps a change is seen."""
    change = StepChange()
    return [step for step, time_ns in enumerate(times_ns, start=1) if change.add(time_ns)]


@pytest.mark.parametrize("factor", [1.05, 0.95, 3.0])
def test_a_change_is_seen_at_the_end_of_a_block_of_which_most_steps_are_of_the_new_length(factor: float) -> None:
    before, after = [1_000_000] * (LEAST_USUAL + 3), [round(1_000_000 * factor)] * 100
    assert look(before + after) == [LEAST_USUAL + BLOCK]
    assert look([1_000_000] * (LEAST_USUAL + 6) + after) == [LEAST_USUAL + 2 * BLOCK]


def test_small_changes_single_steps_and_too_few_steps_are_none() -> None:
    steady = [1_000_000] * MOST_USUAL
    assert look(steady + [1_020_000] * 40) == []
    assert look(([*[1_000_000] * (BLOCK - 1), 50_000_000]) * 20) == []
    assert look([1_000_000] * BLOCK + [2_000_000] * 200) == []


def test_noise_seldom_looks_like_a_change() -> None:
    draws = np.random.default_rng(3)
    seen = [look(draws.normal(1e6, 1e5, 400).astype(int).tolist()) for _ in range(100)]
    assert sum(map(bool, seen)) <= 5
