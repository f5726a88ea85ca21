"""Weights & Biases, from rank 0: scalars while the job runs; a summary, tables, images and files at its end.

wandb is imported only when used and never trusted: an error is reported once, and training goes on. Its own record of
the command line and the machine is switched off, because overrides may hold secrets.
"""

from __future__ import annotations

import contextlib
import importlib.util
import netrc
import os
import shutil
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from distprof.analyze.live.live_metrics import METRICS, LiveMetrics
from distprof.config.redact import mask, secret_values
from distprof.config.schema import WandbConfig
from distprof.errors import UsageError
from distprof.facts.arrays import FloatArray
from distprof.facts.run import RankInfo, Run, RunMeta
from distprof.render.units import clean_text
from distprof.render.wandb.wandb_heat_map import collect_times, draw_maps
from distprof.render.wandb.wandb_summary import ARTIFACT_TYPE, describe_alert, keep_files, make_summary, make_tables
from distprof.report.report import Report

MAX_NAME_LENGTH = 128
"""More characters are refused by W&B, for a run as for a group."""
PUBLIC_SERVER = "https://api.wandb.ai"
ANSWER_LIMIT_S = 3.0
"""How long a server may take to answer at all before a run is opened offline: wandb itself would ask for half a
minute, and again when the process ends."""
BESIDE_LIMIT_S = 5.0
"""How long a run beside the script's own may take to be opened, and to be uploaded at its end."""


def require_wandb() -> None:
    """Raises UsageError if the package is not installed."""
    if importlib.util.find_spec("wandb") is None:
        raise UsageError("logger=wandb needs the wandb package: pip install wandb, or logger=none")


def is_logged_in() -> bool:
    """Whether wandb would find a key without a prompt: in the environment, or in the netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(read_server()).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def read_server() -> str:
    """The server that runs are sent to."""
    return os.environ.get("WANDB_BASE_URL", PUBLIC_SERVER)


def gives_answer(url: str, limit_s: float) -> bool:
    """Whether a server answers at all. Refusing a connection is an answer too: wandb then knows at once as well."""
    try:
        with urllib.request.urlopen(url, timeout=limit_s):
            return True
    except TimeoutError:
        return False
    except urllib.error.URLError as error:
        return not isinstance(error.reason, TimeoutError)
    except Exception:  # wandb may know better what to do with it
        return True


def choose_mode(config: WandbConfig) -> str:
    """The mode asked for: "online", "offline", "disabled", or empty if none was."""
    return config.mode if config.mode != "auto" else os.environ.get("WANDB_MODE", "")


def wants_online(config: WandbConfig) -> bool:
    """Whether a run is opened online first."""
    wanted = choose_mode(config)
    return wanted == "online" or (wanted not in ("offline", "disabled") and is_logged_in())


def end_service(*, only_stopped: bool) -> None:
    """Kills wandb's service, a child of this process, which would otherwise keep the job's output open.

    Also removes the folder of its socket, as the service does when it ends by itself.

    Args:
        only_stopped: Only if it is stopped, as by SIGSTOP; otherwise it ends by itself when its parent is gone.
    """
    for folder in Path("/proc").glob("[0-9]*"):  # not on every system; wandb does not tell the process id
        with contextlib.suppress(OSError, ValueError):
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            if name == "wandb-core" and int(parent) == os.getpid() and (state in "tT" or not only_stopped):
                os.kill(int(folder.name), signal.SIGKILL)
                for socket in Path(tempfile.gettempdir()).glob(f"wandb-{parent}-{folder.name}-*"):
                    shutil.rmtree(socket, ignore_errors=True)


class WandbLogger:
    """One W&B run. Called from one thread at a time; no error reaches training."""

    def __init__(
        self, run: Any, *, folder: Path, points: LiveMetrics, print_line: Callable[[str], None], beside: bool = False
    ) -> None:
        """Wraps an open run; see `start`."""
        self._run, self._folder, self._points, self._print_line, self._beside = run, folder, points, print_line, beside
        self._failed = False
        self.got_steps = 0
        """Steps that wandb's service has confirmed."""
        self.concluded = self.closed = False
        """Whether the tables and summary are logged; whether the run is closed and, if online, uploaded."""

    @classmethod
    def start(
        cls,
        *,
        meta: RunMeta,
        config: WandbConfig,
        folder: Path,
        print_line: Callable[[str], None],
        ranks: Sequence[RankInfo] = (),
        beside: bool = False,
    ) -> WandbLogger | None:
        """Opens a run, online when logged in, else offline, and says which.

        Args:
            meta: Of the job, with a redacted configuration.
            config: Project, mode, and how long to try to go online.
            folder: The run folder; wandb makes its own inside it.
            print_line: Says a line to the user.
            ranks: Every rank, in order; see `LiveMetrics`.
            beside: The process may have other runs open, which are left alone.

        Returns:
            None when wandb cannot even log offline.
        """
        name = meta.name if beside else _clean_name(os.environ.get("WANDB_NAME")) or meta.name
        run = open_run(
            name, config, folder=folder, print_line=print_line, values=meta.config, metrics=METRICS, beside=beside
        )
        return (
            None
            if run is None
            else cls(run, folder=folder, points=LiveMetrics(meta, ranks), print_line=print_line, beside=beside)
        )

    def log_rows(self, rows: FloatArray) -> None:
        """Logs whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``; many at once become one point.

        Waits until wandb's service has answered.
        """
        if not self._failed:
            self._attempt(lambda: self._log(rows))

    def conclude(self, report: Report, run: Run) -> None:
        """Logs the summary, the tables and the images, attaches the report's files, and sends an alert if the verdict
        is critical. Waits until wandb's service has answered.

        Args:
            report: Of the whole job.
            run: What the report is about.
        """
        if not self._failed:
            self._attempt(lambda: self._conclude(report, run))

    def close(self) -> None:
        """Closes the run; waits for the upload however long it takes."""
        self._attempt(self._close)

    @property
    def folder(self) -> Path:
        """Where wandb keeps the run."""
        return Path(self._run.dir).parent

    def _log(self, rows: FloatArray) -> None:
        for point in self._points.add(rows):
            self._run.log(point)
        self._run.status()  # wait for an answer: a service that hangs never reads what it is sent
        self.got_steps += rows.shape[1]

    def _conclude(self, report: Report, run: Run) -> None:
        import wandb

        self._run.summary.update(make_summary(report))
        times = collect_times(run, report)
        end: dict[str, Any] = self._points.end()
        for name, table in make_tables(report, times).items():
            end[name] = wandb.Table(columns=[*table.columns], data=table.rows)
        for name, image, caption in draw_maps(times):
            end[name] = wandb.Image(image, caption=caption)
        self._run.log(end)
        if (alert := describe_alert(report)) is not None:
            self._run.alert(title=alert[0], text=alert[1], level="ERROR")
        self._attach(keep_files(self._folder, self.folder, self._print_line))
        self._run.status()
        self.concluded = True

    def _attach(self, files: Sequence[Path]) -> None:
        """The report's files as an artifact; wandb reads them where they lie, and copies them nowhere else."""
        import wandb

        if files:
            artifact = wandb.Artifact(f"distprof-{self._run.id}", type=ARTIFACT_TYPE)
            for path in files:
                artifact.add_file(str(path), policy="immutable")
            self._run.log_artifact(artifact)

    def _close(self) -> None:
        if self._beside:
            self._run.finish()
        else:
            close_run(self._run)
        self.closed = True

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            if not self._failed:
                self._print_line(f"wandb: logging stopped, {type(error).__name__}; the run folder holds everything")
            self._failed = True


def open_run(
    name: str,
    config: WandbConfig,
    *,
    folder: Path,
    print_line: Callable[[str], None],
    values: Mapping[str, object],
    metrics: Iterable[tuple[str, str | None]] = (),
    beside: bool = False,
) -> Any:
    """Opens a run, online when logged in, else offline, and says which. None: wandb cannot even log offline.

    Args:
        name: The run's.
        config: Project, mode, and how long to try to go online.
        folder: wandb makes its own inside it.
        print_line: Says a line to the user.
        values: The run's configuration, redacted.
        metrics: Metrics, each with the one that it is drawn over.
        beside: The process may have other runs open, which are left alone.
    """
    wanted = choose_mode(config)
    if wanted == "disabled":
        print_line("wandb: disabled by WANDB_MODE")
        return None
    online = wants_online(config)
    reason = "" if online or wanted == "offline" else " (not logged in)"
    if online and not gives_answer(read_server(), ANSWER_LIMIT_S):
        online, reason = False, f" (not online: no answer in {ANSWER_LIMIT_S:g} s)"
        _silence_telemetry()
    try:
        run = None
        if online:
            try:
                run = _open(name, values, config, folder, "online", beside=beside)
            except Exception as error:
                reason = f" (not online: {type(error).__name__})"
        run = run or _open(name, values, config, folder, "offline", beside=beside)
        for metric, step_metric in metrics:
            run.define_metric(metric, step_metric=step_metric, summary="none")
    except Exception as error:
        print_line(f"wandb: not used, {type(error).__name__}; the run folder holds everything")
        return None
    print_line(_describe(run, reason))
    return run


def close_run(run: Any) -> None:
    """Closes a run; waits for the upload however long it takes."""
    import wandb

    run.finish()
    wandb.teardown()  # the service writes the end of the file when it exits, not when the run is finished


def _open(
    name: str, values: Mapping[str, object], config: WandbConfig, folder: Path, mode: Literal["online", "offline"],
    *, beside: bool,
) -> Any:  # fmt: skip
    import wandb

    settings = wandb.Settings(
        silent=True, console="off", disable_git=True, disable_code=True, save_code=False, x_disable_meta=True,
        x_disable_machine_info=True,
        init_timeout=min(config.init_timeout_s, BESIDE_LIMIT_S) if beside else config.init_timeout_s,
    )  # fmt: skip
    if beside and hasattr(settings, "finish_timeout"):  # newer releases have it
        settings.finish_timeout = BESIDE_LIMIT_S
    return wandb.init(
        project=config.project, entity=config.entity, name=name, group=_clean_name(config.group),
        dir=str(folder), config=dict(values), mode=mode, settings=settings,
        reinit="create_new" if beside else "finish_previous",
    )  # fmt: skip


def _silence_telemetry() -> None:
    """Has wandb not send counts of its own use: the end of the process would wait for a server that gives no answer."""
    with contextlib.suppress(Exception):  # older releases have none
        from wandb.analytics.opentelemetry import opentelemetry_proxy

        opentelemetry_proxy.disable()


def _clean_name(name: str | None) -> str | None:
    return None if name is None else clean_text(mask(name, secret_values()), MAX_NAME_LENGTH)


def _describe(run: Any, reason: str) -> str:
    folder = Path(run.dir).parent
    if getattr(run, "offline", False):
        return f"wandb: offline{reason}; upload with: wandb sync {folder}"
    return f"wandb: online at {run.url}"
