"""``probes.json``: read back as it was written, refused where it cannot be, and said behind the verdict."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from benchmarks.fuzz.values import dump, mutate
from distprof.analyze import analyze
from distprof.analyze.judge_probes import judge_probes
from distprof.facts.plain import make_plain
from distprof.facts.probes import PROBES_SCHEMA, ProbedPair, ProbedRank, SuspectProbes
from distprof.render.html.html import render_html
from distprof.render.sections.probes import describe_probes, show_probes
from distprof.render.terminal.screen import render_screen
from distprof.render.terminal.terminal import render_terminal
from distprof.storage.probes_file import write_probes
from distprof.storage.run_folder import read_run, write_meta
from tests.factories import make_meta, make_run

UP = tuple(1e9 + number for number in range(15))
PROBES = SuspectProbes(
    device_type="cpu", backend="gloo", suspects=(1,), references=(0, 2),
    ranks=tuple(
        ProbedRank(
            rank=rank, host="h", device="d", copy_bytes_per_s=UP,
            product_flops_per_s=tuple(value * (0.5 if rank == 1 else 1) for value in UP),
        )
        for rank in range(3)
    ),
    pairs=tuple(
        ProbedPair(rank=rank, peer=peer, latency_ns=UP, there_bytes_per_s=UP, back_bytes_per_s=UP)
        for rank, peer in ((0, 1), (1, 2), (0, 2))
    ),
)  # fmt: skip
DOCUMENT = {"schema": PROBES_SCHEMA, "distprof_version": "1", **make_plain(PROBES), "report": {"a": 1}}
SAID = "It is the device of rank 1 (its cores, host h): matrix products reach 500.0 MFLOP/s, 50.0 % less"


def read(folder: Path, document: Any, world_size: int = 3) -> tuple[SuspectProbes | None, tuple[str, ...]]:
    (folder / "ranks").mkdir()
    write_meta(folder, make_meta(world_size=world_size))
    if document is not None:
        write_probes(folder, document)
    run = read_run(folder)
    return run.probes, run.warnings


def test_what_was_written(tmp_path: Path) -> None:
    assert read(tmp_path, DOCUMENT) == (PROBES, ())


def test_none_are_no_fault(tmp_path: Path) -> None:
    assert read(tmp_path, None) == (None, ())


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "distprof.probes/2.0"},
        {"suspects": [3]},
        {"suspects": []},
        {"suspects": [1, 1]},
        {"references": [2, 0]},
        {"references": [0, 0]},
        {"references": [0]},
        {"pairs": DOCUMENT["pairs"][:2]},  # type: ignore[index]
        {"ranks": DOCUMENT["ranks"][:2]},  # type: ignore[index]
        {"ranks": [{**item, "product_flops_per_s": []} for item in DOCUMENT["ranks"]]},  # type: ignore[attr-defined]
        {"ranks": [{**item, "copy_bytes_per_s": [0.0] * 15} for item in DOCUMENT["ranks"]]},  # type: ignore[attr-defined]
        {"pairs": [{**item, "latency_ns": [-1.0] * 15} for item in DOCUMENT["pairs"]]},  # type: ignore[attr-defined]
        {"pairs": [{**item, "latency_ns": [1.0] * 14} for item in DOCUMENT["pairs"]]},  # type: ignore[attr-defined]
        {"ranks": 7},
    ],
)
def test_what_cannot_be_is_left_out_and_named(tmp_path: Path, change: dict[str, object]) -> None:
    probes, warnings = read(tmp_path, {**DOCUMENT, **change})
    (warning,) = warnings
    assert probes is None and warning.startswith("probes.json: ") and warning.endswith(", left out")


def test_those_of_more_ranks_than_the_run_has_are_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, DOCUMENT, world_size=2)[0] is None


def test_a_torn_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "probes.json").write_text(json.dumps(DOCUMENT)[:-40])
    probes, (warning,) = read(tmp_path, None)
    assert probes is None and "not valid JSON" in warning


def test_whatever_stands_in_the_file_a_report_is_made(tmp_path: Path) -> None:
    read(tmp_path, None)
    draws, kept = random.Random(1), 0
    for _ in range(300):
        document = json.loads(json.dumps(DOCUMENT))
        for _ in range(draws.choice((1, 1, 3))):
            mutate(document, draws)
        (tmp_path / "probes.json").write_text(dump(document), errors="replace")
        run = read_run(tmp_path)
        assert (run.probes is None) is bool(run.warnings)
        if run.probes is not None:
            kept += 1
            describe_probes(judge_probes(run.probes))
            show_probes(judge_probes(run.probes))
    assert 0 < kept < 300


def test_it_is_said_behind_the_verdict_on_the_terminal_on_the_page_and_in_the_file() -> None:
    run = make_run(num_ranks=3, num_steps=20)
    report = analyze(structs.replace(run, probes=PROBES))
    assert report.probes == judge_probes(PROBES) and analyze(run).probes is None
    for render in (
        lambda console: render_terminal(report, console),
        lambda console: render_screen(report, console, names=(), folder=None, again=""),
    ):
        console = Console(file=io.StringIO(), width=200)
        render(console)
        assert f"Probes afterwards: {SAID}" in " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    page = render_html(report).replace("&nbsp;", " ")
    assert SAID in page and "Probes of rank 1 against ranks 0, 2" in page
