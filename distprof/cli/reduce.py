"""The verb ``reduce``: traces to small files that are merged into a report later."""

from __future__ import annotations

import argparse
import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from distprof.cli.options import LONGEST_PATH, list_unread, write_into
from distprof.cli.reading import add_executor, show_progress
from distprof.cli.trace_names import add_names, read_names
from distprof.errors import EXIT_OK, EXIT_PARTIAL, UsageError
from distprof.render.files.files import Written, write_each
from distprof.render.units import clean_text
from distprof.storage.remote import read_place
from distprof.traces.reduce.traced_rank import TracedRank
from distprof.traces.reduce_sources import reduce_traces
from distprof.traces.reduced_file import SUFFIX, write_reduced
from distprof.traces.sources import list_sources, raise_nothing_readable

DESCRIPTION = """\
Reduces traces and captures to what a report needs of each rank, and keeps that in a small file for each, *.distprof.
distprof report on these files gives the same report as on the traces. So traces can be reduced where they are, on a
cluster, or as they come, and need not be kept.
"""
EPILOG = """\
examples:
  distprof reduce traces/ --out reduced
  distprof report reduced/*.distprof
  distprof reduce s3://bucket/traces/ --out s3://bucket/reduced
  distprof reduce traces/ --out reduced --executor dask:tcp://scheduler:8786

A URL's package (s3fs, gcsfs, ...) has to be installed wherever traces are read, and with dask or Ray so has the same
version of distprof; paths must then be on a disk that the workers share. The names of steps and phases are looked up
here: pass --step and --phase to this command.

Exit codes: 0 complete, 1 nothing readable, 2 usage, 3 partial: a file could not be read, or not be written.
"""
LONGEST_STEM = 100


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument("paths", type=read_place, nargs="+", metavar="PATH", help="trace, capture, a folder, or a URL")
    parser.add_argument("--out", type=read_place, required=True, metavar="FOLDER", help="where the files go; or a URL")
    add_executor(parser)
    add_names(parser)


def run(options: argparse.Namespace) -> int:
    """Reads, reduces and writes.

    Raises:
        DistprofError: Nothing is readable, or an option is wrong.
    """
    names = read_names(options)
    sources, unread = list_sources(options.paths)
    if runs := [source for source in sources if source.kind == "run"]:
        raise UsageError(
            f"{clean_text(runs[0], LONGEST_PATH)}: a run folder is not reduced: pass it to distprof report"
        )
    traced, failed = show_progress(lambda show: reduce_traces(sources, names, show, options.executor))
    for line in list_unread([*unread, *failed]):
        print(line, file=sys.stderr)
    if not traced:
        raise_nothing_readable([*unread, *failed])
    written = write_into(options.out, lambda folder: _write(folder, traced))
    shown = clean_text(options.out, LONGEST_PATH)
    print(f"reduced: {len(written.names):,} rank{'s' * (len(written.names) != 1)} in {shown}")
    return EXIT_OK if written.whole and not unread and not failed else EXIT_PARTIAL


def _write(folder: Path, traced: Sequence[TracedRank]) -> Written:
    writers = {
        name: lambda path, item=item: write_reduced(path, item)
        for name, item in zip(_name_files([item.head.path for item in traced]), traced, strict=True)
    }
    return write_each(folder, writers)


def _name_files(paths: Sequence[str]) -> list[str]:
    """A name for each, the same whenever the command is repeated.

    It begins with the place, since ranks without a number are counted in the order read. Then come the trace's name,
    and what tells traces of the same name in different folders apart.
    """
    return [
        f"{place:05d}-{path.rpartition('/')[2][:LONGEST_STEM]}-{zlib.crc32(os.fsencode(path)):08x}{SUFFIX}"
        for place, path in enumerate(paths)
    ]
