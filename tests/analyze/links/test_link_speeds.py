"""What probes at both ends of a job say of its links: examples by hand."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze.links.link_speeds import (
    GIGABIT_BYTES_PER_S,
    LinkSpeeds,
    have_all_slowed,
    is_beyond_chance,
    list_slow,
    list_slowed,
)

GOOD = (100.0, 104.0, 96.0, 101.0)
"""Of the links to the other hosts, b to e; 100 is a link of 10 Gbit/s."""
BYTES_PER_S = 10e9 / 8 / 100
GIGABIT = GIGABIT_BYTES_PER_S / BYTES_PER_S


def read(*first: float, last: tuple[float, ...] = ()) -> LinkSpeeds:
    names = "bcdefghijklmnopq"
    rounds = (
        {name: speed * BYTES_PER_S for name, speed in zip(names, speeds, strict=False)} for speeds in (first, last)
    )
    return LinkSpeeds(near="a", network="gloo", first=next(rounds), last=next(rounds))


def name(speeds: LinkSpeeds) -> list[str]:
    return [link.far for link in list_slow(speeds)]


def name_slowed(speeds: LinkSpeeds) -> list[str]:
    return [link.far for link in list_slowed(speeds)]


def test_two_readings_that_agree_are_believed_where_one_is_not() -> None:
    assert name(read(65, *GOOD)) == [] and name(read(45, *GOOD)) == ["b"]
    (link,) = list_slow(read(64, *GOOD, last=(66, *GOOD)))
    assert link.bytes_per_s == pytest.approx((64 * 66) ** 0.5 * BYTES_PER_S)
    assert link.usual_bytes_per_s == pytest.approx(100.5 * BYTES_PER_S)
    assert name(read(80, *GOOD, last=(66, *GOOD))) == [] and name(read(64, *GOOD, last=(78, *GOOD))) == []


def test_a_link_that_recovered_was_not_slow_all_along() -> None:
    assert name(read(20, *GOOD, last=(100, *GOOD))) == []
    assert name(read(100, *GOOD, last=(20, *GOOD))) == []


def test_a_host_that_was_left_out_at_the_end_is_judged_by_its_only_reading() -> None:
    """There was no time for the last two hosts."""
    assert name(read(*GOOD, 65, last=GOOD[:3])) == [] and name(read(*GOOD, 45, last=GOOD[:3])) == ["f"]


def test_what_the_network_does_to_all_links_is_none_of_one() -> None:
    half = tuple(speed / 2 for speed in GOOD)
    assert name(read(65, *GOOD, last=(33, *half))) == ["b"]
    assert name_slowed(read(100, *GOOD, last=(50, *half))) == []


def test_readings_that_differ_without_a_reason_are_worth_less() -> None:
    """The others' readings differ by a fifth, so one that reads a third less may be as fast; a fifth is not."""
    first, last = (82.0, 123.0, 80.0, 121.0), (120.0, 81.0, 124.0, 79.0)
    assert name(read(66, *first, last=(66, *last))) == [] and name(read(20, *first, last=(20, *last))) == ["b"]
    assert name_slowed(read(100, *first, last=(66, *last))) == []
    assert name_slowed(read(100, *first, last=(20, *last))) == ["b"]


def test_a_link_became_slow_against_its_past_and_the_others() -> None:
    assert name_slowed(read(100, *GOOD, last=(66, *GOOD))) == ["b"]
    assert name_slowed(read(100, *GOOD, last=(78, *GOOD))) == []
    assert name_slowed(read(200, *GOOD, last=(100, *GOOD))) == []  # it is as fast as the others now
    assert name_slowed(read(66, *GOOD, last=(66, *GOOD))) == []  # it always was
    assert name_slowed(read(100, *GOOD)) == []
    (link,) = list_slowed(read(100, *GOOD, last=(50, *GOOD)))
    assert link.hosts == ("b",)
    assert (link.bytes_per_s, link.usual_bytes_per_s) == (50 * BYTES_PER_S, 100.5 * BYTES_PER_S)


def test_a_single_other_link_bears_witness_only_to_much() -> None:
    assert name_slowed(read(100, 100, last=(66, 100))) == [] and name_slowed(read(100, 100, last=(45, 100))) == ["b"]
    assert name_slowed(read(100, last=(20,))) == []


def test_all_links_became_slow_or_it_is_not_known() -> None:
    half = tuple(speed / 2 for speed in GOOD)
    assert have_all_slowed(read(*GOOD, last=half)) is True and have_all_slowed(read(100, last=(60,))) is True
    assert have_all_slowed(read(*GOOD, last=GOOD)) is False
    assert have_all_slowed(read(*GOOD, last=half[:2])) is None and have_all_slowed(read()) is None


def test_a_jobs_only_link_is_short_if_no_reading_comes_near_gigabit_ethernet() -> None:
    low, high = 0.5 * GIGABIT, 0.9 * GIGABIT
    (link,) = list_slow(read(low, last=(low / 4,)))
    assert (link.hosts, link.bytes_per_s) == (("a", "b"), pytest.approx(low * BYTES_PER_S))
    assert name(read(low)) == ["b"]
    assert name(read(low, last=(high,))) == name(read(high, last=(low,))) == name(read()) == []


def test_two_links_are_no_measure_for_each_other() -> None:
    assert name(read(20, 100, last=(20, 100))) == []


def test_of_several_links_each_is_compared_with_gigabit_ethernet() -> None:
    """Two links are no measure for each other; but either may be slower than any network should be."""
    (link,) = list_slow(read(0.5, 100, last=(0.5, 100)))
    assert (link.hosts, link.far, link.usual_bytes_per_s) == (("b",), "b", GIGABIT_BYTES_PER_S)
    (network,) = list_slow(read(0.5, 0.4, 0.6, last=(0.5, 0.4, 0.6)))  # all are alike, and all are slow
    assert (network.hosts, network.far) == (("a", "b", "c", "d"), "c")
    assert network.bytes_per_s == pytest.approx(0.4 * BYTES_PER_S)
    (link,) = list_slow(read(0.1, 0.5, 0.5, 0.5, last=(0.1, 0.5, 0.5, 0.5)))  # the slowest one comes first
    assert link.hosts == ("b",) and link.usual_bytes_per_s == pytest.approx(0.5 * BYTES_PER_S)
    nccl = structs.replace(read(0.5, 100), network="nccl")
    assert list_slow(nccl) == [] and list_slow(structs.replace(read(0.5, 100), near=None)) == []


def test_a_link_beyond_chance_by_hand() -> None:
    """All four links read the same at both ends, 3 degrees of freedom without an error; the three others differ, 2 more
    degrees. With 5 degrees, t exceeds 5.6 with a probability of 0.125 %, which is 0.5 % of one link of four."""
    others = (90.0, 100.0, 110.0)
    logs = np.log(others)
    error = np.sqrt(2 * ((logs - logs.mean()) ** 2).sum() / 5 * (1 / 2 + 1 / 6))
    beyond = np.exp(logs.mean() - np.array([5.0, 6.5]) * error)
    slow, slower = (read(speed, *others, last=(speed, *others)) for speed in beyond)
    assert not is_beyond_chance(slow, "b", "cde") and is_beyond_chance(slower, "b", "cde")


def test_how_far_off_a_slow_link_may_be_by_hand() -> None:
    """As above: t exceeds 2.571 with a probability of 2.5 %, and of the error's square the link's own readings have
    1/2 of 1/2 + 1/6."""
    others = (90.0, 100.0, 110.0)
    logs = np.log(others)
    error = np.sqrt(2 * ((logs - logs.mean()) ** 2).sum() / 5 * (1 / 2 + 1 / 6))
    (link,) = list_slow(read(20, *others, last=(20, *others)))
    assert link.reaches == pytest.approx((2.571 * error * 3 / 4, 2.571 * error / 4), rel=1e-3)


@pytest.mark.parametrize("count", [3, 7, 15])
def test_readings_that_err_by_a_fifth_name_hardly_any_of_links_that_are_alike(count: int) -> None:
    """Of 400 jobs 2 are allowed: 0.5 %; the 99 % point of that binomial is 6."""
    draws = np.random.default_rng(7)
    named = 0
    for _ in range(400):
        first, last = (tuple(draws.lognormal(np.log(100), 0.2, count)) for _ in range(2))
        named += bool(list_slow(read(*first, last=last)))
    assert named <= 6


def test_readings_that_err_by_a_twentieth_name_a_link_of_half_the_speed() -> None:
    draws = np.random.default_rng(8)
    named = 0
    for _ in range(100):
        first, last = (tuple(draws.lognormal(np.log([50, *[100] * 7]), 0.05)) for _ in range(2))
        named += name(read(*first, last=last)) == ["b"]
    assert named == 100
