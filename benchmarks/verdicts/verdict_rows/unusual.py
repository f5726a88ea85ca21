"""Phases that cancel, rare events, changes half-way, delays that overlap hides, unequal data, time between steps, and
ranks that meet every k-th step."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.simulate import Between, Delay, SimulatedJob
from benchmarks.verdicts.verdict_rows.row import (
    ANYWHERE,
    IN_STEP,
    Draws,
    Row,
    add,
    draw_delay,
    draw_size,
    find_step,
    make_plain,
    pick,
)
from distprof.facts.run import Part, Phase, Stretch

MS = 1_000_000
FEWEST_ROUNDS = 12
LOGGING = Between(stretch=Stretch.LOGGING, own_ns=0.3 * MS)
EVALUATION = Between(stretch=Stretch.EVALUATION, own_ns=60 * MS, every=10)
CHECKPOINT = Between(stretch=Stretch.CHECKPOINT, own_ns=30 * MS, every=20)
LOOP = (LOGGING, EVALUATION, CHECKPOINT)
"""A loss averaged over ranks before every step, an evaluation and a checkpoint now and then."""


def _cancel(draws: Draws, num_steps: int, *, strategy: str) -> SimulatedJob:
    """A rank has +x in data and -x in forward: FSDP waits in between, DDP does not."""
    job = make_plain(strategy)
    late = draw_delay(draws, job, (Phase.DATA,))
    return add(job, late, replace(late, phase=Phase.FORWARD, delay_ns=-late.delay_ns))


def _every(draws: Draws, num_steps: int, *, strategy: str) -> SimulatedJob:
    """One rank, every 5th to 16th step: about 2 to 10 % of all time."""
    job, every = make_plain(strategy), int(draws.integers(5, 17))
    size_ns = draw_size(draws, 0.03, 0.12) * every * find_step(job)
    first = int(draws.integers(1, every + 1))
    return add(job, draw_delay(draws, job, delay_ns=size_ns, every=every, first_step=first))


def _alternate(draws: Draws, num_steps: int, *, strategy: str) -> SimulatedJob:
    """One rank, every second step: 1.5 to 12 % of all time, which noise hides in some jobs."""
    job = make_plain(strategy, jitter_ratio=draws.uniform(0.02, 0.06))
    return add(job, draw_delay(draws, job, every=2, first_step=int(draws.integers(1, 3))))


def _triple(draws: Draws, num_steps: int, *, strategy: str) -> SimulatedJob:
    """One rank's forward or backward takes three times as long in every 5th to 10th step."""
    job, every = make_plain(strategy), int(draws.integers(5, 11))
    return add(job, draw_delay(draws, job, (Phase.FORWARD, Phase.BACKWARD), delay_ns=0.0, factor=3.0, every=every))


def _few(draws: Draws, num_steps: int, *, strategy: str) -> SimulatedJob:
    """One rank, in 4 to 15 % of the steps, drawn at random."""
    job, share = make_plain(strategy), draws.uniform(0.06, 0.15)
    size_ns = draw_size(draws, 0.03, 0.12) / share * find_step(job)
    return add(job, draw_delay(draws, job, delay_ns=size_ns, count=max(3, round(share * num_steps))))


def _stall(draws: Draws, num_steps: int, *, strategy: str, num_ranks: int, who: str) -> SimulatedJob:
    """In a tenth of the steps, drawn at random, a rank stops for one to three steps, in one place: always the same
    rank, any rank, or none. Shorter events strike all ranks; where no rank stops, events of all lengths do. One step in
    20 has no instruments."""
    noise: dict[str, Any] = (
        {"noise_share_ratio": 0.1} if who != "nobody" else {"noise_share_ratio": 0.2, "noise_shape": 1.0}
    )
    job = make_plain(strategy, num_ranks, shadow_every=20, **noise)
    if who == "nobody":
        return job
    rank = int(draws.integers(num_ranks)) if who == "one" else None
    size_ns = draw_size(draws, 1, 3) * find_step(job)
    return add(job, draw_delay(draws, job, rank=rank, delay_ns=size_ns, count=round(0.1 * num_steps)))


def _change(draws: Draws, num_steps: int, *, strategy: str, ends: str) -> SimulatedJob:
    """One rank until a step, another one from then on; or one rank that becomes slow, or stops being slow."""
    job, at = make_plain(strategy), round(num_steps * draws.uniform(0.35, 0.65))
    before, after = draws.permutation(job.num_ranks)[:2].tolist()
    delay_ns = draw_size(draws, 0.08, 0.3) * find_step(job)
    first = Delay(rank=before, phase=pick(draws, ANYWHERE), delay_ns=delay_ns, last_step=at - 1)
    then = Delay(rank=after, phase=pick(draws, ANYWHERE), delay_ns=delay_ns * draws.uniform(0.8, 1.2), first_step=at)
    return add(job, *{"changes": (first, then), "begins": (then,), "ends": (first,)}[ends])


def _begin_in_two(draws: Draws, num_steps: int, *, strategy: str) -> SimulatedJob:
    """One of two ranks that share a machine with other work becomes slow in mid-run, by a third to all of a phase."""
    job = make_plain(strategy, 2, jitter_ratio=0.08, speed_ratio=0.02, speed_autocorrelation=0.9)
    phase = (Phase.FORWARD, Phase.BACKWARD)[int(draws.integers(2))]
    delay_ns = draws.uniform(1 / 3, 1) * job.phase_ns[phase]
    at = round(num_steps * draws.uniform(0.35, 0.65))
    return add(job, Delay(rank=int(draws.integers(2)), phase=phase, delay_ns=delay_ns, first_step=at))


def _hide(draws: Draws, num_steps: int, *, strategy: str) -> SimulatedJob:
    """One rank is late between two buckets, while the others' gradients keep the network busy anyway."""
    job = make_plain(strategy, transfer_ns=80 * MS, num_buckets=8)
    piece = int(draws.integers(3, 8))
    slack_ns = piece * (job.transfer_ns - job.phase_ns[Phase.BACKWARD]) / job.num_buckets
    delay_ns = draws.uniform(0.3, 0.8) * slack_ns
    rank = int(draws.integers(job.num_ranks))
    return add(job, Delay(rank=rank, phase=Phase.BACKWARD, delay_ns=delay_ns, piece=piece))


def _draw_data(draws: Draws, num_steps: int, *, strategy: str, beside: bool) -> SimulatedJob:
    """Sequences of unequal length, and perhaps a slow rank."""
    job = make_plain(strategy, token_spread_ratio=draws.uniform(0.05, 0.25), tail_share_ratio=0.0)
    return add(job, draw_delay(draws, job, delay_ns=draw_size(draws, 0.1, 0.3) * find_step(job))) if beside else job


def _draw_between(draws: Draws, num_steps: int, *, strategy: str, parts: tuple[Part, ...]) -> SimulatedJob:
    """A loop with logging, evaluation and checkpoints; somebody is slow in one of these parts."""
    job = make_plain(strategy, between=LOOP, data_between=bool(draws.integers(2)))
    if not parts:
        return job
    part = pick(draws, parts)
    periods: dict[Part, int] = {Stretch.EVALUATION: EVALUATION.every, Stretch.CHECKPOINT: CHECKPOINT.every}
    every = periods.get(part, 1)
    size_ns = draw_size(draws) * every * find_step(job)
    return add(job, draw_delay(draws, job, (part,), delay_ns=size_ns, every=every))


def _save_alone(draws: Draws, num_steps: int, *, strategy: str) -> SimulatedJob:
    """Rank 0 alone saves a checkpoint now and then; the others do not wait for it until they next synchronise."""
    every = int(draws.integers(8, 17))
    job = make_plain(strategy, between=(LOGGING,))
    delay_ns = draw_size(draws, 0.03, 0.15) * every * find_step(job)
    return add(job, Delay(rank=0, phase=Stretch.CHECKPOINT, delay_ns=delay_ns, every=every))


def _average_seldom(draws: Draws, num_steps: int, *, late: bool) -> SimulatedJob:
    """Local SGD: ranks average their parameters every second, fourth or eighth step, at least twelve times."""
    periods = [every for every in (2, 4, 8) if every == 2 or num_steps // every >= FEWEST_ROUNDS]
    every, between = int(draws.choice(np.array(periods))), bool(draws.integers(2))
    transfer_ns = 10.0 * MS * every  # as much of a step as that of gradients in others
    job = make_plain("ddp", sync_every=every, sync_between=between, transfer_ns=transfer_ns)
    return add(job, draw_delay(draws, job, delay_ns=draw_size(draws) * sum(job.phase_ns.values()))) if late else job


def _rows(group: str, *cases: tuple[str, Any, dict[str, Any]]) -> list[Row]:
    return [
        Row(name=f"{strategy}-{name}", group=group, make=functools.partial(make, strategy=strategy, **options))
        for name, make, options in cases
        for strategy in ("ddp", "fsdp")
    ]


UNUSUAL_ROWS: tuple[Row, ...] = (
    Row(name="fsdp-cancel", group="phases that cancel", make=functools.partial(_cancel, strategy="fsdp")),
    Row(name="ddp-cancel", group="phases that cancel", make=functools.partial(_cancel, strategy="ddp"), hidden=True),
    *_rows(
        "rare events", ("every", _every, {}), ("alternate", _alternate, {}), ("triple", _triple, {}), ("few", _few, {})
    ),
    *_rows(
        "rare events among smaller ones",
        *(
            (f"stalls-{num_ranks}{'' if who == 'one' else f'-{who}'}", _stall, {"num_ranks": num_ranks, "who": who})
            for num_ranks in (2, 4, 8) for who in ("one", "anybody", "nobody")
        ),
    ),
    *_rows(
        "a change half-way", ("changes", _change, {"ends": "changes"}), ("begins", _change, {"ends": "begins"}),
        ("ends", _change, {"ends": "ends"}), ("begins-2", _begin_in_two, {}),
    ),
    Row(name="ddp-hidden", group="hidden by overlap", make=functools.partial(_hide, strategy="ddp"), hidden=True),
    *_rows("unequal data", ("data", _draw_data, {"beside": False}), ("data-and-rank", _draw_data, {"beside": True})),
    *_rows(
        "time between steps", ("loop-nobody", _draw_between, {"parts": ()}),
        ("loop-in-step", _draw_between, {"parts": IN_STEP}), ("loop-between", _draw_between, {"parts": tuple(Stretch)}),
        ("save-alone", _save_alone, {}),
    ),
    Row(name="local-sgd", group="local SGD", make=functools.partial(_average_seldom, late=True)),
    Row(name="local-sgd-nobody", group="local SGD", make=functools.partial(_average_seldom, late=False)),
)  # fmt: skip
