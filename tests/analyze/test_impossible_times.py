"""Times that cannot be: left out and counted where they are read, and no negative number of what is left."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.arrays import FloatArray
from distprof.facts.plain import make_plain
from distprof.facts.run import COLUMN, ROW_FIELDS, CollectiveKind, Collectives, Phase, Run
from distprof.storage.rank_stream import StreamWriter, read_stream
from distprof.storage.record_lines import FIELDS
from tests.factories import make_info, make_run

KEPT = {"step", "warmup", "failed", "shadow", "window", "loss", "grad_norm", "segments_lost", "begin_host_ns"}
SIGNED = re.compile(r"overhead\.|what_if\.saved_ratio|clocks\.(offset|drift)|excess_ns|step_times_ns")
"""What may be below 0: differences of two measurements, and a change that makes steps longer."""


def list_negative(value: object, name: str = "") -> Iterator[str]:
    """The names of all numbers below 0 in a report."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from list_negative(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from list_negative(item, name)
    elif isinstance(value, (int, float)) and value < 0:
        yield name.removeprefix(".")


def draw_times(draws: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Some zero, some unknown, some huge, the rest anything from microseconds to seconds."""
    kind = draws.random(shape)
    times = np.round(draws.lognormal(16, 2, shape))
    return np.select([kind < 0.2, kind < 0.25, kind < 0.3], [0.0, np.nan, 2.0**62], times)


def draw_run(seed: int) -> Run:
    """Rows that contradict themselves, begin at any time, and collectives that end before others have begun."""
    draws = np.random.default_rng(seed)
    ranks, steps, count = (int(draws.integers(low, high)) for low, high in ((1, 5), (1, 40), (1, 4)))
    columns = {name: draw_times(draws, (ranks, steps)) for name in ROW_FIELDS if name not in KEPT}
    columns["step_host_ns"] = np.nan_to_num(columns["step_host_ns"]) + 1
    columns["begin_host_ns"] = 10**12 + draws.integers(0, 10**9, (ranks, steps)).astype(float)
    columns["shadow"] = (np.arange(steps) % 4 == 2).astype(float)
    run = make_run(num_ranks=ranks, num_steps=steps, num_warmup=0, columns=columns)
    arrival_ns = 10**12 + draws.integers(0, 10**9, (ranks, steps, count)).astype(float)
    table = Collectives(
        group="default", ranks=np.arange(ranks), size=ranks, kinds=(CollectiveKind.ALL_REDUCE,) * count,
        phases=(Phase.BACKWARD,) * count, sizes_bytes=(8,) * count, steps=np.arange(steps), arrival_ns=arrival_ns,
        end_ns=arrival_ns + draw_times(draws, arrival_ns.shape), exposed_ns=draw_times(draws, arrival_ns.shape),
    )  # fmt: skip
    return structs.replace(run, collectives=(table,) if draws.random() < 0.7 else ())


def test_fault_15_times_that_contradict_each_other_make_no_negative_number() -> None:
    for seed in range(60):
        report = json.loads(json.dumps(make_plain(analyze(draw_run(seed))), allow_nan=False))
        found = {name for name in list_negative(report) if not SIGNED.search(name)}
        assert not found, (seed, found)


@pytest.mark.parametrize("wrong", [-1, 2**63, float("nan"), float("inf"), "1", True, []])
@pytest.mark.parametrize("name", ["step_host_ns", "forward_host_ns", "all_reduce_exposed_host_ns"])
def test_fault_15_rows_of_impossible_times_are_left_out_and_counted(tmp_path: Path, name: str, wrong: object) -> None:
    path = tmp_path / "rank-00000.jsonl"
    writer = StreamWriter(path, run_id="r", world_size=1, info=make_info(0))
    rows = make_run(num_ranks=1, num_steps=3).rows[0]
    writer.write_steps(list(rows), [None] * 3)
    writer.close()
    values: list[object] = [None if np.isnan(rows[2, COLUMN[field]]) else rows[2, COLUMN[field]] for field in FIELDS]
    values[list(FIELDS).index("step")] = 3
    values[list(FIELDS).index(name)] = wrong
    body = json.dumps({"type": "step", "row": values}, separators=(",", ":")).encode()[:-1]
    path.write_bytes(path.read_bytes() + body + b',"crc":"%08x"}\n' % zlib.crc32(body))
    stream = read_stream(path)
    assert len(stream.rows) == 3
    assert len(stream.warnings) == 1 and "1 damaged records left out" in stream.warnings[0]
