"""Draws everything random about a simulated job once, so that it can be played with and without each of its faults."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
from msgspec import Struct

from benchmarks.simulate.job import Delay, SimulatedJob
from benchmarks.simulate.program import PART_CODE, PARTS, Compute, Program, find_groups, has_between, list_issues
from distprof.facts.arrays import FloatArray
from distprof.facts.run import PHASES, Phase, Stretch

PARETO_SHAPE = 1.5
WORKING_ON_TOKENS = (Phase.FORWARD, Phase.BACKWARD)


class Fault(Struct, frozen=True, kw_only=True):
    """Something with a name that may make the steps longer."""

    delay: int | None = None
    """Index in ``SimulatedJob.delays``."""
    slow_host: int | None = None
    """A host behind a slow link."""
    data: bool = False
    """Ranks have unequal numbers of tokens."""


class Load(Struct, frozen=True, kw_only=True):
    """What the ranks and links of a job have to do if some of its faults act."""

    own_ns: FloatArray
    """Own time by part, ``[num_ranks, num_steps, num_parts]``: `PARTS`, or only `PHASES`."""
    piece_ns: Mapping[tuple[int, int], FloatArray]
    """More own time in one piece of a part, ``[num_ranks, num_steps]`` each; missing pieces have none."""
    transfer_ns: FloatArray
    """By collective of the program, by the simple rules, ``[num_ranks, num_steps, num_issues]``."""
    link_transfer_ns: FloatArray
    """On healthy links that nothing else uses, ``[num_steps, num_issues]``; from here on for the shared rules."""
    link_factors: Mapping[int, float]
    """By host, how much slower its link is ..."""
    slow_from_step: int
    """... from this step on."""
    wake_ns: FloatArray
    """How long it takes a rank to notice that a collective is over, ``[num_ranks, num_steps, num_issues]``."""

    def find_factors(self, step: int) -> Mapping[int, float]:
        """The slow hosts of a step."""
        return self.link_factors if step >= self.slow_from_step else {}

    def find_time(self, op: Compute, step: int | slice) -> FloatArray:
        """How long the ranks work on this, ``[num_ranks]`` or ``[num_ranks, num_steps]``."""
        code = PART_CODE[op.phase]
        time_ns: FloatArray = self.own_ns[:, step, code] * op.share_ratio
        more = self.piece_ns.get((code, op.piece))
        return time_ns if more is None else time_ns + more[:, step]


class Drawn(Struct, frozen=True, kw_only=True):
    """A job's random numbers."""

    own_ns: FloatArray
    """With jitter and tails, without delays, and with the mean number of tokens."""
    struck: tuple[FloatArray, ...]
    """For each delay, 1 in the steps and ranks that it strikes and else 0, ``[num_ranks, num_steps]``."""
    tokens: FloatArray
    """``[num_ranks, num_steps]``"""
    transfer_ns: FloatArray
    """On healthy links, ``[num_steps, num_issues]``."""
    wake_ns: FloatArray
    """``[num_ranks, num_steps, num_issues]``; empty by the simple rules."""


def list_faults(job: SimulatedJob) -> tuple[Fault, ...]:
    """The faults with a name: a delay of a random rank has none, nor has a rank that is faster."""
    delays = [Fault(delay=index) for index, delay in enumerate(job.delays) if is_fault(delay)]
    links = [Fault(slow_host=host) for host, factor in job.slow_hosts.items() if factor > 1 and job.num_hosts > 1]
    return (*delays, *links, *((Fault(data=True),) if job.token_spread_ratio else ()))


def is_fault(delay: Delay) -> bool:
    """Whether it makes somebody who has a name slower."""
    return (delay.rank is not None or delay.host is not None) and delay.delay_ns >= 0 and delay.factor >= 1


def draw(job: SimulatedJob, program: Program, draws: np.random.Generator, more: np.random.Generator) -> Drawn:
    """Draws; ``more`` serves what a plain job does not have, whose own numbers so stay the same."""
    own_ns = _draw_own(job, draws, more)
    struck = tuple(_draw_struck(job, delay, draws, more) for delay in job.delays)
    means = np.array([op.transfer_ns for op in list_issues(program)])
    return Drawn(
        own_ns=own_ns, struck=struck, tokens=_draw_tokens(job, more),
        transfer_ns=means * draws.lognormal(0, job.jitter_ratio, (job.num_steps, len(means))),
        wake_ns=more.exponential(job.latency_ns, (job.num_ranks, job.num_steps, len(means)))
        if job.rules == "shared" else np.zeros(0),
    )  # fmt: skip


def assemble(job: SimulatedJob, program: Program, drawn: Drawn, present: Collection[Fault]) -> Load:
    """The work if only some of the faults act."""
    own_ns = drawn.own_ns.copy()
    if job.token_spread_ratio:
        tokens = drawn.tokens if Fault(data=True) in present else drawn.tokens.mean(axis=0)
        for phase in WORKING_ON_TOKENS:
            own_ns[:, :, PART_CODE[phase]] *= tokens / job.tokens
    piece_ns: dict[tuple[int, int], FloatArray] = {}
    whole_ns = own_ns.copy() if any(delay.factor != 1 for delay in job.delays) else own_ns
    for index, delay in enumerate(job.delays):
        if not _acts(job, index, present):
            continue
        code = PART_CODE[delay.phase]
        late_ns = drawn.struck[index] * (delay.delay_ns + (delay.factor - 1) * whole_ns[:, :, code])
        if delay.piece is None:
            own_ns[:, :, code] = np.maximum(own_ns[:, :, code] + late_ns, 0)
        else:
            piece_ns[code, delay.piece] = piece_ns.get((code, delay.piece), 0.0) + late_ns
    factors = {host: factor for host, factor in job.slow_hosts.items() if Fault(slow_host=host) in present}
    return Load(
        own_ns=own_ns, piece_ns=piece_ns, transfer_ns=_slow_links(job, program, drawn, factors),
        link_transfer_ns=drawn.transfer_ns, link_factors=factors, slow_from_step=job.slow_from_step,
        wake_ns=drawn.wake_ns,
    )  # fmt: skip


def _acts(job: SimulatedJob, index: int, present: Collection[Fault]) -> bool:
    """A rank that is faster somewhere is so as long as it is slower elsewhere: the two make one fault."""
    delay = job.delays[index]
    if is_fault(delay):
        return Fault(delay=index) in present
    own = [Fault(delay=other) for other, item in enumerate(job.delays) if item.rank == delay.rank and is_fault(item)]
    return not own or any(fault in present for fault in own)


def _draw_own(job: SimulatedJob, draws: np.random.Generator, more: np.random.Generator) -> FloatArray:
    shape = (job.num_ranks, job.num_steps, len(PHASES))
    if job.autocorrelation:
        factors = np.exp(_draw_drift(shape, job.jitter_ratio, job.autocorrelation, draws))
    else:
        factors = draws.lognormal(0, job.jitter_ratio, shape)
    if has_between(job):
        between = _draw_drift((*shape[:2], len(Stretch)), job.jitter_ratio, job.autocorrelation, more)
        factors = np.concatenate([factors, np.exp(between)], axis=2)
    if job.speed_ratio:
        factors *= np.exp(_draw_drift((*shape[:2], 1), job.speed_ratio, job.speed_autocorrelation, more))
    if job.pareto_ratio:
        factors *= 1 + job.pareto_ratio * more.pareto(PARETO_SHAPE, factors.shape)
    factors *= np.where(draws.random(shape[:2]) < job.tail_share_ratio, job.tail_factor, 1.0)[:, :, None]
    factors *= [job.phase_ns.get(phase, 0.0) for phase in PHASES] + [1.0] * (factors.shape[2] - len(PHASES))
    for part in PARTS[len(PHASES) : factors.shape[2]]:
        factors[:, :, PART_CODE[part]] *= _time_stretch(job, Stretch(part))
    if job.noise_share_ratio:
        factors[:, :, : len(PHASES)] += _draw_noise(job, more)
    return factors


def _draw_noise(job: SimulatedJob, more: np.random.Generator) -> FloatArray:
    """What events of no rank in particular add, ns, ``[num_ranks, num_steps, len(PHASES)]``: at most one in a step."""
    usual_ns = np.array([job.phase_ns.get(phase, 0.0) for phase in PHASES])
    shape = (job.num_ranks, job.num_steps)
    struck = more.choice(len(PHASES), size=shape, p=usual_ns / usual_ns.sum())[:, :, None] == np.arange(len(PHASES))
    long_ns = job.noise_ns * (1 + more.pareto(job.noise_shape, shape)) * (more.random(shape) < job.noise_share_ratio)
    found: FloatArray = struck * long_ns[:, :, None]
    return found


def _draw_drift(
    shape: tuple[int, int, int], sigma: float, autocorrelation: float, draws: np.random.Generator
) -> FloatArray:
    """Stationary AR(1) from step to step, ``[num_ranks, num_steps, num_parts]``, with this standard deviation."""
    noise: FloatArray = draws.normal(0, sigma, shape)
    fresh_ratio = float(np.sqrt(1 - autocorrelation**2))
    for step in range(1, shape[1]):
        noise[:, step] = autocorrelation * noise[:, step - 1] + fresh_ratio * noise[:, step]
    return noise


def _time_stretch(job: SimulatedJob, stretch: Stretch) -> FloatArray:
    """Mean own time of a stretch before each step, ``[num_steps]``."""
    steps, time_ns = np.arange(job.num_steps), np.zeros(job.num_steps)
    for item in job.between:
        if item.stretch is stretch:
            time_ns[(steps > 0) & (steps % item.every == 0)] += item.own_ns
    return time_ns


def _draw_struck(job: SimulatedJob, delay: Delay, draws: np.random.Generator, more: np.random.Generator) -> FloatArray:
    steps = np.arange(job.num_steps)
    last = job.num_steps - 1 if delay.last_step is None else delay.last_step
    hit = (steps >= delay.first_step) & (steps <= last) & (draws.random(job.num_steps) < delay.share_ratio)
    hit &= (steps - delay.first_step) % delay.every == 0
    if delay.phase in tuple(Stretch):
        hit[:1] = False
    if delay.count is not None:
        chosen = more.permutation(np.flatnonzero(hit))[: delay.count]
        hit = np.isin(steps, chosen)
    ranks = draws.integers(job.num_ranks, size=job.num_steps)
    struck = np.zeros((job.num_ranks, job.num_steps))
    if delay.host is not None:
        struck[np.arange(job.num_ranks) // job.ranks_per_host == delay.host] = hit
    else:
        struck[ranks if delay.rank is None else delay.rank, steps] = hit
    return struck


def _draw_tokens(job: SimulatedJob, more: np.random.Generator) -> FloatArray:
    shape = (job.num_ranks, job.num_steps)
    if not job.token_spread_ratio:
        return np.broadcast_to(float(job.tokens), shape)
    return np.maximum(np.round(job.tokens * more.lognormal(0, job.token_spread_ratio, shape)), 1)


def _slow_links(job: SimulatedJob, program: Program, drawn: Drawn, factors: Mapping[int, float]) -> FloatArray:
    """Transfer time of each collective for each rank: slower where a group crosses a slow link."""
    transfer_ns = np.broadcast_to(drawn.transfer_ns, (job.num_ranks, *drawn.transfer_ns.shape)).copy()
    hosts = np.arange(job.num_ranks) // job.ranks_per_host
    for index, op in enumerate(list_issues(program)):
        for members in _list_members(job, op.partition) if factors else ():
            touched = set(hosts[members].tolist())
            slow = max((factors.get(host, 1.0) for host in touched), default=1.0) if len(touched) > 1 else 1.0
            transfer_ns[members, job.slow_from_step :, index] *= job.scale_transfer(slow)
    return transfer_ns


def _list_members(job: SimulatedJob, partition: str) -> Iterator[np.ndarray]:
    groups = find_groups(job, partition)
    for group in range(int(groups.max()) + 1):
        yield np.flatnonzero(groups == group)
