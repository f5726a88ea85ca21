"""Who waits for whom: worked out from what ranks wrote about themselves, and told in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.run import Run
from distprof.facts.stand import GroupState, Message, Pending, RankState, StoppedRank
from distprof.facts.writer_liveness import LastWrite
from distprof.render.sections.ends import describe_ends
from distprof.render.sections.hangs import MAX_ROWS, describe_hang, show_states
from distprof.render.summary.next_step import describe_next
from tests.factories import drop_rows, make_run

WHERE = "train.py:41 step"


def make_group(
    issued: int, pending: int | None = None, *, group: str = "default", ranks: tuple[int, ...] | None = None,
    kind: str = "all_reduce", backend: str = "gloo",
) -> GroupState:  # fmt: skip
    waits = None if pending is None else Pending(number=pending, kind=kind, in_step=pending - 20)
    return GroupState(group=group, backend=backend, ranks=ranks, issued=issued, pending=waits)


def make_stand(*groups: GroupState, **changes: Any) -> RankState:
    stand = RankState(
        source="ring", step=12, inside=True, phase="backward", stalled_s=480.0, stack=(WHERE,), where=WHERE,
        groups=groups,
    )  # fmt: skip
    return structs.replace(stand, **changes)


def make_hang(*stands: RankState | None, **infos: Any) -> Run:
    """A job of ranks that stand there; ``rank1={...}`` changes one."""
    told = {
        rank: {"ended": None, "stand": stand, **infos.get(f"rank{rank}", {})} for rank, stand in enumerate(stands)
    }  # fmt: skip
    return make_run(num_ranks=len(stands), infos=told)


def tell(run: Run) -> str:
    return describe_hang(analyze(run))


def test_a_hang_is_suspected_until_those_concerned_have_looked_twice() -> None:
    waits, data = make_stand(make_group(27, 27), stalled_s=14.0), make_stand(make_group(26), stalled_s=None)
    first = structs.replace(data, suspected=True)
    assert tell(make_hang(waits, first)).startswith("a hang is suspected: no step had ended for 14 s: rank 1 did not")
    assert tell(make_hang(waits, data)).startswith("no step had ended for 14 s: rank 1 did not come")
    elsewhere = make_stand(make_group(27), suspected=True)  # is neither waited for, nor waits
    assert tell(make_hang(waits, data, elsewhere)).startswith("no step had ended for 480 s: rank 1 did not come")


def test_the_rank_that_did_not_come_is_named_with_what_it_does_and_first() -> None:
    data = make_stand(make_group(26), phase="data", where="dataset.py:12 __getitem__")
    waits = make_stand(make_group(27, 27))
    report = analyze(make_hang(waits, waits, data, waits))
    sentence = (
        "no step had ended for 480 s: rank 2 did not come to all_reduce 7 of step 12 (default group), "
        "which ranks 0-1, 3 wait for: it stands in step 12, data, at dataset.py:12 __getitem__"
    )
    assert describe_hang(report) == sentence == describe_ends(report)[0]
    assert not report.coverage.complete
    assert [row[:4] for row in show_states(report).rows] == [
        ("rank 2", "in step 12, data", "", "dataset.py:12 __getitem__"),
        ("ranks 0-1, 3", "in step 12, backward", "all_reduce 7 of step 12 (default group)", WHERE),
    ]


def test_a_rank_that_waits_elsewhere_is_a_victim_too() -> None:
    """Rank 1 does not come to the group of all, because it waits in a group of two for rank 2."""
    pair = (1, 2)
    first = make_stand(make_group(27, 27))
    second = make_stand(make_group(5, 5, group="group 3", ranks=pair, kind="all_gather"), make_group(26))
    third = make_stand(make_group(4, group="group 3", ranks=pair), make_group(26), where="hook.py:3 run")
    hang = analyze(make_hang(first, second, third)).hang
    assert hang is not None and (hang.kind, hang.absent, hang.waiting) == ("absent", (2,), (0,))
    hang = analyze(make_hang(first, second, structs.replace(third, groups=(make_group(27, 27), third.groups[0])))).hang
    assert hang is not None and hang.collective is not None  # rank 2 has come to the collective of all
    assert (hang.kind, hang.absent, hang.collective.group) == ("circle", (), "default")


def test_ranks_in_different_collectives_of_one_number_are_told_apart() -> None:
    run = make_hang(make_stand(make_group(27, 27)), make_stand(make_group(27, 27, kind="broadcast")))
    assert tell(run) == (
        "no step had ended for 480 s: the ranks are in different collectives: "
        f"rank 0 in all_reduce 7 of step 12 (default group), at {WHERE}; "
        f"rank 1 in broadcast 7 of step 12 (default group), at {WHERE}"
    )


def test_where_everybody_has_come_nobody_is_blamed() -> None:
    waits = make_stand(make_group(27, 27))
    assert "ranks 0-2 wait in all_reduce 7 of step 12 (default group), and none is missing" in tell(
        make_hang(waits, waits, waits)
    )


def test_without_collectives_it_says_where_the_ranks_stand() -> None:
    stand = make_stand(source="none", groups=())
    assert tell(make_hang(stand, stand)).endswith(
        f"no rank is known to wait in a collective; they stand: ranks 0-1 in step 12, backward, at {WHERE}"
    )


def test_the_collectives_of_two_backends_of_one_group_have_numbers_of_their_own() -> None:
    waits = make_stand(make_group(27, 27, backend="nccl"), make_group(3))
    late = make_stand(make_group(26, backend="nccl"), make_group(90))
    hang = analyze(make_hang(late, waits)).hang
    assert hang is not None and hang.absent == (0,)


def test_only_ranks_that_told_of_a_group_are_members_if_nobody_lists_them() -> None:
    waits, late = (
        make_stand(make_group(number, pending, group="group 2")) for number, pending in ((27, 27), (26, None))
    )
    hang = analyze(make_hang(waits, make_stand(make_group(30)), late)).hang
    assert hang is not None and hang.absent == (2,)


PLACE = RankState(source="place", step=12, inside=True, phase="data")


@pytest.mark.parametrize(
    ("lives", "state"), [(True, "does not answer (stopped, or"), (False, "is gone"), (None, "answer (killed, stopped")]
)
def test_a_rank_that_wrote_nothing_is_told_by_its_last_position(lives: bool | None, state: str) -> None:
    written = LastWrite(at_utc="2026-01-02T03:04:05+00:00", ago_s=1.0, writer_lives=lives)
    sentence = tell(make_hang(make_stand(make_group(27, 27)), PLACE, rank1={"last_write": written}))
    assert "rank 0 waits for rank 1 in all_reduce 7 of step 12" in sentence and state in sentence
    assert sentence.endswith("; last seen in step 12, data")
    advice = describe_next(analyze(make_hang(make_stand(make_group(27, 27)), PLACE, rank1={"last_write": written})))
    assert advice.startswith("find out what ended rank 1: " if lives is False else "look at the line where ")


def test_a_rank_that_failed_has_no_process_to_look_into() -> None:
    run = make_hang(make_stand(make_group(27, 27)), None, rank1={"ended": "failed"})
    assert describe_next(analyze(run)) == "look at why rank 1 failed: the job's own output has the traceback"


def test_several_that_did_not_come_are_told_by_how_they_ended() -> None:
    waits = make_stand(make_group(27, 27))
    run = make_hang(waits, None, None, rank1={"ended": "completed"}, rank2={"ended": "failed"})
    run = structs.replace(run, meta=structs.replace(run.meta, world_size=4))
    assert tell(run).partition("wait")[2].partition(": ")[2] == (
        "rank 1 has left its training loop and completed; last seen after step 3; rank 2 failed; "
        "last seen after step 3; rank 3 left no record"
    )


def test_ranks_that_are_terminated_together_do_not_hang_but_wait_for_a_dead_one() -> None:
    ended = make_stand(make_group(27, 27), stalled_s=None)
    behind = make_stand(make_group(26), stalled_s=None)
    terminated = {"ended": "terminated"}
    assert analyze(make_hang(ended, behind, rank0=terminated, rank1=terminated)).hang is None
    gone = LastWrite(at_utc="2026-01-02T03:04:05+00:00", ago_s=1.0, writer_lives=False)
    run = make_hang(ended, PLACE, rank0=terminated, rank1={"last_write": gone})
    assert tell(run).startswith("rank 0 waits for rank 1 in all_reduce 7 of step 12 (default group): it is gone")
    alive = LastWrite(at_utc="2026-01-02T03:04:05+00:00", ago_s=1.0, writer_lives=True)
    hang = analyze(make_hang(ended, PLACE, rank0={"last_write": alive}, rank1={"last_write": gone})).hang
    assert hang is not None and [stand.state for stand in hang.states] == ["gone", "stands"]  # told at once
    assert analyze(drop_rows(make_run(num_ranks=3, infos={1: {"ended": None, "last_write": gone}}), 1, 2)).hang is None


def test_collectives_outside_steps_and_names_from_files_are_shown_with_care() -> None:
    barrier = Pending(number=31, kind="barrier\x1b[31m", in_step=None)
    group = structs.replace(make_group(31), group="x\n" * 500, ranks=(0, 1, 10**9), pending=barrier)
    sentence = tell(make_hang(make_stand(group, inside=False, phase=None), make_stand(where="a\x1b]0;b")))
    assert "barrier after step 12 (number 31 of the group x x" in sentence and len(sentence) < 600
    assert "\x1b" not in sentence and "\n" not in sentence


def test_a_rank_is_blamed_for_a_message_that_it_has_not_sent() -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which computes."""
    waits = [make_stand(message=Message(kind="recv", peer=peer)) for peer in (1, 2)]
    busy = make_stand(phase="data", where="dataset.py:12 __getitem__")
    assert tell(make_hang(*waits, busy)) == (
        "no step had ended for 480 s: rank 2 has not sent what rank 1 waits to receive: "
        "it stands in step 12, data, at dataset.py:12 __getitem__"
    )
    sends = make_stand(message=Message(kind="send", peer=1))
    assert "rank 1 has not received what rank 0 sends" in tell(make_hang(sends, busy))
    receives = make_stand(message=Message(kind="recv", peer=0))
    assert "they stand: rank 0 in step 12" in tell(make_hang(sends, receives))  # met
    crossed = tell(make_hang(make_stand(make_group(27, 27)), make_stand(message=Message(kind="recv", peer=0))))
    assert crossed.endswith(
        f"the ranks wait for each other: rank 0 in all_reduce 7 of step 12 (default group), at {WHERE}; "
        f"rank 1 in recv from rank 0, at {WHERE}"
    )
    nobody = make_stand(message=Message(kind="recv", peer=9))
    assert "they stand: ranks 0-1 in step 12" in tell(make_hang(nobody, nobody))


def test_the_rank_whose_failure_ended_the_others_is_named_with_its_error() -> None:
    lost = make_stand(make_group(27, 27), stalled_s=None)
    raised = make_stand(make_group(26), stalled_s=None, phase=None, where="train.py:7 read")
    failed = {"ended": "failed", "error": "KeyError: 'broken record'"}
    run = make_hang(lost, raised, rank0={"ended": "failed", "error": "RuntimeError: gloo"}, rank1=failed)
    assert tell(run) == (
        "rank 1 did not come to all_reduce 7 of step 12 (default group), which rank 0 waits for: "
        "it failed with KeyError: 'broken record'; last seen in step 12, at train.py:7 read"
    )


def test_a_job_that_is_stopped_hung_if_its_ranks_had_waited_for_long() -> None:
    terminated = {"ended": "terminated"}
    late = make_stand(make_group(26), stalled_s=None, where="train.py:7 read")

    def make_waiting(waited_s: float) -> RankState:
        group = make_group(27, 27)
        assert group.pending is not None
        pending = structs.replace(group.pending, waited_s=waited_s)
        return make_stand(structs.replace(group, pending=pending), stalled_s=None)

    told = tell(make_hang(make_waiting(95.0), late, rank0=terminated, rank1=terminated))
    assert told == (
        "stopped after a wait of 95 s: rank 1 did not come to all_reduce 7 of step 12 (default group), which rank 0 "
        "waits for: it was terminated; last seen in step 12, backward, at train.py:7 read"
    )
    assert tell(make_hang(make_waiting(2.0), late, rank0=terminated, rank1=terminated)) == ""


def test_a_stopped_rank_and_one_that_holds_the_lock_are_told_apart() -> None:
    waits = make_stand(make_group(27, 27), stopped=(StoppedRank(rank=1, stack=(), where=None),))
    written = LastWrite(at_utc="2026-01-02T03:04:05+00:00", ago_s=1.0, writer_lives=True)
    other = {"last_write": written}
    assert tell(make_hang(waits, PLACE, rank1=other)).endswith(
        ": it is stopped (SIGSTOP, or a debugger); last seen in step 12, data"
    )
    holds = structs.replace(PLACE, stack=("text.py:4 match",), where="text.py:4 match")
    assert tell(make_hang(make_stand(make_group(27, 27)), holds, rank1=other)).endswith(
        ": it does not answer, in code that does not release Python's lock; "
        "last seen in step 12, data, at text.py:4 match"
    )


def test_before_the_first_step_there_is_none_that_could_end() -> None:
    barrier = make_group(4, 4)
    waits = make_stand(structs.replace(barrier, pending=Pending(number=4, kind="barrier", in_step=None)), step=None,
                       inside=False, phase=None)  # fmt: skip
    late = make_stand(make_group(3), step=None, inside=False, phase=None, where="train.py:7 prepare")
    assert tell(make_hang(waits, late)) == (
        "before their first steps ranks had waited for 480 s: rank 1 did not come to barrier (number 4 of the default "
        "group), which rank 0 waits for: it stands before the first step, at train.py:7 prepare"
    )


def test_many_places_are_counted() -> None:
    run = make_hang(*(make_stand(make_group(26), where=f"train.py:{line} step") for line in range(MAX_ROWS + 3)))
    section = show_states(analyze(run))
    assert len(section.rows) == MAX_ROWS and section.notes == ("and 3 more places, in report.json",)
