"""``distprof watch`` as a child process of rank 0, for the terminal that the job runs in, and for its page.

It reads the run folder as `watch` does. Its standard input is a pipe from rank 0. `END` in it means that rank 0 ends
the view; the end of the pipe, or another parent, that rank 0 is gone. In these cases the process ends within a second,
whatever the job's other processes do. Its standard output is the job's standard error or, of the page, a pipe that gets
a line of JSON at a time, as long as rank 0 writes now and then that somebody has asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from distprof.cli.options import LONGEST_PATH
from distprof.cli.watch.command import LOOK_FACTOR, LOOK_S, NICE
from distprof.cli.watch.watcher import Watcher
from distprof.errors import DistprofError
from distprof.render.html.live_view import describe_live
from distprof.render.terminal.band import LEAST_ABOVE, Band, has_room
from distprof.render.terminal.watch_screen import describe_watch_line, fit_watch_screen
from distprof.render.units import clean_text
from distprof.storage.generations import find_root

GONE = "distprof: live: rank 0 is gone"
END = b"."
PAGE_LOOK_S = 2.0
IDLE_S = 60.0
"""How long the page's process goes on after somebody has asked last."""


class Parent:
    """Rank 0, of which this process is a child."""

    def __init__(self, pid: int, pipe: int) -> None:
        """Args:
        pid: Of rank 0.
        pipe: Read for what rank 0 says.
        """
        self._pid, self._pipe = pid, pipe
        self.died = False
        """Whether it is gone without a word."""
        self.asked_s = time.monotonic()
        """When somebody has asked last."""

    def wait(self, limit_s: float) -> bool:
        """Waits for so long at most; returns whether the view ends."""
        until_s = time.monotonic() + limit_s
        while True:
            left_s = max(until_s - time.monotonic(), 0.0)
            if select.select([self._pipe], [], [], min(left_s, LOOK_S))[0]:
                said = os.read(self._pipe, 4096)
                self.died, self.asked_s = not said, time.monotonic()
                if self.died or END in said:
                    return True
            if os.getppid() != self._pid:  # a process that it has forked may hold the pipe open
                self.died = True
                return True
            if time.monotonic() >= until_s:
                return False


def watch_beside(folder: Path, parent: Parent, console: Console) -> None:
    """Shows the job until rank 0 ends the view, or is gone, which is said.

    Args:
        folder: The run folder.
        parent: Rank 0.
        console: Writes to standard output.
    """
    watcher = Watcher(folder, now_s=time.monotonic)
    terminal = console.is_terminal and not console.is_dumb_terminal and has_room(*console.size)
    (_show_band if terminal else _print_lines)(watcher, folder, parent, console)
    if parent.died:
        progress = watcher.look()
        watcher.finish()
        _write(f"{GONE}; {describe_watch_line(progress, watcher.report[0])}\n")


def _print_lines(watcher: Watcher, folder: Path, parent: Parent, console: Console) -> None:
    """A line for each new report."""
    last = None
    while not parent.wait(LOOK_S):
        progress, (report, _, _) = watcher.look(), watcher.report
        if report is not None and report is not last:
            last = report
            _write(f"distprof: live: {describe_watch_line(progress, report)}\n")


def _show_band(watcher: Watcher, folder: Path, parent: Parent, console: Console) -> None:
    """A screen below what the job prints."""
    foot = f"everything: distprof report {clean_text(find_root(folder), LONGEST_PATH)}"
    band = Band(_write, lambda: (console.size.width, console.size.height))
    try:
        while True:
            began_s = time.monotonic()
            progress, (report, age_s, problem) = watcher.look(), watcher.report
            if has_room(*console.size):
                below = Console(
                    width=console.width, height=console.height - LEAST_ABOVE - 1, force_terminal=True, emoji=False,
                    highlight=False,
                )  # fmt: skip
                screen = fit_watch_screen(progress, report, below, report_age_s=age_s, problem=problem, foot=foot)
                with below.capture() as captured:
                    below.rule("distprof, live", characters="-" if below.options.ascii_only else "─", style="dim")
                    below.print(screen, end="")
                band.draw(captured.get().splitlines())
            else:  # the window has become too small
                band.close()
            if parent.wait(max(LOOK_S, LOOK_FACTOR * (time.monotonic() - began_s))):
                return
    finally:
        band.close()


def feed_page(folder: Path, parent: Parent) -> None:
    """Writes what the page shows, until nobody asks any more, rank 0 ends it, or is gone."""
    watcher = Watcher(folder, now_s=time.monotonic)
    while time.monotonic() - parent.asked_s < IDLE_S:
        began_s = time.monotonic()
        progress, (report, age_s, problem) = watcher.look(), watcher.report
        shown = describe_live(progress, report, report_age_s=age_s, problem=problem)
        _write(f"{json.dumps(shown, allow_nan=False)}\n")
        if parent.wait(max(PAGE_LOOK_S, LOOK_FACTOR * (time.monotonic() - began_s))):
            return


def _write(text: str) -> None:
    """In one write, unless there is no room for it: nothing that another process writes comes between its parts."""
    output, data = sys.stdout.fileno(), text.encode(sys.stdout.encoding, "replace")
    while data:
        select.select([], [output], [])  # some shells leave a terminal non-blocking
        data = data[os.write(output, data) :]


def main() -> None:
    """``python -m distprof.cli.watch.beside FOLDER PID [page]``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(OSError):
        os.nice(NICE)
    parent = Parent(int(sys.argv[2]), sys.stdin.fileno())
    with contextlib.suppress(DistprofError, OSError):  # the run folder or the terminal has gone
        if sys.argv[3:]:
            feed_page(Path(sys.argv[1]), parent)
        else:
            watch_beside(Path(sys.argv[1]), parent, Console(emoji=False, highlight=False))


if __name__ == "__main__":
    main()
