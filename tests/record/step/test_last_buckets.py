"""Which buckets a backward may end with: by hand, and with backwards drawn at random."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulate.device import HostClock, SimulatedDevice
from distprof.facts.run import PHASE_CODE, Phase
from distprof.record.step.collective_log import ON_DEVICE
from distprof.record.step.last_buckets import LEARNING_STEPS, LastBuckets
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord

US = 1_000


def play(last: LastBuckets, backwards: list[int]) -> list[bool]:
    """The answers for a step whose backwards have so many buckets each; all but a backward's last are discarded."""
    last.begin_step()
    answers = []
    for buckets in backwards:
        for bucket in range(buckets):
            answers.append(last.issue())
            if bucket < buckets - 1:
                last.newest = -1
    return answers


def test_after_two_steps_only_the_buckets_with_which_backwards_ended_are_taken_for_the_last() -> None:
    last = LastBuckets()
    assert [play(last, [2]), play(last, [3])] == [[True] * 2, [True] * 3]
    assert play(last, [3]) == [False, True, True]  # the first backward of all ended with the second bucket
    assert play(last, []) == []  # gradients are accumulated without being reduced
    assert play(last, [3]) == [False, True, True]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 4))
def test_a_step_like_those_before_is_foreseen(backwards: list[int], steps: int) -> None:
    last = LastBuckets()
    for _ in range(LEARNING_STEPS):
        play(last, backwards)
    ends = {sum(backwards[: number + 1]) - 1 for number in range(len(backwards))}
    for _ in range(steps):
        assert play(last, backwards) == [bucket in ends for bucket in range(sum(backwards))]


def train(buckets_of_steps: list[int]) -> tuple[list[StepRecord], list[str], int]:
    """Backwards of 100 us before each bucket; the device then waits 50 us for the last. Also the events recorded."""
    clock = HostClock()
    device = SimulatedDevice(clock)
    recorder, stream, before = Recorder(now_ns=clock, device=device, every=0), device.current_stream(), 0
    for step, buckets in enumerate(buckets_of_steps):
        before = device.launched
        recorder.begin_step(step, warmup=False)
        recorder.enter(PHASE_CODE[Phase.BACKWARD])
        for _ in range(buckets):
            stream.launch(100 * US)
            clock.advance(10 * US)
            recorder.mark_tail(recorder.begin_bucket(0, 64, 0, ON_DEVICE))
        stream.launch(50 * US)
        recorder.exit()
        recorder.end_step()
        clock.advance(2_000 * US)
    return recorder.drain(wait=True), recorder.on_device.describe(), device.launched - before


def test_the_wait_for_the_last_bucket_is_timed_on_the_device_without_an_event_for_each_other_one() -> None:
    records, notes, launched = train([20] * 5)
    for record in records:
        phases = record.phase_device_ns
        assert phases is not None and record.phase_host_ns is not None and notes == []
        assert phases[PHASE_CODE[Phase.ALL_REDUCE]] == 50 * US and phases[PHASE_CODE[Phase.BACKWARD]] == 2_000 * US
    assert launched == 20 + 1 + 5  # begin, enter, the last bucket, exit, end


def test_a_step_that_ends_with_another_bucket_has_no_device_times_and_the_next_one_like_it_has() -> None:
    records, notes, _ = train([4, 4, 4, 6, 6, 4])
    assert [record.step_device_ns is not None for record in records] == [True, True, True, False, True, True]
    assert notes == [
        "1 step(s) ended a backward with another bucket of gradients than the steps before and have no device times"
    ]
    host_ns = [record.phase_host_ns[PHASE_CODE[Phase.ALL_REDUCE]] for record in records if record.phase_host_ns]
    assert len(host_ns) == 6 and records[5].phase_device_ns is not None
    assert records[5].phase_device_ns[PHASE_CODE[Phase.ALL_REDUCE]] == 50 * US
