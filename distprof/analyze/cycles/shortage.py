"""Do the data suffice to say who holds whom up, and what a change would save?"""

from __future__ import annotations

from distprof.analyze.cycles.sync_cycles import MIN_CYCLES, SyncCycles
from distprof.analyze.stats.measured_steps import MeasuredSteps

MIN_PRESENT_RATIO = 0.5
"""Share of the ranks."""
APART_FACTOR = 2.0
"""Ranks that synchronise at every step take about as long for it; if one takes this many times longer, they do not."""


def find_shortage(measured_steps: MeasuredSteps, cycles: SyncCycles | None) -> str | None:
    """Why nothing can be said about who holds whom up and what a change would save; None: the data suffice."""
    present, world = int(measured_steps.present.sum()), measured_steps.run.meta.world_size
    if world == 1:
        return "one rank: nobody to wait for"
    if not present:
        return "no rank recorded a measured step"
    if present < max(2, MIN_PRESENT_RATIO * world):
        return f"{present} of {world} ranks are present: too few to compare"
    infos = [info for info, here in zip(measured_steps.run.ranks, measured_steps.present, strict=True) if here]
    if any(info.point_to_point for info in infos):
        return (
            "ranks send to each other point to point, as the stages of a pipeline do: waits for that are not recorded, "
            "and look like work"
        )
    if cycles is None:
        return (
            "no waits were measured: they need profile=phases, a strategy that synchronises, and no communication hook "
            "that distprof cannot see into"
        )
    if len(cycles.steps) < MIN_CYCLES:
        counted = f"{len(cycles.steps)} measured step{'' if len(cycles.steps) == 1 else 's'}"
        return f"{counted}: at least {MIN_CYCLES} are needed to tell a slow rank from chance"
    long_ns = (cycles.gap_ns.sum(axis=2) + cycles.exposed_ns.sum(axis=2)).mean(axis=1)
    if long_ns.max() > APART_FACTOR * long_ns.min():
        longest = measured_steps.numbers[int(cycles.positions[int(long_ns.argmax())])]
        return f"the ranks do not go through their steps together: rank {longest} takes far longer than others"
    return None
