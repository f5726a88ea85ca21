"""In place of a unit of FSDP2 on a GPU: it has what `distprof.record.collectives.fsdp` watches, and does nothing."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any


class _Group(SimpleNamespace):
    """As FSDP2 keeps one: it can be referred to weakly."""


class StandIn:
    """A unit of a model, and its collectives on a device."""

    def __init__(self, recorder: Any) -> None:
        """Watched for a recorder."""
        from distprof.record.collectives.collective_watch import (
            CollectiveWatch,  # loads torch: only for those who measure
        )
        from distprof.record.collectives.fsdp import watch_group

        nothing = lambda *_: None  # noqa: E731
        stream = SimpleNamespace(wait_event=nothing)
        self._group = _Group(
            _all_gather_comm=nothing, _reduce_scatter_comm=nothing, post_backward=nothing, wait_for_unshard=nothing,
            reshard=nothing, _wait_for_post_backward=nothing, finalize_backward=nothing,
            device_handle=SimpleNamespace(current_stream=lambda: stream), reduce_grads=True, _post_reduce_event=None,
            _all_gather_result=SimpleNamespace(all_gather_event=object()),
            _training_state=SimpleNamespace(name="POST_BACKWARD"),
            comm_ctx=SimpleNamespace(reduce_scatter_state=SimpleNamespace(event=object())),
        )  # fmt: skip
        self._buffer = SimpleNamespace(nbytes=1 << 25, device=None)
        watch: Any = CollectiveWatch(recorder)
        watch.ends_on_device = lambda *_: True  # as over NCCL
        watch.look_up_code = lambda _: 0
        watch_group(self._group, watch, deque(maxlen=64), set(), stream_waits=True)

    def gather(self) -> None:
        """Parameters, and the wait for them."""
        self._group._all_gather_comm(self._buffer, self._buffer, self)
        self._group.wait_for_unshard()

    def scatter(self) -> None:
        """Gradients, and the wait for the unit before."""
        self._group._reduce_scatter_comm(self._buffer, self._buffer, self)
        self._group.reshard()
