"""What verbs that read traces share: ``--executor``, and a progress bar."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

T = TypeVar("T")


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Adds ``--executor``."""
    parser.add_argument(
        "--executor", metavar="ENGINE",
        help="where traces are reduced: local (processes here, the default), dask:tcp://HOST:8786 or ray:ADDRESS",
    )  # fmt: skip


def show_progress(read: Callable[[Callable[[int, int], None]], T]) -> T:
    """Reads, with a progress bar on standard error if that is a terminal. No thread draws it, as readers fork."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return read(lambda done, total: None)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, refresh=True)

        return read(show)
