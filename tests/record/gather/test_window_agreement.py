"""How ranks agree on a window's step: every rank hears the same words, and nobody waits for one that will not come."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from distprof.record.gather.gather import Exchange, GatherThread
from distprof.record.gather.window_agreement import (
    APART_ROUNDS,
    MAX_APART,
    NEVER,
    StepAnswer,
    WindowOutcome,
    WindowTalk,
)


class Coordinator:
    """Orders windows of two steps as long as there are orders, and keeps what it is told."""

    def __init__(self, orders: int = 1) -> None:
        self.orders, self.log = orders, list[str]()

    def look(self) -> int:
        return 2 if self.orders else 0

    def agreed(self, first_step: int, kept_steps: int) -> None:
        self.log.append(f"agreed {first_step}")

    def refuse(self, why: str) -> None:
        self.orders -= 1
        self.log.append(f"refused: {why}")

    def ended(self, outcomes: Sequence[WindowOutcome]) -> None:
        self.orders -= 1
        self.log.append("ended " + " ".join(outcome.name for outcome in outcomes))


class Job:
    """Ranks whose rounds take place when the test says so; nobody waits: the limit is 0."""

    def __init__(self, num_ranks: int = 2, orders: int = 1) -> None:
        self.desk, self.next_steps = Coordinator(orders), [5] * num_ranks
        self.clock_s = 0.0
        self.talks = [
            WindowTalk(limit_s=0.0, desk=None if rank else self.desk, now_s=lambda: self.clock_s)
            for rank in range(num_ranks)
        ]
        for rank, talk in enumerate(self.talks):
            talk.next_step = lambda rank=rank: self.next_steps[rank]  # type: ignore[misc]
        self.done = [False] * num_ranks

    def round(self) -> None:
        words = [talk.make_message() for talk in self.talks]
        for talk in self.talks:
            talk.take_messages(words, self.done)

    @property
    def at(self) -> set[int]:
        return {talk.at for talk in self.talks}


def test_all_ranks_begin_with_the_same_step_and_end_together() -> None:
    job = Job(3)
    job.next_steps = [5, 7, 6]
    assert job.at == {NEVER} and not any(talk.begins(100) for talk in job.talks)
    job.round()
    assert job.at == {9} and job.desk.log == []  # two steps after the first of them, as long as none is late
    job.round()
    assert job.desk.log == ["agreed 9"] and all(talk.begins(9) and talk.kept_steps == 2 for talk in job.talks)
    for talk in job.talks:
        talk.meet()
    job.round()
    job.talks[0].meet(WindowOutcome.WRITTEN)
    job.talks[1].meet(WindowOutcome.WRITTEN)
    job.round()
    assert job.desk.log == ["agreed 9"]  # the third rank is still in it
    job.talks[2].meet(WindowOutcome.FAILED)
    job.round()
    assert job.desk.log[1:] == ["ended WRITTEN WRITTEN FAILED"] and job.at == {NEVER}
    job.round()
    assert job.at == {NEVER}  # one order, one window


def test_the_lead_grows_with_the_pace() -> None:
    job = Job()
    job.desk.orders = 0
    job.round()
    job.desk.orders, job.clock_s, job.next_steps = 1, 2.0, [2005, 2005]  # 1,000 steps a second
    job.round()
    assert job.at == {2005 + 2 + 250}


def test_a_rank_that_has_gone_past_the_step_makes_all_try_again() -> None:
    job = Job()
    job.round()
    assert job.at == {7}
    job.talks[1].next_step = lambda: 9  # it got there before it heard
    words = [talk.make_message() for talk in job.talks]
    assert words[1].answer == StepAnswer.READY  # it had not when it answered: at the step itself it waits
    job = Job()
    words = [talk.make_message() for talk in job.talks]
    job.next_steps = [6, 8]
    for talk in job.talks:
        talk.take_messages(words, job.done)
    job.round()
    assert job.at == {NEVER} and job.desk.log == [] and not any(talk.begins(100) for talk in job.talks)
    job.round()
    assert job.at == {8 + 2 * 3}  # further ahead
    job.round()
    assert job.desk.log == ["agreed 14"]


def test_a_rank_that_looked_for_an_earlier_proposal_goes_on() -> None:
    job = Job()
    job.round()  # step 7 is proposed, which a rank has seen; then it is given up, and a later one agreed on
    words = [talk.make_message() for talk in job.talks]
    for talk in job.talks:
        talk.take_messages([words[0], words[1]._replace(answer=StepAnswer.LATE)], job.done)
    job.round()
    assert job.at == {9} and not job.talks[0].begins(7)
    job.round()
    assert job.desk.log == ["agreed 9"] and not job.talks[0].begins(8) and job.talks[0].begins(9)


def test_before_the_first_steps_it_waits_for_the_job_to_be_under_way() -> None:
    job = Job()
    job.next_steps = [0, 0]
    job.round()
    assert job.at == {3}


def test_ranks_that_do_not_keep_step_have_no_common_window() -> None:
    job = Job()
    for round_ in range(APART_ROUNDS):
        assert job.desk.log == [], round_
        job.next_steps = [5, 6 + MAX_APART]
        job.round()
    assert job.desk.log == [
        f"refused: ranks are {MAX_APART + 1} steps apart, and a window is of the same steps on all of them"
    ]
    assert job.at == {NEVER}


def test_words_of_different_times_refuse_no_window() -> None:
    job = Job()
    for apart in (MAX_APART + 1, 0):
        job.next_steps = [5, 5 + apart]
        job.round()
    assert job.desk.log == [] and job.at == {7}


def test_a_burst_of_steps_is_no_pace() -> None:
    job = Job()
    job.desk.orders = 0
    job.round()
    job.desk.orders, job.clock_s, job.next_steps = 1, 0.001, [15, 15]  # not 10,000 steps a second
    job.round()
    assert job.at == {15 + 2 + 10}


def test_nobody_waits_for_a_rank_whose_training_is_over() -> None:
    job = Job(3)
    job.round()
    job.round()
    for talk in job.talks[:2]:
        talk.meet()
    job.talks[2].leave()
    assert job.talks[2].at == NEVER and not job.talks[2].begins(100)
    job.round()
    for talk in job.talks[:2]:
        talk.meet(WindowOutcome.WRITTEN)
    job.round()
    assert job.desk.log == ["agreed 7", "ended WRITTEN WRITTEN ENDED"]
    job.done[2], job.desk.orders = True, 1
    job.round()
    assert job.talks[0].at == job.talks[1].at == 7 and job.talks[2].at == NEVER


@pytest.mark.parametrize("rounds", [1, 2])
def test_without_the_others_nothing_begins(rounds: int) -> None:
    job = Job()
    for _ in range(rounds):
        job.round()
    for talk in job.talks:
        talk.break_off()
        talk.break_off()
    assert job.at == {NEVER} and not any(talk.begins(100) for talk in job.talks)
    assert job.desk.log[rounds - 1 :] == ["refused: a rank has left the job"]


def test_a_window_that_is_open_when_the_others_are_lost_ends_alone() -> None:
    job = Job()
    job.round()
    job.round()
    for talk in job.talks:
        talk.meet()
    job.round()
    job.talks[1].break_off()
    assert job.talks[1].at == 7  # its steps still belong to the window
    job.talks[1].meet(WindowOutcome.WRITTEN)
    assert job.talks[1].at == NEVER


def test_a_rank_alone() -> None:
    job = Job(1)
    job.round()
    job.round()
    assert job.talks[0].begins(7)
    job.talks[0].meet()
    job.round()
    job.talks[0].meet(WindowOutcome.WRITTEN)
    job.round()
    assert job.desk.log == ["agreed 7", "ended WRITTEN"]


class Line(Exchange):
    """An exchange between threads."""

    def __init__(self, rank: int, board: list[list[int]], barrier: threading.Barrier) -> None:
        super().__init__(None)
        self._rank, self._board, self._barrier = rank, board, barrier

    def _share(self, own: list[int]) -> list[list[int]]:
        self._board[self._rank] = own
        self._barrier.wait(60)
        heads = list(self._board)
        self._barrier.wait(60)
        return heads


def test_ranks_that_run_as_they_like_begin_each_window_together() -> None:
    """Steps of some microseconds, on threads that the system switches wherever it likes; 3 windows."""
    desk, num_ranks = Coordinator(3), 3
    board, barrier = [[0]] * num_ranks, threading.Barrier(num_ranks)
    begun: list[list[int]] = [[] for _ in range(num_ranks)]
    coupled = threading.Barrier(num_ranks)  # as training's own collectives couple them

    def train(rank: int) -> None:
        step, talk = 0, WindowTalk(limit_s=60, desk=None if rank else desk)
        talk.next_step = lambda: step
        gather = GatherThread(
            take=lambda wait: [], end=lambda: None, deliver=None, exchange=Line(rank, board, barrier), window_s=0.001,
            lost=begun[rank].append, talk=talk,  # type: ignore[arg-type]
        )  # fmt: skip
        gather.start()
        left = 0
        while True:
            number, step = step, step + 1
            if left:
                left -= 1
                if not left:
                    talk.meet(WindowOutcome.WRITTEN)
            elif number >= talk.at and talk.begins(number):
                begun[rank].append(number)
                talk.meet()
                left = 3
            over = len(begun[rank]) == 3 and not left
            coupled.wait(60)
            if over:
                break
        talk.leave()
        assert gather.finish(alone=False, timeout_s=60)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert begun[0] == begun[1] == begun[2] and len(begun[0]) == 3
    assert [line for line in desk.log if "ended" in line] == ["ended WRITTEN WRITTEN WRITTEN"] * 3
