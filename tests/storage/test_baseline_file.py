"""A named baseline: read as it was written, small, without secrets, and refused when it claims the impossible."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from distprof.errors import DataError, UsageError
from distprof.report.comparison_report import Average, Figure, RunFigures
from distprof.storage.baseline_file import MAX_BYTES, locate_baseline, read_baseline, write_baseline

AVERAGE = Average(value_ns=1.23456789e8, variance_ns2=4.5, degrees_of_freedom=12.5, autocorrelation=0.25)
STEP = Figure(scope="step", name="step", rank=None, place=None, clock="host", steps=40, mean=AVERAGE, usual=AVERAGE)
FORWARD = structs.replace(STEP, scope="phase", name="forward", usual=None)
RUN = RunFigures(
    name="made", started_utc="2026-01-02T03:04:05+00:00", complete=True, figures=(STEP, FORWARD),
    environment={"job": {"ranks": "2"}, "configuration": {"train.steps": "60"}}, notes=("a note",),
)  # fmt: skip


def make_rank(rank: int, name: str) -> Figure:
    return structs.replace(STEP, scope="rank", name=name, rank=rank)


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = locate_baseline(tmp_path / "folder", "main-1.0")
    write_baseline(path, [RUN, RUN])
    assert path == tmp_path / "folder" / "main-1.0.json" and read_baseline(path) == (RUN, RUN)


def test_what_makes_a_baseline_too_large_is_left_out_and_told(tmp_path: Path) -> None:
    own = tuple(make_rank(rank, "own time") for rank in range(40))
    many = tuple(make_rank(rank, name) for rank in range(40) for name in ("forward", "backward", "optimizer", "data"))
    write_baseline(tmp_path / "a.json", [structs.replace(RUN, figures=(STEP, FORWARD, *own, *many))])
    (kept,) = read_baseline(tmp_path / "a.json")
    assert (tmp_path / "a.json").stat().st_size <= MAX_BYTES and kept.figures == (STEP, FORWARD, *own)
    assert kept.notes == ("a note", "the baseline leaves out phases of ranks: too many")
    with pytest.raises(DataError, match="save fewer runs"):
        write_baseline(tmp_path / "b.json", [RUN] * 100)


def test_no_secret_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "hunter2hunter2")
    keys = {"logger.api_key": "abcdefgh12345678", "train.note": "with hunter2hunter2 inside"}
    write_baseline(tmp_path / "a.json", [structs.replace(RUN, environment={"configuration": keys})])
    text = (tmp_path / "a.json").read_text()
    assert "hunter2hunter2" not in text and "abcdefgh12345678" not in text and "train.note" in text


@pytest.mark.parametrize("name", ["", ".", "../main", "a/b", "-x", "a" * 81, "a\n"])
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not a name for a baseline"):
        locate_baseline(tmp_path, name)


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda run: run.update(figures=[]), "must begin with the step"),
    (lambda run: run["figures"].reverse(), "must begin with the step"),
    (lambda run: run["figures"][0]["mean"].update(value_ns=-1.0), "takes no time"),
    (lambda run: run["figures"][0]["mean"].update(variance_ns2=-1.0), r"figures\[0\]: a number"),
    (lambda run: run["figures"][0]["mean"].update(value_ns=1e300), r"figures\[0\]: a number"),
    (lambda run: run["figures"][1]["mean"].update(degrees_of_freedom=0.0), r"figures\[1\]: a number"),
    (lambda run: run["figures"][1].update(clock="sun"), r"figures\[1\]: clock"),
    (lambda run: run["figures"][1].update(scope="soul"), "scope='soul'"),
    (lambda run: run["figures"][1].update(mean="long"), r"mean: expected a group"),
    (lambda run: run["environment"].update(job={"ranks": 2}), "environment.job"),
    (lambda run: run["environment"].update(job=5), "environment.job"),
    (lambda run: run.update(more=1), "more: unknown key"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=[said for _, said in CHANGES])
def test_what_cannot_be_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    path = tmp_path / "a.json"
    write_baseline(path, [RUN])
    values = json.loads(path.read_text())
    change(values["runs"][0])
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=said) as refused:
        read_baseline(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema":"distprof.baseline/2.0"}', '{"schema":NaN}', "\0"])
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="--save-baseline main"):
        read_baseline(tmp_path / "main.json")
    (tmp_path / "main.json").write_text(text)
    with pytest.raises(DataError, match=r"main\.json"):
        read_baseline(tmp_path / "main.json")
