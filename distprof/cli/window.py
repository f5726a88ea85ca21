"""The verb ``window``: a kernel window of a job that is running, on all its ranks together."""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from pathlib import Path

from distprof.cli.options import LONGEST_PATH, add_number
from distprof.errors import EXIT_OK, EXIT_PARTIAL, DistprofError, UsageError
from distprof.render.units import clean_text, format_bytes
from distprof.storage.generations import find_newest
from distprof.storage.run_folder import is_running, read_meta
from distprof.storage.window_files import (
    MAX_STEPS,
    REQUEST,
    WindowRequest,
    WindowState,
    publish_request,
    read_state,
    withdraw_request,
)

DESCRIPTION = """\
Requests a kernel window from a running job: torch.profiler over a few steps, the same ones on every rank, while
training continues. The request is a file in the run folder, which must be the folder that rank 0 of the job sees;
nothing is sent over the network. Works for python -m distprof, python -m distprof.attach and distprof.start.
"""
EPILOG = """\
examples:
  distprof window runs/2026-01-31_12-00-00_train
  distprof window runs/2026-01-31_12-00-00_train --steps 10

Rank 0 looks for a request every profile.window_s seconds. The ranks wait for each other where the window begins and
where it ends, and one warm-up step runs before the steps that are kept. The traces are written into
kernels/step-NNNNNNNN/ of the run folder.

Exit codes: 0 every rank has written its trace, 1 there is no window (the job has ended, or refuses and says why), 2
usage, or not a run folder, 3 some rank has written no trace, or only on its own host, 130 Ctrl-C.
"""
POLL_S = 0.1
ANSWER_LIMIT_S = 30.0
"""How long rank 0 may take to answer, beyond the time between two of its looks."""
REPEAT_EVERY_S = 10.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run folder of the job")
    add_number(
        parser, "--steps", least=1, most=MAX_STEPS, metavar="N",
        help=f"steps to keep, 1 to {MAX_STEPS} (default: the job's profile.kernel_steps)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Asks, waits, and says where the traces are.

    Raises:
        DistprofError: The window was refused or has failed; the message says why.
    """
    shown = clean_text(options.run, LONGEST_PATH)
    if not (options.run / "run.json").exists():
        raise UsageError(f"{shown}: not a run folder (no run.json): pass the run folder of a running job")
    folder = find_newest(options.run)
    window_s = _read_window_s(folder)
    request = WindowRequest(id=uuid.uuid4().hex, steps=options.steps)
    if not is_running(folder):
        raise DistprofError(f"{shown}: the job has ended; see what it recorded: distprof report {shown}")
    if not publish_request(folder, request):
        raise DistprofError(
            f"{shown}: another window has been requested; try again later, or delete {REQUEST} if nobody waits for it"
        )
    try:
        state = _follow(folder, shown, request, window_s)
    finally:
        withdraw_request(folder, request)
    if state.state == "refused":
        raise DistprofError(f"{shown}: no kernel window: {state.text}")
    return _show(folder, state)


def _follow(folder: Path, shown: str, request: WindowRequest, window_s: float) -> WindowState:
    """Waits for the end, and says on standard error how far it is."""
    print_line = _LinePrinter()
    print_line(f"requested; rank 0 looks every {window_s:g} s")
    asked_s = time.monotonic()
    while True:
        state = read_state(folder)
        if state is not None and state.id == request.id:
            if state.state in ("ended", "refused"):
                return state
            print_line(_describe(state))
        elif time.monotonic() - asked_s > window_s + ANSWER_LIMIT_S:
            raise DistprofError(
                f"{shown}: rank 0 has not answered for {window_s + ANSWER_LIMIT_S:.0f} s: it may hang, be on another "
                "host that does not see this folder, or run an older distprof"
            )
        if not is_running(folder):
            time.sleep(POLL_S)  # its last answer may have come since
            state = read_state(folder)
            if state is None or state.id != request.id or state.state not in ("ended", "refused"):
                raise DistprofError(f"{shown}: the job has ended before the window was over: distprof report {shown}")
        time.sleep(POLL_S)


def _read_window_s(folder: Path) -> float:
    profile = read_meta(folder).config.get("profile")
    window_s = profile.get("window_s") if isinstance(profile, dict) else None
    return float(window_s) if isinstance(window_s, (int, float)) and 0 < window_s < 3600 else 1.0


def _describe(state: WindowState) -> str:
    if state.state == "taken":
        return "the ranks agree on a step"
    return f"begins with step {state.steps[0]}, {len(state.steps)} step(s); then the traces are written"


def _show(folder: Path, state: WindowState) -> int:
    place = folder / state.folder
    shown = clean_text(place, LONGEST_PATH)
    traces = sorted(place.glob("rank-*.json.gz"))
    for text in state.missing:
        print(f"distprof: no trace of {text}", file=sys.stderr)
    if not traces:
        raise DistprofError(f"{shown}: no rank has written a trace: the job's output may say why")
    size = format_bytes(sum(path.stat().st_size for path in traces))
    first, last = state.steps[0], state.steps[-1]
    print(f"kernel window: {shown}  (steps {first} to {last}, {len(traces)} trace(s), {size})")
    print(f"look at it: distprof report {shown}, or open a trace in ui.perfetto.dev")
    return EXIT_PARTIAL if state.missing else EXIT_OK


class _LinePrinter:
    """Says each line once, and from time to time that it still waits."""

    def __init__(self) -> None:
        self._said, self._next_s, self._began_s = "", 0.0, time.monotonic()

    def __call__(self, text: str) -> None:
        now_s = time.monotonic()
        if text == self._said and now_s < self._next_s:
            return
        waiting = f" ({now_s - self._began_s:.0f} s)" if text == self._said else ""
        self._said, self._next_s = text, now_s + REPEAT_EVERY_S
        print(f"distprof: window: {text}{waiting}", file=sys.stderr, flush=True)
