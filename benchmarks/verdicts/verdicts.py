"""How often is the verdict right? Counts over many simulated jobs of each kind."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import numpy as np
from msgspec import Struct

from benchmarks.verdicts.pipeline_outcome import judge_pipeline
from benchmarks.verdicts.verdict_outcome import Outcome, judge, play
from benchmarks.verdicts.verdict_rows import ALL_ROWS, AnyRow, PipelineRow

BATCH = 5
"""Jobs that a process plays at a time."""


class Score(Struct, frozen=True, kw_only=True):
    """The outcomes of a row's jobs."""

    row: AnyRow
    outcomes: tuple[Outcome, ...]

    def of_steps(self, num_steps: int) -> Score:
        """Only the jobs of this length."""
        return Score(row=self.row, outcomes=tuple(item for item in self.outcomes if item.num_steps == num_steps))

    @property
    def false_ratio(self) -> float | None:
        """Share of the jobs in which something is named that is no cause."""
        return _mean([item.false for item in self.outcomes])

    @property
    def right_ratio(self) -> float | None:
        """Share of the jobs whose largest cause costs 2 % of the step or more in which the verdict names it."""
        return _mean([item.right for item in self.outcomes if item.large])

    @property
    def listed_ratio(self) -> float | None:
        """Share of those in which all causes that cost 2 % or more are listed."""
        return _mean([item.listed for item in self.outcomes if item.large])

    @property
    def holds_ratio(self) -> float | None:
        """Share of the jobs whose largest cause is listed in which the interval of its cost holds the true one."""
        return _mean([item.holds for item in self.outcomes if item.holds is not None])

    def find_error(self, rules: str) -> float | None:
        """Median error of the cost of the largest cause, where it is listed, of the jobs played by these rules."""
        errors = [item.error_ratio for item in self.outcomes if item.error_ratio is not None and item.rules == rules]
        return float(np.median(errors)) if errors else None


def score_row(row: AnyRow, seeds: Iterable[int], *, num_steps: int) -> Score:
    """Plays and judges the jobs of some seeds, one after the other."""
    return Score(row=row, outcomes=tuple(_judge_row(row, seed, num_steps) for seed in seeds))


def _judge_row(row: AnyRow, seed: int, num_steps: int) -> Outcome:
    if isinstance(row, PipelineRow):
        return judge_pipeline(row, seed, num_steps)[0]
    return judge(row, seed, *play(row, seed, num_steps))


def score_rows(
    rows: Sequence[AnyRow], *, runs: int, steps: Sequence[int], processes: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Score]:  # fmt: skip
    """Plays and judges all jobs.

    Args:
        rows: Those to play.
        runs: Jobs per row and length; rows of large jobs have fewer.
        steps: The lengths.
        processes: 1: this one.
        on_progress: Called now and then with the numbers of batches done and in all.
    """
    batches = [
        (row.name, min(BATCH, count - first), num_steps, first)
        for row in rows for num_steps in steps
        for count in [max(2, round(row.share_ratio * runs)) if runs > 1 else 1]
        for first in range(0, count, BATCH)
    ]  # fmt: skip
    found: dict[str, list[Outcome]] = {row.name: [] for row in rows}
    for done, (name, outcomes) in enumerate(_play_batches(batches, processes)):
        found[name] += outcomes
        on_progress(done + 1, len(batches))
    return [Score(row=row, outcomes=tuple(found[row.name])) for row in rows]


_Batch = tuple[str, int, int, int]


def _play_batches(batches: list[_Batch], processes: int) -> Iterator[tuple[str, tuple[Outcome, ...]]]:
    if processes == 1:
        yield from map(_play_batch, batches)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_play_batch, batch) for batch in batches]):
            yield done.result()


def _play_batch(batch: _Batch) -> tuple[str, tuple[Outcome, ...]]:
    name, runs, num_steps, first = batch
    return name, score_row(ALL_ROWS[name], range(first, first + runs), num_steps=num_steps).outcomes


def _mean(values: list[bool]) -> float | None:
    return float(np.mean(values)) if values else None
