"""What probes at both ends of a job say of its links: examples by hand."""

from __future__ import annotations

import pytest

from distprof.analyze.links.link_speeds import GIGABIT_BYTES_PER_S, LinkSpeeds, have_all_slowed, list_slow, list_slowed

GOOD = (100.0, 104.0, 96.0, 101.0)
"""Of the links to the other hosts, b to e."""


def read(*first: float, last: tuple[float, ...] = ()) -> LinkSpeeds:
    names = "bcdefg"
    rounds = (dict(zip(names, speeds, strict=False)) for speeds in (first, last))
    return LinkSpeeds(near="a", network="gloo", first=next(rounds), last=next(rounds))


def name(speeds: LinkSpeeds) -> list[str]:
    return [link.far for link in list_slow(speeds)]


def name_slowed(speeds: LinkSpeeds) -> list[str]:
    return [link.far for link in list_slowed(speeds)]


def test_two_readings_that_agree_are_believed_where_one_is_not() -> None:
    assert name(read(65, *GOOD)) == [] and name(read(45, *GOOD)) == ["b"]
    (link,) = list_slow(read(64, *GOOD, last=(66, *GOOD)))
    assert link.bytes_per_s == pytest.approx((64 * 66) ** 0.5) and link.usual_bytes_per_s == pytest.approx(100.5)
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
    assert (link.hosts, link.bytes_per_s, link.usual_bytes_per_s) == (("b",), 50, 100.5)


def test_a_single_other_link_bears_witness_only_to_much() -> None:
    assert name_slowed(read(100, 100, last=(66, 100))) == [] and name_slowed(read(100, 100, last=(45, 100))) == ["b"]
    assert name_slowed(read(100, last=(20,))) == []


def test_all_links_became_slow_or_it_is_not_known() -> None:
    half = tuple(speed / 2 for speed in GOOD)
    assert have_all_slowed(read(*GOOD, last=half)) is True and have_all_slowed(read(100, last=(60,))) is True
    assert have_all_slowed(read(*GOOD, last=GOOD)) is False
    assert have_all_slowed(read(*GOOD, last=half[:2])) is None and have_all_slowed(read()) is None


def test_a_jobs_only_link_is_short_if_no_reading_comes_near_gigabit_ethernet() -> None:
    low, high = 0.5 * GIGABIT_BYTES_PER_S, 0.9 * GIGABIT_BYTES_PER_S
    (link,) = list_slow(read(low, last=(low / 4,)))
    assert (link.hosts, link.bytes_per_s) == (("a", "b"), pytest.approx(low / 2))
    assert name(read(low)) == ["b"]
    assert name(read(low, last=(high,))) == name(read(high, last=(low,))) == name(read()) == []


def test_two_links_are_no_measure_for_each_other() -> None:
    assert name(read(20, 100, last=(20, 100))) == []
