"""What differs between two sides of one run or several each?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distprof import __version__
from distprof.analyze.compare.compare_times import (
    ASSUMED_RATIO,
    MIN_SHARE_RATIO,
    compare_time,
    judge_limit,
    measure_run_variance,
)
from distprof.analyze.compare.measure_figures import OWN_TIME
from distprof.analyze.compare.waterfall import make_waterfall
from distprof.report.comparison_report import (
    SCHEMA,
    Change,
    ComparedTime,
    ComparisonReport,
    Figure,
    RunFigures,
    Side,
)

DEFAULT_LIMIT_RATIO = 0.03
Key = tuple[object, ...]


def compare_sides(
    base: Sequence[RunFigures], new: Sequence[RunFigures], *, limit_ratio: float = DEFAULT_LIMIT_RATIO
) -> ComparisonReport:
    """Compares two sides, one run or more each, all with a measured step on the same clock.

    Raises:
        ValueError: A side has no run, steps are timed on different clocks, or sweeps have different jobs.
    """
    if not base or not new:
        raise ValueError("a side needs a run")
    if len({run.step.clock for run in (*base, *new)}) > 1:
        raise ValueError("steps that were timed on different clocks cannot be compared")
    if len({frozenset(item.name for item in run.figures if item.scope == "job") for run in (*base, *new)}) > 1:
        raise ValueError("a sweep can only be compared with one of the same jobs")
    step_ns = sum(run.step.mean.value_ns for run in base) / len(base)
    step = compare_time(
        [run.step for run in base], [run.step for run in new], num_rows=1, limit_ratio=limit_ratio, step_ns=step_ns
    )
    between = measure_run_variance([run.step.mean for run in base], [run.step.mean for run in new])
    rows, notes = _compare_rows(base, new, limit_ratio, step_ns)
    runs = (*base, *new)
    return ComparisonReport(
        schema=SCHEMA, distprof_version=__version__, base=_describe_side(base), new=_describe_side(new), step=step,
        limit_ratio=limit_ratio, limit=judge_limit(step, limit_ratio),
        runs_vary_ratio=None if between is None else math.sqrt(between.relative),
        runs_assumed_ratio=ASSUMED_RATIO if between is not None and between.is_assumed else None,
        rows=tuple(rows), waterfall=tuple(make_waterfall(base, new)), changes=tuple(_list_changes(base, new)),
        complete=all(run.complete for run in runs),
        notes=(*dict.fromkeys(note for run in runs for note in run.notes), *notes),
    )  # fmt: skip


def _compare_rows(
    base: Sequence[RunFigures], new: Sequence[RunFigures], limit_ratio: float, step_ns: float
) -> tuple[list[ComparedTime], list[str]]:
    """The times that all runs have, and what some do not have."""
    by_place = _are_placed_alike([*base, *new])
    tables = [{_key(figure, by_place): figure for figure in run.figures} for run in (*base, *new)]
    common = [
        key for key in tables[0] if key[0] not in ("step", "part") and all(key in table for table in tables[1:])
    ]  # fmt: skip
    judged = [key for key in common if any(table[key].mean.value_ns >= MIN_SHARE_RATIO * step_ns for table in tables)]
    counts = {scope: sum(key[0] == scope for key in judged) for scope in {key[0] for key in common}}
    rows = [
        compare_time(
            [table[key] for table in tables[: len(base)]], [table[key] for table in tables[len(base) :]],
            num_rows=counts[key[0]], limit_ratio=limit_ratio, step_ns=step_ns,
        )
        for key in common
    ]  # fmt: skip
    return rows, list(_note_missing(tables, common))


def _note_missing(tables: Sequence[dict[Key, Figure]], common: Sequence[Key]) -> Iterator[str]:
    """A note per scope of which only some runs have all rows that are long enough to matter."""
    known = set(common)
    missing: dict[str, set[Key]] = {}
    for table in tables:
        least_ns = MIN_SHARE_RATIO * next(iter(table.values())).mean.value_ns
        for key, figure in table.items():
            if key not in known and figure.scope not in ("step", "part") and figure.mean.value_ns >= least_ns:
                missing.setdefault(figure.scope, set()).add(key)
    for scope, keys in missing.items():
        yield f"{len(keys):,} of the {scope} times are of some runs only, and are not compared"


def _are_placed_alike(runs: Sequence[RunFigures]) -> bool:
    """Whether ranks are matched by their coordinates: they have the same in all runs, each rank its own."""
    placed = []
    for run in runs:
        places = [figure.place for figure in run.figures if figure.scope == "rank" and figure.name == OWN_TIME]
        if not places or None in places or len(set(places)) < len(places):
            return False
        placed.append(set(places))
    return all(each == placed[0] for each in placed)


def _key(figure: Figure, by_place: bool) -> Key:
    return figure.scope, figure.name, figure.place if by_place else figure.rank, figure.clock


def _describe_side(runs: Sequence[RunFigures]) -> Side:
    return Side(
        names=tuple(run.name for run in runs), started_utc=tuple(run.started_utc for run in runs),
        steps=tuple(run.step.steps for run in runs), step_mean_ns=tuple(run.step.mean.value_ns for run in runs),
    )  # fmt: skip


def _list_changes(base: Sequence[RunFigures], new: Sequence[RunFigures]) -> Iterator[Change]:
    groups = dict.fromkeys(group for run in (*base, *new) for group in run.environment)
    for group in groups:
        keys = dict.fromkeys(key for run in (*base, *new) for key in run.environment.get(group, {}))
        for key in keys:
            old, now = (_read_values(side, group, key) for side in (base, new))
            if old != now:
                yield Change(group=group, key=key, old=old, new=now)


def _read_values(runs: Sequence[RunFigures], group: str, key: str) -> str | None:
    """The value, or those of the side's runs in order. None: no run has it."""
    values = [run.environment.get(group, {}).get(key) for run in runs]
    known = dict.fromkeys(value for value in values if value is not None)
    return ", ".join(known) if known else None
