"""Collectives that torch issues together when a block ends: ``_coalescing_manager``, as in Megatron's reductions.

What a block issues of a kind is one collective here, since it is issued, waited for and over as one.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.patching import require_fit
from distprof.record.collectives.collective_watch import Batch, CollectiveWatch


class _Issued(NamedTuple):
    """What a block issues."""

    tickets: list[tuple[int, bool]]
    """With whether each runs on a device."""
    phase: int
    """Of the wait for the last one, by its code; -1: the one that runs then."""
    waits: bool
    """Whether the caller waits for it where the block ends."""


def watch_coalescing(collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Records what blocks of coalesced collectives issue from now on.

    Returns:
        A function that undoes it.

    Raises:
        Misfit: This torch has other blocks.
    """
    manager = require_fit(distributed_c10d, "_coalescing_manager", {0: "group", 1: "device", 2: "async_ops"})
    # The block is a generator function in a cell of what `contextlib.contextmanager` has made, which scripts have
    # imported by name. So what the cell holds is exchanged. Where that cannot be done, the calls in a block are
    # recorded one by one.
    block = getattr(manager, "__wrapped__", None)
    cells = [cell for cell in getattr(manager, "__closure__", None) or () if cell.cell_contents is block]
    if block is None or len(cells) != 1:
        return lambda: None
    (cell,), watched = cells, _wrap(block, collective_watch)
    cell.cell_contents = watched

    def restore() -> None:
        if cell.cell_contents is watched:
            cell.cell_contents = block

    return restore


def _wrap(block: Callable[..., Iterator[Any]], collective_watch: CollectiveWatch) -> Callable[..., Iterator[Any]]:
    make = contextlib.contextmanager(block)

    @functools.wraps(block)
    def watched(*args: Any, **options: Any) -> Iterator[Any]:
        inner = make(*args, **options)
        works = inner.__enter__()
        batch = None
        if collective_watch.on and collective_watch.is_ours():
            # With a device, the backend collects all collectives of the block; without, torch those of some kinds.
            every = pick(args, options, 1, "device") is not None
            batch = Batch(pick(args, options, 0, "group"), every=every)
        collective_watch.batch = batch
        try:
            yield works
        except BaseException:
            collective_watch.batch = None
            if not inner.__exit__(*sys.exc_info()):
                raise
            return
        collective_watch.batch = None
        later = bool(pick(args, options, 2, "async_ops"))
        _end(batch, collective_watch, works, functools.partial(inner.__exit__, None, None, None), later=later)

    return watched


def pick(args: tuple[Any, ...], options: dict[str, Any], position: int, name: str) -> Any:
    """An argument of a call, given by position or by name. None: it is not given."""
    return args[position] if 0 <= position < len(args) else options.get(name)


def _end(
    batch: Batch | None, collective_watch: CollectiveWatch, works: Any, end: Callable[[], Any], *, later: bool
) -> None:
    """Ends a block, which issues what it holds; ``later``: the caller goes on, and waits later."""
    issued = collective_watch.run(_issue, batch, collective_watch, later) if batch and batch.sizes_bytes else None
    if issued is None:
        end()
        if batch is not None and batch.exchanges:
            collective_watch.run(_follow_exchanges, collective_watch, works, batch.exchanges)
        return
    collective_watch.inside += 1
    try:
        end()
    finally:
        collective_watch.inside = max(0, collective_watch.inside - 1)
        if issued.waits:
            collective_watch.recorder.resume()
    collective_watch.run(_follow, issued, collective_watch, works, later)


def _issue(batch: Batch, collective_watch: CollectiveWatch, later: bool) -> _Issued:
    recorder, tickets, phase, waits = collective_watch.recorder, list[tuple[int, bool]](), -1, False
    for (kind, code, on_device), size_bytes in batch.sizes_bytes.items():
        phase = collective_watch.choose_phase(kind, size_bytes)
        waits = not (later or (on_device and recorder.on_device.is_apart()))
        ticket = collective_watch.issue(
            kind, size_bytes, code, asynchronous=later, on_device=on_device, apart=not waits
        )  # fmt: skip
        tickets.append((ticket, on_device))
    if waits:
        recorder.wait(tickets[-1][0]) if phase < 0 else recorder.mark(phase, tickets[-1][0])
    return _Issued(tickets, phase, waits)


def _follow_exchanges(collective_watch: CollectiveWatch, works: Any, tickets: Sequence[int]) -> None:
    """The block has exchanged with single ranks, as ``batch_isend_irecv`` does: its last work is what is waited for.

    They run as one, so that one of them has the whole wait: what is received last, which computing goes on from.
    """
    if works.works:
        *others, last = tickets
        exchanges = collective_watch.exchanges
        exchanges[ref(works.works[-1], exchanges.__delitem__)] = (last, *others)


def _follow(issued: _Issued, collective_watch: CollectiveWatch, works: Any, later: bool) -> None:
    """The block has issued everything."""
    recorder = collective_watch.recorder
    for ticket, on_device in issued.tickets:
        if not later:
            recorder.end_on_device(ticket) if on_device else recorder.end_collective(ticket)
    work = works.works[-1] if later and works.works else None
    if isinstance(work, dist.Work):
        ticket, on_device = issued.tickets[-1]
        collective_watch.follow(work, ticket, issued.phase, on_device=on_device)
