"""What W&B gets at the end of a job, bounded whatever the number of ranks and steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.live import lately
from distprof.facts.run import COLUMN
from distprof.render.sections.verdict import describe_verdict
from distprof.render.wandb import wandb_summary
from distprof.render.wandb.wandb_heat_map import NOT_MEASURED, RAMP, collect_times, draw_heat_map, draw_maps, list_cells
from distprof.render.wandb.wandb_log import WandbLogger
from distprof.render.wandb.wandb_summary import (
    MAX_RANKS,
    describe_alert,
    keep_files,
    make_summary,
    make_table,
    make_tables,
)
from distprof.report.wait_report import VerdictKind
from tests.factories import MS, USUAL_NS, make_run
from tests.made_causes import make_cause, make_report
from tests.render.wandb.test_wandb_dashboard import CONFIG
from tests.wandb_file import read_wandb_file


@pytest.mark.slow
def test_the_log_of_1024_ranks_stays_below_1_kilobyte_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clocks, every phase, a rank that is named, no two values alike: the largest points that there are."""
    monkeypatch.setattr(lately, "_name_rank", lambda run: 700)
    draws, late = np.random.default_rng(1), np.where(np.arange(1024) == 700, 20 * MS, 0)[:, None]
    times = {**USUAL_NS, "all_gather": 12 * MS}
    host, device = (
        {phase: np.asarray(time) * (1 + 0.1 * draws.random((1024, 50))) + late for phase, time in times.items()}
        for _ in range(2)
    )
    names = ("loss", "grad_norm", "between_data_host_ns", "checkpoint_host_ns", "evaluation_host_ns", "memory_bytes")
    columns = {name: 1e9 * draws.random((1024, 50)) for name in names}
    run = make_run(num_ranks=1024, num_steps=50, host_ns=host, device_ns=device, columns=columns)
    logger = WandbLogger.start(meta=run.meta, config=CONFIG, folder=tmp_path, print_line=print, ranks=run.ranks)
    assert logger is not None
    for first in range(0, 50, 5):
        logger.log_rows(run.rows[:, first : first + 5])
    run_again = run.rows.copy()
    run_again[:, :, COLUMN["step"]] += 50
    for first in range(0, 50, 5):
        logger.log_rows(run_again[:, first : first + 5])
    logger.conclude(analyze(run), run)
    logger.close()
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    told = read_wandb_file(path)
    points = [point for point in told.history if "step/time_ms" in point]
    assert len(points) == 100 and all(len(point) >= 20 for point in points)
    assert all("flops/mfu_ratio" in point for point in points)
    assert [point.get("straggler/rank") for point in points] == [None] * 20 + [700] * 80
    assert path.stat().st_size < 100_000
    media = [file.stat().st_size for file in path.parent.glob("files/media/*/*") if file.is_file()]
    assert len(told.media) == 6 and sum(media) < 2_000_000


def test_many_ranks_and_steps_make_a_table_of_the_longest_of_several() -> None:
    draws = np.random.default_rng(2)
    times = {"forward": 100 * MS * (1 + draws.random((130, 100)))}
    run = make_run(num_ranks=130, num_steps=100, num_warmup=2, host_ns=times)
    found = collect_times(run, analyze(run))
    assert found is not None and found.steps == tuple(range(2, 100))
    rows = list_cells(found)
    assert len(rows) == 44 * 49 and [row[:4] for row in (rows[0], rows[-1])] == [[0, 2, 3, 2], [129, 98, 1, 2]]
    by_hand = run.column("step_host_ns")[3:6, 4:6].max() / 1e6
    assert [row[5] for row in rows if row[:2] == [3, 4]] == [pytest.approx(by_hand, abs=1e-4)]
    assert sum(int(row[2] or 0) * int(row[3] or 0) for row in rows) == 130 * 98


def test_a_heat_map_shows_the_longest_of_merged_cells_and_what_is_missing() -> None:
    times_ns = np.full((512, 3), 10.0 * MS)
    times_ns[4:6] = np.nan
    times_ns[100, 1] = 30 * MS
    times_ns[:, 2] = 20 * MS
    drawn = draw_heat_map(times_ns, "step time", "host")
    assert drawn is not None
    image, caption = drawn
    assert image.shape == (256 * 2, 3 * 16, 3)
    cells = image[::2, ::16]
    assert tuple(cells[2, 0]) == NOT_MEASURED and tuple(cells[0, 0]) == RAMP[0] and tuple(cells[0, 2]) == RAMP[-1]
    assert tuple(cells[50, 1]) == RAMP[-1] and tuple(cells[50, 0]) == RAMP[0]
    assert caption == (
        "step time by rank (down) and step (across), host clock, without warm-up; dark 10.0 ms, bright 20.0 ms or "
        "more; grey: not measured; each row is the longest of 2 ranks"
    )


def test_where_nothing_was_measured_there_is_no_image_and_no_cell_is_0() -> None:
    run = make_run(num_ranks=2, num_steps=3, columns={"all_reduce_host_ns": np.nan})
    found = collect_times(run, analyze(run))
    assert found is not None and [name for name, *_ in draw_maps(found)] == ["heat_map/step"]
    assert {row[-1] for row in list_cells(found)} == {None}
    only_warmup = make_run(num_steps=2, num_warmup=2)
    assert collect_times(only_warmup, analyze(only_warmup)) is None
    assert make_tables(analyze(only_warmup), None)["rank_by_step"].rows == []


def test_of_too_many_ranks_the_table_has_a_selection_with_those_at_the_ends_and_the_summary_says_so() -> None:
    late = np.where(np.arange(MAX_RANKS + 1) == 77, 30 * MS, 0)[:, None]
    report = analyze(make_run(num_ranks=MAX_RANKS + 1, num_steps=3, host_ns={**USUAL_NS, "data": 10 * MS + late}))
    rows = make_table(report).rows
    assert len(rows) < MAX_RANKS and 77 in [row[0] for row in rows]
    left_out = MAX_RANKS + 1 - len(rows)
    assert make_summary(report)["summary/ranks_left_out"] == left_out
    assert "summary/ranks_left_out" not in make_summary(analyze(make_run()))


def test_an_unknown_peak_leaves_the_cell_of_mfu_empty() -> None:
    report = analyze(make_run())
    ranks = tuple(structs.replace(rank, mfu_ratio=None) for rank in report.ranks)
    told = make_table(structs.replace(report, ranks=ranks))
    assert [row[told.columns.index("mfu_ratio")] for row in told.rows] == [None, None]


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        (VerdictKind.SLOW_RANK, "synthetic: critical: rank 3 (forward)"),
        (VerdictKind.SLOW_LINK, "synthetic: critical: the link between a and b"),
        (VerdictKind.STALLS, "synthetic: critical: stalls of rank 3"),
    ],
)
def test_only_a_critical_verdict_is_an_alert(kind: VerdictKind, title: str) -> None:
    rank = None if kind is VerdictKind.SLOW_LINK else 3
    hosts = ("a", "b\x1b[31m") if kind is VerdictKind.SLOW_LINK else ()
    cause = make_cause(
        kind, 20, rank=rank, hosts=hosts, critical=True, events=2 if kind is VerdictKind.STALLS else None
    )
    told = describe_alert(make_report([cause]))
    assert told is not None and told[0] == title
    assert told[1].startswith("critical: ") and "\x1b" not in told[1]
    assert describe_alert(make_report([structs.replace(cause, critical=False)])) is None


def test_files_are_kept_as_they_are_and_large_or_missing_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    folder, target = tmp_path / "run", tmp_path / "wandb"
    folder.mkdir()
    target.mkdir()
    (folder / "report.html").write_text("page")
    (folder / "trace.json.gz").write_bytes(bytes(100))
    monkeypatch.setattr(wandb_summary, "MAX_FILE_BYTES", 99)

    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(wandb_summary.os, "link", refuse)
    (kept,) = keep_files(folder, target, said.append)
    assert kept == target / "artifact" / "report.html" and kept.read_text() == "page"
    assert said == [f"wandb: trace.json.gz is not attached, 100 B are too large; {folder / 'trace.json.gz'} has it"]


def test_a_late_rank_is_bright_in_its_own_time_although_all_steps_are_equally_long() -> None:
    """The one that waits least: of four ranks in lockstep rank 2 computes 30 ms longer."""
    own = np.full((4, 1), 50.0 * MS)
    own[2] = 80 * MS
    run = make_run(num_ranks=4, num_steps=3, num_warmup=0, host_ns={"forward": own, "all_reduce": 100 * MS - own})
    found = collect_times(run, analyze(run))
    assert found is not None and (found.step_ns == 100 * MS).all() and (found.own_ns == own).all()
    (name, image, caption), _ = draw_maps(found)
    assert name == "heat_map/own" and caption.startswith("own time, which is not spent waiting, by rank")
    assert [tuple(image[16 * rank, 0]) for rank in range(4)] == [RAMP[0], RAMP[0], RAMP[-1], RAMP[0]]


def test_the_verdict_is_a_table_of_one_sentence() -> None:
    report = analyze(make_run())
    assert make_tables(report, None)["verdict"].rows == [[describe_verdict(report)]]
