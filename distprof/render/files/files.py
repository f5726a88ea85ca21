"""The files of a report, written into the run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from distprof.analyze.summary.mesh import name_groups
from distprof.analyze.summary.page import measure_page
from distprof.error_boundary import ErrorBoundary
from distprof.facts.plain import make_plain
from distprof.facts.run import Run
from distprof.render.files.column_files import list_writers
from distprof.render.files.module_files import list_module_tables
from distprof.render.files.run_trace import MOST_SLICES, describe_trace
from distprof.render.files.trace_events import TraceEvent
from distprof.render.files.trace_json import pack_json
from distprof.render.files.trace_protobuf import pack_protobuf
from distprof.render.finding_texts import describe_finding, describe_lack
from distprof.render.html.html import render_html
from distprof.render.sections.rank_names import name_rank
from distprof.report.report import Report
from distprof.storage.whole_file import write_json, write_whole


class Written(Struct, frozen=True, kw_only=True):
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
    plain = make_plain(report)
    if report.activity is not None:
        activity = plain["activity"]
        for finding, into in zip(report.activity.findings, activity["findings"], strict=True):
            into |= make_plain(describe_finding(finding))
        for item, into in zip(report.activity.not_checked, activity["not_checked"], strict=True):
            into |= {"why": describe_lack(item)}
    return plain


def write_files(
    folder: Path, run: Run, report: Report, *, pftrace: bool = False, most_slices: int = MOST_SLICES
) -> Written:
    """Writes ``report.html``, ``report.json``, ``trace.json.gz`` and, where modules were profiled, their tables; each
    atomically; never raises OSError. With ``pftrace`` also ``trace.pftrace.gz``, which needs the perfetto package.
    ``most_slices`` is as for `describe_trace`."""
    writers: dict[str, Callable[[Path], None]] = {
        "report.html": lambda path: write_whole(path, render_html(report, measure_page(run, report))),
        "report.json": lambda path: write_json(path, describe_plain(report)),
        "trace.json.gz": lambda path: write_whole(path, render_trace(run, report, most_slices)),
    }
    if pftrace:
        writers["trace.pftrace.gz"] = lambda path: write_whole(
            path, pack_protobuf(*_describe_trace(run, report, most_slices))
        )
    return write_each(folder, writers | list_writers(list_module_tables(report)))


def write_each(folder: Path, writers: Mapping[str, Callable[[Path], None]]) -> Written:
    """Writes files by their names; what one cannot write keeps none of the others."""
    failures: dict[str, str] = {}
    for name, write in writers.items():
        # What cannot be drawn of this run must not cost the files that can.
        with ErrorBoundary("it cannot be drawn", partial(failures.__setitem__, name)):
            try:
                write(folder / name)
            except OSError as error:
                failures[name] = error.strerror or str(error)
    names = [name for name in writers if name not in failures]
    reasons = ", ".join(dict.fromkeys(failures.values()))
    problem = f"{', '.join(failures)} could not be written ({reasons})" if failures else None
    return Written(names=tuple(names), problem=problem)


def render_trace(run: Run, report: Report, most_slices: int = MOST_SLICES) -> Iterator[bytes]:
    """The timeline of ``trace.json.gz`` in parts; the same run is the same file."""
    return pack_json(*_describe_trace(run, report, most_slices))


def _describe_trace(run: Run, report: Report, most_slices: int) -> tuple[dict[str, object], Iterator[TraceEvent]]:
    run, _ = name_groups(run)
    names = {info.rank: name_rank(report, info.rank) for info in run.ranks}
    return describe_trace(run, names, [timeline.step for timeline in report.timelines], most_slices)
