"""Collects decoded events as columns, part by part; unusable ones are dropped and counted.

Times in a file are decimal microseconds. A 64-bit float distinguishes nanoseconds only up to `EXACT_US`. Files with
fractions of a microsecond on the Unix clock exceed that, so there the decimal text itself is read.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from distprof.errors import DataError
from distprof.facts.arrays import IntArray
from distprof.facts.range_names import MODULE_DOMAIN
from distprof.facts.trace import UNKNOWN
from distprof.storage.safe_open import Limits
from distprof.traces.kineto.event_kinds import (
    LEFT_OUT,
    UnknownEvents,
    is_old,
    is_step,
    look_up_activity_kind,
    look_up_role,
)
from distprof.traces.kineto.events import NO_ARGS, Args, Event, EventPart, Losses
from distprof.traces.kineto.json_stream import Part
from distprof.traces.kineto.json_text import Number, match_time_text, read_int

EXACT_US = 2.0**43
MAX_TIME_US = 4.2e15
"""The year 2103 on the Unix clock; later times are nonsense."""
MAX_SPAN_US = 1e14
"""Three years."""
NAME_COST_LETTERS = 64
"""The memory that a name takes in addition to its letters."""
MAX_PIDS = 10_000
OTHER_NAMES = "(name not kept)"
MODULE_PREFIX = "nn.Module: "
MEMORY_EVENT = "[memory]"
AUTOGRAD_COLUMNS = ("sequence", "forward_thread")
"""Of operators; see `distprof.facts.trace.Operators`."""
ONE_SIDED = frozenset(("send", "recv"))
CPU = 0
"""PyTorch's number for the CPU as a device type; every other number is an accelerator."""

ITEM_BYTES = {
    "double": 8, "long": 8, "int64": 8, "complexfloat": 8, "float": 4, "int": 4, "int32": 4, "half": 2, "bfloat16": 2,
    "short": 2, "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1, "complexdouble": 16,
}  # fmt: skip
"""Element size of a collective's message by dtype, in lower case; dtypes starting with "float8" have 1 byte too."""


class NameTable(dict[str | None, int]):
    """Codes of names, in order of first use. Overlong names are cut, excess names share one code; both are counted."""

    def __init__(self, limits: Limits, losses: Losses) -> None:
        super().__init__()
        self._limits, self._losses, self._letters = limits, losses, 0

    def __missing__(self, name: str | None) -> int:
        if name is None:
            return UNKNOWN
        if len(name) > self._limits.max_name_letters:
            self._losses.counts["names cut: too long"] += 1
            return self[name[: self._limits.max_name_letters]]
        if self._letters > self._limits.max_names_letters and name != OTHER_NAMES:
            self._losses.counts["names not kept: too many different ones"] += 1
            return self[OTHER_NAMES]
        self._letters += len(name) + NAME_COST_LETTERS
        code = self[name] = len(self)
        return code


class Columns:
    """Columns that grow as rows are added."""

    def __init__(self) -> None:
        self._parts: dict[str, list[IntArray]] = defaultdict(list)

    def add(self, **columns: IntArray) -> None:
        """Adds rows."""
        for name, values in columns.items():
            self._parts[name].append(values)

    def close(self, *names: str) -> dict[str, IntArray]:
        """The complete columns; empty if nothing was added."""
        return {name: np.concatenate(self._parts.pop(name, [np.zeros(0, np.int64)])) for name in names}


class KinetoColumns:
    """All data that is used from a file's events."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.losses = Losses()
        self.names = NameTable(limits, self.losses)
        self.gpu, self.calls, self.ops, self.ranges = Columns(), Columns(), Columns(), Columns()
        self.op_pids: Counter[int] = Counter()
        self.call_pids: Counter[int] = Counter()
        self.unknown_events = UnknownEvents()
        self.memory_peak_bytes = UNKNOWN
        self.is_old = False
        """Whether the profiler wrote annotations as operators."""
        self.num_used = 0
        self._num_events = 0
        self._path, self._limits = path, limits

    def add(self, part: Part[list[Event]]) -> None:
        """Adds the events of one more part.

        Raises:
            DataError: The part is damaged, or there are more events than allowed.
        """
        read = EventPart(self._path, part, self.losses)
        self._num_events += read.num_events
        if self._num_events > self._limits.max_events:
            raise DataError(f"{self._path}: more than {self._limits.max_events} events: profile fewer steps")
        groups: dict[str | None, list[Event]] = defaultdict(list)
        for event in read.events:
            groups[event.cat].append(event)
        for category, events in groups.items():
            role = look_up_role(category)
            if role is None:
                self._add_unknown(category, events, read)
            elif role == "memory":
                self._add_memory(events)
            elif role != LEFT_OUT:
                self.is_old |= is_old(category or "")
                self._add_spans(role, events, read)

    def _add_unknown(self, category: str | None, events: list[Event], read: EventPart) -> None:
        """Keeps steps, which are known by name alone; counts the others so that they are mentioned."""
        steps = [event for event in events if event.ph == "X" and is_step(event.name or "")]
        if steps:
            self._add_spans("ranges", steps, read)
        if (count := sum(event.ph in ("X", "B") for event in events) - len(steps)) > 0:
            self.unknown_events.add(category, count)

    def _add_memory(self, events: list[Event]) -> None:
        for event in events:
            args = event.args
            if event.name == MEMORY_EVENT and args is not None and (read_int(args.device_type) or CPU) > CPU:
                reserved_bytes = self._read_args([args], "reserved_bytes")
                self.memory_peak_bytes = max(self.memory_peak_bytes, int(reserved_bytes[0]))

    def _add_spans(self, role: str, events: list[Event], read: EventPart) -> None:
        spans = [event for event in events if event.ph == "X"]
        if len(spans) < len(events):
            self.losses.counts["begin or end events left out"] += sum(event.ph in ("B", "E") for event in events)
        if role == "modules":
            spans = [event for event in spans if event.name is not None and event.name.startswith(MODULE_PREFIX)]
            for event in spans:
                event.name = event.name[len(MODULE_PREFIX) :]  # type: ignore[index]
        if not spans:
            return
        codes = self.names
        name = np.array([codes[event.name] for event in spans], np.int64)
        begin_ns, end_ns, good = self._read_times(spans, read)
        good = self._count_bad("no name", name >= 0, good)
        if not good.all():
            spans = [event for event, kept in zip(spans, good.tolist(), strict=True) if kept]
            name, begin_ns, end_ns = name[good], begin_ns[good], end_ns[good]
        if not spans:
            return
        self.num_used += len(spans)
        common = {"name": name, "begin_ns": begin_ns, "end_ns": end_ns}
        if role == "gpu":
            self._add_gpu(spans, common)
            return
        common["thread"] = self._read_threads([event.tid for event in spans], "tid")
        if role == "calls":
            launched = [event.args or NO_ARGS for event in spans]
            self.calls.add(**common, correlation=self._read_args(launched, "correlation"))
            self._count_pids(self.call_pids, spans)
        elif role == "ops":
            args = [event.args or NO_ARGS for event in spans]
            numbers = {column: self._read_args(args, column) for column in AUTOGRAD_COLUMNS}
            self.ops.add(**common, **numbers)
            self._count_pids(self.op_pids, spans)
        else:
            domain = codes[MODULE_DOMAIN if role == "modules" else ""]
            self.ranges.add(**common, domain=np.full(len(spans), domain, np.int64))

    def _read_args(self, args: list[Args], name: str) -> IntArray:
        """One number per event; invalid ones are counted and become unknown."""
        values = list(map(attrgetter(name), args))
        if set(map(type, values)) == {int}:
            return np.array(values, np.int64)  # within 62 bits, since decoding checks that
        found = [UNKNOWN if value is None else read_int(value) for value in values]
        self._count_invalid(name, sum(value is None for value in found))
        return np.array([UNKNOWN if value is None else value for value in found], np.int64)

    def _read_threads(self, values: list[Number], name: str) -> IntArray:
        """Thread and process numbers; "stream 7" becomes 7, other words get distinct negative numbers."""
        if set(map(type, values)) == {int}:
            return np.array(values, np.int64)
        read = {value: _read_thread(value) for value in set(values)}  # a file has few of them
        found = [read[value] for value in values]
        invalid = sum(isinstance(value, float) and number < 0 for value, number in zip(values, found, strict=True))
        self._count_invalid(name, invalid)
        return np.array(found, np.int64)

    def _count_pids(self, pids: Counter[int], spans: list[Event]) -> None:
        numbers = self._read_threads([event.pid for event in spans], "pid")
        if len(pids) < MAX_PIDS:  # a trace has only a few
            pids.update(numbers[numbers >= 0].tolist())

    def _read_word(self, value: Number, name: str) -> str | None:
        """A name, even if the file has it as a number."""
        if value is None or isinstance(value, str):
            return value
        self._count_invalid(name, int(not isinstance(value, int)))
        return str(value) if isinstance(value, int) else None

    def _read_number(self, args: Args) -> int:
        """A collective's number within its group. Each rank counts its sends and receives for itself."""
        found = read_int(args.number)
        self._count_invalid("Seq", int(found is None))
        alone = isinstance(args.collective, str) and args.collective.lower() in ONE_SIDED
        return UNKNOWN if found is None or alone else found

    def _count_invalid(self, name: str, count: int) -> None:
        if count:
            self.losses.counts[f"fields not understood: {name}"] += count

    def _read_times(self, spans: list[Event], read: EventPart) -> tuple[IntArray, IntArray, np.ndarray[Any, Any]]:
        """Begin and end in ns, and which of them are usable."""
        begin_us, begin_texts = _read_us([event.ts for event in spans])
        span_us, _ = _read_us([event.dur for event in spans])
        good = self._count_bad("no begin, or an impossible one", (begin_us >= 0) & (begin_us <= MAX_TIME_US), None)
        good = self._count_bad("negative duration", ~(span_us < 0), good)
        good = self._count_bad("no duration, or an impossible one", ~(span_us < 0) & (span_us <= MAX_SPAN_US), good)
        begin_ns = _to_ns(np.where(good, begin_us, 0.0))
        late = np.flatnonzero(good & (begin_us >= EXACT_US)) if np.any(begin_us >= EXACT_US) else ()
        inexact = [row for row in late if type(spans[row].ts) is float]
        if inexact:
            texts = read.read_begins()
            begin_texts |= {int(row): texts[id(spans[row])].decode() for row in inexact}
        for row, text in begin_texts.items():
            if good[row]:
                begin_ns[row] = int((Decimal(text) * 1000).to_integral_value())
        return begin_ns, begin_ns + _to_ns(np.where(good, span_us, 0.0)), good

    def _count_bad(self, why: str, good: Any, before: Any) -> Any:
        bad = ~good if before is None else before & ~good
        if (count := int(np.count_nonzero(bad))) > 0:
            self.losses.counts[f"events dropped: {why}"] += count
        return good if before is None else before & good

    def _add_gpu(self, spans: list[Event], common: dict[str, IntArray]) -> None:
        args = [event.args or NO_ARGS for event in spans]
        stream, device, size_bytes, correlation, sent, received = (
            self._read_args(args, name)
            for name in ("stream", "device", "size_bytes", "correlation", "in_elements", "out_elements")
        )
        group, collective, number = np.full((3, len(spans)), UNKNOWN, np.int64)
        for row, one in enumerate(args):
            if stream[row] < 0:
                stream[row] = self._read_threads([spans[row].tid], "tid")[0]
            if device[row] < 0:
                device[row] = self._read_threads([spans[row].pid], "pid")[0]
            if one.group is not None:
                group[row] = self.names[self._read_word(one.group, "group")]
                number[row] = self._read_number(one)
            if one.collective is not None:
                collective[row] = self.names[self._read_word(one.collective, "collective")]
            if (dtype := self._read_word(one.dtype, "dtype")) is not None:
                size_bytes[row] = _compute_message_bytes(dtype, int(max(sent[row], received[row])))
        self.gpu.add(
            **common, kind=np.full(len(spans), look_up_activity_kind(spans[0].cat or ""), np.int64), stream=stream,
            device=device, group=group, collective=collective, number=number, correlation=correlation,
            size_bytes=np.maximum(size_bytes, UNKNOWN),
        )  # fmt: skip


def _read_us(values: list[Number]) -> tuple[np.ndarray[Any, np.dtype[np.float64]], dict[int, str]]:
    """Times, NaN where there is none, and by index the text of those that are written as text."""
    if set(map(type, values)) <= {int, float}:
        return np.array(values, np.float64), {}
    texts = {index: text for index, value in enumerate(values) if (text := match_time_text(value)) is not None}
    numbers = [
        float(texts[index]) if index in texts else math.nan if value is None or isinstance(value, str) else value
        for index, value in enumerate(values)
    ]  # fmt: skip
    return np.array(numbers, np.float64), texts


def _to_ns(time_us: np.ndarray[Any, np.dtype[np.float64]]) -> IntArray:
    """Converts whole microseconds and the fraction separately: their product would not fit a float."""
    whole = np.floor(time_us)
    time_ns: IntArray = whole.astype(np.int64) * 1000 + np.rint((time_us - whole) * 1000).astype(np.int64)
    return time_ns


def _compute_message_bytes(dtype: str, elements: int) -> int:
    word = dtype.lower()
    item_bytes = 1 if word.startswith("float8") else ITEM_BYTES.get(word)
    return UNKNOWN if item_bytes is None or not 0 <= elements < 2**56 else elements * item_bytes


def _read_thread(value: Number) -> int:
    number = read_int(value.lower().removeprefix("stream") if isinstance(value, str) else value)
    if number is not None:
        return number
    return -2 - zlib.crc32(value.encode("utf-8", "replace")) if isinstance(value, str) else UNKNOWN
