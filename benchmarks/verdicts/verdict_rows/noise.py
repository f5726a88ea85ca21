"""Own times that drift, part by part or of whole ranks, or have heavy tails."""

from __future__ import annotations

import functools
from typing import Any

from benchmarks.simulate import SimulatedJob
from benchmarks.verdicts.verdict_rows.row import Draws, Row, add, draw_delay, draw_size, find_step, make_plain

NOISES: dict[str, dict[str, Any]] = {
    "ar-0.2": {"autocorrelation": 0.2},
    "ar-0.5": {"autocorrelation": 0.5},
    "ar-0.9": {"autocorrelation": 0.9},
    "ar-0.9-5pct": {"autocorrelation": 0.9, "jitter_ratio": 0.05, "tail_share_ratio": 0.0},
    "speed-0.8": {"speed_ratio": 0.05, "speed_autocorrelation": 0.8},
    "speed-0.95": {"speed_ratio": 0.05, "speed_autocorrelation": 0.95},
    "lognormal-0.3": {"jitter_ratio": 0.3, "tail_share_ratio": 0.0},
    "pareto-1.5": {"pareto_ratio": 0.02, "tail_share_ratio": 0.0},
}


def _draw(draws: Draws, num_steps: int, *, strategy: str, noise: str, slow: bool) -> SimulatedJob:
    job = make_plain(strategy, **NOISES[noise])
    if not slow:
        return job
    largest = 0.5 if noise == "lognormal-0.3" else 0.25  # the others' jitter hides most of a delay
    size_ns = draw_size(draws, largest / 5, largest) * find_step(job)
    return add(job, draw_delay(draws, job, delay_ns=size_ns))


NOISE_ROWS: tuple[Row, ...] = tuple(
    Row(
        name=f"{strategy}-{noise}{'' if slow else '-nobody'}", group="drift and heavy tails",
        make=functools.partial(_draw, strategy=strategy, noise=noise, slow=slow),
    )
    for noise in NOISES for strategy in ("ddp", "fsdp") for slow in (True, False)
)  # fmt: skip
