"""The verb ``report``: one report from everything at some paths."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from distprof.analyze import analyze
from distprof.cli.options import LONGEST_PATH, add_number, add_width, list_unread, write_into, write_picture
from distprof.cli.reading import add_executor, show_progress
from distprof.cli.trace_names import add_names, read_names
from distprof.errors import EXIT_OK, EXIT_PARTIAL, UsageError
from distprof.facts.run import Run
from distprof.render.terminal.screen import name_command, name_folder, render_screen
from distprof.render.terminal.terminal import render_terminal
from distprof.render.units import clean_text
from distprof.report.report import Report
from distprof.storage.remote import Place, read_place
from distprof.storage.sweep_folder import is_sweep
from distprof.traces.operations.read_operations import is_operations
from distprof.traces.read_paths import read_paths

if TYPE_CHECKING:
    from distprof.render.files.files import Written

DESCRIPTION = """\
Makes a report from a run folder (also if ranks are missing or the job died), from traces of PyTorch's profiler (JSON,
gzipped or not), from captures of Nsight Systems (.sqlite, or .nsys-rep where nsys is installed), from folders of them,
from ranks that distprof reduce kept (.distprof), or from any mix that belongs to one job. Paths may be URLs that fsspec
knows (s3://, gs://, memory://). File types are detected from content. The folder of a sweep makes a report that
compares its jobs. A table of operations of a pipeline-parallel job (Parquet or CSV, docs/operations.md) makes a report
on its stages and replicas. What is shown fits one screen; --details shows the rest, and report.html has all of it.
"""
EPILOG = """\
examples:
  distprof report runs/2026-01-31_12-00-00_gpt2_small_ddp
  distprof report runs/2026-01-31_12-00-00_gpt2_small_ddp --details
  distprof report runs/2026-01-31_12-00-00_multirun   a sweep: jobs side by side
  distprof report traces/                             one trace per rank
  distprof report s3://bucket/traces/ --executor dask:tcp://scheduler:8786
  distprof report trace.parquet    a table of operations of a pipeline job
  distprof report rank0.json.gz rank1.json.gz --phase forward='model_fwd*'
  distprof report node0.sqlite node1.sqlite --step 'train_batch*'
  distprof report trace.parquet --no-write --picture step.svg

Steps are distprof's own ranges, ProfilerStep#N, or ranges such as train_step; --step PATTERN names others.

Phases are distprof's own ranges, or ranges such as forward_pass, ## backward ##, Optimizer.step#AdamW.step; --phase
names others. A pattern is a glob that matches a range's whole name; it takes precedence over the usual names.

report.html, report.json and trace.json.gz are written into the run folder, or to --out if there is none; where modules
were profiled, their table as well: modules.csv, or of a kernel window kernel_modules.csv, and with the extra
distprof[parquet] the same as Parquet. A sweep has report.html, report.json, and its tables in both formats.

Exit codes: 0 complete, 1 nothing readable or not of one job, 2 usage, 3 partial: a rank, a step or a file is missing, a
job is still running or, in a sweep, did not complete (the report says which), a cell of a table of operations cannot be
right, or a file could not be written.
"""
DEFAULT_OUT = Path("distprof-report")


class _ShowSchema(argparse.Action):
    """Prints the schema of ``report.json`` and exits, as ``--help`` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from distprof.render.files.report_schema import describe_operations_schema, describe_schema

        describe = describe_operations_schema if self.dest == "operations_schema" else describe_schema
        print(json.dumps(describe(), indent=2))
        parser.exit()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument(
        "paths",
        type=read_place,
        nargs="+",
        metavar="PATH",
        help="run folder, trace, capture, reduced rank, a folder of them, a URL of these, or a table",
    )
    parser.add_argument(
        "--out", type=read_place, metavar="FOLDER",
        help="folder or URL for report.html, report.json and trace.json.gz (default: the run folder, or "
        f"./{DEFAULT_OUT})",
    )  # fmt: skip
    parser.add_argument("--details", action="store_true", help="show everything, not only what fits one screen")
    parser.add_argument(
        "--schema", action=_ShowSchema, nargs=0, help="print the JSON schema of report.json, and do nothing else"
    )
    parser.add_argument(
        "--operations-schema",
        action=_ShowSchema,
        nargs=0,
        help="the same, where the report is on a table of operations",
    )
    parser.add_argument("--no-write", action="store_true", help="show the report, and write no files")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="write a typical step as a picture of all ranks, an SVG file, too"
    )
    parser.add_argument(
        "--pftrace",
        action="store_true",
        help="write the timeline in Perfetto's own format, too: trace.pftrace.gz, with the extra distprof[perfetto]",
    )
    add_executor(parser)
    add_number(
        parser, "--generation", least=0, metavar="N",
        help="of a job whose ranks torchrun started again: the start to report on, counted from 0 (default: the newest "
        "with a measured step)",
    )  # fmt: skip
    add_width(parser)
    add_names(parser)


def run(options: argparse.Namespace) -> int:
    """Reads, analyses, writes and shows.

    Raises:
        DistprofError: The inputs are unreadable or of different jobs, or an option is wrong.
    """
    names = read_names(options)
    if options.pftrace:
        from distprof.render.files.trace_protobuf import require_perfetto

        require_perfetto()
    if tables := [path for path in options.paths if is_operations(path)]:
        return _report_operations(options, tables[0])
    if sweeps := [path for path in options.paths if is_sweep(path)]:
        return _report_sweep(options, sweeps[0])
    recorded = show_progress(
        lambda show: read_paths(options.paths, names, show, options.executor, generation=options.generation)
    )
    for line in list_unread(recorded.unread):
        print(line, file=sys.stderr)
    if (options.phase or options.step is not None) and not recorded.activity and _is_recorded(recorded):
        path = clean_text(options.paths[0], LONGEST_PATH)
        raise UsageError(f"{path}: has no traces, and --phase and --step name ranges of traces: leave them out")
    report = analyze(recorded)
    folder = _choose_folder(options)
    written = None if options.no_write else _write(folder, recorded, report, pftrace=options.pftrace)
    if options.picture is not None:
        write_picture(options.picture, report.timelines, report)
    made = () if written is None else written.names
    console = Console(width=options.width, emoji=False)  # a name such as a:star:b is printed as it is
    if options.details:
        render_terminal(report, console)
    else:
        again = name_command(options.paths[0]) if len(options.paths) == 1 else "the same command with --details"
        place = name_folder(folder) if made else None
        render_screen(report, console, names=made, folder=place, again=again)
    return EXIT_OK if report.coverage.complete and (written is None or written.whole) else EXIT_PARTIAL


def _write(folder: Place, run: Run, report: Report, *, pftrace: bool) -> Written:
    from distprof.render.files.files import write_files

    return write_into(folder, partial(write_files, run=run, report=report, pftrace=pftrace))


def _is_recorded(run: Run) -> bool:
    return all(info.source == "recorded" for info in run.ranks)


def _report_operations(options: argparse.Namespace, path: Path) -> int:
    from distprof.cli.operations import report_table

    if len(options.paths) > 1 or options.phase or options.step is not None or options.generation is not None:
        raise UsageError(
            f"{clean_text(path, LONGEST_PATH)}: is a table of operations: pass it alone, without --phase, --step or "
            "--generation"
        )
    out = None if options.no_write else options.out or DEFAULT_OUT
    console = Console(width=options.width)
    return report_table(
        path, out=out, console=console, details=options.details, picture=options.picture, pftrace=options.pftrace
    )


def _report_sweep(options: argparse.Namespace, folder: Path) -> int:
    from distprof.cli.sweep.report import report_sweep

    alone = not (options.phase or options.step is not None or options.picture or options.pftrace)
    if len(options.paths) > 1 or not alone or options.generation is not None:
        raise UsageError(
            f"{clean_text(folder, LONGEST_PATH)}: is a sweep: pass its folder alone, without --phase, --step, "
            "--picture, --pftrace or --generation"
        )
    out = None if options.no_write else options.out or folder
    return report_sweep(folder, out=out, console=Console(width=options.width))


def _choose_folder(options: argparse.Namespace) -> Place:
    if options.out is not None:
        place: Place = options.out
        return place
    folders = [path for path in options.paths if isinstance(path, Path) and (path / "run.json").exists()]
    return folders[0] if folders else DEFAULT_OUT
