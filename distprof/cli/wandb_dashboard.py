"""The verb ``wandb-dashboard``: a workspace in Weights & Biases that shows what jobs have logged there."""

from __future__ import annotations

import argparse
import contextlib
import io
import re

from distprof.errors import EXIT_OK, DistprofError, UsageError
from distprof.render.units import clean_text
from distprof.render.wandb.wandb_log import is_logged_in
from distprof.render.wandb.wandb_workspace import NAME, make_workspace, require_workspaces, save_workspace

DESCRIPTION = """\
Saves a workspace in a project of Weights & Biases: who holds the job up and since when, where the time goes, ranks by
steps, each device's FLOP/s, MFU and memory, and the jobs of a sweep side by side. Its panels show what logger=wandb has
logged; the view is new each time, and others stay as they are.
"""
EPILOG = """\
examples:
  distprof wandb-dashboard my-team/distprof
  distprof wandb-dashboard my-team/distprof --name "nightly runs"

Needs the network, a login (wandb login), and the wandb-workspaces package: pip install 'distprof[dashboard]'

Exit codes: 0 saved, 1 not logged in, or W&B cannot be reached or refuses, 2 usage, or the package is not installed.
"""
_PLACE = re.compile(r"([\w.-]+)/([\w.-]+)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument("place", metavar="ENTITY/PROJECT", help="the team or user, and the project")
    parser.add_argument("--name", default=NAME, help=f"the workspace's name (default: {NAME})")


def run(options: argparse.Namespace) -> int:
    """Makes the workspace, saves it, and prints its address.

    Raises:
        DistprofError: It cannot be saved, or an option is wrong.
    """
    place = _PLACE.fullmatch(options.place)
    if place is None:
        raise UsageError(f"{options.place}: must be ENTITY/PROJECT, such as my-team/distprof")
    if not options.name.isprintable() or not options.name.strip():
        raise UsageError("--name: must be one line of printable text, such as --name 'nightly runs'")
    require_workspaces()
    if not is_logged_in():
        raise DistprofError("wandb-dashboard: not logged in to W&B: run wandb login, or set WANDB_API_KEY")
    with contextlib.redirect_stderr(io.StringIO()):  # wandb tells the same in lines of its own
        try:
            address = save_workspace(make_workspace(place[1], place[2], options.name))
        except Exception as error:  # what wandb raises is not documented, and its messages may hold a key
            raise DistprofError(
                f"wandb-dashboard: not saved in {options.place} ({type(error).__name__}): check the network, the "
                "login, and that the project is there"
            ) from None
    print(f"saved: {clean_text(address, limit=1000)}")
    return EXIT_OK
