"""Ends a rank's file when a signal terminates the rank, whatever the training thread is doing."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

from distprof.record.gather.step_writer import StepWriter
from distprof.record.stalls.signals import SignalWatch, end_by_signal, put_off_signals, watch_signals

REPORT_GRACE_S = 4.0
"""How long a process that ends by its own error may take to report it after a signal; less than `LAST_RESORT_S`."""
ENDS_BY_LAUNCHER = (signal.SIGTERM, signal.SIGHUP)
END_GRACE_S = 0.5
"""How long a process whose report took that long may still take to end."""


def end_on_signal(
    signals: SignalWatch | None, step_writer: StepWriter, *, on_end: Callable[[], None] | None
) -> Callable[[], None]:
    """Ends a rank's file when a signal arrives.

    Args:
        signals: The signal watch of this process. None: SIGTERM and SIGHUP are watched for, unless the program handles
            them; SIGINT stays with the program, as Python's KeyboardInterrupt.
        step_writer: Owns the file.
        on_end: Tells the user that the job was stopped.

    Returns:
        A function that undoes it, for the main thread.
    """
    watch = signals or _watch_ending()
    if watch is None:
        return lambda: None

    def end(name: str) -> None:
        if step_writer.terminate(name) and signals is None:
            time.sleep(REPORT_GRACE_S)  # the process ends before that, with its own exit code
        if on_end is not None:
            on_end()

    watch.listen(step_writer.keep_interrupted_state)
    remove = watch.add(end)
    return remove if signals is not None else watch.close


@contextlib.contextmanager
def delay_signals(*, process_ends: bool = False) -> Iterator[None]:
    """Has a signal end the process only after the block, or after `REPORT_GRACE_S` if that takes longer.

    Args:
        process_ends: Nothing of the program is left to run: the process then ends by itself, with its own exit code.
    """
    watch = _watch_ending()
    if watch is None:
        yield
        return
    over = threading.Event()

    def wait(name: str) -> None:
        until_s = time.monotonic() + REPORT_GRACE_S
        over.wait(REPORT_GRACE_S)
        if process_ends:
            time.sleep(max(until_s - time.monotonic(), END_GRACE_S))

    watch.add(wait)
    try:
        yield
    finally:
        over.set()
        watch.close()
        if process_ends:
            put_off_signals(ENDS_BY_LAUNCHER)


def _watch_ending() -> SignalWatch | None:
    """Watches for the signals that end the process, as the program would end without us. None: it handles them."""
    watch = watch_signals(ENDS_BY_LAUNCHER)
    if watch is not None:
        watch.leave = end_by_signal
    return watch
