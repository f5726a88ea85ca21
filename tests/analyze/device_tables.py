"""Collectives on the device clocks of ranks that are never late twice alike, with chosen transfers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import structs

from distprof.facts.run import Clock, CollectiveKind, Collectives, Phase, Run
from tests.factories import USUAL_NS, make_run

GAP_NS = 1e6
"""Between the arrivals of two collectives, at least."""


def make_table(
    transfer_ns: npt.ArrayLike,
    *,
    kinds: Sequence[CollectiveKind],
    sizes: Sequence[int | None],
    group: str = "default",
    ranks: Sequence[int] = (0, 1),
    size: int | None = None,
    steps: Sequence[int] = range(1, 11),
    seed: int = 0,
) -> Collectives:
    """A group's table: ranks arrive up to 0.5 ms apart, and all end together, each on a clock of its own.

    Args:
        transfer_ns: From the last arrival on, ``[num_steps, num_collectives]`` or what broadcasts to it.
        kinds: Of the collectives.
        sizes: Their bytes.
        group: Its name.
        ranks: Its members with facts.
        size: How many it has. None: all have.
        steps: Positions of the steps.
        seed: Draws arrivals and clocks.
    """
    draws = np.random.default_rng(seed)
    shape = (len(ranks), len(steps), len(kinds))
    took_ns = np.broadcast_to(np.asarray(transfer_ns, dtype=float), shape[1:])
    clock_ns = draws.integers(0, 10**9, (shape[0], 1, 1)).astype(float)
    due_ns = np.cumsum(took_ns + GAP_NS, axis=1) - took_ns
    arrival_ns = np.rint(due_ns + draws.uniform(0, 5e5, shape))
    end_ns = np.rint(arrival_ns.max(axis=0) + took_ns)
    return Collectives(
        group=group, ranks=np.array(ranks), size=size or len(ranks), kinds=tuple(kinds),
        phases=(Phase.BACKWARD,) * len(kinds), sizes_bytes=tuple(sizes), steps=np.array(steps), clock=Clock.DEVICE,
        arrival_ns=clock_ns + arrival_ns, end_ns=clock_ns + end_ns, exposed_ns=np.zeros(shape),
    )  # fmt: skip


def make_device_run(*tables: Collectives, num_ranks: int = 2, ranks_per_host: int = 1) -> Run:
    """A job over NCCL with these collectives; 11 steps, the first of which is warm-up."""
    infos = {rank: {"host": f"host-{rank // ranks_per_host}"} for rank in range(num_ranks)}
    run = make_run(
        num_ranks=num_ranks, num_steps=11, device_ns=USUAL_NS, infos=infos, meta={"backend": "nccl"}
    )  # fmt: skip
    return structs.replace(run, device_collectives=tables)
