"""Weights & Biases: what the offline file holds, what no file holds, and that its failures stay its own."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.analyze.live.live_metrics import MAX_POINTS, make_points
from distprof.config.schema import WandbConfig
from distprof.errors import UsageError
from distprof.facts.run import COLUMN, Clock, Run
from distprof.render.wandb import wandb_log
from distprof.render.wandb.wandb_log import WandbLogger, gives_answer, is_logged_in, require_wandb
from tests.factories import make_run
from tests.wandb_file import read_details, read_wandb_file

CONFIG = WandbConfig(name="wandb", project="test", entity=None, group=None, mode="auto", init_timeout_s=2)


@pytest.fixture(autouse=True)
def nobody_is_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


def log_whole_run(run: Run, folder: Path, config: WandbConfig = CONFIG) -> list[str]:
    said: list[str] = []
    logger = WandbLogger.start(meta=run.meta, config=config, folder=folder, print_line=said.append, ranks=run.ranks)
    assert logger is not None
    logger.log_rows(run.rows)
    logger.conclude(analyze(run), run)
    logger.close()
    return said


def test_a_run_has_the_name_of_the_job_or_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of a sweep get theirs by the environment. A run beside the script's is not called as that one is."""
    monkeypatch.setenv("HF_TOKEN", "canary-hf-token")
    run = make_run()
    for number, (name, beside, expected) in enumerate([
        ("", False, run.meta.name), ("002 seed=2 canary-hf-token", False, "002 seed=2 [redacted]"),
        ("the script's", True, run.meta.name),
    ]):  # fmt: skip
        monkeypatch.setenv("WANDB_NAME", name)
        folder = tmp_path / f"{number}"
        folder.mkdir()
        logger = WandbLogger.start(meta=run.meta, config=CONFIG, folder=folder, print_line=print, beside=beside)
        assert logger is not None
        assert logger._run.name == expected
        logger.close()


def find_file(folder: Path) -> Path:
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    return path


def test_the_offline_file_holds_scalars_table_and_summary(tmp_path: Path) -> None:
    run = make_run(num_ranks=3, num_steps=4)
    (line,) = log_whole_run(run, tmp_path)
    assert line.startswith("wandb: offline (not logged in); upload with: wandb sync ")
    told = read_wandb_file(find_file(tmp_path))
    points = [point for point in told.history if "step/time_ms" in point]
    assert [point["step"] for point in points] == [0, 1, 2, 3]
    for step, point in enumerate(points):
        assert point["step/time_ms"] == pytest.approx(run.step_ns(Clock.HOST)[:, step].max() / 1e6, rel=1e-5)
        forward = run.column("forward_host_ns")[:, step] / 1e6
        assert point["phase/forward/host_ms"] == pytest.approx(forward.mean(), rel=1e-5)
        assert not any("device" in name for name in point if name != "flops/achieved_per_device")
    (details,) = (point for point in told.history if "phase/forward/host_ms_max" in point)
    forward = run.column("forward_host_ns").mean(axis=1) / 1e6
    assert details["step"] == 3 and details["phase/forward/host_ms_max"] == pytest.approx(forward.max(), rel=1e-5)
    assert details["phase/forward/host_max_rank"] == int(forward.argmax())
    assert {"phase", "step", "comm", "memory"} <= {name.split("/")[0] for name in details if "/" in name}
    assert told.metrics["phase/*"] == told.metrics["flops/*"] == told.metrics["straggler/*"] == "step"
    report = analyze(run)
    assert told.summary["summary/step_mean_ms"] == pytest.approx((report.headline.step_mean_ns or 0) / 1e6)
    tables = find_file(tmp_path).parent / "files" / "media" / "table"
    (table,) = (json.loads(path.read_text()) for path in tables.glob("ranks_by_phase*.json"))
    assert table["columns"][:5] == ["rank", "host", "device", "clock", "step_ms"]
    assert [row[0] for row in table["data"]] == [0, 1, 2]
    step_ms = [row[4] for row in table["data"]]
    assert step_ms == pytest.approx([(value or 0) / 1e6 for value in report.steps[-1].mean_ns])
    assert told.config["seed"] == run.meta.config["seed"]
    assert not told.alerts and "distprof-report" not in told.artifacts  # nobody is slow, and there are no files


def test_no_secret_is_in_any_file_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-token")
    monkeypatch.setenv("MY_SECRET", "canary-secret")
    monkeypatch.setattr(sys, "argv", ["distprof", "logger.api_key=canary-argument"])
    log_whole_run(make_run(), tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 2
    for path in files:
        assert b"canary" not in path.read_bytes(), path


@pytest.mark.slow
def test_fault_10_an_unreachable_server_costs_seconds_and_ends_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "canary0123456789abcdef0123456789abcdef01"
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    started = time.monotonic()
    (line,) = log_whole_run(make_run(), tmp_path)
    assert time.monotonic() - started < 30
    assert "wandb: offline (not online: " in line and key not in line
    assert read_wandb_file(find_file(tmp_path)).summary
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes()


def test_a_server_is_asked_whether_it_answers_at_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not gives_answer(url, 0.05)
    assert gives_answer(url, 10.0)  # refused: at once
    assert gives_answer("no address", 10.0)


def test_fast_steps_are_one_point_of_means(tmp_path: Path) -> None:
    run = make_run(num_steps=MAX_POINTS + 1)
    (point,) = make_points(run.rows, run.meta, [])
    assert point["step"] == MAX_POINTS and "flops/mfu_ratio" not in point
    assert point["step/time_ms"] == pytest.approx(run.step_ns(Clock.HOST).max(axis=0).mean() / 1e6, rel=1e-5)


def test_what_was_not_measured_is_not_logged() -> None:
    run = make_run()
    rows = run.rows.copy()
    rows[:, :, COLUMN["loss"]] = np.nan
    rows[1, :, COLUMN["memory_bytes"]] = np.nan
    for micro_steps in (np.nan, 0):  # not counted is neither
        rows[:, :, [COLUMN["micro_steps"], COLUMN["tokens"]]] = micro_steps
        for point in make_points(rows, run.meta, [1.0] * len(rows)):
            assert not {"step/loss", "step/tokens_per_s", "flops/achieved_per_device"} & point.keys()
            assert all(np.isfinite(value) for value in point.values())
    assert "memory/current_bytes_max" not in read_details(rows) and "memory/peak_bytes_max" in read_details(rows)


def test_the_loss_is_the_mean_of_the_ranks_that_know_one() -> None:
    """As those of a pipeline's last stage."""
    run = make_run()
    rows = run.rows.copy()
    rows[0, :, COLUMN["loss"]], rows[1, :, COLUMN["loss"]] = np.nan, 3.5
    assert {point["step/loss"] for point in make_points(rows, run.meta, [1.0] * len(rows))} == {3.5}


def test_an_impossible_mfu_is_not_logged() -> None:
    run = make_run()
    for peaks in ([1.0] * 2, [1e12, None], [1e12, 0.0]):  # too low, or unknown of one rank
        assert all("flops/mfu_ratio" not in point for point in make_points(run.rows, run.meta, peaks))
    assert all("flops/mfu_ratio" in point for point in make_points(run.rows, run.meta, [1e12] * 2))


class BrokenWandb:
    """A wandb that fails where it is told to."""

    def __init__(self, place: str) -> None:
        self.place, self.finished = place, 0
        self.Settings = SimpleNamespace

    def init(self, **_: Any) -> BrokenWandb:
        self.fail("init")
        return self

    def fail(self, place: str) -> None:
        if place == self.place:
            raise RuntimeError("key=canary is wrong")

    offline, dir, summary = True, "/x/y", {}

    def define_metric(self, *_: Any, **__: Any) -> None:
        self.fail("define_metric")

    def log(self, *_: Any) -> None:
        self.fail("log")

    def status(self) -> None:
        """Answers."""

    def teardown(self) -> None:
        assert self.finished

    def finish(self) -> None:
        self.finished += 1
        self.fail("finish")


@pytest.mark.parametrize("place", ["init", "define_metric", "log", "finish"])
def test_fault_10_whatever_wandb_raises_is_said_once_and_goes_no_further(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, said, run = BrokenWandb(place), list[str](), make_run()
    monkeypatch.setitem(sys.modules, "wandb", broken)  # type: ignore[arg-type]
    monkeypatch.setattr(WandbLogger, "_conclude", lambda self, report, run: None)
    logger = WandbLogger.start(meta=run.meta, config=CONFIG, folder=tmp_path, print_line=said.append)
    assert (logger is None) == (place in ("init", "define_metric"))
    if logger is not None:
        logger.log_rows(run.rows)
        logger.log_rows(run.rows)
        logger.conclude(analyze(run), run)
        logger.close()
        assert broken.finished == 1
    complaints = [line for line in said if "RuntimeError" in line]
    assert len(complaints) == 1 and "canary" not in complaints[0]


def test_login_is_found_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_logged_in()
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password abc\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert is_logged_in()
    monkeypatch.setenv("WANDB_BASE_URL", "https://own.server")
    assert not is_logged_in()
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert is_logged_in()


def test_a_missing_package_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_log.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install wandb, or logger=none"):
        require_wandb()
