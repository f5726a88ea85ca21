"""The verb ``watch``: a screen, or plain lines, on a job while it runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.segment import Segments

from distprof.cli.options import LONGEST_PATH, add_number
from distprof.cli.watch.keyboard import Keyboard, open_keyboard
from distprof.cli.watch.watcher import Watcher
from distprof.errors import EXIT_OK, UsageError
from distprof.render.terminal.watch_screen import describe_watch_line, fit_watch_screen
from distprof.render.units import clean_text
from distprof.report.progress import Progress
from distprof.storage.generations import find_latest_run, find_root

DESCRIPTION = """\
Shows a job while it runs, from what its ranks write into the run folder every profile.window_s seconds: the verdict so
far, which is that of distprof report on the latest steps, made again every 20 steps or 30 seconds; how far the job is;
the time of its last steps; how long ago each rank's last rows came; and the ranks by phases, means of the last 20
steps. Of many ranks it shows the worst and the median. The job itself does nothing for it. q or Ctrl-C leaves.
"""
EPILOG = """\
examples:
  distprof watch                                        the latest run in runs/
  distprof watch runs/2026-01-31_12-00-00_gpt2_small_ddp
  distprof watch runs/mine --wait 600                   it may not have begun
  distprof watch runs/mine --plain >> watch.log    one line for each new verdict

Where standard output is no terminal, it prints plain lines. When the job has ended, or was killed, it says so, shows
the last state, and ends.

Exit codes: 0 the job has ended, or the user has left; 1 the run folder has gone; 2 usage, or no run to be found.
"""
DEFAULT_PATH = Path("runs")
LOOK_S = 1.0
"""From one look to the next, and at least `LOOK_FACTOR` times as long as a look takes."""
LOOK_FACTOR = 4.0
WAIT_S = 60
NICE = 10
"""Priority given up: on a host of the job, its ranks come first."""
FIND_S = 0.5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument(
        "run", type=Path, nargs="?", default=DEFAULT_PATH, metavar="RUN",
        help="a run folder, or a folder of them, of which the latest is taken (default: runs)",
    )  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="print lines instead of a screen")
    add_number(
        parser, "--wait", least=0, most=1_000_000, default=WAIT_S, metavar="SECONDS",
        help=f"how long to wait for RUN if it is not there yet (default: {WAIT_S})",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Watches until the job has ended or the user leaves.

    Raises:
        DistprofError: There is no run, or it has gone.
    """
    console = Console(emoji=False, highlight=False)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    try:
        with open_keyboard() as keyboard:
            folder = find_run(options.run, options.wait, keyboard, now_s=time.monotonic)
            watcher = None if folder is None else Watcher(folder, now_s=time.monotonic)
            if watcher is None or folder is None:
                return EXIT_OK
            if options.plain or not console.is_terminal or console.is_dumb_terminal:
                _print_lines(watcher, keyboard)
            else:
                _show_screen(watcher, folder, console, keyboard)
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def find_run(path: Path, wait_s: float, keyboard: Keyboard, *, now_s: Callable[[], float]) -> Path | None:
    """The run folder, once it is there. None: the user has left.

    Raises:
        UsageError: It has not come in time.
    """
    shown, until_s = clean_text(path, LONGEST_PATH), now_s() + wait_s
    said = False
    while (found := find_latest_run(path)) is None:
        if now_s() >= until_s:
            after = f" after {wait_s:,} s" if wait_s else ""
            raise UsageError(f"{shown}: no run folder there{after} (no run.json): pass the run folder of a job")
        if not said:
            print(f"distprof: watch: {shown}: no run folder yet; waiting for {wait_s:,} s", file=sys.stderr, flush=True)
            said = True
        if keyboard.wait(FIND_S):
            return None
    return found


def _print_lines(watcher: Watcher, keyboard: Keyboard) -> None:
    """A line for each new report, and for the end."""
    last = None
    while True:
        progress = _look(watcher)
        report = watcher.report[0]
        if progress.over or (report is not None and report is not last):
            last = report
            print(describe_watch_line(progress, report), flush=True)
        if progress.over or keyboard.wait(LOOK_S):
            return


def _show_screen(watcher: Watcher, folder: Path, console: Console, keyboard: Keyboard) -> None:
    """A screen until the end, which stays below the command."""
    again = f"distprof report {clean_text(find_root(folder), LONGEST_PATH)}"

    def draw(progress: Progress, foot: str, *, stays: bool = False) -> Segments:
        report, age_s, problem = watcher.report
        return fit_watch_screen(
            progress, report, console, report_age_s=age_s, problem=problem, foot=foot, stays=stays
        )  # fmt: skip

    left = False
    progress: Progress | None = None
    try:
        with Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            while not left:
                began_s = time.monotonic()
                progress = _look(watcher)
                if progress.over:
                    break
                live.update(draw(progress, f"q leaves; everything: {again}"), refresh=True)
                left = keyboard.wait(max(LOOK_S, LOOK_FACTOR * (time.monotonic() - began_s)))
    except KeyboardInterrupt:
        left = True
    if progress is not None:
        console.print(draw(progress, f"everything: {again}", stays=True), end="")


def _look(watcher: Watcher) -> Progress:
    """Looks; of a job that is over, the report is then made of everything."""
    progress = watcher.look()
    if progress.over:
        watcher.finish()
    return progress
