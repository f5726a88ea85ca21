"""When a position is suspicious, counted in looks; and what a rank then does, and takes back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec import structs

from distprof.facts.run import Stretch
from distprof.facts.stand import GroupState, Message, Pending, RankState
from distprof.record.stalls.suspicion import (
    BETWEEN,
    FILE,
    IN_STEP,
    PositionHistory,
    SharedFlag,
    StepPosition,
    Suspicion,
    SuspicionActions,
    read_step_position,
)
from distprof.record.step.stretches import StretchContext
from tests.record.gather.test_step_writer import make_step_writer, record

LOOK_S = 2.0
EVALUATION = "evaluation"
WAITS = GroupState(
    group="default", backend="gloo", ranks=None, issued=7,
    pending=Pending(number=7, kind="all_reduce", in_step=1, waited_s=12.0),
)  # fmt: skip


def count_looks(history: PositionHistory, position: StepPosition, most: int = 500) -> int | None:
    """After how many looks at a new position it is suspicious. None: it never is."""
    history.look(position)
    for number in range(1, most):
        history.look(position)
        if history.suspicious:
            return number
    return None


def make_history(*positions: tuple[StepPosition, int]) -> PositionHistory:
    """What was seen for so many looks each, from a first step on."""
    history = PositionHistory(LOOK_S)
    history.look(StepPosition(0, IN_STEP))
    for position, looks in positions:
        for _ in range(looks):
            history.look(position)
    return history


def test_quick_steps_are_suspicious_after_ten_seconds_and_once_in_that_time() -> None:
    history = make_history((StepPosition(500, IN_STEP), 1))
    assert count_looks(history, StepPosition(501, IN_STEP)) == 5  # of two seconds
    assert history.lasted_s == 10.0 == history.limit_s
    again = []
    for _ in range(10):
        history.look(StepPosition(501, IN_STEP))
        again.append(history.suspicious)
    assert again == [False, False, False, False, True] * 2


def test_nothing_is_suspicious_before_eight_of_its_kind_are_known() -> None:
    assert count_looks(make_history(), StepPosition(8, IN_STEP)) is None  # after steps 1 to 7; the first is not counted
    assert count_looks(make_history(), StepPosition(9, IN_STEP)) == 5
    assert count_looks(make_history(), StepPosition(7, BETWEEN)) is None
    assert count_looks(make_history(), StepPosition(8, BETWEEN)) == 5
    compiles = make_history((StepPosition(0, IN_STEP), 45), (StepPosition(9, IN_STEP), 1))
    assert count_looks(compiles, StepPosition(10, IN_STEP)) == 5


def test_long_positions_need_five_times_their_99th_percentile() -> None:
    steps = [(StepPosition(step, IN_STEP), 4) for step in range(1, 21)]  # each seen four times
    assert count_looks(make_history(*steps), StepPosition(21, IN_STEP)) == 5 * 4
    rare = [(StepPosition(step, IN_STEP), 9 if step == 50 else 1) for step in range(1, 202)]
    assert count_looks(make_history(*rare), StepPosition(202, IN_STEP)) == 5  # one of 200 is above the percentile
    few = [(StepPosition(step, IN_STEP), 9 if step == 50 else 1) for step in range(1, 60)]
    assert count_looks(make_history(*few), StepPosition(60, IN_STEP)) == 5 * 9


def test_evaluation_is_measured_by_evaluations() -> None:
    seen = [(StepPosition(100 * number, EVALUATION), 3) for number in range(1, 9)]
    assert count_looks(make_history(*seen[:7]), StepPosition(900, EVALUATION)) is None
    assert count_looks(make_history(*seen, (StepPosition(850, IN_STEP), 1)), StepPosition(900, EVALUATION)) == 5 * 3
    assert count_looks(make_history(*seen), StepPosition(850, IN_STEP)) == 5


def test_steps_whose_numbers_begin_again_count_for_nothing() -> None:
    history = make_history((StepPosition(-1, IN_STEP), 1), (StepPosition(5000, IN_STEP), 1))
    assert math.isinf(history.limit_s)


def test_the_position_is_read_from_outside(tmp_path: Path) -> None:
    recorder, _, _ = make_step_writer(tmp_path / "a", [])
    record(recorder, 3)
    assert read_step_position(recorder) == (3, BETWEEN)
    with StretchContext(recorder, Stretch.EVALUATION):
        assert read_step_position(recorder) == (3, EVALUATION)
    recorder.begin_step(4, warmup=False)
    assert read_step_position(recorder) == (4, IN_STEP)


class FakeRank:
    """A rank whose position and stand are set; keeps what it does, and the file it shares."""

    def __init__(self, folder: Path, longest_s: float = 96.0) -> None:
        self.at = StepPosition(0, IN_STEP)
        self.stand = RankState(source="ring", step=21, inside=True, phase="other", where="a.py:7 load")
        self.done: list[str] = []
        actions = SuspicionActions(
            read=lambda stalled_s: structs.replace(self.stand, stalled_s=stalled_s),
            save=lambda stand: self.done.append(f"{'suspected' if stand.suspected else 'sure'} {stand.stalled_s}"),
            take_back=lambda: self.done.append("back"), tell=lambda: self.done.append("tell"),
            end=lambda seconds: self.done.append(f"ended {seconds:g}"),
        )  # fmt: skip
        self.suspicion = Suspicion(
            position=lambda: self.at, look_s=LOOK_S, longest_s=longest_s, flag=SharedFlag(folder), actions=actions
        )

    def look(self, step: int, kind: str = IN_STEP, times: int = 1) -> list[str]:
        """What it does in so many looks there."""
        self.at, self.done = StepPosition(step, kind), []
        for _ in range(times):
            self.suspicion.look()
        return self.done


def test_a_hang_is_suspected_told_confirmed_and_taken_back(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path)
    assert rank.look(20) == [] and rank.look(21, times=5) == []
    assert rank.look(21) == ["suspected 10.0"] and (tmp_path / FILE).exists()
    assert rank.look(21) == [] and rank.look(21, times=19) == ["tell", "sure 14.0"]
    assert rank.look(22) == ["back", "ended 42"] and not (tmp_path / FILE).exists()
    assert rank.look(22, times=20) == []  # one of its 21 steps has taken 42 s
    assert rank.look(200) == [] and rank.look(201, times=5) == [] and rank.look(201) == ["suspected 10.0"]


def test_a_rank_that_is_asked_writes_where_it_stands_once(tmp_path: Path) -> None:
    waiting, asked = FakeRank(tmp_path), FakeRank(tmp_path)
    waiting.look(20), waiting.look(21, times=6)
    assert asked.look(3, EVALUATION) == ["suspected None"]  # of this kind nothing is known
    assert asked.look(3, EVALUATION, times=9) == ["tell", "sure None"]
    assert asked.look(4) == ["back"]
    assert asked.look(5, times=3) == []  # it has answered
    assert waiting.look(22) == ["back", "ended 2"]
    assert asked.look(6) == ["ended 28"]
    (tmp_path / FILE).touch()
    assert asked.look(7) == ["suspected None"]


def test_another_rank_that_still_waits_keeps_the_question_up(tmp_path: Path) -> None:
    first, second = FakeRank(tmp_path), FakeRank(tmp_path)
    for rank in (first, second):
        rank.look(20), rank.look(21, times=6)
    first.look(22)
    assert not (tmp_path / FILE).exists()
    second.look(21)
    assert (tmp_path / FILE).exists()
    second.suspicion.close()
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    ("changes", "suspects"),
    [
        ({}, False), ({"groups": (WAITS,)}, True), ({"message": Message(kind="recv", peer=1)}, True),
        ({"groups": (structs.replace(WAITS, pending=structs.replace(WAITS.pending, waited_s=1.0)),)}, False),
    ],
)  # fmt: skip
def test_outside_steps_only_a_rank_that_waits_for_others_suspects(
    changes: dict[str, object], suspects: bool, tmp_path: Path
) -> None:
    rank = FakeRank(tmp_path)
    rank.stand = structs.replace(rank.stand, **changes)
    rank.look(20)
    assert bool(rank.look(20, BETWEEN, times=40)) is suspects


def test_what_moves_is_not_confirmed(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path)
    rank.look(20), rank.look(21, times=6)
    for line, function in ((8, "load"), (9, "load")):
        rank.stand = structs.replace(rank.stand, where=f"a.py:{line} {function}")
    assert "sure 14.0" in rank.look(21, times=2)  # another line of the same function
    rank = FakeRank(tmp_path / "other")
    (tmp_path / "other").mkdir()
    rank.look(20), rank.look(21, times=6)
    for number in range(8, 12):
        rank.stand = structs.replace(rank.stand, groups=(structs.replace(WAITS, issued=number),))
        assert not any("sure" in what for what in rank.look(21, times=2))
    assert rank.look(21, times=2) == ["sure 30.0"]


def test_a_short_time_out_leaves_it_to_the_stall(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path, longest_s=8.0)
    rank.look(20)
    assert rank.look(21, times=40) == [] and rank.suspicion.shorten(8.0) == 8.0
    rank = FakeRank(tmp_path)
    assert rank.suspicion.shorten(96.0) == 96.0
    rank.look(20)
    assert rank.suspicion.shorten(96.0) == 15.0  # a thread that is kept from looking so long is silent
