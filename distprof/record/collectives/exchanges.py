"""Exchanges between two ranks, as between the stages of a pipeline: what is sent and received, and the waits for it.

An exchange is no collective: it is an operation of a pipeline, see `distprof.facts.micro_batches`. A step has dozens,
and a stage's own work has driven distprof out of the processor's caches whenever one comes, so that each function that
is entered takes microseconds. So what happens at one takes few calls, although `CollectiveWatch.surround` would say the
same in fewer lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch.distributed as dist

from distprof.compiling import is_compiling, skip_compile
from distprof.facts.micro_batches import OPERATION_CODE, UNKNOWN, OperationKind
from distprof.patching import Swap, leave_out_of_warnings, require_fit, step_aside
from distprof.record.collectives.coalescing import pick
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.unseen import unseen


class _Exchange(NamedTuple):
    """How to read the arguments of an exchange between two ranks."""

    kind: int
    """Index into `OPERATION_KINDS`."""
    tag: int
    """Position of the tag."""
    peer_name: str = ""
    """Of the argument before it. Empty: it is received from whichever rank sends first."""


_SEND, _RECEIVE = OPERATION_CODE[OperationKind.SEND], OPERATION_CODE[OperationKind.RECEIVE]
EXCHANGES = {
    "send": _Exchange(_SEND, 3, "dstRank"),
    "recv": _Exchange(_RECEIVE, 3, "srcRank"),
    "recv_anysource": _Exchange(_RECEIVE, 2),
}
"""Methods of a process group, in which all functions of torch for exchanges between two ranks end. Those functions
themselves are left alone, since torch compares them with each other."""


def watch_exchanges(collective_watch: CollectiveWatch, seen: Callable[[], None]) -> Callable[[], None]:
    """Records exchanges between two ranks, and from the first one on how long the caller waits for them.

    Args:
        collective_watch: Says which calls are looked at.
        seen: Called once, at an exchange inside a step.

    Returns:
        A function that undoes it, to be called before that of `watch_collectives`.

    Raises:
        Misfit: This torch has others.
    """
    first = _FirstExchange(collective_watch, seen)
    for name, form in EXCHANGES.items():
        original = require_fit(dist.ProcessGroup, name)
        first.swap(dist.ProcessGroup, name, _surround_exchange(original, form, collective_watch, first))
    return first.restore


class _FirstExchange:
    """What is done once, at the first exchange: jobs without one pay nothing, neither at waits nor between steps."""

    def __init__(self, collective_watch: CollectiveWatch, seen: Callable[[], None]) -> None:
        self._collective_watch, self._seen = collective_watch, seen
        self._swaps: list[Swap] = []
        self._undo: list[Callable[[], None]] = []
        self._begun, self.over = False, False

    def swap(self, place: type, name: str, new: Any, plain: Any = None) -> None:
        """Replaces a method until `restore`; the arguments are those of `Swap`."""
        self._swaps.append(Swap(place, name, new, plain))
        self._undo.append(self._swaps[-1].undo)

    def restore(self) -> None:
        """Puts back what was there first."""
        while self._undo:
            self._undo.pop()()

    def begin(self) -> None:
        """Looks at waits from now on, and says inside a step that there are exchanges."""
        collective_watch = self._collective_watch
        if not self._begun:
            self._begun = True
            original = require_fit(dist.Work, "wait")
            around, inside = collective_watch.wait or (None, None)
            plain = inside if original is around else None  # what is around it is for collectives
            self.swap(dist.Work, "wait", _surround_wait(original, plain or original, collective_watch), plain)
            self._undo.append(collective_watch.tell_aside(self._choose))
        if collective_watch.recorder.recording:
            self.over = True
            self._seen()

    def _choose(self, aside: bool) -> None:
        step_aside(self._swaps, aside)
        if self.over and not aside:  # of what was issued in the step that ends, nothing is known when it is waited for
            self._collective_watch.recorder.between.forget()


def _surround_exchange(
    original: Callable[..., Any], form: _Exchange, collective_watch: CollectiveWatch, first: _FirstExchange
) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(*args: Any, **options: Any) -> Any:
        if is_compiling() or not collective_watch.on or not collective_watch.is_ours():
            return original(*args, **options)
        ticket = collective_watch.run(_record, collective_watch, form, args, options)
        work = original(*args, **options)
        if ticket is not None:
            if collective_watch.batch is not None:
                collective_watch.run(_add_to_batch, collective_watch.batch.exchanges, form, ticket)
            elif isinstance(work, dist.Work):
                exchanges = collective_watch.exchanges
                exchanges[ref(work, exchanges.__delitem__)] = (ticket,)
            if not first.over:
                collective_watch.run(first.begin)
        return work

    leave_out_of_warnings(watched)
    skip_compile(watched, wholly=True)
    return watched


def _record(
    collective_watch: CollectiveWatch, form: _Exchange, args: tuple[Any, ...], options: dict[str, Any]
) -> int | None:
    """Records that an exchange is issued. Returns the ticket of the operation. None: it is distprof's own."""
    group = args[0]
    known_group = collective_watch.groups.get(id(group))
    if known_group is None or known_group.held() is not group:
        known_group = collective_watch.look_up_group(group)
    if known_group.is_own:
        return None
    if len(args) > form.tag:  # as torch's own functions call it
        tensors, peer, tag = args[1], args[2] if form.peer_name else UNKNOWN, args[form.tag]
    else:
        tensors, tag = pick(args, options, 1, "tensors"), pick(args, options, form.tag, "tag")
        peer = pick(args, options, 2, form.peer_name) if form.peer_name else UNKNOWN
    recorder = collective_watch.recorder
    ranks = recorder.groups[known_group.code][1]
    if ranks is not None and type(peer) is int and 0 <= peer < len(ranks):
        peer = ranks[peer]
    known = isinstance(tensors, (list, tuple)) and type(peer) is int and type(tag) is int
    if not known or not tensors:
        return UNKNOWN
    size_bytes, on_device, on_host = _measure(tensors, collective_watch, group)
    if not (on_device or on_host):
        return UNKNOWN
    return recorder.begin_operation(form.kind, peer=peer, tag=tag, size_bytes=size_bytes, on_device=on_device)


@unseen
def _measure(tensors: Sequence[Any], collective_watch: CollectiveWatch, group: Any) -> tuple[int, bool, bool]:
    """Their bytes, whether their exchange ends on a device, and whether they lie on the host."""
    size_bytes, on_device, on_host = 0, True, True
    for tensor in tensors:
        size_bytes += tensor.nbytes
        on_device = on_device and collective_watch.ends_on_device(group, tensor.device)
        on_host = on_host and tensor.is_cpu
    return size_bytes, on_device, on_host


def _add_to_batch(tickets: list[int], form: _Exchange, ticket: int) -> None:
    """It is issued with others, and what is waited for is the work of their whole block."""
    tickets.insert(0 if form.kind == _SEND else len(tickets), ticket)


def _surround_wait(
    original: Callable[..., Any], plain: Callable[..., Any], collective_watch: CollectiveWatch
) -> Callable[..., Any]:
    """A ``Work.wait`` that watches waits for exchanges, made by ``plain``; others are left to what is there."""
    recorder, exchanges = collective_watch.recorder, collective_watch.exchanges

    @functools.wraps(original)
    def watched(*args: Any, **options: Any) -> Any:
        if is_compiling() or not (exchanges and args) or not collective_watch.on or not collective_watch.is_ours():
            return original(*args, **options)
        tickets = exchanges.pop(ref(args[0]), ())
        began_ns = collective_watch.run(recorder.wait_for_rank) if tickets else None
        if began_ns is None:
            return original(*args, **options)
        collective_watch.inside += 1
        over: tuple[int, ...] = ()
        try:
            result = plain(*args, **options)
            over = tickets
            return result
        finally:
            collective_watch.inside = max(0, collective_watch.inside - 1)
            collective_watch.run(recorder.end_exchanges, over, began_ns)

    leave_out_of_warnings(watched)
    skip_compile(watched, wholly=True)
    return watched
