"""Captures one job, from its command line to its report."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from types import FrameType

from distprof.cli.capture.command import (
    CaptureRequest,
    Ranks,
    make_command,
    read_ranks,
    read_request,
    read_run_dir,
    read_runs_dir,
)
from distprof.cli.capture.environment import describe, find_neighbours, mask_secrets, probe_isolation
from distprof.cli.doctor.probe import read_driver
from distprof.errors import DataError, UsageError
from distprof.storage.run_folder import read_meta
from distprof.traces.nsys.nsys_tool import Nsys, export_sqlite, find_nsys

GPUS = Path("/proc/driver/nvidia/gpus")
_COUNT_GPUS = "import torch; print(torch.cuda.device_count())"
_KERNEL_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
_LONGEST_REASON = 300


def capture(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Runs a job under nsys, exports what nsys wrote, and shows a report of it.

    Args:
        arguments: See `distprof.cli.capture.command.USAGE`; must not contain secrets.
        environment: The environment of this process, without secrets.

    Returns:
        The job's exit code if that is not 0 or no report is wanted, else the exit code of ``distprof report``.

    Raises:
        UsageError: There is no nsys, or one that would record nothing; the command line cannot work; or secrets of
            other processes would get into the report.
        DataError: nsys left no report, one that cannot be exported or, of a job on GPUs, one without kernels.
    """
    request = read_request(arguments)
    nsys = require_nsys(find_nsys(environment), read_nvtx_version())
    wall = _keep_neighbours_out(request)
    ranks = read_ranks(environment, num_gpus=0 if environment.get("NPROC") else _count_gpus())
    folder = make_folder(read_runs_dir(request.overrides), ranks, now=datetime.now())
    per = "rank" if request.per_rank else "node"
    _print_line(f"{ranks.per_node} ranks, one nsys {nsys.version or '(no version)'} per {per}, into {folder}")
    ended = _run([*wall, *make_command(request, ranks, nsys=nsys.path, folder=folder)], environment)
    reports = judge(folder, request, ranks, ended)
    exported = [_export(nsys, report) for report in reports]
    _print_line(f"the capture: {', '.join(map(str, [*reports, *exported]))}")
    on_cpu = "device=cpu" in request.overrides
    if not ended and request.traces_cuda and runs_on_gpu(read_run_dir(request.overrides, folder), on_cpu=on_cpu):
        for export in exported:
            require_kernels(export, nsys)
    if not request.report:
        return ended
    shown = subprocess.run([sys.executable, "-m", "distprof", "report", *map(str, exported)], check=False)
    return ended or shown.returncode


def _keep_neighbours_out(request: CaptureRequest) -> list[str]:
    """The command prefix that keeps nsys from reading secrets of other processes; empty: not needed.

    Raises:
        UsageError: nsys would read them, and this cannot be prevented.
    """
    neighbours = find_neighbours()
    if not neighbours:
        return []
    if (wall := probe_isolation()) is not None:
        _print_line(f"runs in its own process namespace, because nsys reads every process: {describe(neighbours)}")
        return wall
    if request.keep_secrets:
        return []
    raise UsageError(
        "nsys writes the environment of every process into its report, and some contain secrets "
        f"({describe(neighbours)}): end them or restart them without, or accept it with --keep-secrets before the --"
    )


def require_nsys(nsys: Nsys | None, nvtx_version: str | None) -> Nsys:
    """Checks that nsys will record our ranges.

    Raises:
        UsageError: There is no nsys, or it would silently record nothing.
    """
    if nsys is None:
        raise UsageError(
            "nsys: not found: install Nsight Systems, put nsys on PATH, or name it with NSYS=/path/to/nsys"
        )
    if nvtx_version is None:
        raise UsageError("the nvtx package is not installed, so no range would be recorded: pip install 'nvtx<0.2.12'")
    if nsys.drops_ranges_of(nvtx_version):
        raise UsageError(
            f"nsys {nsys.version} silently records nothing from nvtx {nvtx_version}: "
            "pip install 'nvtx<0.2.12', or use an nsys newer than 2024.2"
        )
    return nsys


def make_folder(runs_dir: str, ranks: Ranks, *, now: datetime) -> Path:
    """Creates the folder of a capture, never reusing an old one.

    Raises:
        UsageError: It cannot be created.
    """
    name = f"{now:%Y-%m-%d_%H-%M-%S}_nsys" + (f"-node{ranks.node}" if ranks.nodes > 1 else "")
    try:
        Path(runs_dir).mkdir(parents=True, exist_ok=True)
        for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
            with contextlib.suppress(FileExistsError):
                (folder := Path(runs_dir) / f"{name}{suffix}").mkdir()
                return folder
    except OSError as error:
        raise UsageError(f"{runs_dir}: cannot create a folder there ({error.strerror}): set runs_dir=...") from None
    raise UsageError(f"{runs_dir}: a thousand captures in one second: set runs_dir=...")


def judge(folder: Path, request: CaptureRequest, ranks: Ranks, ended: int) -> list[Path]:
    """Finds the reports that nsys wrote; its exit code says nothing about them.

    Raises:
        DataError: There are none, or a rank's is missing.
    """
    reports = sorted(path for path in folder.glob("*.nsys-rep") if path.stat().st_size > 0)
    wanted = ranks.per_node if request.per_rank else 1
    if len(reports) >= wanted:
        return reports
    found = f"{len(reports)} of {wanted} reports" if reports else "no report"
    if ended:
        why = f"the job ended with exit code {ended}, see above"
    else:
        why = f"no measured step was reached, or the disk is full ({_describe_free(folder)})"
    raise DataError(f"{folder}: nsys wrote {found}, regardless of its exit code: {why}")


def _describe_free(folder: Path) -> str:
    paths = dict.fromkeys((str(folder), tempfile.gettempdir()))
    return ", ".join(f"{shutil.disk_usage(path).free / 2**30:.1f} GiB free in {path}" for path in paths)


def _export(nsys: Nsys, report: Path) -> Path:
    """The SQLite export of a report, beside it, without secrets; warns if it contains none of our ranges."""
    target = report.with_suffix(".sqlite")
    export_sqlite(nsys, report, target)
    try:
        masked = mask_secrets(target)
    except sqlite3.Error as error:
        raise DataError(f"{target}: not a valid nsys export ({error}): is the disk full?") from None
    if masked:
        report.chmod(0o600)
        _print_line(f"{report}: contains {', '.join(masked)} of other processes: do not share it (the SQLite is clean)")
    with _open_export(target) as base:
        has_ranges = _has_rows(base, "NVTX_EVENTS")
    if not has_ranges:
        _print_line(f"{target}: contains no NVTX range: was -t nvtx left out? See distprof doctor")
    return target


def require_kernels(export: Path, nsys: Nsys) -> None:
    """Checks that an export has kernels: an nsys that cannot trace CUDA goes on without a word.

    Args:
        export: Made from the capture of a job on GPUs; its strings are untrusted.
        nsys: What captured it.

    Raises:
        DataError: It has none; with the reason, as far as nsys or the versions tell.
    """
    with _open_export(export) as base:
        if any(_has_rows(base, table) for table in _KERNEL_TABLES):
            return
        diagnosis = _read_diagnosis(base)
    reason = f"nsys says: {diagnosis}" if diagnosis else "an nsys that is older than the driver records none"
    raise DataError(
        f"{export}: no kernel, although the job ran on GPUs; {reason} (nsys {nsys.version or 'of unknown version'}, "
        f"driver {read_driver() or 'of unknown version'}): install a newer Nsight Systems"
    )


def runs_on_gpu(run_folder: Path, *, on_cpu: bool) -> bool:
    """Whether the captured job ran on GPUs.

    Args:
        run_folder: The job's. If it cannot be read here, this machine's GPUs decide.
        on_cpu: Whether the job's command line chose the CPU.
    """
    try:
        return read_meta(run_folder).device_type == "cuda"
    except DataError:
        return not on_cpu and GPUS.is_dir() and any(GPUS.iterdir())


@contextlib.contextmanager
def _open_export(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
        base.execute("PRAGMA trusted_schema = OFF")
        yield base


def _has_rows(base: sqlite3.Connection, table: str) -> bool:
    try:
        return base.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None
    except sqlite3.Error:  # nsys leaves out empty tables
        return False


def _read_diagnosis(base: sqlite3.Connection) -> str | None:
    """What nsys noted about CUDA while it captured, the driver first. None: nothing."""
    try:
        rows = base.execute("SELECT text FROM DIAGNOSTIC_EVENT WHERE text LIKE '%CUDA%' LIMIT 100").fetchall()
    except sqlite3.Error:
        return None
    texts = [" ".join("".join(filter(str.isprintable, re.sub(r"\s", " ", str(text)))).split()) for (text,) in rows]
    texts.sort(key=lambda text: "driver" not in text.lower())
    return texts[0][:_LONGEST_REASON] if texts else None


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the job; Ctrl-C and SIGTERM are left to it, so that nsys still writes its data."""
    try:
        job = subprocess.Popen(
            command, env={**environment, "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}, stdin=subprocess.DEVNULL
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be run ({error.strerror}): name another nsys with NSYS") from None
    with _handed_on(job):
        ended = job.wait()
    return 128 - ended if ended < 0 else ended


@contextlib.contextmanager
def _handed_on(job: subprocess.Popen[bytes]) -> Iterator[None]:
    def hand_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.kill(_locate_nsys_process(job.pid), number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),  # the terminal signals the job itself
        signal.SIGTERM: signal.signal(signal.SIGTERM, hand_on),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _locate_nsys_process(pid: int) -> int:
    """In a namespace nsys is a grandchild: ``unshare`` and the shell do not forward signals."""
    while Path(f"/proc/{pid}/comm").read_text().strip() in ("unshare", "sh"):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            break
        pid = int(children[0])
    return pid


def read_nvtx_version() -> str | None:
    """The version of the `nvtx` package. None: it is not installed."""
    try:
        return metadata.version("nvtx")
    except metadata.PackageNotFoundError:
        return None


def _count_gpus() -> int:
    done = subprocess.run([sys.executable, "-c", _COUNT_GPUS], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise DataError(f"torch cannot be loaded: {said[-1][:300]}: see distprof doctor")
    return int(done.stdout.strip() or 0)


def _print_line(text: str) -> None:
    print(f"distprof: {text}", file=sys.stderr, flush=True)
