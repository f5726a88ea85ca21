"""Reads a PyTorch profiler trace (Kineto's Chrome JSON, gzipped or not) as a `Trace`, in old and new spellings.

Categories become columns: kernels, copies and memsets are device activities; runtime and driver calls are calls;
``cpu_op`` events are operators; user annotations are ranges of the default domain, and PyTorch's modules are ranges of
the domain "module". Ranges that the profiler projects onto the device are left out, because they are not the host's.
Events of other categories, such as those of other accelerators, are counted and named.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np

from distprof.errors import DataError
from distprof.facts.arrays import IntArray
from distprof.facts.trace import UNKNOWN, Activities, ActivityKind, Calls, CopyKind, Operators, Ranges, Trace, TraceHead
from distprof.storage.safe_open import USUAL_LIMITS, Limits
from distprof.traces.codes import match_calls
from distprof.traces.kineto.columns import AUTOGRAD_COLUMNS, KinetoColumns
from distprof.traces.kineto.event_kinds import STEP, move_annotations
from distprof.traces.kineto.events import decode_events
from distprof.traces.kineto.head import MAX_BASE_NS, Outside, look_up_device, read_outside
from distprof.traces.kineto.json_stream import BOM, PART_BYTES, ArrayParts
from distprof.traces.kineto.json_text import SPACE, JsonText

SNIFF_BYTES = 16 << 10
MAX_SNIFF_BYTES = 1 << 20
LONGEST_TRACE_NS = 10 * 86_400_000_000_000
"""Ten days."""
SIGNS = (b'"traceEvents"', b'"ph"', b'"distributedInfo"', b'"deviceProperties"')
"""Every trace has one of these near its beginning."""
_COPY = re.compile(r"(HtoD|DtoH|DtoD|PtoP|HtoH|HostToDevice|DeviceToHost|DeviceToDevice|HostToHost)", re.IGNORECASE)
COPIES = {
    "htod": CopyKind.HOST_TO_DEVICE, "dtoh": CopyKind.DEVICE_TO_HOST, "dtod": CopyKind.DEVICE_TO_DEVICE,
    "ptop": CopyKind.PEER_TO_PEER, "htoh": CopyKind.HOST_TO_HOST, "hosttodevice": CopyKind.HOST_TO_DEVICE,
    "devicetohost": CopyKind.DEVICE_TO_HOST, "devicetodevice": CopyKind.DEVICE_TO_DEVICE,
    "hosttohost": CopyKind.HOST_TO_HOST,
}  # fmt: skip
"""The direction of a copy, by a word in the activity's name."""


def looks_like_kineto(path: Path) -> bool:
    """Whether the content begins like a trace. Reads little, and never raises because of the content."""
    try:
        text = JsonText(path, USUAL_LIMITS)
    except DataError:
        return False
    try:
        begin = text.read(SNIFF_BYTES).removeprefix(BOM).lstrip(SPACE)
        if begin[:1] not in (b"{", b"["):
            return False
        while not any(sign in begin for sign in SIGNS):
            more = text.read(SNIFF_BYTES)
            if not more or text.num_bytes > MAX_SNIFF_BYTES:
                return False
            begin = begin[-32:] + more  # a sign may span two reads
        return True
    except DataError:
        return False
    finally:
        text.close()


def read_kineto(path: Path, limits: Limits = USUAL_LIMITS, *, part_bytes: int = PART_BYTES) -> Trace:
    """Reads the process in the file. Times are ns, on the Unix clock if the file states its base.

    Args:
        path: The file.
        limits: When to refuse the file.
        part_bytes: Text decoded at once; the result does not depend on it.

    Raises:
        DataError: The file is damaged, truncated, beyond a limit, or holds no usable event.
    """
    columns = KinetoColumns(path, limits)
    parts = ArrayParts(path, "traceEvents", decode_events, limits, part_bytes)
    for part in parts:
        columns.add(part)
    if not columns.num_used:
        found = columns.unknown_events.describe()
        what = f"has no kernel, call, operator or annotation{f' but {found}' if found else ''}"
        raise DataError(f"{path}: {what}: not a trace of the PyTorch profiler")
    return _make_trace(path, columns, read_outside(path, parts.head, parts.tail))


def _make_trace(path: Path, columns: KinetoColumns, outside: Outside) -> Trace:
    found = columns.gpu.close(
        "begin_ns", "end_ns", "name", "kind", "device", "stream", "size_bytes", "group", "collective", "number",
        "correlation",
    )  # fmt: skip
    called = columns.calls.close("begin_ns", "end_ns", "name", "thread", "correlation")
    ops = columns.ops.close("begin_ns", "end_ns", "name", "thread", *AUTOGRAD_COLUMNS)
    ranges = columns.ranges.close("begin_ns", "end_ns", "name", "domain", "thread")
    tables = (found, called, ops, ranges)
    default = columns.names[""]
    names, order = _order_names(columns)
    begins_ns = np.concatenate([table["begin_ns"] for table in tables])
    middle_ns = int(np.partition(begins_ns, len(begins_ns) // 2)[len(begins_ns) // 2])  # an element, so it is kept
    for table in tables:
        columns.losses.counts["events dropped: days away from the others"] += _drop_strays(table, middle_ns)
    notes = [*outside.notes, *columns.losses.describe(), *_add_base(tables, middle_ns, outside.base_ns)]
    if unknown := columns.unknown_events.describe():
        notes.append(f"events of unknown kinds, which no figure includes: {unknown}")
    for table in tables:
        for column in ("name", "domain", "group", "collective"):
            if column in table:
                table[column] = order[table[column]]
    move_annotations(ops, ranges, names, int(order[default]), old=columns.is_old)
    calls, launched = _sort_calls(called)
    head = _make_head(path, columns, outside, found, tuple(notes))
    return Trace(
        head=head, names=names, gpu=_make_activities(found, launched, names), calls=calls,
        os_calls=Calls(**{name: np.zeros(0, np.int64) for name in ("begin_ns", "end_ns", "name", "thread")}),
        ops=Operators(**_sort(ops)), ranges=_make_ranges(ranges, names),
    )  # fmt: skip


def _order_names(columns: KinetoColumns) -> tuple[tuple[str, ...], IntArray]:
    """The names sorted, so that they do not depend on the parts, and their new numbers by code; -1 stays."""
    texts = [name for name in columns.names if name is not None]
    by_text = sorted(range(len(texts)), key=texts.__getitem__)
    order = np.full(len(texts) + 1, UNKNOWN, np.int64)
    order[by_text] = np.arange(len(texts))
    return tuple(texts[code] for code in by_text), order


def _drop_strays(table: dict[str, IntArray], middle_ns: int) -> int:
    """Drops rows whose begin cannot belong to the same trace, and returns how many."""
    near = np.abs(table["begin_ns"] - middle_ns) <= LONGEST_TRACE_NS
    if near.all():
        return 0
    table.update({name: values[near] for name, values in table.items()})
    return int(np.count_nonzero(~near))


def _add_base(tables: tuple[dict[str, IntArray], ...], middle_ns: int, base_ns: int) -> list[str]:
    """Moves all times to the Unix clock. Returns notes."""
    if middle_ns + base_ns > MAX_BASE_NS:
        return ["baseTimeNanoseconds not added: the events' times are on the Unix clock already"] if base_ns else []
    for table in tables:
        table["begin_ns"] = table["begin_ns"] + base_ns
        table["end_ns"] = table["end_ns"] + base_ns
    return []


def _sort(table: dict[str, IntArray]) -> dict[str, IntArray]:
    """Sorts by begin, an outer row before an inner one."""
    order = np.lexsort((-table["end_ns"], table["begin_ns"]))
    return {name: values[order] for name, values in table.items()}


def _sort_calls(called: dict[str, IntArray]) -> tuple[Calls, IntArray]:
    """The calls sorted by begin, and their correlation numbers."""
    table = _sort(called)
    correlation = table.pop("correlation")
    return Calls(**table), correlation


def _make_activities(found: dict[str, IntArray], launched: IntArray, names: tuple[str, ...]) -> Activities:
    table = _sort(found)
    call = match_calls(table.pop("correlation"), launched)
    is_copy = table["kind"] == ActivityKind.MEMCPY
    copy = np.full(len(call), CopyKind.NONE, np.int64)
    pageable = np.full(len(call), UNKNOWN, np.int64)
    codes, which = np.unique(table["name"][is_copy], return_inverse=True)
    if len(codes):
        words = [_COPY.search(names[code]) for code in codes.tolist()]
        kinds = [COPIES[word[1].lower()] if word else CopyKind.OTHER for word in words]
        copy[is_copy] = np.array(kinds, np.int64)[which]
        pageable[is_copy] = np.array([_read_pageable(names[code]) for code in codes.tolist()], np.int64)[which]
    return Activities(**table, copy=copy, pageable=pageable, call=call)


def _read_pageable(name: str) -> int:
    """Whether an end of ``Memcpy HtoD (Pageable -> Device)`` is pageable; -1 if the name does not say."""
    ends = name.partition("(")[2].lower()
    if "pageable" in ends:
        return 1
    return 0 if "->" in ends and "host" not in ends and "unknown" not in ends else UNKNOWN


def _make_ranges(table: dict[str, IntArray], names: tuple[str, ...]) -> Ranges:
    """Steps that are annotated carry their number as payload."""
    table = _sort(table)
    numbers = np.full(len(names), UNKNOWN, np.int64)
    for code in np.unique(table["name"]):
        if step := STEP.fullmatch(names[code]):
            numbers[code] = int(step[1])
    payload = numbers[table["name"]] if len(table["name"]) else table["name"]
    return Ranges(**table, style=np.zeros(len(payload), np.int64), payload=payload)


def _make_head(
    path: Path, columns: KinetoColumns, outside: Outside, gpu: dict[str, IntArray], notes: tuple[str, ...]
) -> TraceHead:
    devices = Counter(gpu["device"].tolist())
    device = look_up_device(outside, devices.most_common(1)[0][0] if devices else UNKNOWN)
    pids = [pid for pid, _ in (columns.op_pids or columns.call_pids).most_common()]
    return TraceHead(
        path=str(path), tool="kineto", pid=pids[0] if pids else None, rank=outside.rank,
        rank_source=outside.rank_source, world_size=outside.world_size, host=outside.host, backend=outside.backend,
        device_name=device.name, device_memory_bytes=device.memory_bytes,
        compute_capability=device.compute_capability,
        memory_peak_bytes=columns.memory_peak_bytes if columns.memory_peak_bytes >= 0 else None,
        lists_devices=bool(outside.devices), group_ranks=outside.group_ranks,
        unknown_events=columns.unknown_events.describe(), num_unknown_events=columns.unknown_events.num_events,
        notes=notes,
    )  # fmt: skip
