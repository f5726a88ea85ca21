"""Loggers of live metrics: each is told what the steps say, and a broken or slow one costs a note and nothing else."""

from __future__ import annotations

import http.server
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import distprof
from distprof.analyze import analyze
from distprof.attach.command import read_request
from distprof.config.schema import LOGGER_PACKAGES
from distprof.errors import UsageError
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Peak, Run
from distprof.profiler.loggers.logger_thread import LoggedJob, LoggerThread
from distprof.profiler.loggers.otel import ENDPOINTS, PROTOCOLS, OpenTelemetryLogger
from distprof.profiler.loggers.tensorboard import TensorBoardLogger
from distprof.record.gather import background_consumer
from distprof.storage.run_folder import read_run
from tests.factories import MS, make_run

SLOW_S = 60.0


@pytest.fixture
def run() -> Run:
    peak = Peak(flops_per_s=None, source="")
    return make_run(
        num_ranks=2, num_steps=4, num_warmup=0, host_ns={"forward": 20 * MS, "all_reduce": 10 * MS},
        infos={rank: {"peak": peak} for rank in range(2)},
    )  # fmt: skip


def make_job(run: Run, folder: Path, said: list[str] | None = None) -> LoggedJob:
    print_line = (lambda text: None) if said is None else said.append
    return LoggedJob(meta=run.meta, ranks=run.ranks, folder=folder, print_line=print_line)


def test_tensorboard_gets_each_number_over_the_step(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            told.append(folder)

        def add_scalar(self, *given: Any) -> None:
            told.append(given)

        def flush(self) -> None:
            told.append("flush")

        def close(self) -> None:
            told.append("close")

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    logger = TensorBoardLogger(make_job(run, tmp_path))
    logger.log(run.rows)
    logger.close()
    assert told[0] == str(tmp_path / "tensorboard") and told[-2:] == ["flush", "close"]
    assert [given[2] for given in told[1:-2] if given[0] == "step/time_ms"] == [0, 1, 2, 3]
    assert ("phase/forward/host_ms", 20.0, 2) in told and not any(given[0] == "step" for given in told[1:-2])


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="TensorBoard is not installed")
def test_tensorboard_reads_it(run: Run, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(make_job(run, tmp_path))
    logger.log(run.rows)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(each.step, each.value) for each in events.Scalars("step/time_ms")] == [(step, 30.0) for step in range(4)]


@pytest.fixture
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENDPOINTS, *PROTOCOLS):
        monkeypatch.delenv(name, raising=False)


def test_the_scripts_own_provider_gets_gauges(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_endpoint: None
) -> None:
    metrics = pytest.importorskip("opentelemetry.metrics")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = importlib.import_module("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
    provider = sdk.MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    said: list[str] = []
    logger = OpenTelemetryLogger(make_job(run, tmp_path, said))
    logger.log(run.rows)
    logger.close()
    found = {}
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            assert point.attributes["distprof.run.id"] == run.meta.run_id
            found[metric.name, point.attributes.get("phase")] = point.value, metric.unit
    assert found["distprof.step_seconds", None] == (pytest.approx(0.03), "s")
    assert found["distprof.phase_seconds", "forward"] == (pytest.approx(0.02), "s")
    assert found["distprof.last_step", None] == (3, "") and "distprof.mfu_ratio" not in {name for name, _ in found}
    assert said == []  # and it is still open: it is the script's
    provider.shutdown()


def test_without_a_provider_nothing_leaves_unless_the_environment_says_where(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_endpoint: None
) -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    said: list[str] = []
    logger = OpenTelemetryLogger(make_job(run, tmp_path, said))
    logger.log(run.rows)
    logger.close()
    assert logger._provider is None and "no OTEL_EXPORTER_OTLP_ENDPOINT: nothing is exported" in said[0]
    got: list[tuple[str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *given: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(ENDPOINTS[1], f"http://127.0.0.1:{server.server_address[1]}")
        logger = OpenTelemetryLogger(make_job(run, tmp_path, said))
        logger.log(run.rows)
        logger.close()
        server.shutdown()
    ((path, body),) = got
    assert path == "/v1/metrics" and len(said) == 1 and body
    monkeypatch.setenv(PROTOCOLS[0], "smoke signals")
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_PROTOCOL=smoke signals: expected one of"):
        OpenTelemetryLogger(make_job(run, tmp_path, said))


@pytest.mark.slow
def test_a_run_in_wandb_leaves_that_of_the_script_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    from distprof.profiler.loggers import wandb as logger_file
    from distprof.profiler.loggers.wandb import BesideWandbLogger
    from tests.wandb_file import read_wandb_file

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "theirs-too")
    theirs = wandb.init(project="theirs", dir=str(tmp_path), settings=wandb.Settings(silent=True, console="off"))
    said: list[str] = []
    monkeypatch.setattr(logger_file, "close_sessions_first", lambda: said.append("sessions end first"))
    (tmp_path / "mine").mkdir()
    logger = BesideWandbLogger(make_job(run, tmp_path / "mine", said))
    logger.log(run.rows)
    logger.close()
    assert wandb.run is theirs
    assert said[0] == "sessions end first" and said[1].startswith("wandb: offline")  # who reads it may end the process
    theirs.log({"loss": 1.0})
    theirs.finish()
    wandb.teardown()
    (path,) = (tmp_path / "mine").glob("wandb/offline-run-*/*.wandb")
    points = [point for point in read_wandb_file(path).history if "step/time_ms" in point]
    assert [point["step"] for point in points] == [0, 1, 2, 3]
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert [point["loss"] for point in read_wandb_file(path).history] == [1.0]


SCRIPT = """
import io, sys, time
import distprof
sys.stderr = io.StringIO()
profiler = distprof.start("a", run_dir="run", find=False, loggers=["wandb"], warmup_steps=0, window_s=0.1)
end_s = time.monotonic() + 60
while time.monotonic() < end_s and "wandb: " not in sys.stderr.getvalue():
    with profiler.step():
        time.sleep(0.005)
sys.__stderr__.write(sys.stderr.getvalue())
sys.stderr = sys.__stderr__
print(time.time(), flush=True)
"""


@pytest.mark.slow
def test_fault_31_a_server_that_accepts_and_never_answers_does_not_keep_the_process(tmp_path: Path) -> None:
    from tests.wandb_file import read_wandb_file

    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment = os.environ | {
            "WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "WANDB_API_KEY": "a" * 40,
            "PYTHONPATH": str(Path(distprof.__file__).parent.parent),
        }  # fmt: skip
        environment.pop("WANDB_MODE", None)
        job = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )
    assert job.returncode == 0, job.stderr
    assert time.time() - float(job.stdout.split()[-1]) < 20.0  # two seconds on an idle machine; 28 and more before
    said = [line for line in job.stderr.splitlines() if "wandb" in line]
    assert len(said) == 1 and said[0].startswith("wandb: offline (not online: no answer in 3 s); upload with: ")
    (path,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    steps = [point["step"] for point in read_wandb_file(path).history if "step/time_ms" in point]
    assert steps[-1] == read_run(tmp_path / "run").rows.shape[1] - 1


class Odd:
    """A logger that does what a test says at its n-th call."""

    def __init__(self, log: list[Any], fails_at: int = 10**9, wait: Callable[[], Any] = lambda: None) -> None:
        self.log_of_calls, self._fails_at, self._wait = log, fails_at, wait

    def log(self, rows: FloatArray) -> None:
        self.log_of_calls.append(rows.shape[1])
        self._wait()
        if len(self.log_of_calls) == self._fails_at:
            raise RuntimeError("no\nmore of this")

    def close(self) -> None:
        self.log_of_calls.append("close")


def test_the_first_error_ends_a_logger_with_one_note(run: Run) -> None:
    calls: list[Any] = []
    notes: list[str] = []
    thread = LoggerThread("odd", lambda: Odd(calls, fails_at=2), notes.append)
    for _ in range(5):
        thread.enqueue(run.rows)
    thread.end()
    thread.end()
    assert calls == [4, 4, "close"] and notes == ["profile.loggers=odd stopped: RuntimeError: no"]

    def refuse() -> Odd:
        raise OSError("no such thing")

    thread = LoggerThread("other", refuse, notes.append)
    thread.enqueue(run.rows)
    thread.end()
    assert notes[1:] == ["profile.loggers=other stopped: OSError: no such thing"]


def test_nobody_waits_for_a_stuck_logger(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_consumer, "CALL_LIMIT_S", 0.05)
    released = threading.Event()
    notes: list[str] = []
    thread = LoggerThread("odd", lambda: Odd([], wait=lambda: released.wait(SLOW_S)), notes.append)
    thread.enqueue(run.rows)
    thread.end(0.05)
    released.set()
    assert notes == ["profile.loggers=odd stopped: too slow for 4 step(s)"]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the steps of a job come to in a logger that stands in for TensorBoard; that for otel is broken."""
    points: list[Any] = []

    class Kept:
        def __init__(self, job: LoggedJob) -> None:
            self._points = job.make_points()

        def log(self, rows: FloatArray) -> None:
            points.extend(self._points.add(rows))

        def close(self) -> None:
            points.append("closed")

    for name, make in (("tensorboard", Kept), ("otel", lambda job: 1 / 0)):
        module = types.ModuleType(name)
        module.make_logger = make  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"distprof.profiler.loggers.{name}", module)
        monkeypatch.setitem(LOGGER_PACKAGES, name, ("json", ""))  # type: ignore[arg-type]
    return points


def test_a_session_tells_its_loggers_and_outlives_a_broken_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: list[Any]
) -> None:
    folder = tmp_path / "run"
    with distprof.start(
        run_dir=str(folder), find=False, window_s=0.01, warmup_steps=0, loggers=["tensorboard", "otel", "tensorboard"]
    ) as session:
        for _ in range(20):
            with session.step(), session.phase("forward"):
                session.keep_scalars(loss=2.5)
    assert kept[-1] == "closed" and kept[-2]["step"] == 19 and kept[0]["step/loss"] == 2.5
    steps = [point["step"] for point in kept[:-1]]
    assert steps == sorted(set(steps))  # one logger, although it is named twice
    (note,) = (note for note in analyze(read_run(folder)).coverage.notes if "loggers" in note)
    assert "profile.loggers=otel stopped: ZeroDivisionError" in note and "stopped" in capsys.readouterr().err


def test_after_a_failure_the_loggers_end_with_what_had_been_gathered(tmp_path: Path, kept: list[Any]) -> None:
    session = distprof.start(
        run_dir=str(tmp_path / "run"), find=False, window_s=0.01, warmup_steps=0, loggers=["tensorboard"]
    )
    end_s = time.monotonic() + SLOW_S
    while not kept and time.monotonic() < end_s:
        with session.step():
            pass
    session.close(KeyError("theirs"))
    assert len(kept) > 1 and kept[-1] == "closed"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("distprof-logger")]


def test_wrong_names_and_missing_packages_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"loggers=.*: expected a list of tensorboard, otel, wandb"):
        distprof.start(loggers=["pigeon"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else True)
    wanted = r"loggers=tensorboard: needs the package tensorboard: pip install 'distprof\[tensorboard\]'"
    with pytest.raises(UsageError, match=wanted):
        distprof.start(loggers=["tensorboard"])


@pytest.mark.parametrize("text", ["[tensorboard,otel]", "[tensorboard, otel]", '["tensorboard", "otel"]'])
def test_attach_takes_a_list(text: str) -> None:
    request = read_request([f"profile.loggers={text}", "--", "train.py"])
    assert request is not None and request.options == {"loggers": ["tensorboard", "otel"]}
