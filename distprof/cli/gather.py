"""The verb ``gather``: one run folder from the parts that hosts without a shared disk have written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from distprof.cli.options import LONGEST_PATH, list_unread
from distprof.errors import EXIT_OK, EXIT_PARTIAL
from distprof.render.units import clean_text
from distprof.storage.gather_folders import gather_folders

DESCRIPTION = """\
Brings the parts of one run together where the hosts of a job share no disk. Each host then has a folder of the same
name, with the records of its own ranks; rank 0's has run.json, and of ranks elsewhere the steps, with their collectives
as sums. Copy these folders to one place (rsync, scp, tar), and pass all of them. The new folder has each rank's own
records, kernel traces and modules; the parts stay as they are.
"""
EPILOG = """\
examples:
  distprof gather runs/2026-01-31_12-00-00_train parts/node1 --out runs/all
  distprof gather parts/*/2026-01-31_12-00-00_train --out runs/all

Exit codes: 0 every rank is there, 1 nothing was written (the folders are not of one run, none is rank 0's, or a rank is
in two of them and differs), 2 usage, or --out exists already: nothing is overwritten, 3 partial: a rank is missing, a
file cannot be read, or the job is still running.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="a host's part of the run folder")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the new folder")


def run(options: argparse.Namespace) -> int:
    """Gathers, and says what there is now.

    Raises:
        DistprofError: The folders are not of one run, or there is something at ``--out``; nothing is written then.
    """
    gathered = gather_folders(options.folders, options.out)
    for line in list_unread(gathered.left_out):
        print(line, file=sys.stderr)
    shown = clean_text(options.out, LONGEST_PATH)
    count = f"{len(gathered.ranks)} of {gathered.meta.world_size} ranks, {gathered.own} from other hosts"
    if gathered.generations > 1:
        count += f" in the last of {gathered.generations} generations"
    print(f"gathered: {shown}  ({count})")
    print(f"look at it: distprof report {shown}")
    return EXIT_PARTIAL if gathered.left_out else EXIT_OK
