"""A sweep's report in words, as tables for other programs, and as a page."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from msgspec import structs

from distprof.analyze.predict.sweep import report_sweep_jobs
from distprof.cli.sweep.report import list_job_columns, list_ratio_columns, render_sweep_html, write_sweep_files
from distprof.facts.sweep import SweepStatus
from distprof.render.files.column_files import can_write_parquet, write_csv_columns, write_parquet_columns
from distprof.render.html.svg import draw_jobs
from distprof.render.sections.section_types import Section
from distprof.render.sections.sweep_sections import list_sweep_sections
from distprof.report.sweep_report import SweepReport
from tests.analyze.predict.test_sweep import around, make_steps, make_sweep
from tests.factories import MS

FAILED: dict[str, object] = {"status": "failed", "reason": "rank 1 failed: <b>ValueError</b>", "folder": "jobs/006"}


def make_report() -> SweepReport:
    """Warm-up 0 and 1 by two precisions, on 2 ranks; one more pair of which one job failed."""
    settings = [
        {"train.warmup_steps": warmup, "train.precision": precision}
        for precision in ("fp32", "bf16", "fp16") for warmup in ("0", "1")
    ]  # fmt: skip
    cold, warm = [150 * MS, *around(50 * MS, 5)], around(50 * MS)
    steps = {
        1: cold, 2: warm, 3: [value * 2 for value in cold], 4: [value * 2 for value in warm], 5: cold,
    }  # fmt: skip
    sweep = make_sweep(settings, job6=FAILED)
    return report_sweep_jobs(sweep, {job: make_steps(found) for job, found in steps.items()})


def list_by_key(report: SweepReport) -> dict[str, Section]:
    return {section.key: section for section in list_sweep_sections(report, with_pairs=True)}


def test_what_warm_up_and_precision_did_are_sentences() -> None:
    shown = list_by_key(make_report())["headline"].facts
    facts = {fact.label: fact.number + fact.text for fact in reversed(shown)}  # the first precision last
    assert facts["jobs"] == "6: 5 completed, 1 failed"
    assert facts["train.precision"] == "fp32, bf16, fp16"
    assert facts["warm-up"].startswith("1 instead of 0: the spread is 2.2 % instead of 61.0 % (median over 2 pairs)")
    wording = "bf16 instead of fp32: a step takes 2.00 ("
    assert facts["precision"].startswith((wording, wording.replace(": a", ": no clear difference: a")))


def test_a_job_is_a_row_with_its_swept_keys() -> None:
    table = list_by_key(make_report())["sweep_jobs"]
    assert [column.head for column in table.columns][:5] == ["job", "warmup_steps", "precision", "ranks", "status"]
    assert table.rows[1] == (
        "2", "1", "fp32", "2", "completed", "6", "50.00", "50.00", "1.10", "49.00", "51.00", "300.0", "2.2 %", "20,000",
    )  # fmt: skip
    assert set(table.rows[5][6:]) == {"n/a"}
    (fact,) = list_by_key(make_report())["sweep_incomplete"].facts
    assert fact.text == "failed: rank 1 failed: <b>ValueError</b>; its output: jobs/006.log"


def test_a_swept_number_of_ranks_is_one_column_and_a_sentence() -> None:
    sweep = make_sweep([{"sweep.ranks": "1"}, {"sweep.ranks": "2"}])
    steps = {1: make_steps(around(50 * MS)), 2: make_steps(around(100 * MS), tokens=2000)}
    sections = list_by_key(report_sweep_jobs(sweep, steps))
    assert [column.head for column in sections["sweep_jobs"].columns][:3] == ["job", "ranks", "status"]
    (said,) = [fact.text for fact in sections["headline"].facts if fact.label == "scaling"]
    assert said.startswith("2 ranks instead of 1: 0.50 (0.4")


def test_keys_with_equal_last_words_are_shown_whole() -> None:
    report = report_sweep_jobs(make_sweep([{"a.name": "1", "b.name": "2", "x.mean": "3"}]), {})
    heads = [column.head for column in list_by_key(report)["sweep_jobs"].columns]
    assert heads[:4] == ["job", "a.name", "b.name", "x.mean"]


def test_csv_holds_every_job_and_every_pair_with_all_digits() -> None:
    report = make_report()
    jobs = list(csv.DictReader(io.StringIO(write_csv_columns(list_job_columns(report)).decode())))
    assert [row["job"] for row in jobs] == ["1", "2", "3", "4", "5", "6"]
    assert float(jobs[0]["std_ns"]) == report.rows[0].std_ns and jobs[5]["mean_ns"] == ""
    assert (jobs[2]["train.precision"], jobs[2]["total_ns"]) == ("bf16", f"{report.rows[2].total_ns!r}")
    pairs = list(csv.DictReader(io.StringIO(write_csv_columns(list_ratio_columns(report)).decode())))
    assert len(pairs) == len(report.pairs) == 2 + 3
    assert float(pairs[0]["time_ratio"]) == report.pairs[0].time.value and pairs[0]["efficiency_ratio"] == ""


def test_a_spreadsheet_runs_nothing_from_a_sweep() -> None:
    assert write_csv_columns({"why": ["=cmd()", "\x1b[31mred"]}) == b"why\n'=cmd()\nred\n"


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    report = make_report()
    (tmp_path / "jobs.parquet").write_bytes(write_parquet_columns(list_job_columns(report)))
    table = parquet.read_table(tmp_path / "jobs.parquet")
    assert table.to_pydict() == {head: list(cells) for head, cells in list_job_columns(report).items()}
    nothing = write_parquet_columns({"time_low_ratio": [None], "reason": [None]})
    (tmp_path / "nothing.parquet").write_bytes(nothing)
    kinds = {str(field.type) for field in parquet.read_schema(tmp_path / "nothing.parquet")}
    assert kinds == {"double", "string"}


def test_the_page_escapes_what_comes_from_jobs_and_the_files_are_named(tmp_path: Path) -> None:
    report = make_report()
    page = render_sweep_html(report)
    assert "<b>ValueError" not in page and "&lt;b&gt;ValueError" in page and page.count("<script") == 1
    assert "Every pair of jobs" in page
    written = write_sweep_files(tmp_path, report)
    kinds = ("csv", "parquet") if can_write_parquet() else ("csv",)
    tables = {f"{name}.{kind}" for name in ("sweep_jobs", "sweep_ratios") for kind in kinds}
    assert written.problem is None and set(written.names) == {"report.html", "report.json", *tables}
    plain = json.loads((tmp_path / "report.json").read_text())
    assert plain["schema"] == "distprof.sweep_report/1" and len(plain["pairs"]) == len(report.pairs)


def test_every_way_to_end_has_its_place() -> None:
    ends: list[SweepStatus] = ["completed", "failed", "out of memory", "timed out", "refused", "interrupted", "waiting"]
    settings = [{"seed": str(number)} for number in range(len(ends))]
    changes = {f"job{number}": {"status": status} for number, status in enumerate(ends, start=1)}
    sections = list_by_key(report_sweep_jobs(make_sweep(settings, **changes), {}))
    assert [fact.text.partition(";")[0] for fact in sections["sweep_incomplete"].facts] == ends[1:]


def test_each_job_is_a_bar_with_its_interval() -> None:
    drawing = draw_jobs(make_report())
    assert drawing.count('<rect class="job"') == drawing.count('class="interval"') == 5  # the sixth has no steps
    assert "train.warmup_steps=1 train.precision=fp32: 50.0 ms (" in drawing
    assert drawing in render_sweep_html(make_report())
    hostile = structs.replace(make_report().rows[1], settings={"<b>": "<script>"}, mean_low_ns=1.0, mean_high_ns=1e300)
    drawing = draw_jobs(structs.replace(make_report(), rows=(hostile,)))
    assert "&lt;script&gt;" in drawing and "<script>" not in drawing and "H1000.0" in drawing
