"""A named baseline: what a comparison keeps of some runs, in a small JSON file that a repository can hold.

The file may come from anybody: every figure is checked when it is read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from distprof import __version__
from distprof.config.decode import decode
from distprof.config.redact import redact, secret_values
from distprof.errors import DataError, UsageError
from distprof.facts.plain import make_plain
from distprof.report.comparison_report import Average, Figure, RunFigures
from distprof.storage.whole_file import read_object, write_whole

SCHEMA = "distprof.baseline/1.0"
FOLDER = Path("distprof-baselines")
MAX_BYTES = 50_000
"""Of a file that is written."""
MAX_READ_BYTES = 1_000_000
MAX_RUNS, MAX_FIGURES, MAX_KEYS, MAX_TEXT = 100, 10_000, 1_000, 1_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_LEFT_OUT: tuple[tuple[str, Callable[[Figure], bool]], ...] = (
    ("kernels", lambda figure: figure.scope == "kernel"),
    ("phases of ranks", lambda figure: figure.scope == "rank" and figure.name != "own time"),
    ("modules", lambda figure: figure.scope == "module"),
    ("ranks", lambda figure: figure.scope == "rank"),
    ("jobs", lambda figure: figure.scope == "job"),
)
"""What makes a file too large, the first one first."""


class Baseline(Struct, frozen=True, kw_only=True):
    """The runs of one side."""

    schema: str
    distprof_version: str
    runs: tuple[RunFigures, ...]


def locate_baseline(folder: Path, name: str) -> Path:
    """The file of a baseline.

    Raises:
        UsageError: It is no name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name[:100]!r}: not a name for a baseline: letters, digits, dots, dashes, 80 at most")
    return folder / f"{name}.json"


def write_baseline(path: Path, runs: Sequence[RunFigures]) -> None:
    """Writes it, without secrets, and without the largest lists if it would be larger than `MAX_BYTES`.

    Raises:
        DataError: It would be larger even so: there are too many runs.
        OSError: It cannot be written.
    """
    text = _format(runs)
    for what, belongs in _LEFT_OUT:
        if len(text.encode()) <= MAX_BYTES:
            break
        if any(belongs(figure) for run in runs for figure in run.figures):
            runs = [_leave_out(run, what, belongs) for run in runs]
            text = _format(runs)
    if len(text.encode()) > MAX_BYTES:
        raise DataError(f"{path}: {len(runs)} runs make a baseline of more than {MAX_BYTES:,} bytes: save fewer runs")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def _leave_out(run: RunFigures, what: str, belongs: Callable[[Figure], bool]) -> RunFigures:
    kept = tuple(figure for figure in run.figures if not belongs(figure))
    return structs.replace(run, figures=kept, notes=(*run.notes, f"the baseline leaves out {what}: too many"))


def _format(runs: Sequence[RunFigures]) -> str:
    """A figure to a line, so that a change of a file can be read."""
    secrets = secret_values()
    parts = []
    for run in runs:
        plain = make_plain(structs.replace(run, figures=()))
        plain["environment"] = redact(plain["environment"], secrets)
        lines = ",\n".join(_dump(make_plain(figure)) for figure in run.figures)
        parts.append(_dump(plain).replace('"figures":[]', f'"figures":[\n{lines}\n]', 1))
    head = f'{{"schema":{_dump(SCHEMA)},"distprof_version":{_dump(__version__)},"runs":[\n'
    return head + ",\n".join(parts) + "\n]}\n"


def _dump(value: object) -> str:
    return json.dumps(_round(value), separators=(",", ":"), allow_nan=False)


def _round(value: Any) -> Any:
    """Nine digits are more than any clock has."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {key: _round(item) for key, item in value.items()}
    return [_round(item) for item in value] if isinstance(value, list | tuple) else value


def read_baseline(path: Path) -> tuple[RunFigures, ...]:
    """Reads it.

    Raises:
        DataError: It is missing, damaged, or holds what cannot be.
    """
    missing = f"{path}: no such baseline: save one with --save-baseline {path.stem}"
    values = read_object(path, schema=SCHEMA, what="baseline", missing=missing, max_bytes=MAX_READ_BYTES)
    baseline = decode(Baseline, values, str(path), DataError)
    if not 1 <= len(baseline.runs) <= MAX_RUNS:
        raise DataError(f"{path}: {len(baseline.runs)} runs are impossible: save the baseline again")
    for index, run in enumerate(baseline.runs):
        wrong = next(_list_wrong(run), None)
        if wrong is not None:
            raise DataError(f"{path}: runs[{index}]: {wrong}: the baseline is damaged: save it again")
    return baseline.runs


def _list_wrong(run: RunFigures) -> Iterator[str]:
    """What in a run cannot be, in words."""
    steps = [figure for figure in run.figures if figure.scope == "step"]
    if not 1 <= len(run.figures) <= MAX_FIGURES or len(steps) != 1 or run.figures[0] is not steps[0]:
        yield "figures must begin with the step, and have one"
        return
    for place, figure in enumerate(run.figures):
        averages = [figure.mean, *([] if figure.usual is None else [figure.usual])]
        if figure.clock not in ("host", "device") or figure.steps < 1 or len(figure.name) > MAX_TEXT:
            yield f"figures[{place}]: clock, steps or name cannot be right"
        if not all(map(_is_possible, averages)):
            yield f"figures[{place}]: a number cannot be right"
    if not run.step.mean.value_ns > 0:
        yield "the step takes no time"
    for group, keys in run.environment.items():
        texts = [*keys, *keys.values()] if isinstance(keys, Mapping) else [None]
        if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts) or len(texts) > 2 * MAX_KEYS:
            yield f"environment.{str(group)[:100]} must be short texts by key"


def _is_possible(average: Average) -> bool:
    """Within what a clock can show, so that no sum or square of these overflows."""
    freedom, related = average.degrees_of_freedom, average.autocorrelation
    return (
        abs(average.value_ns) < 1e18
        and (average.variance_ns2 is None or 0 <= average.variance_ns2 < 1e36)
        and (freedom is None or 1 <= freedom < math.inf)
        and (related is None or -1 <= related <= 1)
    )
