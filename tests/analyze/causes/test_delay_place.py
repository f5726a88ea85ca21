"""Before which collectives of a cycle a delay lies."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze.causes.delay_place import can_hold, locate_delay
from distprof.analyze.causes.slow_ranks import detect_slow_ranks
from distprof.facts.run import OWN_PARTS, Part, Phase, Stretch
from tests.analyze.replay.test_replay import make_cycles
from tests.analyze.synthetic_cycles import detect
from tests.factories import MS

FORWARD, BACKWARD, NORM = Phase.FORWARD, Phase.BACKWARD, Phase.GRAD_NORM


@pytest.mark.parametrize(
    ("issued", "part", "gaps"),
    [
        ((FORWARD, FORWARD, BACKWARD, NORM), Phase.DATA, [0]),
        ((FORWARD, FORWARD, BACKWARD, NORM), FORWARD, [0, 1, 2]),
        ((FORWARD, FORWARD, BACKWARD, NORM), BACKWARD, [2, 3]),
        ((FORWARD, FORWARD, BACKWARD, NORM), NORM, [0, 3]),
        ((FORWARD, FORWARD, BACKWARD, NORM), Phase.OPTIMIZER, [0]),
        ((FORWARD, FORWARD, BACKWARD, NORM), Stretch.CHECKPOINT, [0]),
        ((FORWARD, FORWARD, BACKWARD, NORM), Phase.OTHER, [0, 1, 2, 3]),
        ((BACKWARD, BACKWARD), FORWARD, [0]),
        ((BACKWARD, BACKWARD), BACKWARD, [0, 1]),
        ((Stretch.BETWEEN, BACKWARD), Phase.OPTIMIZER, [0]),
        ((Stretch.BETWEEN, BACKWARD), Phase.DATA, [1]),
        ((Stretch.BETWEEN, BACKWARD), Stretch.EVALUATION, [0, 1]),
        ((FORWARD, BACKWARD, FORWARD, BACKWARD), Phase.DATA, [0, 2]),  # two micro-steps
        ((BACKWARD,), Phase.DATA, [0]),
    ],
)
def test_a_part_lies_between_its_neighbours(issued: tuple[Part, ...], part: Part, gaps: list[int]) -> None:
    count = len(issued)
    cycles = make_cycles([[10.0] * count] * 2, [1] * count, [True] * count)
    assert np.flatnonzero(can_hold(structs.replace(cycles, issued=issued), part)).tolist() == gaps


def test_an_excess_is_spread_over_the_gaps_that_are_longer() -> None:
    cycles = make_cycles([[10, 30, 20]] * 2, [1] * 3, [True] * 3)
    allowed, unsure = np.array([True, True, False]), np.full(3, 1.0)
    assert locate_delay(cycles, allowed, np.array([6.0, 2.0, 9.0]), np.full(3, 0.1), 4).tolist() == [3, 1, 0]
    assert locate_delay(cycles, allowed, np.array([-1.0, 0.2, 9.0]), unsure, 4).tolist() == [0, 4, 0]
    assert locate_delay(cycles, allowed, np.array([-1.0, -2.0, 9.0]), unsure, 4).tolist() == [0, 4, 0]  # the longest


def test_an_excess_may_lie_between_two_backwards_if_the_first_has_ended() -> None:
    """As the generator's forward of a GAN, between the all-reduces of two models: 9 of the 10 that are looked for."""
    late, error = np.array([0.2, 9.0, 9.0]), np.full(3, 0.1)
    allowed = np.array([True, False, False])
    for waits, placed in (([True] * 3, [0.2 / 1.82, 9 / 1.82, 9 / 1.82]), ([False, True, True], [0.2, 0, 9.0])):
        cycles = structs.replace(make_cycles([[10, 30, 20]] * 2, [1] * 3, waits), issued=(BACKWARD, BACKWARD, BACKWARD))
        assert locate_delay(cycles, allowed, late, error, 10).tolist() == pytest.approx(placed)
    forward = structs.replace(cycles, issued=(FORWARD, FORWARD, BACKWARD))
    assert locate_delay(forward, allowed, late, error, 10).tolist() == [0.2, 0, 0]


def test_a_rank_is_named_that_is_late_in_a_forward_between_two_backwards() -> None:
    """A GAN whose rank 1 takes 26 ms longer in the generator's forward, after the discriminator's backward."""
    draw = np.random.default_rng(3)
    work_ns = draw.normal(10 * MS, 0.2 * MS, (2, 34, 2))
    work_ns[1, :, 1] += 26 * MS
    phase_ns = np.zeros((2, 34, len(OWN_PARTS)))
    phase_ns[:, :, OWN_PARTS.index(BACKWARD)] = draw.normal(8 * MS, 0.2 * MS, (2, 34))
    phase_ns[:, :, OWN_PARTS.index(FORWARD)] = work_ns.sum(axis=2) - phase_ns[:, :, OWN_PARTS.index(BACKWARD)]
    cycles = structs.replace(
        make_cycles([[1, 1]] * 2, [1, 1], [True, True]), steps=np.arange(34), work_ns=work_ns, phase_ns=phase_ns,
        blocked_ns=work_ns.max(axis=0) - work_ns + MS, transfer_ns=np.full_like(work_ns, MS),
        start_ns=np.zeros((2, 34)), issued=(BACKWARD, BACKWARD),
    )  # fmt: skip
    (found,) = detect(cycles, detect_slow_ranks)
    assert (found.rows.tolist(), found.part) == ([1], FORWARD)
    assert found.late_ns == pytest.approx(26 * MS, rel=0.02)
    assert found.counterfactual.work_ns[1][0] == pytest.approx([0, found.late_ns], abs=0.2 * MS)


def test_what_a_rank_makes_up_for_before_it_arrives_is_not_spread() -> None:
    """It takes 10 longer in a part; its gaps are as long as the others', or 4 longer, beyond doubt."""
    cycles = make_cycles([[10, 30, 20]] * 2, [1] * 3, [True] * 3)
    allowed, error = np.array([True, True, False]), np.full(3, 0.1)
    assert locate_delay(cycles, allowed, np.array([0.0, -0.1, 9.0]), error, 10).tolist() == [0, 0, 0]
    assert locate_delay(cycles, allowed, np.array([4.0, -1.0, 9.0]), error, 10).tolist() == [4, 0, 0]
