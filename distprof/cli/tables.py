"""The verb ``tables``: the tables of `nsys stats`, from captures and traces, by rank or together."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from distprof.cli.options import add_number, add_width, list_unread
from distprof.errors import EXIT_OK, EXIT_PARTIAL, DataError, UsageError
from distprof.facts.arrays import IntArray
from distprof.facts.run import name_ranks
from distprof.facts.trace import Trace
from distprof.render.terminal.nsys_tables import render_table, write_csv
from distprof.render.units import clean_text
from distprof.storage.remote import Place, read_place
from distprof.storage.whole_file import write_whole
from distprof.traces.one_job import read_claim, require_one_job
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.steps import detect_steps
from distprof.traces.reduce_sources import read_traces
from distprof.traces.sources import Source, format_unreadable, list_sources, list_window_traces, raise_nothing_readable
from distprof.traces.tables.projection import PROJECTIONS, project
from distprof.traces.tables.six_tables import TABLES, Table, make_table

ROWS = 20
MAX_NOTES = 10
TEXT_LIMIT = 300
DESCRIPTION = """\
Shows the tables of `nsys stats`, with the same numbers, for captures of Nsight Systems (.sqlite, or .nsys-rep where
nsys is installed) and for traces of PyTorch's profiler: for all ranks together, or rank by rank.

  nvtx_sum               named ranges on the host: how long they were open
                         (not how long the GPU worked for them)
  osrt_sum               calls of the operating system's runtime
  cuda_api_sum           calls of the CUDA API
  cuda_gpu_kern_sum      kernels
  cuda_gpu_mem_time_sum  copies and memsets, by time
  cuda_gpu_mem_size_sum  copies and memsets, by size (MB is 10**6 bytes)

With --table, also tables of ranges and the device together:

  nvtx_gpu_proj_sum      ranges projected onto the GPU: from the start of the
                         first operation that they launch to the end of the last
  nvtx_kern_sum          kernels by the range that launched them
  projection             every range with the operations that it launched and
                         the ranges that it contains (not a table of nsys)
"""
EPILOG = """\
examples:
  distprof tables node0.sqlite                     six tables over all processes
  distprof tables node0.sqlite node1.sqlite --drop-warmup    two nodes, merged
  distprof tables trace.json.gz --table cuda_gpu_kern_sum --rows 0
  distprof tables node0.sqlite --per-rank --csv tables/      a CSV file per rank
  distprof tables node0.sqlite --table projection --exclusive

Merged tables are computed from every single duration: medians and deviations are over the rows of all ranks.

Times are shown in ns if the terminal is wide enough, else in a suitable unit. The CSV has nsys's headers and digits;
a text that a spreadsheet would take for a formula gets a leading '.

--drop-warmup keeps what began within a measured step. distprof's own steps are marked as warm-up or measured; other
steps are warm-up inside a range called warm-up. --step says which ranges are steps.

Exit codes: 0 shown, 1 nothing readable or not of one job, 2 usage, 3 shown, but some files could not be read.
"""


class _Share(Struct, frozen=True, kw_only=True):
    """The traces for one set of tables."""

    title: str
    suffix: str
    """Suffix of the CSV files' names."""
    traces: Sequence[Trace]
    windows: Sequence[IntArray | None] | None
    exclusive: bool
    """Whether the projection is exclusive."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument("paths", type=read_place, nargs="+", metavar="PATH", help="capture, trace, or a folder of them")
    parser.add_argument(
        "--table", action="append", choices=(*TABLES, *PROJECTIONS), metavar="NAME",
        help="only this table; may be repeated (default: the first six)",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--per-rank", action="store_true", help="a set of tables for every rank (default: merged)")
    which.add_argument("--rank", type=int, metavar="N", help="only this rank")
    parser.add_argument("--drop-warmup", action="store_true", help="leave out what began outside of the measured steps")
    parser.add_argument("--step", metavar="PATTERN", help="with --drop-warmup: which ranges are steps (a glob)")
    parser.add_argument("--exclusive", action="store_true", help="in the projection, leave out what nested ranges hold")
    parser.add_argument(
        "--csv", type=Path, metavar="FOLDER", help="write NAME.csv files there instead of showing the tables"
    )
    add_number(
        parser, "--rows", least=0, default=ROWS, metavar="N",
        help=f"show at most this many rows, 0 for all (default: {ROWS})",
    )  # fmt: skip
    add_width(parser)


def run(options: argparse.Namespace) -> int:
    """Reads, makes the tables, and shows or writes them.

    Raises:
        DistprofError: The inputs are unreadable, or an option is wrong.
    """
    _check(options)
    names = options.table or list(TABLES)
    traces, unread = _read(options.paths, only_times=set(names) <= set(TABLES) and not options.drop_warmup)
    for line in list_unread(unread):
        print(line, file=sys.stderr)
    code = EXIT_PARTIAL if unread else EXIT_OK
    shares = [_drop_warmup(share, options) for share in _choose(traces, options)]
    if options.csv is not None:
        _write(shares, names, options.csv)
        return code
    console = Console(width=options.width, emoji=False)  # a name such as a:star:b is printed as it is
    for share in shares:
        for name in names:
            table = _make(name, share)
            render_table(table, _describe(table, share), console, max_rows=options.rows or None)
    for note in _list_notes(traces, names):
        console.print(Text(clean_text(note, TEXT_LIMIT), style="dim"))
    return code


def _check(options: argparse.Namespace) -> None:
    if options.step is not None and not options.drop_warmup:
        raise UsageError("--step: only works with --drop-warmup; give both, or neither")
    if options.exclusive and "projection" not in (options.table or ()):
        raise UsageError("--exclusive: applies to the projection; add --table projection")


def _read(paths: Sequence[Place], *, only_times: bool) -> tuple[list[Trace], list[str]]:
    """The traces, and the unreadable files with reasons.

    Raises:
        DataError: Nothing is readable, or the inputs are of different jobs.
    """
    named, unread = list_sources(paths)
    traces: list[Trace] = []
    for source in [inner for outer in named for inner in _open_run(outer, unread)]:
        own = source not in named  # from a run folder, which holds only ranks
        try:
            traces += read_traces(source, all_processes=not own, only_times=only_times and not own)
        except (DataError, OSError) as error:
            unread.append(format_unreadable(source, error))
    if not traces:
        raise_nothing_readable(unread)
    require_one_job([read_claim(trace) for trace in traces], at_several_times=True)
    return traces, unread


def _open_run(source: Source, unread: list[str]) -> list[Source]:
    """The kernel windows of a run folder; any other source itself. Adds what cannot be read to ``unread``."""
    if source.kind != "run":
        return [source]
    if source.url is not None:
        unread.append(f"{source.url}: a run folder: copy it to a disk, or pass the URL of its kernels/")
        return []
    inner, damaged = list_window_traces(source.path)
    unread += damaged
    if not inner and not damaged:
        unread.append(f"{source.path}: a run without traces: record some with profile=kernels, or pass a capture")
    return inner


def _choose(traces: Sequence[Trace], options: argparse.Namespace) -> list[_Share]:
    """The sets of tables to make: all ranks together, each rank, or one."""

    def share(title: str, suffix: str, chosen: Sequence[Trace]) -> _Share:
        return _Share(title=title, suffix=suffix, traces=chosen, windows=None, exclusive=options.exclusive)

    if options.rank is not None:
        chosen = [trace for trace in traces if trace.head.rank == options.rank]
        if not chosen:
            raise UsageError(f"--rank {options.rank}: not found; the traces have {_name_processes(traces)}")
        return [share(f"rank {options.rank}", f"_rank-{options.rank:05d}", chosen)]
    if not options.per_rank:
        return [share(_name_processes(traces), "", traces)]
    ranks: dict[int, list[Trace]] = {}
    for trace in traces:
        if trace.head.rank is not None:
            ranks.setdefault(trace.head.rank, []).append(trace)
    others = [trace for trace in traces if trace.head.rank is None]
    return [
        *(share(f"rank {rank}", f"_rank-{rank:05d}", ranks[rank]) for rank in sorted(ranks)),
        *(
            share(f"process {trace.head.pid}", f"_process-{trace.head.pid}-{index}", [trace])
            for index, trace in enumerate(others)
        ),
    ]


def _name_processes(traces: Sequence[Trace]) -> str:
    """``ranks 0-7 and 1 other process``."""
    ranks = [trace.head.rank for trace in traces if trace.head.rank is not None]
    others = sum(trace.head.rank is None for trace in traces)
    parts = [name_ranks(ranks)] if ranks else []
    if others:
        words = "process" if others == 1 else "processes"
        parts.append(f"{others} {'other ' if ranks else ''}{words}")
    return " and ".join(parts) or "no process"


def _drop_warmup(share: _Share, options: argparse.Namespace) -> _Share:
    """The share, limited to its measured steps; processes without known steps are left out."""
    if not options.drop_warmup:
        return share
    names = NameMap(step=options.step)
    found = [(trace, detect_steps(trace, names).windows()) for trace in share.traces]
    known = [(trace, window) for trace, window in found if window is not None]
    if not known:
        raise UsageError(f"--drop-warmup: no steps are known for {share.title}: name them with --step, or omit it")
    steps = sum(len(window) for _, window in known)
    left = len(found) - len(known)
    without = f", without {left} that {'has' if left == 1 else 'have'} no steps" if left else ""
    return replace(
        share, title=f"{_name_processes([trace for trace, _ in known])}{without}, {steps:,} measured steps",
        traces=[trace for trace, _ in known], windows=[window for _, window in known],
    )  # fmt: skip


def _make(name: str, share: _Share) -> Table:
    if name in TABLES:
        return make_table(name, share.traces, windows=share.windows)
    if name == "projection":
        return project(share.traces, windows=share.windows, exclusive=share.exclusive)
    return PROJECTIONS[name](share.traces, windows=share.windows)


def _describe(table: Table, share: _Share) -> str:
    rows = "no rows" if not table.rows else f"{len(table.rows):,} row{'s' * (len(table.rows) != 1)}"
    return f"{rows}, {share.title}"


def _list_notes(traces: Sequence[Trace], names: Sequence[str]) -> list[str]:
    """What a reader should know: ranges never closed, and what could not be read from the files."""
    notes = []
    if "nvtx_sum" in names:
        opened = sum(int((trace.ranges.end_ns < 0).sum()) for trace in traces if trace.head.last_event_ns is not None)
        if opened:
            notes.append(f"{opened:,} ranges were never closed: counted up to the file's last event, as nsys does")
    notes += dict.fromkeys(f"{Path(trace.head.path).name}: {note}" for trace in traces for note in trace.head.notes)
    return [*notes[:MAX_NOTES], *([f"and {len(notes) - MAX_NOTES} more notes"] if len(notes) > MAX_NOTES else [])]


def _write(shares: Sequence[_Share], names: Sequence[str], folder: Path) -> None:
    """Writes each table atomically, and prints where."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for share in shares:
            for name in names:
                write_whole(folder / f"{name}{share.suffix}.csv", write_csv(_make(name, share)))
    except OSError as error:
        raise UsageError(f"--csv {folder}: cannot be written ({error.strerror}): choose another folder") from None
    count = len(shares) * len(names)
    print(f"{count} table{'s' * (count != 1)} in {folder}")
