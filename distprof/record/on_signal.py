"""A rank that is told to leave by a signal: its file gets its end, whatever the training thread is doing."""

from __future__ import annotations

import signal
from collections.abc import Callable

from distprof.record.signals import SignalWatch, watch_signals
from distprof.record.step_writer import StepWriter


def end_on_signal(
    signals: SignalWatch | None, step_writer: StepWriter, *, tell: Callable[[], None] | None
) -> Callable[[], None]:
    """Has a rank's file ended when a signal comes.

    Args:
        signals: Who watches in this process already. None: SIGTERM and SIGHUP are watched for, where nobody does;
            SIGINT is the program's own, as Python's KeyboardInterrupt.
        step_writer: Whose file.
        tell: Tells the user that the job was stopped.

    Returns:
        What takes that back, for the main thread.
    """
    watch = signals or watch_signals((signal.SIGTERM, signal.SIGHUP))
    if watch is None:
        return lambda: None

    def end(name: str) -> None:
        step_writer.terminate(name)
        if tell is not None:
            tell()

    remove = watch.add(end)
    return remove if signals is not None else watch.close
