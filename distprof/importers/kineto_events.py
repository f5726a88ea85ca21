"""Events of PyTorch's profiler (Kineto), decoded part by part into columns; what is not usable is dropped and counted.

Times in a file are decimal microseconds. A float of 64 bits holds them to the nanosecond up to `EXACT_US`; beyond, which
files of 2024 with fractions of a microsecond on the unix clock reach, the decimal text itself is read.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import numpy as np

from distprof.errors import DataError
from distprof.importers.json_text import BAD_TEXT, mend
from distprof.importers.limits import Limits
from distprof.trace import UNKNOWN, ActivityKind, IntArray

EXACT_US = 2.0**43
MAX_TIME_US = 4.2e15
"""The year 2103 on the unix clock; later times are nonsense."""
MAX_SPAN_US = 1e14
"""Three years."""
OTHER_NAMES = "(name not kept)"
MODULE = "nn.Module: "
MEMORY = "[memory]"
CPU = 0
"""PyTorch's number of the device type; everything else is an accelerator."""

GPU_KINDS = {
    "kernel": ActivityKind.KERNEL, "concurrent_kernel": ActivityKind.KERNEL,
    "gpu_memcpy": ActivityKind.MEMCPY, "memcpy": ActivityKind.MEMCPY,
    "gpu_memset": ActivityKind.MEMSET, "memset": ActivityKind.MEMSET,
}  # fmt: skip
CALLS = {
    "runtime", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "hip_api", "xpu_runtime",
    "privateuse1_runtime", "privateuse1_driver",
}  # fmt: skip
OPS = {"cpu_op", "operator"}
ITEM_BYTES = {
    "double": 8, "long": 8, "int64": 8, "float": 4, "int": 4, "int32": 4, "half": 2, "bfloat16": 2, "short": 2,
    "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Size of an element of a collective's message; the types of 8 bits go by their common beginning."""

Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class Args(msgspec.Struct, gc=False, frozen=True):
    """What is used of an event's arguments."""

    correlation: Int = UNKNOWN
    stream: Int = UNKNOWN
    device: Int = UNKNOWN
    bytes: Int = UNKNOWN
    in_elements: Int = msgspec.field(default=UNKNOWN, name="In msg nelems")
    out_elements: Int = msgspec.field(default=UNKNOWN, name="Out msg nelems")
    dtype: str | None = None
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    reserved_bytes: Int = msgspec.field(default=UNKNOWN, name="Total Reserved")
    device_type: Int = msgspec.field(default=UNKNOWN, name="Device Type")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """What is used of an event."""

    ph: str = ""
    cat: str = ""
    name: str | None = None
    pid: Int | str = UNKNOWN
    tid: Int | str = UNKNOWN
    ts: Int | float | None = None
    dur: Int | float | None = None
    args: Args | None = NO_ARGS


class _PlainEvent(Event, gc=False):
    """The same with arguments that are not readable."""

    args: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


class _Begin(msgspec.Struct, gc=False):
    """The text of an event's begin."""

    ts: msgspec.Raw = msgspec.Raw(b"null")


decode_events: Callable[[bytes], list[Event]] = msgspec.json.Decoder(list[Event]).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_plain = msgspec.json.Decoder(_PlainEvent).decode
_decode_begin = msgspec.json.Decoder(_Begin).decode


class Losses:
    """What was dropped or changed, by reason."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.mended = False

    def say(self) -> tuple[str, ...]:
        """Notes for people."""
        notes = [f"{count} {what}" for what, count in sorted(self.counts.items()) if count]
        if self.mended:
            notes.append("the file is not strict JSON: numbers that are none (NaN, inf) and bad letters were replaced")
        return tuple(notes)


class Names(dict[str, int]):
    """Codes of names, in order of their first use; what is too much is cut or made one name, and counted."""

    def __init__(self, limits: Limits, losses: Losses) -> None:
        super().__init__()
        self.table: list[str] = []
        self._limits, self._losses, self._size, self._by_text = limits, losses, 0, dict[str, int]()

    def __missing__(self, name: str) -> int:
        kept = name
        if len(name) > self._limits.max_name_bytes:
            self._losses.counts["long names cut"] += 1
            kept = name[: self._limits.max_name_bytes]
        code = self._by_text.get(kept)
        if code is None:
            self._size += len(kept)
            if self._size > self._limits.max_names_bytes:
                self._losses.counts["events under one name: too many different names"] += 1
                self._size -= len(kept)
                kept = OTHER_NAMES
            ...
        return 0
