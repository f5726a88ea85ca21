"""Several made-up ranks under a recorder each: what compute waits for is what the device's truth says."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.device import HostClock, Scalar, SimulatedDevice, Stream
from benchmarks.simulate.device_ranks import Program, RankProgram, run_together
from benchmarks.simulate.device_work import Meeting
from distprof.facts.run import PHASE_CODE, CollectiveKind, Phase
from distprof.record.step.recorder import Recorder

FORWARD, BACKWARD, ALL_REDUCE = (PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.ALL_REDUCE))
US = 1_000
KERNEL_NS = 400 * US


class Plan(NamedTuple):
    """A job as under DDP: a reduction per bucket, and the optimizer waits for the last."""

    ranks: int
    steps: int
    buckets: int
    transfer_ns: int
    late_rank: int
    late_ns: int
    synchronise_every: int
    """Steps between two looks at the loss; 0: never."""
    drift_ppm: int


class Rank:
    """One rank, and how long its compute stream really waited in each step."""

    def __init__(self, number: int, plan: Plan, meetings: list[list[Meeting]]) -> None:
        clock = HostClock(1_000 + 37 * number)
        self.device = SimulatedDevice(
            clock, launch_ns=2 * US, offset_ns=10**9 * number, drift_ppm=plan.drift_ppm * (number - 1)
        )
        self.rate = 1 + plan.drift_ppm * (number - 1) * 1e-6
        self.recorder = Recorder(now_ns=clock, device=self.device, num_events=2048)
        self.waited_ns: list[int] = []
        communication = Stream(self.device)
        late_ns = plan.late_ns if number == plan.late_rank else 0
        self.program = RankProgram(
            self.device, [communication, self.device.current_stream()],
            self.run(plan, meetings, communication, late_ns),
        )  # fmt: skip

    def run(self, plan: Plan, meetings: list[list[Meeting]], communication: Stream, late_ns: int) -> Program:
        recorder, compute = self.recorder, self.device.current_stream()
        waits = []
        for step in range(plan.steps):
            recorder.begin_step(step, warmup=False)
            recorder.enter(FORWARD)
            compute.launch(KERNEL_NS + late_ns)
            recorder.exit()
            yield None
            recorder.enter(BACKWARD)
            for meeting in meetings[step]:
                compute.launch(KERNEL_NS)
                ticket = recorder.begin_collective(CollectiveKind.ALL_REDUCE, 4, asynchronous=True, on_device=True)
                communication.wait_stream(compute)
                communication.launch(0, meeting=meeting)
                yield None
            recorder.mark(ALL_REDUCE, ticket)
            before = compute.tail
            compute.wait_stream(communication)
            waits.append((before, compute.tail))
            recorder.exit()
            recorder.work.keep_scalars(loss=Scalar(self.device, float(step)))
            recorder.end_step()
            yield compute.tail if plan.synchronise_every and step % plan.synchronise_every == 0 else None
        yield compute.tail
        self.waited_ns = [after.find_end() - before.find_end() for before, after in waits]


PLANS = st.builds(
    Plan, ranks=st.integers(2, 4), steps=st.integers(1, 40), buckets=st.integers(1, 3),
    transfer_ns=st.sampled_from([20 * US, 700 * US]), late_rank=st.integers(0, 3),
    late_ns=st.sampled_from([0, 60 * US, 900 * US]), synchronise_every=st.sampled_from([0, 1, 5]),
    drift_ppm=st.sampled_from([0, 50]),
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(PLANS)
def test_exposed_communication_is_the_truth_on_every_rank_and_nobody_waits_for_the_device(plan: Plan) -> None:
    meetings = [[Meeting(plan.ranks, plan.transfer_ns) for _ in range(plan.buckets)] for _ in range(plan.steps)]
    ranks = [Rank(number, plan, meetings) for number in range(plan.ranks)]
    run_together([rank.program for rank in ranks])
    for rank in ranks:
        assert rank.device.synchronised == 0
        records = rank.recorder.drain(wait=True)
        assert rank.recorder.on_device.describe() == []
        assert [record.step for record in records] == list(range(plan.steps))
        for record, waited_ns in zip(records, rank.waited_ns, strict=True):
            phases = record.phase_device_ns
            assert phases is not None and sum(phases) == record.step_device_ns
            assert phases[ALL_REDUCE] == pytest.approx(waited_ns * rank.rate, abs=US)
            assert (record.exposed_device_ns or [None])[0] in (None, phases[ALL_REDUCE])
            assert record.scalars == (record.step, None)
    if plan.late_rank < plan.ranks and plan.late_ns:
        last = [rank.waited_ns[-1] for rank in ranks]
        assert last[plan.late_rank] == min(last)
