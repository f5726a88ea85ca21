"""Which records of a rank's stream are valid.

A checksum proves that a record is as it was written, not that distprof wrote it. A step that contradicts itself, for
example with phases longer than the step, is left out as a whole, because its other numbers are no more reliable.
"""

from __future__ import annotations

import functools
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from distprof.config.decode import MAX_EXACT, are_whole, decode, is_whole
from distprof.errors import DataError
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.run import COLUMN, COMMUNICATION_PHASES, OWN_PHASES, PHASES, ROW_WIDTH, Clock, Stretch
from distprof.facts.scheduling import SCHEDULING_FIELDS
from distprof.facts.segments import PackedSegments
from distprof.facts.stand import MAX_FRAMES, MAX_GROUPS, MAX_STOPPED, RankState

T = TypeVar("T", float, FloatArray)
MAX_TIME_NS = 2**63
"""Limit for times of day."""
LEAST = 1e-6
"""No time, size or number of a step is smaller, unless it is 0: what is divided by it may be too large for a float."""
SLACK_RATIO = 0.005
"""How much the parts may exceed a whole, relative to it: device events are read as rounded differences."""
SLACK_NS = 1e6
"""How much a wait may additionally exceed its phase, which may be short."""
_BEGIN, _NUMBER = COLUMN["begin_host_ns"], COLUMN["step"]
_MOMENTS = [_BEGIN, COLUMN["anchor_host_ns"]]
_LENGTHS = [index for name, index in COLUMN.items() if index not in _MOMENTS and name not in ("loss", "grad_norm")]
_FLAGS = [COLUMN[name] for name in ("warmup", "failed", "shadow", "window")]
_STEP = {clock: COLUMN[f"step_{clock}_ns"] for clock in Clock}
_PHASES = {clock: [COLUMN[f"{phase}_{clock}_ns"] for phase in PHASES] for clock in Clock}
_OWN = {clock: [COLUMN[f"{phase}_{clock}_ns"] for phase in OWN_PHASES] for clock in Clock}
_WAITS = {clock: [COLUMN[f"{phase}_wait_{clock}_ns"] for phase in OWN_PHASES] for clock in Clock}
_COMMUNICATION = {clock: [COLUMN[f"{phase}_{clock}_ns"] for phase in COMMUNICATION_PHASES] for clock in Clock}
_EXPOSED = {clock: [COLUMN[name] for name in COLUMN if name.endswith(f"_exposed_{clock}_ns")] for clock in Clock}
_BETWEEN_WAIT, _BETWEEN_AFTER = COLUMN["between_wait_host_ns"], COLUMN["between_after_host_ns"]
_BETWEEN_OWN = [
    COLUMN["between_data_host_ns"],
    *(COLUMN[f"{stretch}_host_ns"] for stretch in Stretch if stretch is not Stretch.BETWEEN),
]
_CODES = re.compile(f"[0-{len(PHASES) - 1}]*")
_NUMBERS = {int, float, type(None)}
_DURATIONS = re.compile(r"[0-9a-f]{1,14}(?: [0-9a-f]{1,14})*")


class Fields:
    """The fields of the rows of one file, looked up once: a file may have very many rows."""

    def __init__(self, names: Sequence[str]) -> None:
        """Takes their names; those that are not known here are skipped."""
        self._width = len(names)
        known = [(position, COLUMN[name]) for position, name in enumerate(names) if name in COLUMN]
        self._positions = [position for position, _ in known]
        self._columns = np.array([column for _, column in known], dtype=np.intp)
        self._whole = len(known) == len(names)

    def decode_row(self, values: object) -> FloatArray | None:
        """As `decode_rows`, of one."""
        return self.decode_rows([values])[0]

    def decode_rows(self, rows: Sequence[object]) -> list[FloatArray | None]:
        """Rows in the current column order. None: not finite numbers, or no step, or one without duration."""
        known = [self._choose(values) for values in rows]
        table = np.full((len(rows), ROW_WIDTH), np.nan)
        given = np.flatnonzero([values is not None for values in known])
        try:
            numbers = np.array([values for values in known if values is not None], dtype=np.float64)  # None becomes NaN
        except OverflowError:
            return [None] if len(rows) == 1 else [self.decode_row(values) for values in rows]
        table[np.ix_(given, self._columns)] = numbers.reshape(len(given), len(self._columns))
        step = table[:, _NUMBER]
        valid = (step >= 0) & (step < MAX_EXACT) & (step == np.floor(step)) & (table[:, _STEP[Clock.HOST]] > 0)
        valid &= ~(np.abs(table) >= MAX_TIME_NS).any(axis=1)
        return [row if is_valid else None for row, is_valid in zip(table, valid.tolist(), strict=True)]

    def _choose(self, values: object) -> list[object] | None:
        """The values of the known fields. None: they are not numbers."""
        if not isinstance(values, list) or len(values) != self._width:
            return None
        known = values if self._whole else [values[position] for position in self._positions]
        return known if set(map(type, known)) <= _NUMBERS else None


def read_fields(header: Mapping[str, Any]) -> Fields | None:
    """The fields of a row; None: the list is invalid."""
    fields = header.get("fields")
    if not isinstance(fields, list) or not all(type(name) is str for name in fields):
        return None
    return Fields(fields) if len(set(fields)) == len(fields) else None


def read_state(record: Mapping[str, Any]) -> tuple[str | None, RankState | None]:
    """A rank's state, in words and in parts. None: invalid; if the parts are missing or invalid, the words remain."""
    text = record["error"] if type(record.get("error")) is str else None
    try:
        stand = decode(RankState, record.get("stand"), "stand", DataError)
    except DataError:
        return text, None
    numbers = [number for group in stand.groups for number in (group.issued, *(group.ranks or ()))]
    pendings = [group.pending for group in stand.groups if group.pending is not None]
    numbers += [number for pending in pendings for number in (pending.number, math.ceil(pending.waited_s or 0.0))]
    possible = min(numbers, default=0) >= 0 and 0 <= (stand.stalled_s or 0.0) < MAX_EXACT
    possible &= stand.step is None or is_whole(stand.step, MAX_EXACT)
    possible &= len(stand.groups) <= MAX_GROUPS and len(stand.stack) <= MAX_FRAMES
    peers = [*(stopped.rank for stopped in stand.stopped), 0 if stand.message is None else stand.message.peer or 0]
    possible &= min(peers) >= 0 and len(stand.stopped) <= MAX_STOPPED
    possible &= all(len(stopped.stack) <= MAX_FRAMES for stopped in stand.stopped)
    return text, stand if possible else None


def read_scheduling(record: Mapping[str, Any]) -> FloatArray | None:
    """A reading of how a thread gets a core, ``[len(SCHEDULING_FIELDS)]``. None: it lacks what every one has, or a
    number is impossible."""
    values = [record.get(name) for name in SCHEDULING_FIELDS]
    if not set(map(type, values)) <= _NUMBERS or not all(is_whole(value, MAX_EXACT) for value in values[:4]):
        return None
    if any(value is not None and not 0 <= value <= MAX_EXACT for value in values):
        return None
    return np.array(values, dtype=np.float64)  # None becomes NaN


def mark_possible(rows: FloatArray) -> BoolArray:
    """Which rows are valid steps, ``[num_rows]``; checks all at once, since there may be millions."""
    lengths = rows[:, _LENGTHS]
    impossible = (lengths < 0) | (lengths > MAX_EXACT) | ((lengths > 0) & (lengths < LEAST))
    possible = ~impossible.any(axis=1) & ~(rows[:, _MOMENTS] < 0).any(axis=1)
    flags = rows[:, _FLAGS]
    possible &= ((flags == 0) | (flags == 1) | np.isnan(flags)).all(axis=1)
    known = np.nan_to_num(rows)
    for clock in Clock:
        room_ns = max_plausible_total(np.nan_to_num(rows[:, _STEP[clock]], nan=np.inf))
        for parts in (_PHASES[clock], _EXPOSED[clock], _COMMUNICATION[clock] + _WAITS[clock]):
            possible &= ~(known[:, parts].sum(axis=1) > room_ns)
        possible &= ~(known[:, _WAITS[clock]] > max_plausible_total(known[:, _OWN[clock]]) + SLACK_NS).any(axis=1)
    return _fit_between(known, possible)


def _fit_between(known: FloatArray, possible: BoolArray) -> BoolArray:
    """Leaves out steps whose time between steps, or a part of it, exceeds the time since the previous step ended.

    Args:
        known: The rows, 0 where not measured.
        possible: The rows that are valid by themselves; only those are compared.
    """
    rows = np.flatnonzero(possible)
    rows = rows[np.argsort(known[rows, _NUMBER], kind="stable")]
    before, after = rows[:-1], rows[1:]
    follows = known[after, _NUMBER] == known[before, _NUMBER] + 1
    between_ns = known[after, _BEGIN] - known[before, _BEGIN] - known[before, _STEP[Clock.HOST]]
    parts_ns = np.maximum(known[after][:, _BETWEEN_OWN].sum(axis=1), known[after, _BETWEEN_AFTER])
    too_long = parts_ns + known[after, _BETWEEN_WAIT] > max_plausible_total(np.maximum(between_ns, 0))
    fitting = possible.copy()
    fitting[after[follows & too_long]] = False
    return fitting


def max_plausible_total(whole_ns: T) -> T:
    """The longest plausible total duration of a whole's parts."""
    return whole_ns * (1 + SLACK_RATIO)


def decode_segments(value: object, row: FloatArray, *, most: int) -> PackedSegments | None:
    """A step's timeline. None: it is invalid, has more than ``most`` segments, or is longer than the step."""
    match value:
        case [str(codes), str(text)] if row[_BEGIN] >= 0:
            begin_ns: object = int(row[_BEGIN])
        case [begin_ns, str(codes), str() | list() as text]:
            pass
        case _:
            return None
    if isinstance(text, str):
        if len(text) > 15 * most or not _DURATIONS.fullmatch(text):
            return None
        durations = [int(item, 16) for item in text.split(" ")]
    else:
        durations = text
    phases = _read_codes(codes) if len(codes) == len(durations) <= most else None
    if phases is None:
        return None
    if type(begin_ns) is not int or not 0 <= begin_ns < MAX_TIME_NS - 1 or not are_whole(durations):
        return None
    step_ns, total_ns = float(row[_STEP[Clock.HOST]]), sum(durations)
    if total_ns > max_plausible_total(step_ns):
        return None
    return PackedSegments(begin_ns, phases, array("q", durations).tobytes(), total_ns != step_ns)


@functools.lru_cache(maxsize=1024)
def _read_codes(codes: str) -> bytes | None:
    """The phases of a step, of which most steps have the same. None: they are invalid."""
    return bytes(map(int, codes)) if _CODES.fullmatch(codes) else None
