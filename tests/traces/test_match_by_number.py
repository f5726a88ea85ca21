"""Collectives of traces are matched by their number within the group, and by order only without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.facts.run import Run
from distprof.render.html.html import render_html
from distprof.traces.assemble import assemble_run
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import trace_rank
from tests.kineto_file import make_kernel, make_launch, make_step, write_kineto

STEPS, EACH = 5, 2
STEP_US, APART_US, LONG_US = 1000, 400, 50
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
Change = Callable[[int, int, dict[str, Any]], dict[str, Any] | None]
"""From the rank, a collective's place and its arguments to those that are written; None: the trace lacks it."""


def begin_us(rank: int, place: int) -> int:
    """When a rank arrives at a collective: rank 1 is later by 7 us, and more at each one."""
    return 1100 + place // EACH * STEP_US + place % EACH * APART_US + rank * (7 + place)


def write_rank(path: Path, rank: int, change: Change, *, early: int = 0) -> Path:
    """Steps of two all-reduces of 64 floats; a rank's steps begin ``early`` collectives after those of others."""
    events = [make_step(step, 1000 + step * STEP_US + early * APART_US, STEP_US) for step in range(STEPS)]
    for place in range(STEPS * EACH + early):
        at, group = begin_us(rank, place), {"Process Group Name": "0", "Group size": 2}
        message = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 64, "Out msg nelems": 64}
        arguments = {**group, **message, "Seq": 100 + place}
        if (written := change(rank, place, arguments)) is not None:
            end = begin_us(1, place) + LONG_US
            kernel = make_kernel(NCCL, at, end - at, place + 1, stream=20)
            kernel["args"] |= written
            events += [make_launch(at - 5, 2, place + 1), kernel]
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    return write_kineto(path / f"{rank}.json", events, distributedInfo=info, distprof={"host": "a"})


def read_run(paths: Sequence[Path]) -> Run:
    return assemble_run([trace_rank(read_kineto(path), NameMap()) for path in paths])


def keep(rank: int, place: int, arguments: dict[str, Any]) -> dict[str, Any] | None:
    return arguments


def find_lateness_us(run: Run) -> list[int]:
    """By how much rank 1 arrived later, collective by collective."""
    found = []
    for table in run.collectives:
        late_ns = table.arrival_ns[1] - table.arrival_ns[0]
        found += np.rint(late_ns / 1000).astype(int).reshape(-1).tolist()
    return sorted(found)


def test_ranks_whose_steps_begin_elsewhere_are_matched_by_number(tmp_path: Path) -> None:
    run = read_run([write_rank(tmp_path, 0, keep), write_rank(tmp_path, 1, keep, early=1)])
    assert all(table.by_number for table in run.collectives)
    assert find_lateness_us(run) == [7 + place for place in range(1, STEPS * EACH)]  # rank 1 has no step with the first


def test_without_numbers_the_order_counts(tmp_path: Path) -> None:
    def strip(rank: int, place: int, arguments: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in arguments.items() if key != "Seq"}

    run = read_run([write_rank(tmp_path, rank, strip) for rank in range(2)])
    assert find_lateness_us(run) == [7 + place for place in range(STEPS * EACH)]
    assert not any(table.by_number for table in run.collectives)
    sources = analyze(run).coverage.sources
    assert any(line.endswith("by their order in the step, as the traces do not number them") for line in sources)


def test_a_collective_that_one_trace_lacks_parts_no_other(tmp_path: Path) -> None:
    def lose(rank: int, place: int, arguments: dict[str, Any]) -> dict[str, Any] | None:
        return None if (rank, place) == (1, 4) else arguments

    run = read_run([write_rank(tmp_path, rank, lose) for rank in range(2)])
    assert find_lateness_us(run) == [7 + place for place in range(STEPS * EACH) if place != 4]
    assert any("group 0: 1 collectives are not in every rank's trace" in warning for warning in run.warnings)


def test_the_report_says_how_they_were_matched(tmp_path: Path) -> None:
    report = analyze(read_run([write_rank(tmp_path, rank, keep) for rank in range(2)]))
    (line,) = [line for line in report.coverage.sources if line.startswith("waits and transfers")]
    assert line.endswith("matched between ranks by their number within the group (Seq)")
    assert "by their number within the group (Seq)" in render_html(report)


@pytest.mark.parametrize("how", ["size", "process"])
def test_numbers_that_contradict_each_other_are_not_used(tmp_path: Path, how: str) -> None:
    def change(rank: int, place: int, arguments: dict[str, Any]) -> dict[str, Any]:
        if how == "process":  # a count of the whole process, which differs between ranks
            return arguments | {"Seq": 1000 * rank + place}
        return arguments | {"In msg nelems": 64 + place, "Out msg nelems": 64 + place, "Seq": 100 + place + rank}

    run = read_run([write_rank(tmp_path, rank, change) for rank in range(2)])
    assert not any(table.by_number for table in run.collectives)
    assert any("group 0: the numbers of collectives contradict each other" in text for text in run.warnings)
    assert find_lateness_us(run) == [7 + place for place in range(STEPS * EACH)]


def test_sends_are_counted_by_each_rank_for_itself_and_have_no_number(tmp_path: Path) -> None:
    def send(rank: int, place: int, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments | {"Collective name": "send" if rank else "recv", "Seq": 50 * rank + place}

    run = read_run([write_rank(tmp_path, rank, send) for rank in range(2)])
    assert not any(table.by_number for table in run.collectives) and not any("contradict" in w for w in run.warnings)
