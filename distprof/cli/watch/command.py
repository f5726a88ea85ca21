"""The verb ``watch``: a screen, or plain lines, on a job while it runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
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
from distprof.storage.generations import find_latest_run, find_newest, find_root
from distprof.storage.run_folder import read_meta

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
the last state, and ends. If torchrun may start the ranks again, it waits for that, and shows them.

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
RESTART_WAIT_S = 120
"""How long after their end ranks that may be started again are waited for."""


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
            while folder is not None:
                watcher = Watcher(folder, now_s=time.monotonic)
                if options.plain or not console.is_terminal or console.is_dumb_terminal:
                    last = _print_lines(watcher, keyboard)
                else:
                    last = _show_screen(watcher, folder, console, keyboard)
                folder = None if last is None else find_next(folder, last, keyboard, now_s=time.monotonic)
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def find_run(path: Path, wait_s: float, keyboard: Keyboard, *, now_s: Callable[[], float]) -> Path | None:
    """The run folder, once it is there. None: the user has left.

    Raises:
        UsageError: It has not come in time.
    """
    shown = clean_text(path, LONGEST_PATH)
    try:
        return _wait_for(partial(find_latest_run, path), wait_s, f"{shown}: no run folder yet", keyboard, now_s)
    except TimeoutError:
        after = f" after {wait_s:,} s" if wait_s else ""
        raise UsageError(f"{shown}: no run folder there{after} (no run.json): pass the run folder of a job") from None


def find_next(folder: Path, last: Progress, keyboard: Keyboard, *, now_s: Callable[[], float]) -> Path | None:
    """The folder of the next start of the ranks, once it is there. None: there is none, or the user has left.

    Args:
        folder: Of the start that has ended.
        last: What was seen of it last.
        keyboard: Of the user.
        now_s: A monotonic clock.
    """
    root, launch = find_root(folder), read_meta(folder).launch
    again = launch is not None and launch.restarts_left > 0 and any(rank.state != "completed" for rank in last.ranks)

    def look() -> Path | None:
        return newest if (newest := find_newest(root)) != folder else None

    with contextlib.suppress(TimeoutError):
        return _wait_for(look, RESTART_WAIT_S if again else 0, "the ranks may be started again", keyboard, now_s)
    return None


def _wait_for(
    look: Callable[[], Path | None], wait_s: float, text: str, keyboard: Keyboard, now_s: Callable[[], float]
) -> Path | None:
    """The folder that a look finds, once it does; says why it waits. None: the user has left.

    Raises:
        TimeoutError: None has been found in time.
    """
    until_s, said = now_s() + wait_s, False
    while (found := look()) is None:
        if now_s() >= until_s:
            raise TimeoutError
        if not said:
            print(f"distprof: watch: {text}; waiting for {wait_s:,} s", file=sys.stderr, flush=True)
            said = True
        if keyboard.wait(FIND_S):
            return None
    return found


def _print_lines(watcher: Watcher, keyboard: Keyboard) -> Progress | None:
    """A line for each new report, and for the end. Returns what was seen last. None: the user has left."""
    last = None
    while True:
        progress = _look(watcher)
        report = watcher.report[0]
        if progress.over or (report is not None and report is not last):
            last = report
            print(describe_watch_line(progress, report), flush=True)
        if progress.over:
            return progress
        if keyboard.wait(LOOK_S):
            return None


def _show_screen(watcher: Watcher, folder: Path, console: Console, keyboard: Keyboard) -> Progress | None:
    """A screen until the end, which stays below the command. Returns as `_print_lines`."""
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
    return None if left else progress


def _look(watcher: Watcher) -> Progress:
    """Looks; of a job that is over, the report is then made of everything."""
    progress = watcher.look()
    if progress.over:
        watcher.finish()
    return progress
