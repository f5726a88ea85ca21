"""The files of a report on a table of operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from distprof.facts.operations import Operations
from distprof.facts.plain import make_plain
from distprof.render.files.files import Written, write_each
from distprof.render.files.operations_timeline import describe_operations_trace, render_operations_trace
from distprof.render.files.trace_protobuf import pack_protobuf
from distprof.render.html.html import show_card, show_section
from distprof.render.html.page import make_page
from distprof.render.html.step_picture import show_pictures
from distprof.render.markup import make_section, show
from distprof.render.sections.operations_sections import list_operations_sections, make_pipeline_card, name_pipeline
from distprof.report.operations_report import OperationsReport
from distprof.storage.whole_file import write_json, write_whole


def write_operations_files(
    folder: Path, operations: Operations, report: OperationsReport, *, pftrace: bool = False
) -> Written:
    """Writes ``report.html``, ``report.json`` and ``trace.json.gz``, each atomically; never raises OSError. With
    ``pftrace`` also ``trace.pftrace.gz``, which needs the perfetto package."""
    writers: dict[str, Callable[[Path], None]] = {
        "report.html": lambda path: write_whole(path, render_operations_html(report)),
        "report.json": lambda path: write_json(path, make_plain(report)),
        "trace.json.gz": lambda path: write_whole(path, render_operations_trace(operations, report.name)),
    }
    if pftrace:
        about, events = describe_operations_trace(operations, report.name)
        writers["trace.pftrace.gz"] = lambda path: write_whole(path, pack_protobuf(about, events))
    return write_each(folder, writers)


def render_operations_html(report: OperationsReport) -> str:
    """The report as one page."""
    head = f"<header><h1>{show(report.name)}</h1><p>{show(name_pipeline(report), 1_000)}</p></header>"
    sections = [show_section(section) for section in list_operations_sections(report)]
    picture = make_section("One step", show_pictures(report.timelines))
    return make_page(show(report.name), "\n".join([head, show_card(make_pipeline_card(report)), picture, *sections]))
