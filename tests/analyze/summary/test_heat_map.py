"""The heat map of ranks tells a machine, a stage and the data apart, by its cells alone."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.summary.page import measure_page
from distprof.facts.arrays import FloatArray
from distprof.facts.mesh import RankGroup
from distprof.facts.run import Phase
from tests.factories import MS

JOBS = 10
"""Of each kind."""
ALONE_FACTOR = 2.0


def look_at(cells: FloatArray) -> str:
    """What a person sees. One cell twice as hot as any other: a machine. A row, all of whose cells are twice as hot as
    any in the other rows: a stage. Heat all over: data."""
    ordered = np.sort(cells.reshape(-1))
    if ordered[-1] >= ALONE_FACTOR * ordered[-2]:
        return "machine"
    hottest = int(cells.min(axis=1).argmax())
    if cells[hottest].min() >= ALONE_FACTOR * np.delete(cells, hottest, axis=0).max():
        return "stage"
    return "data"


def draw_cells(kind: str, seed: int) -> FloatArray:
    """Rows are stages, columns replicas, of a job of 12 to 40 ranks that are slower by 5 to 20 % of a step of 100 ms,
    or whose samples differ in length."""
    draw = np.random.default_rng(seed)
    stages, replicas = int(draw.integers(3, 6)), int(draw.integers(4, 9))
    ranks = np.arange(stages * replicas).reshape(stages, replicas)
    phase = [Phase.FORWARD, Phase.BACKWARD][int(draw.integers(2))]
    slow = {"machine": [int(draw.choice(ranks.reshape(-1)))], "stage": ranks[int(draw.integers(stages))].tolist()}
    delay_ns = float(draw.uniform(5, 20)) * MS
    made = simulate(
        SimulatedJob(
            num_ranks=ranks.size, num_steps=30, num_warmup=2, num_buckets=2,
            delays=tuple(Delay(rank=rank, phase=phase, delay_ns=delay_ns) for rank in slow.get(kind, [])),
            token_spread_ratio=float(draw.uniform(0.05, 0.3)) if kind == "data" else 0.0,
        ),
        seed=seed, truth=False,
    )  # fmt: skip
    groups = [RankGroup(name="pp", ranks=tuple(column)) for column in ranks.T.tolist()]
    groups += [RankGroup(name="dp", ranks=tuple(row)) for row in ranks.tolist()]
    run = replace(made.run, meta=replace(made.run.meta, groups=tuple(groups)))
    page = measure_page(run, analyze(run))
    assert page is not None
    places = dict(page.places)
    cells = np.full(ranks.shape, np.nan)
    cells[np.array(places["pp"]), np.array(places["dp"])] = page.excess_ns
    return cells


@pytest.mark.parametrize("kind", ["machine", "stage", "data"])
def test_the_cause_is_seen_in_the_cells(kind: str) -> None:
    assert [look_at(draw_cells(kind, seed)) for seed in range(JOBS)] == [kind] * JOBS
