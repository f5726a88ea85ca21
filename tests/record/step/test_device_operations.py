"""The operations of a pipeline's step on the clock of a made-up device, of which the host only sees the launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from benchmarks.simulate.device import HostClock, SimulatedDevice, Stream
from distprof.analyze.cycles.pipeline_operations import list_operations
from distprof.analyze.stats.measured_steps import choose_measured_steps
from distprof.analyze.summary.pipeline import report_pipeline
from distprof.facts.micro_batches import OPERATION_CODE, OPERATION_KINDS, OperationKind
from distprof.facts.run import PHASE_CODE, CollectiveKind, Phase
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import StepRecord, name_unseen
from distprof.record.step.step_row import pack_row
from distprof.storage.operation_records import join_operations
from distprof.storage.rank_stream import StreamWriter, read_stream
from tests.factories import make_info, make_run

MS, LAUNCH_NS = 1_000_000, 2_000
FORWARD, BACKWARD = PHASE_CODE[Phase.FORWARD], PHASE_CODE[Phase.BACKWARD]
SEND, RECEIVE = OPERATION_CODE[OperationKind.SEND], OPERATION_CODE[OperationKind.RECEIVE]


class DeviceStage:
    """A stage of a pipeline on a device, to which the host launches work that takes it 2 us."""

    def __init__(self, *, every: int = 1) -> None:
        self.clock = HostClock()
        self.device = SimulatedDevice(self.clock, tick_ns=1)
        self.recorder = Recorder(now_ns=self.clock, device=self.device, every=every)
        self.link = Stream(self.device)

    def launch(self, duration_ms: float) -> None:
        self.clock.advance(LAUNCH_NS)
        self.device.current_stream().launch(int(duration_ms * MS))
        self.clock.advance(LAUNCH_NS)

    def compute(self, phase: int, duration_ms: float, *, batch: int | None = None) -> None:
        """``batch``: the schedule says which micro-batch it is."""
        kind = OperationKind.FORWARD if phase == FORWARD else OperationKind.BACKWARD
        self.recorder.enter(phase)
        self.clock.advance(LAUNCH_NS)
        ticket = (
            -1 if batch is None else self.recorder.begin_operation(OPERATION_CODE[kind], micro_batch=batch, stage=1)
        )
        self.launch(duration_ms)
        if batch is not None:
            self.recorder.end_operation(ticket)
        self.clock.advance(LAUNCH_NS)
        self.recorder.exit()
        self.clock.advance(LAUNCH_NS)

    def exchange(self, kind: int, there_ms: float, peer: int = 0) -> None:
        """What is exchanged is there so long after it was issued."""
        ticket = self.recorder.begin_operation(kind, peer=peer, size_bytes=64, on_device=True)
        self.link.wait_stream(self.device.current_stream())
        self.link.launch(int(there_ms * MS))
        self.clock.advance(LAUNCH_NS)
        begun_ns = self.recorder.wait_for_rank()
        self.device.current_stream().wait_stream(self.link)
        self.clock.advance(LAUNCH_NS)
        self.recorder.end_exchanges((ticket,), begun_ns)
        self.clock.advance(LAUNCH_NS)

    def run_step(self, step: int, *, says: bool, peer: int = 0) -> None:
        """Two micro-batches of 3 and 5 ms, with waits of 7 and 2 ms."""
        self.recorder.begin_step(step, warmup=False)
        self.clock.advance(LAUNCH_NS)
        for batch in range(2):
            self.exchange(RECEIVE, 7 if batch == 0 else 2, peer)
            self.compute(FORWARD, 3, batch=batch if says else None)
            self.compute(BACKWARD, 5, batch=batch if says else None)
            self.exchange(SEND, 0, peer)
        self.recorder.end_step()

    def finish(self) -> list[StepRecord]:
        assert self.device.synchronised == 0
        return self.recorder.drain(wait=True)


@pytest.mark.parametrize("says", [True, False])
def test_forwards_backwards_and_waits_are_those_of_the_device(says: bool) -> None:
    stage = DeviceStage()
    for step in range(3):
        stage.run_step(step, says=says)
    for record in stage.finish():
        done = record.operations
        assert done is not None and done.on_device and record.begin_device_ns is not None
        kinds = [OPERATION_KINDS[kind] for kind, *_ in done.order]
        assert kinds == ["receive", "forward", "backward", "send"] * 2
        assert [micro_batch for _, micro_batch, *_ in done.order] == [-1, 0, 0, -1, -1, 1, 1, -1]
        took_ms = [(ns or 0) / MS for ns in done.duration_ns]
        assert took_ms == pytest.approx([7, 3, 5, 0, 2, 3, 5, 0], abs=0.02)
        assert [ns / MS for ns in done.waited_ns] == pytest.approx([7, 0, 0, 0, 2, 0, 0, 0], abs=0.02)
        starts_ms = [(ns - record.begin_device_ns) / MS for ns in done.start_ns]
        assert starts_ms == pytest.approx([0, 7, 10, 15, 15, 17, 20, 25], abs=0.06)
        assert record.step_host_ns < MS  # the host has only launched all that


def test_a_step_that_is_not_timed_on_the_device_has_no_operations() -> None:
    stage = DeviceStage(every=2)
    for step in range(4):
        stage.run_step(step, says=True)
    assert [record.operations is not None for record in stage.finish()] == [True, False, True, False]


def test_what_is_received_before_the_step_has_no_time_on_the_device() -> None:
    stage = DeviceStage()
    stage.run_step(0, says=True)
    stage.exchange(RECEIVE, 4)
    stage.run_step(1, says=True)
    one, two = stage.finish()
    assert one.operations is not None and two.operations is None
    assert not name_unseen([one]) and "sends or receives began outside" in name_unseen([two])[0]


def test_a_graph_that_is_captured_gets_no_border_and_its_step_no_operations() -> None:
    stage = DeviceStage()
    stage.run_step(0, says=True)
    stage.recorder.begin_step(1, warmup=False)
    stage.device.begin_capture()
    stage.compute(FORWARD, 3, batch=0)  # an event of ours in here would be refused
    stage.device.end_capture()
    stage.exchange(SEND, 0)
    stage.recorder.end_step()
    assert [record.operations is not None for record in stage.finish()] == [True, False]


def test_a_backward_that_ends_while_its_gradients_are_waited_for_ends_there() -> None:
    """As where DDP waits for its last bucket until the phase ends, which is around the operation."""
    stage = DeviceStage()
    recorder, clock = stage.recorder, stage.clock
    recorder.begin_step(0, warmup=False)
    stage.exchange(RECEIVE, 1)
    recorder.enter(BACKWARD)
    operation = recorder.begin_operation(OPERATION_CODE[OperationKind.BACKWARD], micro_batch=0, stage=1)
    stage.launch(5)
    ticket = recorder.begin_collective(CollectiveKind.ALL_REDUCE, 64, on_device=True)
    recorder.mark(PHASE_CODE[Phase.ALL_REDUCE], ticket)
    stage.launch(3)
    recorder.end_operation(operation)
    stage.launch(2)
    recorder.exit()
    clock.advance(LAUNCH_NS)
    recorder.end_step()
    (record,) = stage.finish()
    done, times = record.operations, record.device_times
    assert done is not None and times is not None
    assert [(ns or 0) / MS for ns in done.duration_ns] == pytest.approx([1, 8], abs=0.02)
    assert [ns / MS for ns in done.waited_ns] == pytest.approx([1, 3], abs=0.02)
    assert (times.exposed_ns[0] or 0) / MS == pytest.approx(5, abs=0.02)  # all of the wait is still one


def test_a_border_costs_what_collectives_may_cost() -> None:
    stage = DeviceStage()
    stage.run_step(0, says=True)
    assert (
        stage.recorder.on_device.stride._number == 4 * 2 + 4
    )  # of what computes begin and end, of exchanges the begin


def test_what_two_devices_did_comes_back_and_makes_the_table_of_the_pipeline(tmp_path: Path) -> None:
    """The second stage gets every micro-batch 7 and 2 ms after it asks for it, which the first one sends at once."""
    streams = []
    for rank in range(2):
        stage = DeviceStage()
        for step in range(12):
            stage.run_step(step, says=True, peer=1 - rank)
        records = stage.finish()
        rows = [pack_row(record, memory_bytes=None, memory_peak_bytes=None) for record in records]
        writer = StreamWriter(tmp_path / str(rank), run_id="r", world_size=2, info=make_info(rank))
        writer.write_steps(rows, [None] * len(rows), operations=[record.operations for record in records])
        writer.close()
        streams.append(read_stream(tmp_path / str(rank)))
    run = structs.replace(
        make_run(num_ranks=2, num_steps=12, num_warmup=0), rows=np.stack([stream.rows for stream in streams]),
        operations=tuple(join_operations(stream.operations) for stream in streams),
    )  # fmt: skip
    measured_steps = choose_measured_steps(run)
    found = report_pipeline(measured_steps, list_operations(measured_steps), "not judged")
    assert found is not None and (found.clock, found.micro_batches) == ("device", 2)
    for stage_report in found.stages:
        times = stage_report.forward_ns, stage_report.backward_ns, stage_report.warmup_ns, stage_report.steady_ns
        assert [ns / MS for ns in times] == pytest.approx([6, 10, 7, 2], abs=0.05)
        assert stage_report.bubble_ratio == pytest.approx(9 / 25, abs=0.005)
