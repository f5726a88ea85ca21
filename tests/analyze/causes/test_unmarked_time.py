"""Between which phases a rank loses what it loses outside of them: made-up jobs whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze.causes.unmarked_time import find_unmarked_place, measure_places
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.facts.run import PHASES, Clock, Run
from distprof.facts.segments import Segments
from distprof.render.sections.cause_words import describe_unmarked
from distprof.report.late_reasons import UnmarkedPlace
from distprof.report.wait_report import Cause, Verdict, VerdictKind
from tests.factories import MS, USUAL_NS, keep_segments, make_run
from tests.made_causes import make_cause, make_verdict

RANKS, STEPS, LATE = 4, 40, 2
VERDICT = make_verdict(
    make_cause(VerdictKind.SLOW_RANK, 20, rank=LATE, phase="other", late_ns=10.0 * MS, cause=Cause.OUTSIDE)
)


def make_segments(*parts: tuple[str, float], truncated: bool = False) -> Segments:
    """Of phases and how long each lasts, ms."""
    return Segments(
        begin_ns=0, codes=tuple(PHASES.index(phase) for phase, _ in parts),  # type: ignore[arg-type]
        durations_ns=tuple(int(lasts_ms * MS) for _, lasts_ms in parts), truncated=truncated,
    )  # fmt: skip


def make_step(*, first: float = 0, middle: float = 1, last: float = 0, truncated: bool = False) -> Segments:
    """Two micro-steps, with so many ms outside the phases before, between backward and optimizer, and after."""
    return make_segments(
        ("other", 1 + first), ("forward", 5), ("backward", 9), ("other", 2), ("forward", 5), ("backward", 9),
        ("other", middle / 2), ("all_reduce", 3), ("other", middle / 2), ("optimizer", 1), ("other", 1 + last),
        truncated=truncated,
    )  # fmt: skip


def find(late: Segments, usual: Segments | None = None, verdict: Verdict = VERDICT) -> UnmarkedPlace | None:
    return find_unmarked_place(choose_measured_steps(make_job(late, usual)), verdict)


def make_job(late: Segments | None, usual: Segments | None = None) -> Run:
    each = {(rank, step): usual or make_step() for rank in range(RANKS) for step in range(STEPS)}
    for step in range(STEPS):
        if late is None:
            del each[LATE, step]
        else:
            each[LATE, step] = late
    run = make_run(num_ranks=RANKS, num_steps=STEPS, host_ns=USUAL_NS)
    return structs.replace(run, segments=keep_segments(each))


def test_places_lie_between_two_phases_and_waits_are_passed_over() -> None:
    assert measure_places([make_step(), make_step(middle=3)]) == {
        (None, "forward"): 1 * MS, ("backward", "forward"): 2 * MS, ("backward", "optimizer"): 2 * MS,
        ("optimizer", None): 1 * MS,
    }  # fmt: skip
    assert measure_places([make_segments(("other", 4))]) == {(None, None): 4 * MS}


@pytest.mark.parametrize(("late", "after", "before", "words"), [
    (make_step(first=10), None, "forward", ", before forward"),
    (make_step(middle=11), "backward", "optimizer", ", between backward and optimizer"),
    (make_step(last=10), "optimizer", None, ", after optimizer"),
])  # fmt: skip
def test_the_place_that_has_what_the_rank_takes_longer(late: Segments, after: str, before: str, words: str) -> None:
    found = find(late)
    assert found == UnmarkedPlace(after=after, before=before, share_ratio=1.0)
    assert describe_unmarked(found) == words


def test_the_others_may_spend_no_time_there_at_all() -> None:
    usual = make_segments(("forward", 5), ("backward", 9), ("optimizer", 1))
    late = make_segments(("forward", 5), ("backward", 9), ("other", 10), ("optimizer", 1))
    assert find(late, usual) == UnmarkedPlace(after="backward", before="optimizer", share_ratio=1.0)
    assert find(usual, late) is None


def test_most_of_it_must_lie_in_one_place() -> None:
    found = find(make_step(first=2, middle=7))
    assert found == UnmarkedPlace(after="backward", before="optimizer", share_ratio=0.75)
    assert find(make_step(first=2.1, middle=7)) is None
    assert find(make_step()) is None


def test_a_job_of_two_forwards() -> None:
    usual, late = (make_segments(("forward", 4), ("other", ms), ("forward", 4), ("backward", 9)) for ms in (1, 6))
    assert describe_unmarked(find(late, usual)) == ", between one forward and the next"
    assert describe_unmarked(UnmarkedPlace(after=None, before=None, share_ratio=1.0)) == ""


def test_steps_of_which_not_everything_was_kept_tell_nothing() -> None:
    assert find(make_step(first=10, truncated=True)) is None
    assert find(make_step(first=10), usual=make_step(truncated=True)) is None
    assert find_unmarked_place(choose_measured_steps(make_job(None)), VERDICT) is None


@pytest.mark.parametrize("change", [
    {"cause": Cause.COMPUTE}, {"clock": Clock.DEVICE.value}, {"rank": None}, {"kind": VerdictKind.SLOW_HOST},
])  # fmt: skip
def test_only_of_a_rank_that_is_late_outside_the_phases(change: dict[str, object]) -> None:
    assert find(make_step(first=10), verdict=structs.replace(VERDICT, **change)) is None


def test_what_comes_at_every_fifth_step_is_found_in_a_long_run() -> None:
    """The steps that are looked at are drawn at random: every fourth of 1,600 would see all of it or nothing."""
    num_steps = 1600
    each = {(rank, step): make_step() for rank in range(2) for step in range(num_steps)}
    each |= {(1, step): make_step(last=50) for step in range(3, num_steps, 4)}
    run = make_run(num_ranks=2, num_steps=num_steps, host_ns=USUAL_NS)
    run = structs.replace(run, segments=keep_segments(each))
    verdict = structs.replace(VERDICT, rank=1)
    found = find_unmarked_place(choose_measured_steps(run), verdict)
    assert found is not None and (found.after, found.before) == ("optimizer", None)
    assert np.isclose(found.share_ratio, 1.0)
