"""Whether a capture of a job on GPUs contains their kernels: an nsys that cannot trace CUDA goes on without a word."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

from distprof.cli.doctor.gather import read_driver
from distprof.errors import DataError
from distprof.storage.run_folder import read_meta
from distprof.traces.nsys.nsys_tool import Nsys

GPUS = Path("/proc/driver/nvidia/gpus")
_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
_LONGEST_REASON = 300


def require_kernels(export: Path, nsys: Nsys) -> None:
    """Checks that an export has kernels.

    Args:
        export: Made from the capture of a job on GPUs; its strings are untrusted.
        nsys: What captured it.

    Raises:
        DataError: It has none; with the reason, as far as nsys or the versions tell.
    """
    with contextlib.closing(sqlite3.connect(f"{export.absolute().as_uri()}?mode=ro", uri=True)) as base:
        base.execute("PRAGMA trusted_schema = OFF")
        if any(_has_rows(base, table) for table in _TABLES):
            return
        said = _find_diagnosis(base)
    reason = f"nsys says: {said}" if said else "an nsys that is older than the driver records none"
    raise DataError(
        f"{export}: no kernel, although the job ran on GPUs; {reason} (nsys {nsys.version or 'of unknown version'}, "
        f"driver {read_driver() or 'of unknown version'}): install a newer Nsight Systems"
    )


def runs_on_gpu(run_folder: Path, *, on_cpu: bool) -> bool:
    """Whether the captured job ran on GPUs, by its run folder or, if that cannot be read here, by this machine.

    Args:
        run_folder: The job's.
        on_cpu: Whether it was told to run on the CPU.
    """
    try:
        return read_meta(run_folder).device_type == "cuda"
    except DataError:
        return not on_cpu and GPUS.is_dir() and any(GPUS.iterdir())


def _has_rows(base: sqlite3.Connection, table: str) -> bool:
    try:
        return base.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None
    except sqlite3.Error:  # nsys leaves out empty tables
        return False


def _find_diagnosis(base: sqlite3.Connection) -> str | None:
    """What nsys noted about CUDA while it captured, the driver first. None: nothing."""
    try:
        rows = base.execute("SELECT text FROM DIAGNOSTIC_EVENT WHERE text LIKE '%CUDA%' LIMIT 100").fetchall()
    except sqlite3.Error:
        return None
    texts = [" ".join("".join(filter(str.isprintable, re.sub(r"\s", " ", str(text)))).split()) for (text,) in rows]
    texts.sort(key=lambda text: "driver" not in text.lower())
    return texts[0][:_LONGEST_REASON] if texts else None
