"""Healthy networks, slow links, and jobs that mostly wait for the network."""

from __future__ import annotations

import functools

from msgspec.structs import replace

from benchmarks.simulate import SimulatedJob
from benchmarks.verdicts.verdict_rows.row import Draws, Row, add, draw_delay, draw_size, find_step, make_plain

MS = 1_000_000


def _draw_healthy(
    draws: Draws, num_steps: int, *, strategy: str, num_ranks: int, num_hosts: int, late: bool, busy: bool
) -> SimulatedJob:
    """Links as fast as they should be; ``busy``: transfers take as long as computing."""
    transfer_ns = draws.uniform(25, 35) * MS if busy else draws.uniform(3, 12) * MS
    transfer_ns *= 3 if strategy == "ddp" and busy else 1  # FSDP moves everything three times
    job = rate_links(make_plain(strategy, num_ranks, num_hosts, transfer_ns=transfer_ns))
    return add(job, draw_delay(draws, job)) if late else job


def _draw_slow(draws: Draws, num_steps: int, *, strategy: str, beside: bool, later: bool) -> SimulatedJob:
    """4 hosts of 4 ranks; one host's link is 1.5 to 4 times slower than others. HSDP's shards fill a host or two."""
    shard_size = int(draws.choice([4, 8])) if strategy == "hsdp" else None
    transfer_ns = draws.uniform(5, 15) * MS
    job = rate_links(make_plain(strategy, 16, 4, transfer_ns=transfer_ns, shard_size=shard_size))
    job = replace(
        job, slow_hosts={int(draws.integers(1, 4)): draws.uniform(1.5, 4)},
        slow_from_step=round(num_steps * draws.uniform(0.35, 0.65)) if later else 0,
    )  # fmt: skip
    return add(job, draw_delay(draws, job, delay_ns=draw_size(draws, 0.08, 0.3) * find_step(job))) if beside else job


def _draw_part(draws: Draws, num_steps: int, *, strategy: str) -> SimulatedJob:
    """One host's link is 2 to 6 times slower than others, and bytes need a seventh to three fifths of usual transfers:
    so hosts take much of the transfers that cross the slow one, or most."""
    shard_size = int(draws.choice([4, 8])) if strategy == "hsdp" else None
    share = draws.uniform(0.15, 0.6)
    job = make_plain(
        strategy, 16, 4, transfer_ns=draws.uniform(15, 30) * MS, shard_size=shard_size, link_share_ratio=share
    )  # fmt: skip
    return replace(rate_links(job), slow_hosts={int(draws.integers(1, 4)): draws.uniform(2, 6)})


def _draw_doubtful(draws: Draws, num_steps: int, *, strategy: str, num_ranks: int, num_hosts: int) -> SimulatedJob:
    """Links as fast as they should be, and probes that err by a fifth, which steps cannot refute: they are slower
    anyway."""
    others = {"link_share_ratio": draws.uniform(0.3, 0.7), "probe_spread_ratio": 0.2}
    return rate_links(make_plain(strategy, num_ranks, num_hosts, transfer_ns=draws.uniform(15, 30) * MS, **others))


def rate_links(job: SimulatedJob) -> SimulatedJob:
    """The same job with links as fast as its transfers say: what crosses the end of one, over the time it takes there.

    A ring of n ranks enters and leaves a host once, with (n - 1) / n of what is gathered and twice that of what is
    reduced. HSDP gathers within hosts, and reduces between them, unless a shard has more ranks than a host.
    """
    reduces, ring = job.strategy == "ddp", job.num_ranks
    if job.strategy == "hsdp":
        reduces = job.shard_ranks <= job.ranks_per_host
        ring = job.num_ranks // job.shard_ranks if reduces else job.shard_ranks
    crossing = (2 if reduces else 1) * (ring - 1) / ring
    needs_ns = job.link_share_ratio * job.transfer_ns
    return replace(job, link_bytes_per_s=crossing * job.num_buckets * job.bucket_bytes / needs_ns * 1e9)


def _list_healthy() -> list[Row]:
    rows = []
    for strategy, ranks, hosts in (("ddp", 16, 2), ("fsdp", 16, 2), ("fsdp", 32, 4), ("hsdp", 16, 4)):
        for busy in (False, True):
            for late in (False, True):
                make = functools.partial(
                    _draw_healthy, strategy=strategy, num_ranks=ranks, num_hosts=hosts, late=late, busy=busy
                )
                name = f"{strategy}-{ranks}-{'busy' if busy else 'healthy'}-{'rank' if late else 'nobody'}"
                rows.append(Row(name=name, group="healthy links", make=make, share_ratio=1.0 if ranks <= 16 else 0.5))
    for strategy, ranks, hosts in (("ddp", 16, 4), ("fsdp", 64, 8)):
        make = functools.partial(_draw_doubtful, strategy=strategy, num_ranks=ranks, num_hosts=hosts)
        name = f"{strategy}-{ranks}-probes-nobody"
        rows.append(Row(name=name, group="healthy links", make=make, share_ratio=1.0 if ranks <= 16 else 0.5))
    return rows


LINK_ROWS: tuple[Row, ...] = (
    *_list_healthy(),
    *(
        Row(
            name=f"{strategy}-link{name}", group="a slow link",
            make=functools.partial(_draw_slow, strategy=strategy, beside=beside, later=later),
        )
        for strategy in ("ddp", "fsdp", "hsdp")
        for name, beside, later in (("", False, False), ("-and-rank", True, False), ("-later", False, True))
    ),
    *(
        Row(name=f"{strategy}-link-part", group="a slow link", make=functools.partial(_draw_part, strategy=strategy))
        for strategy in ("ddp", "fsdp", "hsdp")
    ),
)  # fmt: skip
