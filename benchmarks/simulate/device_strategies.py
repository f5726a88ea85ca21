"""What a strategy's ranks do between data and optimizer, as torch 2.13 does it: streams, events and waits."""

from __future__ import annotations

from typing import Any

from benchmarks.simulate.device_loop import ALL_GATHER, ALL_REDUCE, RankLoop
from benchmarks.simulate.device_ranks import Program
from benchmarks.simulate.device_work import DeviceWork
from distprof.facts.run import CollectiveKind, Phase

_CALLBACK_STREAMS = 2
_COPY_RATIO = 0.05
"""Of a unit's forward: copying its parameters or gradients into or out of the buffer of a collective."""
_EMBEDDING_RATIO = 0.3
_ROOT = -1


class DdpLoop(RankLoop):
    """DistributedDataParallel: each bucket is reduced on NCCL's stream while backward goes on; backward waits last."""

    def __init__(self, *arguments: Any) -> None:
        """A rank before its first step."""
        super().__init__(*arguments)
        self._nccl = self.add_stream()
        self._callbacks = [self.add_stream() for _ in range(_CALLBACK_STREAMS)]

    def train(self) -> Program:
        """Forward and backward of one step."""
        job, units = self.job, self.job.num_units
        self.enter(Phase.FORWARD)
        for unit in range(units):
            self.spend(job.host_unit_ns)
            self.work(Phase.FORWARD, job.forward_ns, unit, units)
        self.exit()
        yield None
        self.enter(Phase.BACKWARD)
        reduced = []
        for unit in range(units):
            self.spend(job.host_unit_ns)
            self.work(Phase.BACKWARD, 2 * job.forward_ns, unit, units)
            self.recorder.discard_mark()  # the bucket before was not the last
            ticket, part = self.issue(CollectiveKind.ALL_REDUCE, self._nccl, self.group)
            self.recorder.mark(ALL_REDUCE, ticket)
            self._call_back(unit, ticket, part)
            reduced.append(part)
            if unit < units - 1:
                yield None
        self.witness.switch(ALL_REDUCE)
        for result in reduced:
            self.witness.wait(self.group, CollectiveKind.ALL_REDUCE, result)
        self.exit()
        yield None

    def _call_back(self, unit: int, ticket: int, part: DeviceWork) -> None:
        """The ``.then`` of the future: on a stream that waits for NCCL."""
        stream = self._callbacks[unit % _CALLBACK_STREAMS]
        stream.launch(0, after=[part])
        before = self.device.set_stream(stream)
        self.recorder.end_on_device(ticket)
        self.device.set_stream(before)


class FsdpLoop(RankLoop):
    """FSDP2, with a root that holds embedding and head; under HSDP an all-reduce follows each reduce-scatter.

    As in torch 2.13: forward gathers each layer when it is reached, on streams of its own, so
    that the next gather runs beside this layer; backward gathers the layer before in advance; gradients are copied and
    scattered after each layer, once the scatter before is over; at the end compute waits for the last reduction.
    """

    def __init__(self, *arguments: Any) -> None:
        """A rank before its first step."""
        super().__init__(*arguments)
        self._copies, self._gathers, self._scatters, self._reductions, self._nccl = (
            self.add_stream() for _ in range(5)
        )
        self._gathered: dict[int, tuple[int, DeviceWork]] = {}
        self._copied_out: DeviceWork | None = None  # of forward; the next layer's copy-out lets gathers go on
        self._scattered: tuple[int, DeviceWork] | None = None
        self._reduced: tuple[str, CollectiveKind, int, DeviceWork] | None = None

    def train(self) -> Program:
        """Forward and backward of one step."""
        job, units = self.job, self.job.num_units
        kernels = units + 2  # of the layers, the embedding and the head
        self.enter(Phase.FORWARD)
        self._copies.wait_stream(self.compute)
        self._gathers.wait_stream(self.compute)
        for unit in range(_ROOT, units):
            self.spend(job.host_unit_ns)
            self._gather(unit)
            self._wait_for_gather(unit, forward=True)
            embedding_ratio = _EMBEDDING_RATIO if unit == _ROOT else 1.0
            self.work(Phase.FORWARD, job.forward_ns * embedding_ratio, unit, kernels)
            yield None
        self._let_gathers_go_on()
        self.work(Phase.FORWARD, job.forward_ns, _ROOT, kernels)  # the root's head
        self.exit()
        self.enter(Phase.BACKWARD)
        self._gather(units - 1)
        self.work(Phase.BACKWARD, 2 * job.forward_ns, _ROOT, kernels)
        for unit in reversed(range(units)):
            self.spend(job.host_unit_ns)
            self._wait_for_gather(unit, forward=False)
            if unit > 0:
                self._gather(unit - 1)
            self.work(Phase.BACKWARD, 2 * job.forward_ns, unit, kernels)
            self._reduce()
            yield None
        self.work(Phase.BACKWARD, 2 * job.forward_ns * _EMBEDDING_RATIO, _ROOT, kernels)
        self._reduce()
        self._finish()
        self.exit()
        yield None

    def reduce_norm(self) -> None:
        """A functional all-reduce of one number among the ranks that share a copy of the model, waited for at once."""
        ticket, part = self.issue(CollectiveKind.ALL_REDUCE, self._nccl, self.group, asynchronous=True, norm=True)
        self.witness.switch(self.witness.steps[-1].codes[-1])
        self.recorder.wait(ticket)
        self.witness.wait(self.group, CollectiveKind.ALL_REDUCE, part)
        self.resume()  # which is where it has ended

    def _gather(self, unit: int) -> None:
        """``unshard``"""
        self._copies.launch(int(self.job.forward_ns * _COPY_RATIO))
        self._gathers.wait_stream(self._copies)
        before = self.device.set_stream(self._gathers)
        ticket, part = self.issue(CollectiveKind.ALL_GATHER, self._gathers, self.group)
        self.recorder.end_on_device(ticket)
        self._gathered[unit] = ticket, part
        self.device.set_stream(before)

    def _wait_for_gather(self, unit: int, *, forward: bool) -> None:
        """``wait_for_unshard``, with the recorder's own wait before it."""
        ticket, part = self._gathered.pop(unit)
        self.mark(ALL_GATHER, ticket)
        self.witness.wait(self.group, CollectiveKind.ALL_GATHER, part)
        self.resume()
        if forward:
            self._let_gathers_go_on()
        self._copied_out = self.compute.launch(int(self.job.forward_ns * _COPY_RATIO))
        if not forward:
            self._let_gathers_go_on()

    def _let_gathers_go_on(self) -> None:
        """The streams that gather wait for the newest copy-out, whose buffer they use again."""
        if self._copied_out is not None:
            self._copies.launch(0, after=[self._copied_out])
            self._gathers.launch(0, after=[self._copied_out])
            self._copied_out = None

    def _reduce(self) -> None:
        """``post_backward``: waits for the scatter before, copies the gradients, scatters, and reduces under HSDP."""
        if self._scattered is not None:
            ticket, part = self._scattered
            self.mark(ALL_REDUCE, ticket)
            self.witness.wait(self.group, CollectiveKind.REDUCE_SCATTER, part)
            self.resume()
        self.compute.launch(int(self.job.forward_ns * _COPY_RATIO))
        self._scatters.wait_stream(self.compute)
        before = self.device.set_stream(self._scatters)
        ticket, part = self.issue(CollectiveKind.REDUCE_SCATTER, self._scatters, self.group)
        self.recorder.end_on_device(ticket)
        self._scattered = ticket, part
        group, kind, last = self.group, CollectiveKind.REDUCE_SCATTER, self._scatters
        if self.replicas != self.group:
            self._reductions.wait_stream(self._scatters)
            self.device.set_stream(self._reductions)
            group, kind, last = self.replicas, CollectiveKind.ALL_REDUCE, self._reductions
            ticket, _ = self.issue(kind, last, group)
            self.recorder.end_on_device(ticket)
        last.launch(int(self.job.forward_ns * _COPY_RATIO))
        self._reduced = group, kind, ticket, last.tail
        self.device.set_stream(before)

    def _finish(self) -> None:
        """``finalize_backward``"""
        assert self._reduced is not None
        group, kind, ticket, work = self._reduced
        self.mark(ALL_REDUCE, ticket)
        self.witness.wait(group, kind, work)
        self.resume()
        self._scattered = None


LOOPS: dict[str, type[RankLoop]] = {"ddp": DdpLoop, "fsdp": FsdpLoop, "hsdp": FsdpLoop}
