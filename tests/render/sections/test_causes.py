"""All causes in words: the sentence that names the largest and counts the rest, and the table that adds up."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from distprof.render.sections.cause_times import format_when, read_step_range
from distprof.render.sections.cause_words import list_causes, name_link
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.screen import show_causes
from distprof.render.units import make_ordinal
from distprof.report.wait_report import Cause, CauseReport, VerdictKind
from tests.made_causes import FIRST, LAST, MS, make_cause, make_estimate, make_report, make_verdict

KIND = VerdictKind
JITTER = make_cause(KIND.JITTER, 1.2)
MOVING = make_cause(KIND.COMMUNICATION, 2.9, cause=Cause.NETWORK)


def make_late(rank: int, lost: float, **changes: Any) -> CauseReport:
    return make_cause(KIND.SLOW_RANK, lost, rank=rank, **changes)


def describe(*causes: CauseReport, **changes: Any) -> str:
    return describe_verdict(make_report(causes, **changes))


LATE = (
    "rank 3 is 20.0 ms late in every step: its compute (forward +20.0 ms); the other 7 wait 140.0 ms per step "
    "together; fixing it makes steps 12 % shorter (11 to 13 %)"
)


def test_the_largest_is_named_and_the_rest_counted() -> None:
    rank = make_late(3, 12.0)
    assert describe(rank) == LATE
    assert describe(rank, MOVING) == f"{LATE}. One more cause costs 2.9 % of a step (2.6 to 3.2 %): communication."
    text = describe(structs.replace(rank, critical=True), JITTER, MOVING)
    assert text == (
        f"critical: {LATE}. Two more causes: the largest, communication, costs 2.9 % of a step (2.6 to 3.2 %)."
    )
    many = [make_late(number, 0.5) for number in range(10, 22)]
    assert describe(rank, *many).endswith(
        ". 12 more causes: the largest, rank 10 (forward), costs 0.5 % of a step (0.5 to 0.6 %)."
    )


def test_causes_that_cost_next_to_nothing_are_not_counted() -> None:
    assert describe(make_late(3, 12.0), make_cause(KIND.JITTER, 0.049)) == LATE
    assert describe(make_late(3, 12.0), make_cause(KIND.JITTER, 0.051)).endswith(
        "costs 0.1 % of a step (0.0 to 0.1 %): jitter."
    )


def test_others_that_are_critical_are_said_to_be() -> None:
    rank, other = make_late(3, 14.0), make_late(5, 12.0, critical=True)
    assert ". One more cause, critical, costs 12 % of a step (11 to 13 %): rank 5 (forward)." in describe(rank, other)
    assert ". Two more causes, one of them critical: the largest, rank 5 (forward), costs 12 %" in describe(
        rank, other, MOVING
    )


def test_what_began_late_gains_more_in_its_steps_than_in_the_job() -> None:
    then = {
        "stretch_saved_if_only_this_ratio": make_estimate(36.0),
        "stretch_saved_after_others_ratio": make_estimate(37.0),
    }
    late = make_late(3, 12.0, first_step=40, whole=False, critical=True, **then)
    text = describe(late, stretch_lost_ratio=make_estimate(36.0))
    assert text.startswith("critical: rank 3 is 20.0 ms late in every step since step 40: ")
    assert text.endswith("; fixing it makes these steps 36 % shorter (33 to 40 %), and the whole job 12 %")
    (row, *_) = list_causes(make_report([late]))
    assert row[5:7] == ["36 % (33 to 40 %) then", "37 % then"] and row[8] == "12.0 %"  # its part of the job
    assert show_causes(make_report([late]), 4).columns[3].cells == ("36 % then, 12 % in all",)
    always = make_late(3, 12.0, **then)  # within the blur of where a cause begins
    assert describe(always, stretch_lost_ratio=make_estimate(36.0)) == LATE
    assert list_causes(make_report([always]))[0][5] == "12 % (11 to 13 %)"


def test_two_that_hide_each_other_are_told_together() -> None:
    """Without one, rank 5 still makes every step 12.4 % longer: 0.6 + 12.4 = 1.0 + 12.0 = 13 %."""
    first = make_late(3, 1.0, alone=12.4, critical=True)
    second = make_late(5, 0.6, alone=12.0, phase="backward", critical=True)
    text = describe(first, second, MOVING)
    assert text.startswith("critical: rank 3 is 20.0 ms late in every step: ")
    assert text.endswith(
        "; fixing it makes steps 1.0 % shorter (0.9 to 1.1 %) as long as rank 5 (backward) stays as it is; "
        "fixing both makes them 13 % shorter. One more cause costs 2.9 % of a step (2.6 to 3.2 %): communication."
    )
    assert "as long as" not in describe(make_late(3, 7.0, alone=12.0), second)
    assert "as long as" not in describe(make_late(3, 0.1, alone=1.0), make_late(5, 0.1, alone=0.9))


def test_of_three_that_hide_each_other_the_gain_is_told_once_the_others_are_fixed() -> None:
    text = describe(*(make_late(rank, 0.6, alone=13.0) for rank in (3, 5, 6)))
    assert "0.6 % shorter (0.5 to 0.7 %) as long as the other causes stay, or 13 % (12 to 14 %) once" in text
    assert text.endswith(
        ". Two more causes: the largest, rank 5 (forward), costs 0.6 % of a step (0.5 to 0.7 %), or 13 % once the "
        "others are fixed."
    )


def test_what_has_no_name_comes_first_where_it_costs_more() -> None:
    """A checkpoint of 1.1 % is not what a person reads first where half of the step is lost to something else; and each
    cost is what fixing only this saves, as in the table."""
    moving, jitter = make_cause(KIND.COMMUNICATION, 59.0), make_cause(KIND.JITTER, 19.0)
    saving = make_cause(KIND.STALLS, 1.1, rank=0, phase="checkpoint", events=5)
    told = (
        "5 steps of 50 are far longer, all because of rank 0 while saving a checkpoint; without them the job would be "
        "1.1 % shorter (1.0 to 1.2 %)"
    )
    assert describe(saving, jitter, moving) == (
        f"communication costs the most, 59 % of a step (54 to 66 %), and jitter 19 % (17 to 21 %). {told}."
    )
    assert (
        describe(saving, JITTER)
        == f"jitter (a different rank is last each time) costs the most, 1.2 % of a step (1.1 to 1.3 %). {told}."
    )
    assert describe(saving, make_cause(KIND.JITTER, 1.0)).startswith(f"{told}. One more cause costs 1.0 % of a step (")
    rank = make_late(3, 12.0, critical=True)
    assert describe(rank, jitter, MOVING) == (
        "jitter (a different rank is last each time) costs the most, 19 % of a step (17 to 21 %). Critical: "
        f"{LATE}. One more cause costs 2.9 % of a step (2.6 to 3.2 %): communication."
    )
    assert describe(rank, make_cause(KIND.JITTER, 0.5, alone=19.0), MOVING).endswith(
        ". Two more causes: the largest, communication, costs 2.9 % of a step (2.6 to 3.2 %)."
    )
    hidden = make_late(3, 1.0, alone=12.4), make_late(5, 0.6, alone=12.0)
    assert describe(*hidden, MOVING).startswith("rank 3 is ")


def test_beside_a_slow_link_the_rest_of_what_moving_data_costs_is_told() -> None:
    """To move all data in no time always saves more than to mend the link: that is no larger cause."""
    link = make_cause(KIND.SLOW_LINK, 30.0, hosts=("host-0", "host-2"), cause=Cause.NETWORK)
    text = describe(link, make_cause(KIND.COMMUNICATION, 36.0, alone=6.0), hosts=4)
    assert text.startswith("the link between host-0 and host-2 holds every rank up: ")
    assert text.endswith(". One more cause costs 6.0 % of a step (5.5 to 6.7 %): the rest of communication.")
    assert describe(link, make_cause(KIND.COMMUNICATION, 76.0, alone=46.0), hosts=4).startswith(
        "the rest of communication costs the most, 46 % of a step (42 to 51 %). The link between host-0 and host-2 "
    )


@pytest.mark.parametrize("begins", [33, 35, 31])
def test_one_rank_takes_over_from_another(begins: int) -> None:
    """Where it does is found to a few steps only."""
    first = make_late(3, 9.0, last_step=32, whole=False)
    second = make_late(5, 7.0, first_step=begins, whole=False, phase="backward", late_ns=17.0 * MS)
    text = describe(first, second, JITTER)
    assert text.startswith(
        "rank 3 is 20.0 ms late in every step until step 32: its compute (forward +20.0 ms); "
        "since then it is rank 5 (backward +17.0 ms); the other 7 wait "
    )
    assert "; fixing rank 3 makes steps 9.0 % shorter" in text
    assert text.endswith(". Two more causes: the largest, rank 5 (backward), costs 7.0 % of a step (6.4 to 7.8 %).")
    larger = structs.replace(second, joint_ns=9.5 * MS)
    assert f"late in every step since step {begins}: its compute (backward +17.0 ms); before that it was rank 3 " in (
        describe(larger, first, JITTER)
    )


def test_ranks_that_are_late_at_times_far_apart_do_not_take_over() -> None:
    first = make_late(3, 9.0, last_step=20, whole=False)
    second = make_late(5, 7.0, first_step=40, whole=False)
    text = describe(first, second, JITTER)
    assert "since then" not in text and "rank 3 is 20.0 ms late in every step until step 20: " in text
    third = make_late(6, 6.0, first_step=21, last_step=39, whole=False)
    assert "; after that it is rank 6 (forward +20.0 ms); " in describe(first, third, JITTER)


@pytest.mark.parametrize("others", [[JITTER], [MOVING], []], ids=["jitter", "communication", "alone"])
def test_the_steps_of_a_cause_are_told_from_the_run(others: list[CauseReport]) -> None:
    """Jitter shows where the run begins and ends; without it, the warm-up and the last row do. Stalls do not."""
    stall = make_cause(KIND.STALLS, 3.0, rank=2, events=2, first_step=25, last_step=30)
    report = make_report([stall, *others])
    assert read_step_range(report) == (FIRST, LAST)
    told = [
        (FIRST, 32, "until step 32"),
        (33, LAST, "since step 33"),
        (20, 30, "from step 20 to step 30"),
        (10, 58, ""),
    ]
    for first, last, text in told:
        for kind in (KIND.SLOW_RANK, KIND.SLOW_HOST, KIND.SLOW_LINK):
            assert format_when(make_cause(kind, 5, first_step=first, last_step=last, whole=False), report) == text
        assert (
            format_when(make_cause(KIND.UNEQUAL_DATA, 5, first_step=first, last_step=last, whole=False), report) == ""
        )
    assert format_when(make_late(1, 5), report) == ""


def test_a_rank_that_is_late_elsewhere_before_or_afterwards_is_not_named_again() -> None:
    data = make_late(5, 17.0, first_step=FIRST, last_step=29, whole=False, phase="data", late_ns=8 * MS)
    forward = make_late(5, 9.0, first_step=30, last_step=LAST, whole=False)
    assert "; since then it is late elsewhere (forward +20.0 ms); " in describe(data, forward)
    assert "; before that it was late elsewhere (data +8.0 ms); " in describe(forward, data)


def test_what_may_have_begun_in_steps_that_were_not_recorded_is_told_so() -> None:
    for unseen, begin in ((0, "step 40"), (2, "step 40"), (3, "a step from 37 to 40"), (30, "a step from 10 to 40")):
        late = make_late(1, 5, first_step=40, last_step=LAST, whole=False, unseen_before=unseen)
        assert format_when(late, make_report([late])) == f"since {begin}"
        ended = structs.replace(late, last_step=44)
        told = f"since {begin}, until step 44" if unseen > 2 else "from step 40 to step 44"
        assert format_when(ended, make_report([ended])) == told
    for unseen, end in ((2, "step 44"), (3, "a step from 44 to 47")):
        ended = make_late(1, 5, first_step=FIRST, last_step=44, whole=False, unseen_after=unseen)
        assert format_when(ended, make_report([ended])) == f"until {end}"
        both = structs.replace(ended, first_step=30)
        told = f"since step 30, until {end}" if unseen > 2 else "from step 30 to step 44"
        assert format_when(both, make_report([both])) == told


def test_a_job_that_was_resumed_tells_both_ends() -> None:
    """Its warm-up is short, and its steps have large numbers."""
    cause = make_late(1, 5, first_step=1010, last_step=1030, whole=False)
    report = make_report([cause])
    assert format_when(cause, report) == "since step 1,010"  # the last row is that of step 59
    ranks = tuple(structs.replace(rank, last_step=1059) for rank in report.ranks)
    assert format_when(cause, structs.replace(report, ranks=ranks)) == "from step 1,010 to step 1,030"


def test_stalls_are_counted_with_their_period_as_a_share_of_the_job() -> None:
    five = make_cause(KIND.STALLS, 32.0, rank=2, phase="forward", events=5, period=10, whole=False)
    assert describe(five) == (
        "5 steps of 50 are far longer, all because of rank 2 in forward, every 10th step; "
        "without them the job would be 32 % shorter (29 to 36 %)"
    )
    one = make_cause(KIND.STALLS, 3.0, rank=0, phase="checkpoint", events=1, whole=True, first_step=19, last_step=19)
    assert describe(five, one).startswith(
        "5 steps of 50 are far longer because of rank 2 in forward, every 10th step; "
    )
    assert describe(one) == (
        "1 step of 50 is far longer (step 19) because of rank 0 while saving a checkpoint; "
        "without it the job would be 3.0 % shorter (2.7 to 3.3 %)"
    )
    nobody = make_cause(KIND.STALLS, 3.0, phase="evaluation", events=2, whole=False)
    assert describe(nobody).startswith("2 steps of 50 are far longer in evaluation; without them ")
    assert describe(make_late(3, 9.0), nobody).endswith(": evaluation of all ranks in 2 steps.")
    assert [row[:3] for row in list_causes(make_report([five, one, nobody]))[:3]] == [
        ["5 stalls", "rank 2, forward", "every 10th step"], ["1 stall", "rank 0, checkpoint", "step 19"],
        ["evaluation", "all ranks", "2 steps"],
    ]  # fmt: skip


def test_the_cause_of_a_verdict_is_found_among_its_like() -> None:
    """Stalls of nobody may cost more, and the verdict is about those of a rank."""
    nobody = make_cause(KIND.STALLS, 9.0, events=3, joint_ns=9.0 * MS)
    mine = make_cause(KIND.STALLS, 5.0, rank=2, phase="forward", events=2)
    text = describe_verdict(structs.replace(make_report([nobody, mine]), verdict=make_verdict(mine)))
    assert text == (
        "3 stalls of no particular rank cost the most, 9.0 % of a step (8.2 to 10.0 %). 2 steps of 50 are far longer "
        "because of rank 2 in forward; without them the job would be 5.0 % shorter (4.5 to 5.6 %)."
    )


ORDINALS = {1: "1st", 2: "2nd", 3: "3rd", 10: "10th", 11: "11th", 112: "112th", 1022: "1,022nd"}


@pytest.mark.parametrize(("number", "text"), ORDINALS.items())
def test_ordinals(number: int, text: str) -> None:
    assert make_ordinal(number) == text


def test_a_link_is_told_with_what_it_was_compared_with() -> None:
    link = make_cause(KIND.SLOW_LINK, 12.0, hosts=("host-0", "host-2"), cause=Cause.NETWORK)
    text = describe(link, make_late(3, 4.0), hosts=4, reason="it is slower than the others")
    assert text == (
        "the link between host-0 and host-2 holds every rank up: it is slower than the others; "
        "fixing it makes steps 12 % shorter (11 to 13 %). One more cause costs 4.0 % of a step (3.6 to 4.4 %): "
        "rank 3 (forward)."
    )
    probed = describe(link, hosts=4, needed_ns=5.0 * MS)
    assert "so; at its probed speed the link needs 5.0 ms for one step's data; fixing it makes" in probed
    since = structs.replace(link, first_step=30, whole=False)
    assert " host-2 holds every rank up since step 30: the" in describe(since, JITTER, hosts=4)
    unknown = describe(link, lost_ns=None, lost_ratio=None)
    assert unknown.endswith("says so; what fixing it would gain is not known")


def test_a_network_of_many_hosts_is_told_in_a_few_words() -> None:
    assert name_link(["a"]) == "the link of a" and name_link(["a", "b"]) == "the link between a and b"
    assert name_link(["a", "b", "c"]) == "the network between a, b and c"
    assert name_link([f"host-{number}" for number in range(1004)]) == (
        "the network between host-0, host-1, host-2, host-3 and 1,000 more"
    )
    assert name_link([]) == "the network between hosts"
