"""One slow rank, or none, in jobs of all sizes; two and three; a whole host."""

from __future__ import annotations

import functools
from typing import Any

from benchmarks.simulate import Delay, SimulatedJob
from benchmarks.verdicts.verdict_rows.row import (
    ANYWHERE,
    Draws,
    Row,
    add,
    draw_delay,
    draw_size,
    find_step,
    make_plain,
    pick,
)

SIZES = (("ddp", 2, 1), ("ddp", 3, 1), ("ddp", 8, 1), ("ddp", 64, 8), ("ddp", 256, 8),
         ("fsdp", 2, 2), ("fsdp", 8, 1), ("fsdp", 16, 2), ("fsdp", 64, 8),
         ("hsdp", 8, 2), ("hsdp", 64, 8))  # fmt: skip
"""Strategy, ranks and hosts."""


def _delay_one(draws: Draws, num_steps: int, *, strategy: str, num_ranks: int, num_hosts: int) -> SimulatedJob:
    job = make_plain(strategy, num_ranks, num_hosts)
    return add(job, draw_delay(draws, job))


def _delay_nobody(draws: Draws, num_steps: int, *, strategy: str, num_ranks: int, num_hosts: int) -> SimulatedJob:
    return make_plain(strategy, num_ranks, num_hosts)


def _delay_some(draws: Draws, num_steps: int, *, strategy: str, count: int) -> SimulatedJob:
    """Different ranks in phases of their own; each is late by 70 to 100 % of the largest delay."""
    job = make_plain(strategy)
    size_ns = draw_size(draws, 0.06, 0.3) * find_step(job)
    ranks = draws.permutation(job.num_ranks)[:count].tolist()
    delays = [
        Delay(rank=rank, phase=pick(draws, ANYWHERE), delay_ns=size_ns * (1.0 if index == 0 else draws.uniform(0.7, 1)))
        for index, rank in enumerate(ranks)
    ]
    return add(job, *delays)


def _delay_host(draws: Draws, num_steps: int, *, strategy: str, num_hosts: int) -> SimulatedJob:
    job = make_plain(strategy, 4 * num_hosts, num_hosts)
    return add(job, draw_delay(draws, job, rank=None, host=int(draws.integers(num_hosts))))


def _list_sizes() -> list[Row]:
    rows = []
    for strategy, ranks, hosts in SIZES:
        share = 1.0 if ranks <= 16 else 0.2 if ranks <= 64 else 0.05
        name = f"{strategy}-{ranks}"
        sizes: dict[str, Any] = {"strategy": strategy, "num_ranks": ranks, "num_hosts": hosts}
        rows += [
            Row(name=name, group="one slow rank", make=functools.partial(_delay_one, **sizes), share_ratio=share),
            Row(
                name=f"{name}-nobody", group="nobody is slow", make=functools.partial(_delay_nobody, **sizes),
                share_ratio=share,
            ),
        ]  # fmt: skip
    return rows


RANK_ROWS: tuple[Row, ...] = (
    *_list_sizes(),
    *(
        Row(
            name=f"{strategy}-{word}", group="several slow ranks",
            make=functools.partial(_delay_some, strategy=strategy, count=count),
        )
        for strategy in ("ddp", "fsdp") for word, count in (("two", 2), ("three", 3))
    ),
    *(
        Row(
            name=f"{strategy}-host-of-{hosts}", group="a slow host",
            make=functools.partial(_delay_host, strategy=strategy, num_hosts=hosts),
        )
        for strategy, hosts in (("ddp", 2), ("ddp", 4), ("fsdp", 4), ("hsdp", 4))
    ),
)  # fmt: skip
