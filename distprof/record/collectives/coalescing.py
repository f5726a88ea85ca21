"""Collectives that torch issues together when a block ends: ``_coalescing_manager``, as in Megatron's reductions.

What a block issues of a kind is one collective here, since it is issued, waited for and over as one. The block is a
generator function that `contextlib.contextmanager` holds, and scripts keep the name of what is around it. So what it
holds is exchanged, not the name; where that is not possible, the calls in a block are recorded one by one.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.record.collectives.collective_watch import Batch, CollectiveWatch
from distprof.signatures import require_fit


def watch_coalescing(collective_watch: CollectiveWatch, is_ours: Callable[[], bool]) -> Callable[[], None]:
    """Records what blocks of coalesced collectives issue from now on.

    Args:
        collective_watch: Of the recorder to use.
        is_ours: Whether a call made now should be recorded.

    Returns:
        A function that undoes it.

    Raises:
        Misfit: This torch has other blocks.
    """
    manager = require_fit(distributed_c10d, "_coalescing_manager", {0: "group", 1: "device", 2: "async_ops"})
    block = getattr(manager, "__wrapped__", None)
    cells = [cell for cell in getattr(manager, "__closure__", None) or () if cell.cell_contents is block]
    if block is None or len(cells) != 1:
        return lambda: None
    (cell,), watched = cells, _wrap(block, collective_watch, is_ours)
    cell.cell_contents = watched

    def restore() -> None:
        if cell.cell_contents is watched:
            cell.cell_contents = block

    return restore


def _wrap(
    block: Callable[..., Iterator[Any]], collective_watch: CollectiveWatch, is_ours: Callable[[], bool]
) -> Callable[..., Iterator[Any]]:
    make = contextlib.contextmanager(block)

    @functools.wraps(block)
    def watched(*args: Any, **options: Any) -> Iterator[Any]:
        inner = make(*args, **options)
        works = inner.__enter__()
        batch = None
        if not collective_watch.off and is_ours():
            device = _pick(args, options, 1, "device")
            batch = Batch(_pick(args, options, 0, "group"), every=device is not None)
        collective_watch.batch = batch
        try:
            yield works
        except BaseException:
            collective_watch.batch = None
            if not inner.__exit__(*sys.exc_info()):
                raise
            return
        collective_watch.batch = None
        later = bool(_pick(args, options, 2, "async_ops"))
        _issue(batch, collective_watch, works, functools.partial(inner.__exit__, None, None, None), later=later)

    return watched


def _pick(args: tuple[Any, ...], options: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if position < len(args) else options.get(name)


def _issue(
    batch: Batch | None, collective_watch: CollectiveWatch, works: Any, end: Callable[[], Any], *, later: bool
) -> None:
    """Ends a block, which issues what it holds; ``later``: the caller goes on, and waits later."""
    if batch is None or not batch.sizes_bytes or collective_watch.off:
        end()
        return
    recorder, tickets, waits = collective_watch.recorder, list[tuple[int, bool]](), False
    try:
        for (kind, code, on_device), size_bytes in batch.sizes_bytes.items():
            phase = collective_watch.find_phase(kind, size_bytes)
            waits = not (later or (on_device and recorder.on_device.is_apart()))
            ticket = collective_watch.issue(
                kind, size_bytes, code, asynchronous=later, on_device=on_device, apart=not waits
            )
            tickets.append((ticket, on_device))
        if waits:
            recorder.wait(tickets[-1][0]) if phase < 0 else recorder.mark(phase, tickets[-1][0])
    except Exception as error:
        collective_watch.give_up(error)
        end()
        return
    collective_watch.inside += 1
    try:
        end()
    finally:
        collective_watch.inside = max(0, collective_watch.inside - 1)
        if waits:
            recorder.resume()
    try:
        for ticket, on_device in tickets:
            if not later:
                recorder.end_on_device(ticket) if on_device else recorder.end_collective(ticket)
        work = works.works[-1] if later and works.works else None
        if isinstance(work, dist.Work):
            collective_watch.follow(work, tickets[-1][0], phase, on_device=tickets[-1][1])
    except Exception as error:
        collective_watch.give_up(error)
