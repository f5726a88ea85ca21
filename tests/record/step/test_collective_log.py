"""Tickets, waits and exposed time of collectives, against a clock that the test moves by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.facts.run import KINDS, OWN_PHASES, PHASE_CODE, CollectiveKind, Phase
from distprof.record.step.collective_log import ASYNCHRONOUS, AWAITED
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import SeenCollective, StepRecord, name_unseen
from distprof.record.step.timeline import MAX_SEGMENTS, PhaseContext
from distprof.storage.collective_records import MAX_COLLECTIVES
from tests.factories import MS
from tests.fakes import FakeClock, make_device

FORWARD, BACKWARD, GRAD_NORM = PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.BACKWARD], PHASE_CODE[Phase.GRAD_NORM]
ALL_REDUCE, OTHER = PHASE_CODE[Phase.ALL_REDUCE], PHASE_CODE[Phase.OTHER]
REDUCE, GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER


def take_one(recorder: Recorder) -> tuple[StepRecord, list[SeenCollective]]:
    (record,) = recorder.drain(wait=True)
    assert record.collectives is not None
    return record, record.collectives


@pytest.mark.parametrize("failed", [False, True])
def test_what_is_waited_for_has_ended_with_the_wait_unless_that_has_failed(failed: bool) -> None:
    """Three buckets, of which the first is seen to end, and the second only after the backward."""
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_step(0, warmup=False)
    recorder.enter(BACKWARD)
    tickets = [recorder.begin_collective(REDUCE, 8, awaited=True) for _ in range(3)]
    clock.advance(5)
    recorder.end_collective(tickets[0])
    recorder.mark(ALL_REDUCE, tickets[1])
    clock.advance(1)
    recorder.discard_mark()  # another one follows
    recorder.mark(ALL_REDUCE, tickets[2])
    clock.advance(20)
    recorder.exit(raised=failed)
    clock.advance(4)
    recorder.end_collective(tickets[1])
    recorder.end_step()
    record, seen = take_one(recorder)
    ends_ns = [None if item.end_ns is None else item.end_ns - 1_000 for item in seen]
    assert ends_ns == ([5, 30, None] if failed else [5, 26, 26])
    assert [item.exposed_ns for item in seen] == [0, 0, 20]
    assert record.segments.durations_ns == (0, 6, 20, 4)  # the wait that was taken back is part of the backward


def test_what_a_backward_computes_after_its_last_bucket_is_no_wait() -> None:
    """12 ms, such as for the gradients of the input; then it waits for 3 ms."""
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_tail_late()  # outside of all steps it does nothing
    recorder.begin_step(0, warmup=False)
    recorder.enter(BACKWARD)
    recorder.mark_tail(recorder.begin_bucket(0, 8, 0, AWAITED))
    clock.advance(12 * MS)
    recorder.begin_tail_late()
    clock.advance(3 * MS)
    recorder.exit()
    recorder.begin_tail_late()
    recorder.end_step()
    record, (seen,) = take_one(recorder)
    assert (record.segments.codes[1:3], record.segments.durations_ns[1:3]) == (
        (BACKWARD, ALL_REDUCE),
        (12 * MS, 3 * MS),
    )
    assert seen.exposed_ns == 3 * MS


def test_a_bucket_is_exposed_from_the_last_one_to_the_end_of_backward() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock, device=make_device(clock))
    group = recorder.add_group("mine", (0, 2))
    assert recorder.begin_collective(REDUCE, 5) == -1  # no step is open
    recorder.begin_step(0, warmup=False)
    recorder.enter(BACKWARD)
    clock.advance(10)
    first = recorder.begin_collective(REDUCE, 100)
    clock.advance(30)
    last = recorder.begin_collective(REDUCE, 50, group)
    recorder.mark(ALL_REDUCE, last)
    clock.advance(6)
    recorder.end_collective(first)
    recorder.end_collective(-1)
    clock.advance(2)
    recorder.exit()
    recorder.end_step()
    record, seen = take_one(recorder)
    assert seen == [
        SeenCollective(0, 0, BACKWARD, 100, 1_010, 1_046, 0), SeenCollective(0, 1, BACKWARD, 50, 1_040, None, 8),
    ]  # fmt: skip
    assert recorder.groups[group] == ("mine", (0, 2))
    assert record.exposed_host_ns == [8, 0, 0, 0, 0] and record.exposed_device_ns == [4, 0, 0, 0, 0]
    assert record.wait_host_ns == record.wait_device_ns == [0] * len(OWN_PHASES)


def test_a_wait_inside_an_own_phase_is_in_the_phase_and_counted_apart() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock, device=make_device(clock))
    recorder.begin_step(0, warmup=False)
    recorder.enter(GRAD_NORM)
    clock.advance(4)
    ticket = recorder.begin_collective(REDUCE, 8)
    assert recorder.wait(ticket) == clock.now
    clock.advance(20)
    assert recorder.resume() == clock.now
    clock.advance(4)
    recorder.exit()
    recorder.end_step()
    record, seen = take_one(recorder)
    assert (record.phase_host_ns or [])[GRAD_NORM] == 28 and seen[0].exposed_ns == 20
    waits = dict(zip(OWN_PHASES, record.wait_host_ns or [], strict=True))
    assert waits == {phase: 20 if phase is Phase.GRAD_NORM else 0 for phase in OWN_PHASES}
    assert (record.wait_device_ns or [])[OWN_PHASES.index(Phase.GRAD_NORM)] == 10


def test_a_wait_that_interrupts_a_mark_gives_it_back() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_step(0, warmup=False)
    recorder.enter(BACKWARD)
    bucket = recorder.begin_collective(REDUCE, 1)
    recorder.mark(ALL_REDUCE, bucket)
    clock.advance(5)
    other = recorder.begin_collective(GATHER, 2)  # issued by a hook of somebody's, after the last bucket
    recorder.wait(other)
    clock.advance(7)
    recorder.resume()
    clock.advance(11)
    recorder.exit()
    recorder.end_step()
    record, seen = take_one(recorder)
    assert [item.exposed_ns for item in seen] == [16, 7]
    assert (record.phase_host_ns or [])[ALL_REDUCE] == 23 and (record.phase_host_ns or [])[BACKWARD] == 0


def test_a_mark_that_was_no_wait_is_taken_back() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_step(0, warmup=False)
    recorder.discard_mark()  # nothing is marked
    recorder.enter(BACKWARD)
    first = recorder.begin_collective(REDUCE, 1)
    recorder.mark(ALL_REDUCE, first)
    clock.advance(40)  # another model computes
    recorder.discard_mark()
    second = recorder.begin_collective(REDUCE, 2)
    recorder.mark(ALL_REDUCE, second)
    clock.advance(3)
    recorder.exit()
    recorder.end_step()
    record, seen = take_one(recorder)
    assert [item.exposed_ns for item in seen] == [0, 3]
    assert (record.phase_host_ns or [])[BACKWARD] == 40 and (record.phase_host_ns or [])[ALL_REDUCE] == 3


def test_what_the_host_cannot_see_is_not_known_and_what_is_left_out_is_not_zero() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock, device=make_device(clock), every=0)
    recorder.begin_step(0, warmup=False)
    queued = recorder.begin_collective(REDUCE, 1, on_device=True)
    recorder.wait(queued)
    clock.advance(6)
    recorder.resume()
    recorder.begin_collective(GATHER, 1, asynchronous=True)  # nobody waits for it in this step
    awaited = recorder.begin_collective(CollectiveKind.OTHER, 1, asynchronous=True)
    recorder.wait(awaited)
    clock.advance(2)
    recorder.resume()
    recorder.end_step()
    record, seen = take_one(recorder)
    assert [item.exposed_ns for item in seen] == [None, None, 2]
    assert record.exposed_host_ns == [None, 0, None, 0, 2]
    assert record.exposed_device_ns == [3, 0, None, 0, 1]
    assert [KINDS[item.kind] for item in seen] == [REDUCE, GATHER, CollectiveKind.OTHER]
    assert ["on the device" in note or "asynchronous" in note for note in name_unseen([record])] == [True, True]


def test_an_end_that_comes_after_its_step_is_not_one_of_the_next_step() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_step(0, warmup=False)
    old = recorder.begin_collective(REDUCE, 1)
    recorder.end_step()
    recorder.begin_step(1, warmup=False)
    new = recorder.begin_collective(REDUCE, 1)
    clock.advance(5)
    recorder.end_collective(old)
    recorder.mark(ALL_REDUCE, old)
    clock.advance(5)
    recorder.end_step()
    first, second = recorder.drain()
    assert new != old
    assert [(item.end_ns, item.exposed_ns) for item in [*(first.collectives or []), *(second.collectives or [])]] == [
        (None, 0), (None, 0),
    ]  # fmt: skip
    assert (second.phase_host_ns or [])[ALL_REDUCE] == 5


def test_lost_segments_make_waits_unknown_and_lost_collectives_everything() -> None:
    clock = FakeClock()
    recorder = Recorder(now_ns=clock)
    recorder.begin_step(0, warmup=False)
    ticket = recorder.begin_collective(REDUCE, 1)
    for _ in range(MAX_SEGMENTS):
        recorder.wait(ticket)
        clock.advance(1)
        recorder.resume()
    recorder.end_step()
    record, seen = take_one(recorder)
    assert seen[0].exposed_ns is None and record.exposed_host_ns is None and record.wait_host_ns is None
    recorder.begin_step(1, warmup=False)
    tickets = [recorder.begin_collective(REDUCE, 1) for _ in range(MAX_COLLECTIVES + 1)]
    recorder.end_step()
    assert tickets[-2] >= 0 and tickets[-1] == -1
    (record,) = recorder.drain()
    assert record.collectives is None and record.wait_host_ns is None


def test_a_shadow_step_sees_nothing() -> None:
    recorder = Recorder(now_ns=FakeClock())
    recorder.begin_step(0, warmup=False, shadow=True)
    assert recorder.begin_collective(REDUCE, 1) == -1
    assert recorder.wait(-1) == recorder.resume() == 0
    recorder.discard_mark()
    recorder.end_step()
    (record,) = recorder.drain()
    assert record.collectives is None


def test_an_action_is_done_once_before_the_next_step() -> None:
    recorder, seen = Recorder(now_ns=FakeClock()), []
    recorder.at_next_step(lambda: seen.append(recorder.open))
    for step in range(2):
        recorder.begin_step(step, warmup=False)
        recorder.end_step()
    assert seen == [False]


MOVES = ("bucket", "enter", "leave", "wait", "held")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(1, 9)), max_size=30))
def test_a_bucket_that_is_marked_later_leaves_what_a_mark_leaves(moves: list[tuple[str, int]]) -> None:
    """Whatever follows a bucket of DDP: another one, a phase, a collective that is waited for, the end of the step."""

    def play(*, later: bool) -> StepRecord:
        clock = FakeClock()
        recorder = Recorder(now_ns=clock)
        recorder.begin_step(0, warmup=False)
        phase = PhaseContext(recorder, recorder.timeline, PHASE_CODE[Phase.BACKWARD])
        for move, passed_ns in moves:
            clock.advance(passed_ns)
            if move == "bucket" and later:
                recorder.mark_tail(recorder.begin_bucket(0, 100, 0, AWAITED))
            elif move == "bucket":
                recorder.discard_mark()
                flags = ASYNCHRONOUS if recorder.timeline.phase == OTHER else AWAITED
                recorder.mark(ALL_REDUCE, recorder.log_collective(0, 100, 0, flags))
            if move == "bucket":
                assert recorder.running_code == ALL_REDUCE
            elif move == "enter":
                phase.__enter__()
            elif move == "leave":
                phase.__exit__(None, None, None)
            elif move == "wait":
                recorder.wait(recorder.log_collective(1, 10, 0, 0))
                clock.advance(passed_ns)
                recorder.resume()
            else:
                ticket = recorder.begin_held(2, 1, 0, PHASE_CODE[Phase.ALL_GATHER])
                clock.advance(passed_ns)
                recorder.end_held(ticket)
        clock.advance(1)
        recorder.end_step()
        (record,) = recorder.drain()
        return record

    assert play(later=True) == play(later=False)


def test_a_collective_that_holds_the_host_is_issued_waited_for_and_over_in_two_calls() -> None:
    def play(recorder: Recorder, clock: FakeClock, *, at_once: bool) -> StepRecord:
        recorder.begin_step(0, warmup=False)
        recorder.enter(PHASE_CODE[Phase.FORWARD])
        clock.advance(7)
        if at_once:
            ticket = recorder.begin_held(2, 64, 0, PHASE_CODE[Phase.ALL_GATHER])
        else:
            ticket = recorder.begin_collective(KINDS[2], 64)
            recorder.mark(PHASE_CODE[Phase.ALL_GATHER], ticket)
        clock.advance(30)
        if at_once:
            recorder.end_held(ticket)
        else:
            recorder.resume()
            recorder.end_collective(ticket)
        clock.advance(5)
        recorder.exit()
        recorder.end_step()
        (record,) = recorder.drain()
        return record

    (one, clock), (other, other_clock) = ((Recorder(now_ns=clock), clock) for clock in (FakeClock(), FakeClock()))
    assert play(one, clock, at_once=True) == play(other, other_clock, at_once=False)
