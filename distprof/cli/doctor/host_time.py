"""How good this host's clocks are, according to the system and by measurement."""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from pathlib import Path

from distprof.cli.doctor.facts import ClockFacts

_UNSYNCHRONISED = 0x0040  # STA_UNSYNC of <sys/timex.h>
_ERROR = 5  # TIME_ERROR
_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


class _Timex(ctypes.Structure):
    """The beginning of the kernel's ``struct timex``, and space for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def read_clock_facts() -> ClockFacts:
    """Reads the clocks; takes a few milliseconds."""
    synchronised, max_error_us = _ask_kernel()
    try:
        source = _CLOCKSOURCE.read_text(errors="replace").strip() or None
    except OSError:
        source = None
    return ClockFacts(
        resolution_ns=round(time.get_clock_info("monotonic").resolution * 1e9), read_cost_ns=_time_readings(),
        source=source, synchronised=synchronised, max_error_us=max_error_us,
    )  # fmt: skip


def _time_readings(batches: int = 50, readings: int = 50) -> int:
    costs = []
    for _ in range(batches):
        begin = time.perf_counter_ns()
        for _ in range(readings):
            time.monotonic_ns()
        costs.append((time.perf_counter_ns() - begin) / readings)
    return round(statistics.median(costs))


def _ask_kernel() -> tuple[bool | None, int | None]:
    """Whether NTP, chrony or PTP synchronises the wall clock, and the kernel's bound on its error, in us."""
    if os.name != "posix":
        return None, None
    try:
        state = _Timex()  # modes 0: only reads
        code = ctypes.CDLL(None).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError):
        return None, None
    if code < 0:
        return None, None
    return code != _ERROR and not state.status & _UNSYNCHRONISED, int(state.maxerror)
