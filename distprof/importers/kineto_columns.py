"""Decoded events gathered as columns, part after part; what is not usable is dropped and counted.

Times in a file are decimal microseconds. A float of 64 bits tells two nanoseconds apart up to `EXACT_US`; beyond, which
files with fractions of a microsecond on the unix clock reach, the decimal text itself is read.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from distprof.errors import DataError
from distprof.importers.json_stream import Part
from distprof.importers.kineto_events import NO_ARGS, Event, EventPart, Losses
from distprof.importers.limits import Limits
from distprof.trace import UNKNOWN, ActivityKind, IntArray

EXACT_US = 2.0**43
MAX_TIME_US = 4.2e15
"""The year 2103 on the unix clock; later times are nonsense."""
MAX_SPAN_US = 1e14
"""Three years."""
NAME_COST_LETTERS = 64
"""What a name takes beside its letters."""
MAX_PIDS = 10_000
OTHER_NAMES = "(name not kept)"
MODULE_PREFIX = "nn.Module: "
MODULE_DOMAIN = "module"
MEMORY_EVENT = "[memory]"
CPU = 0
"""PyTorch's number of this type of device; every other one is an accelerator."""

GPU_KINDS = {
    "kernel": ActivityKind.KERNEL, "concurrent_kernel": ActivityKind.KERNEL,
    "gpu_memcpy": ActivityKind.MEMCPY, "memcpy": ActivityKind.MEMCPY,
    "gpu_memset": ActivityKind.MEMSET, "memset": ActivityKind.MEMSET,
}  # fmt: skip
ROLES = {
    **dict.fromkeys(GPU_KINDS, "gpu"),
    **dict.fromkeys(("runtime", "driver", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"), "calls"),
    **dict.fromkeys(("xpu_runtime", "privateuse1_runtime", "privateuse1_driver"), "calls"),
    **dict.fromkeys(("cpu_op", "operator"), "ops"),
    "user_annotation": "ranges", "python_function": "modules", "cpu_instant_event": "memory",
}  # fmt: skip
"""What to do with events, by category in small letters, old spellings and new; the others are left out."""
ITEM_BYTES = {
    "double": 8, "long": 8, "int64": 8, "complexfloat": 8, "float": 4, "int": 4, "int32": 4, "half": 2, "bfloat16": 2,
    "short": 2, "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1, "complexdouble": 16,
}  # fmt: skip
"""Size of an element of a collective's message, by dtype in small letters; those of 8 bits also begin with "float8"."""


class Names(dict[str | None, int]):
    """Codes of names, in order of first use. What is too long is cut, what is too much gets one name: counted."""

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
    """Columns that grow."""

    def __init__(self) -> None:
        self._parts: dict[str, list[IntArray]] = defaultdict(list)

    def add(self, **columns: IntArray) -> None:
        """More rows."""
        for name, values in columns.items():
            self._parts[name].append(values)

    def close(self, *names: str) -> dict[str, IntArray]:
        """The whole columns; empty ones where nothing was added."""
        return {name: np.concatenate(self._parts.pop(name, [np.zeros(0, np.int64)])) for name in names}


class KinetoColumns:
    """Everything that is used of a file's events."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.losses = Losses()
        self.names = Names(limits, self.losses)
        self.gpu, self.calls, self.ops, self.ranges = Columns(), Columns(), Columns(), Columns()
        self.op_pids: Counter[int | str | None] = Counter()
        self.call_pids: Counter[int | str | None] = Counter()
        self.memory_peak_bytes = UNKNOWN
        self.num_used = 0
        self._num_events = 0
        self._path, self._limits = path, limits

    def add(self, part: Part[list[Event]]) -> None:
        """The events of one more part.

        Raises:
            DataError: The part is damaged, or there are more events than the limit.
        """
        read = EventPart(self._path, part, self.losses)
        self._num_events += read.num_events
        if self._num_events > self._limits.max_events:
            raise DataError(f"{self._path}: more than {self._limits.max_events} events: profile fewer steps")
        groups: dict[str | None, list[Event]] = defaultdict(list)
        for event in read.events:
            groups[event.cat].append(event)
        for category, events in groups.items():
            role = ROLES.get(category.lower()) if category else None
            if role == "memory":
                self._add_memory(events)
            elif role is not None:
                self._add_spans(role, events, read)

    def _add_memory(self, events: list[Event]) -> None:
        for event in events:
            args = event.args
            if event.name == MEMORY_EVENT and args is not None and args.device_type > CPU:
                self.memory_peak_bytes = max(self.memory_peak_bytes, args.reserved_bytes)

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
        common["thread"] = _read_numbers([event.tid for event in spans])
        if role == "calls":
            launched = [(event.args or NO_ARGS).correlation for event in spans]
            self.calls.add(**common, correlation=np.array(launched, np.int64))
            _count_pids(self.call_pids, spans)
        elif role == "ops":
            self.ops.add(**common)
            _count_pids(self.op_pids, spans)
        else:
            domain = codes[MODULE_DOMAIN if role == "modules" else ""]
            self.ranges.add(**common, domain=np.full(len(spans), domain, np.int64))

    def _read_times(self, spans: list[Event], read: EventPart) -> tuple[IntArray, IntArray, np.ndarray[Any, Any]]:
        """Begin and end in ns, and which of them are usable."""
        begin_us = np.array([event.ts for event in spans], np.float64)
        span_us = np.array([event.dur for event in spans], np.float64)
        good = self._count_bad("no begin, or one that cannot be", (begin_us >= 0) & (begin_us <= MAX_TIME_US), None)
        good = self._count_bad("negative duration", ~(span_us < 0), good)
        good = self._count_bad("no duration, or one that cannot be", ~(span_us < 0) & (span_us <= MAX_SPAN_US), good)
        begin_ns = _to_ns(np.where(good, begin_us, 0.0))
        late = np.flatnonzero(good & (begin_us >= EXACT_US)) if begin_us.max() >= EXACT_US else ()
        inexact = [row for row in late if type(spans[row].ts) is float]
        if inexact:
            texts = read.read_begins()
            for row in inexact:
                begin_ns[row] = int((Decimal(texts[id(spans[row])].decode()) * 1000).to_integral_value())
        return begin_ns, begin_ns + _to_ns(np.where(good, span_us, 0.0)), good

    def _count_bad(self, why: str, good: Any, before: Any) -> Any:
        bad = ~good if before is None else before & ~good
        if (count := int(np.count_nonzero(bad))) > 0:
            self.losses.counts[f"events dropped: {why}"] += count
        return good if before is None else before & good

    def _add_gpu(self, spans: list[Event], common: dict[str, IntArray]) -> None:
        args = [event.args or NO_ARGS for event in spans]
        stream = np.array([one.stream for one in args], np.int64)
        device = np.array([one.device for one in args], np.int64)
        size_bytes = np.array([one.size_bytes for one in args], np.int64)
        group, collective = np.full((2, len(spans)), UNKNOWN, np.int64)
        for row, one in enumerate(args):
            if one.stream < 0:
                stream[row] = _read_numbers([spans[row].tid])[0]
            if one.device < 0:
                device[row] = _read_numbers([spans[row].pid])[0]
            if one.group is not None:
                group[row] = self.names[one.group]
            if one.collective is not None:
                collective[row] = self.names[one.collective]
            if one.dtype is not None:
                size_bytes[row] = _find_message_bytes(one.dtype, max(one.in_elements, one.out_elements))
        kind = GPU_KINDS[(spans[0].cat or "").lower()]
        self.gpu.add(
            **common, kind=np.full(len(spans), kind, np.int64), stream=stream, device=device, group=group,
            collective=collective,
            size_bytes=np.maximum(size_bytes, UNKNOWN),
            correlation=np.array([one.correlation for one in args], np.int64),
        )  # fmt: skip


def _count_pids(pids: Counter[int | str | None], spans: list[Event]) -> None:
    if len(pids) < MAX_PIDS:  # a trace has a few
        pids.update([event.pid for event in spans])


def _to_ns(time_us: np.ndarray[Any, np.dtype[np.float64]]) -> IntArray:
    """The whole microseconds and the rest apart: their product would not fit a float."""
    whole = np.floor(time_us)
    time_ns: IntArray = whole.astype(np.int64) * 1000 + np.rint((time_us - whole) * 1000).astype(np.int64)
    return time_ns


def _find_message_bytes(dtype: str, elements: int) -> int:
    word = dtype.lower()
    item_bytes = 1 if word.startswith("float8") else ITEM_BYTES.get(word)
    return UNKNOWN if item_bytes is None or not 0 <= elements < 2**56 else elements * item_bytes


def _read_numbers(values: Sequence[int | str | None]) -> IntArray:
    """Numbers of threads and streams; "stream 7" is 7, other words become a negative number of their own."""
    try:
        return np.array(values, np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([_read_number(value) for value in values], np.int64)


def _read_number(value: int | str | None) -> int:
    if value is None or isinstance(value, int):
        return UNKNOWN if value is None else value
    digits = value.lower().removeprefix("stream").strip()
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        return int(digits)
    return -2 - zlib.crc32(value.encode("utf-8", "replace"))
