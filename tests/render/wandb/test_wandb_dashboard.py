"""The W&B workspace: every panel finds its data in what a job logs."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import Struct, structs

from benchmarks.simulate import Delay, SimulatedJob, simulate
from distprof.analyze import analyze
from distprof.analyze.live import lately
from distprof.config.schema import WandbConfig
from distprof.facts.run import COLUMN, Peak, Phase, Run
from distprof.render.files.files import write_files
from distprof.render.wandb.wandb_log import WandbLogger
from distprof.render.wandb.wandb_sweep import log_sweep
from distprof.render.wandb.wandb_workspace import PINNED, SECTIONS, STEP, Panel
from distprof.report.report import Report
from distprof.storage.whole_file import write_whole
from tests.factories import MS, WORK
from tests.render.sections.test_sweep_sections import make_report as make_sweep_report
from tests.wandb_file import WandbFile, read_wandb_file

CONFIG = WandbConfig(name="wandb", project="test", entity=None, group=None, mode="offline", init_timeout_s=2)
PANELS = [panel for section in SECTIONS for panel in section.panels]


class Logged(Struct, frozen=True, kw_only=True):
    """A job, and what it sent to W&B."""

    run: Run
    report: Report
    folder: Path
    """Where wandb kept it."""
    told: WandbFile


def simulate_gpus() -> Run:
    """FSDP on 8 devices with both clocks; rank 5 is 40 ms late in forward since step 25."""
    late = Delay(rank=5, phase=Phase.FORWARD, delay_ns=40 * MS, first_step=25)
    job = SimulatedJob(strategy="fsdp", num_ranks=8, num_steps=60, num_warmup=5, delays=(late,))
    run = simulate(job, seed=1, truth=False).run
    for name, index in COLUMN.items():
        if name.endswith("_device_ns"):
            run.rows[:, :, index] = run.rows[:, :, COLUMN[name.replace("_device_", "_host_")]]
    for name, value in {"memory_bytes": 2e9, "memory_peak_bytes": 3e9, "loss": 2.5, "grad_norm": 0.5}.items():
        run.rows[:, :, COLUMN[name]] = value
    peak = Peak(flops_per_s=1e12, source="made up")
    ranks = tuple(structs.replace(info, peak=peak, device="cuda:0") for info in run.ranks)
    meta = structs.replace(run.meta, work=WORK, device_type="cuda", config={"seed": 7})
    return structs.replace(run, meta=meta, ranks=ranks)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    folder, run = tmp_path_factory.mktemp("run"), simulate_gpus()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_TOKEN", "canary-hf-token")
        patched.setattr(lately, "APART_NS", 0)
        config = structs.replace(CONFIG, group="nightly canary-hf-token")
        logger = WandbLogger.start(meta=run.meta, config=config, folder=folder, print_line=print, ranks=run.ranks)
        assert logger is not None
        for first in range(0, 60, 7):
            logger.log_rows(run.rows[:, first : first + 7])
        report = analyze(run)
        assert write_files(folder, run, report).problem is None
        logger.conclude(report, run)
        logger.close()
        assert logger.concluded and logger.closed
        (path,) = folder.glob("wandb/offline-run-*/*.wandb")
        write_whole(folder / "report.html", "made again")  # must not change what is uploaded later
        yield Logged(run=run, report=report, folder=path.parent, told=read_wandb_file(path))


@pytest.fixture(scope="module")
def logged_sweep(tmp_path_factory: pytest.TempPathFactory, logged: Logged) -> Logged:
    """A sweep's end, in a file of its own."""
    folder, said = tmp_path_factory.mktemp("sweep"), list[str]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_TOKEN", "canary-hf-token")
        patched.delenv("WANDB_RUN_GROUP", raising=False)
        sweep = structs.replace(make_sweep_report(), name="grid canary-hf-token")
        log_sweep(sweep, CONFIG, folder=folder, print_line=said.append)
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    assert len(said) == 1 and said[0].startswith("wandb: offline")
    return structs.replace(logged, folder=path.parent, told=read_wandb_file(path))


def read_table(logged: Logged, name: str) -> list[dict[str, Any]]:
    path = logged.folder / "files" / logged.told.media[name]["path"]
    table = json.loads(path.read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel.kind}: {panel.title}")
def test_a_panel_finds_its_data(panel: Panel, logged: Logged, logged_sweep: Logged) -> None:
    if panel.names[0].startswith("sweep"):
        logged = logged_sweep
    told = logged.told
    for name in panel.names:
        if panel.kind in ("lines", "stack"):
            assert told.metrics[f"{name.split('/')[0]}/*"] == STEP
            assert any(STEP in point and name in point for point in told.history), name
        elif panel.kind in ("runs", "groups"):
            assert isinstance(told.summary[name], float | int), name
        elif panel.kind == "image":
            assert told.media[name]["_type"] == "image-file"
        elif panel.kind == "drawing":
            assert told.media[name]["_type"] == "html-file"
        elif panel.kind == "table":
            assert told.media[name]["_type"] == "table-file" and read_table(logged, name)
        else:
            rows = read_table(logged, panel.table or "")
            assert len(rows) == 8 and all(row[name] is not None for row in rows), name


def test_a_sweep_is_one_run_in_the_group_of_its_jobs(logged_sweep: Logged) -> None:
    told, report = logged_sweep.told, make_sweep_report()
    assert told.group == "grid [redacted]" and told.config["keys"] == ["train.warmup_steps", "train.precision"]
    rows = read_table(logged_sweep, "sweep_jobs")
    assert [(row["job"], row["train.precision"], row["status"]) for row in rows][4:] == [
        (5, "fp16", "completed"), (6, "fp16", "failed"),
    ]  # fmt: skip
    for row, job in zip(rows, report.rows, strict=True):
        for name in ("mean", "mean_low", "mean_high", "std"):
            found_ns = getattr(job, f"{name}_ns")
            assert row[f"{name}_ms"] == (None if found_ns is None else pytest.approx(found_ns / 1e6))
    page = (logged_sweep.folder / "files" / told.media["sweep/step_time"]["path"]).read_text()
    assert page.count('class="job"') == page.count('class="interval"') == 5 and "<script" not in page
    for path in logged_sweep.folder.parent.rglob("*"):
        assert not path.is_file() or b"canary" not in path.read_bytes(), path


def test_a_sweep_is_not_logged_where_wandb_is_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    log_sweep(make_sweep_report(), structs.replace(CONFIG, mode="auto"), folder=tmp_path, print_line=pytest.fail)
    assert not [*tmp_path.iterdir()]


def test_the_columns_of_the_list_of_runs_are_in_the_summary(logged: Logged) -> None:
    assert {f"summary/{name}" for name in PINNED} <= logged.told.summary.keys()


def test_who_how_much_and_since_when(logged: Logged) -> None:
    told, verdict = logged.told, logged.report.verdict
    assert verdict.critical and verdict.lost_ratio is not None
    (cause, *_) = read_table(logged, "causes")
    assert (cause["cause"], cause["where"], cause["rank"]) == ("slow rank", "rank 5, forward", 5)
    assert cause["first_step"] == told.summary["summary/verdict_first_step"] == 25
    assert cause["when"] == "since step 25" and cause["critical"] == "yes"
    assert cause["saved_if_only_this_ratio"] == told.summary["summary/verdict_lost_ratio"] == verdict.lost_ratio.value
    points = {point["step"]: point for point in told.history if "step/time_ms" in point}
    named = [points[step].get("straggler/rank") for step in range(60)]
    since = named.index(5.0)  # steps are logged by sevens: 21 to 27 hold the first three that are late
    assert 21 <= since <= 42 and named[since:] == [5.0] * (60 - since)
    assert points[40]["straggler/excess_ms"] == pytest.approx(40, abs=5)


def test_a_critical_verdict_is_one_alert(logged: Logged) -> None:
    ((title, text, level),) = logged.told.alerts
    assert (title, level) == ("simulated: critical: rank 5 (forward)", "ERROR")
    assert (
        text.startswith("communication costs the most, 20 % of a step. Critical: rank 5 is ")
        and "since step 25" in text
    )


def test_the_phases_of_a_point_add_up_to_the_step(logged: Logged) -> None:
    point = logged.told.history[30]
    phases = [value for name, value in point.items() if name.endswith("/device_ms") and name.startswith("phase/")]
    mean_ns = logged.run.rows[:, int(point["step"]), COLUMN["step_device_ns"]].mean()
    assert len(phases) == 8 and sum(phases) == pytest.approx(mean_ns / 1e6, rel=1e-5)


def test_the_table_of_ranks_is_the_reports(logged: Logged) -> None:
    rows = read_table(logged, "ranks_by_phase")
    for row, rank in zip(rows, logged.report.ranks, strict=True):
        assert row["rank"] == rank.rank and row["clock"] == "device" and row["mfu_ratio"] == rank.mfu_ratio
        assert row["exposed_ms"] == pytest.approx((rank.exposed_ns or 0) / 1e6)
        assert row["own_ms"] == pytest.approx((rank.own_ns or 0) / 1e6)


def test_the_table_of_ranks_by_steps_is_the_reports(logged: Logged) -> None:
    cells = {(row["rank"], row["step"]): row for row in read_table(logged, "rank_by_step")}
    assert len(cells) == 8 * 55 and {(row["ranks"], row["steps"]) for row in cells.values()} == {(1, 1)}
    for (rank, step), row in cells.items():
        assert row["step_ms"] == pytest.approx((logged.report.step_times_ns[rank][step] or 0) / 1e6, abs=1e-4)
    means = [np.mean([cells[rank, step]["exposed_ms"] for step in range(5, 60)]) for rank in range(8)]
    assert means == pytest.approx([(rank.exposed_ns or 0) / 1e6 for rank in logged.report.ranks], rel=1e-4)


def test_the_images_are_whole(logged: Logged) -> None:
    for name in ("heat_map/own", "heat_map/exposed"):
        facts = logged.told.media[name]
        width, height, pixels = read_png((logged.folder / "files" / facts["path"]).read_bytes())
        assert (width, height) == (facts["width"], facts["height"]) == (55 * 16, 8 * 16)
        assert len(pixels) == height * (width * 3 + 1)
        assert facts["caption"].startswith(
            ("own time, which is not spent waiting, by rank", "exposed communication by rank")
        )
        assert "device clock, without warm-up; dark " in facts["caption"]


def read_png(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and the filtered pixels, every chunk verified by its checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, position = dict[bytes, bytes](), 8
    while position < len(data):
        (length,), kind = struct.unpack_from(">I", data, position), data[position + 4 : position + 8]
        body = data[position + 8 : position + 8 + length]
        assert struct.unpack_from(">I", data, position + 8 + length) == (zlib.crc32(kind + body),)
        chunks[kind] = chunks.get(kind, b"") + body
        position += length + 12
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    return width, height, zlib.decompress(chunks[b"IDAT"])


def test_the_reports_files_are_an_artifact_that_a_later_report_does_not_change(logged: Logged) -> None:
    files = logged.told.artifacts["distprof-report"]
    assert [path.name for path in files] == ["report.html", "report.json", "trace.json.gz"]
    assert {path.parent for path in files} == {logged.folder / "artifact"}
    assert "made again" not in files[0].read_text()


def test_the_group_is_told_without_secrets(logged: Logged) -> None:
    assert logged.told.group == "nightly [redacted]"
    for path in logged.folder.parent.rglob("*"):
        assert not path.is_file() or b"canary" not in path.read_bytes(), path
