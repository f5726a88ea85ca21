"""The files of a report, written into the run folder."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from distprof.facts.run import COLUMN, PHASES, Run, Segments
from distprof.render.files.column_files import list_writers
from distprof.render.files.module_files import list_module_tables
from distprof.render.finding_texts import describe_finding, describe_lack
from distprof.render.html.html import render_html
from distprof.render.units import clean_text
from distprof.report.report import Report
from distprof.storage.whole_file import write_json, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Which files were written."""

    names: tuple[str, ...]
    """The files that were written."""
    problem: str | None
    """Which were not written, and why. None: all were."""

    @property
    def whole(self) -> bool:
        """Whether all were written."""
        return self.problem is None


def describe_plain(report: Report) -> dict[str, Any]:
    """The report as JSON-ready containers, as ``report.json`` holds it: findings in words beside their numbers."""
    plain = dataclasses.asdict(report)
    if report.activity is not None:
        activity = plain["activity"]
        for finding, into in zip(report.activity.findings, activity["findings"], strict=True):
            into |= dataclasses.asdict(describe_finding(finding))
        for item, into in zip(report.activity.not_checked, activity["not_checked"], strict=True):
            into |= {"why": describe_lack(item)}
    return plain


def write_files(folder: Path, run: Run, report: Report) -> Written:
    """Writes ``report.html``, ``report.json``, ``trace.json.gz`` and, where modules were profiled, their tables; each
    atomically; never raises OSError."""
    writers: dict[str, Callable[[Path], None]] = {
        "report.html": lambda path: write_whole(path, render_html(report)),
        "report.json": lambda path: write_json(path, describe_plain(report)),
        "trace.json.gz": lambda path: write_whole(path, render_trace(run)),
    }
    return write_each(folder, writers | list_writers(list_module_tables(report)))


def write_each(folder: Path, writers: Mapping[str, Callable[[Path], None]]) -> Written:
    """Writes files by their names; what one cannot write keeps none of the others."""
    failures: dict[str, str] = {}
    for name, write in writers.items():
        try:
            write(folder / name)
        except OSError as error:
            failures[name] = error.strerror or str(error)
    names = [name for name in writers if name not in failures]
    reasons = ", ".join(dict.fromkeys(failures.values()))
    problem = f"{', '.join(failures)} could not be written ({reasons})" if failures else None
    return Written(names=tuple(names), problem=problem)


STEP_THREAD, PHASE_THREAD = 0, 1
EVENTS_AT_ONCE = 1000
"""To write each by itself takes as long as to compress it."""


def render_trace(run: Run) -> bytes:
    """A process per rank with two threads: its steps, and their segments. Host clock; deterministic.

    The ranks of a host share its clock. The clocks of different hosts have different zeros, so each host starts at its
    own first segment: distances between hosts mean nothing, as the trace's ``otherData`` states.
    """
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as packed:
        packed.write(b'{"displayTimeUnit":"ms","otherData":' + _encode(_describe(run)) + b',"traceEvents":[\n')
        events = _list_events(run)
        first = True
        while some := list(islice(events, EVENTS_AT_ONCE)):
            packed.write((b"" if first else b",\n") + b",\n".join(some))
            first = False
        packed.write(b"\n]}\n")
    return buffer.getvalue()


def _describe(run: Run) -> dict[str, object]:
    return {
        "run": clean_text(run.meta.run_id),
        "name": clean_text(run.meta.name),
        "clock": "host, monotonic; each host starts at 0, so distances between hosts mean nothing",
    }


def _list_events(run: Run) -> Iterator[bytes]:
    hosts = {info.rank: info.host for info in run.ranks}
    origins_ns: dict[str, int] = {}
    for (rank, _), kept in run.segments.items():
        host = hosts[rank]
        origins_ns[host] = min(origins_ns.get(host, kept.begin_ns), kept.begin_ns)
    for info in run.ranks:
        name = f"rank {info.rank} ({clean_text(info.host)})"
        yield _encode({"ph": "M", "pid": info.rank, "name": "process_name", "args": {"name": name}})
        yield _encode({"ph": "M", "pid": info.rank, "name": "process_sort_index", "args": {"sort_index": info.rank}})
        for thread, label in ((STEP_THREAD, "steps"), (PHASE_THREAD, "phases (host clock)")):
            yield _encode({"ph": "M", "pid": info.rank, "tid": thread, "name": "thread_name", "args": {"name": label}})
    facts = _read_step_facts(run)
    for (rank, step), kept in sorted(run.segments.items()):
        begin_ns = kept.begin_ns - origins_ns[hosts[rank]]
        yield from _list_step(rank, step, kept, begin_ns, *facts.get((rank, step), (False, sum(kept.durations_ns))))


def _read_step_facts(run: Run) -> dict[tuple[int, int], tuple[bool, float]]:
    """Whether each kept step was warm-up, and how long it took, since some of its segments may not have been kept."""
    columns = {int(number): index for index, number in enumerate(np.nanmax(run.column("step"), axis=0, initial=-1))}
    positions = {info.rank: position for position, info in enumerate(run.ranks)}
    facts = {}
    for rank, step in run.segments:
        row = run.rows[positions[rank], columns[step]] if step in columns else np.full(len(COLUMN), np.nan)
        if np.isfinite(row[COLUMN["step_host_ns"]]):
            facts[rank, step] = bool(row[COLUMN["warmup"]] == 1), float(row[COLUMN["step_host_ns"]])
    return facts


def _list_step(rank: int, step: int, kept: Segments, start_ns: int, warmup: bool, step_ns: float) -> Iterator[bytes]:
    """The step, then its segments, without empty ones. Times in microseconds, as the format requires."""
    args: dict[str, object] = {"step": step, "warmup": warmup}
    if kept.truncated:
        args["truncated"] = True
    long_ns = step_ns if kept.truncated else sum(kept.durations_ns)
    shown = {"ph": "X", "pid": rank, "tid": STEP_THREAD, "name": f"step {step}", "ts": start_ns / 1e3}
    yield _encode({**shown, "dur": long_ns / 1e3, "args": args})
    for code, duration_ns in zip(kept.codes, kept.durations_ns, strict=True):
        if duration_ns:
            yield b'{"ph":"X","pid":%d,"tid":%d,"name":"%s","ts":%.3f,"dur":%.3f,"args":{"step":%d}}' % (
                rank, PHASE_THREAD, PHASES[code].value.encode(), start_ns / 1e3, duration_ns / 1e3, step,
            )  # fmt: skip
        start_ns += duration_ns


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
