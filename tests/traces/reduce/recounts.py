"""Counts a PyTorch profiler trace again: plain loops over its JSON that share nothing with distprof.

All the rules: device events are kernels, copies and memsets; their call is the first one with their correlation id.
Times are whole ns. A stream works in order: what runs on it before anything whose call is in the file was launched
before the file began. An event recorded at some time on the stream that computes longest fires when everything launched
there before is done; a step's device time lies between two such events. Work counts for the step that launched it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from msgspec import Struct

DEVICE = {"kernel": "kernel", "gpu_memcpy": "memory", "gpu_memset": "memory", "memcpy": "memory", "memset": "memory"}
CALLS = ("cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "hip_driver")
STEPS = ("user_annotation", "operator")
KNOWN = (*DEVICE, *CALLS, *STEPS, "cpu_op")
COMMUNICATES = re.compile(r"nccl|multimem_all_reduce|dpsk::ep::", re.IGNORECASE)
"""The kernels in the files that exchange data between devices."""
EARLY = -(10**30)
Span = tuple[int, int]


class Did(Struct):
    """One device event."""

    name: str
    kind: str
    stream: str
    begin: int
    end: int
    call: Span | None
    launch: int | None = None
    """When the host entered the call; `EARLY`: before the file began; None: unknown."""
    launched: int | None = None
    """When the host left it."""


class Recount(Struct):
    """A file's statements about its rank; sums over all steps, ns, or over the whole file if it has none."""

    steps: int
    step_ns: list[int]
    """On the device, for each step."""
    times: dict[str, int]
    queue_ns: int
    """Queue length times time."""
    queue_max: int
    empty_ns: int
    launches: int
    unseen_ns: int
    """Before the first kernels, where they waited for what was launched before the file began."""
    gaps: list[tuple[int, str]]
    """Launch gaps and what ends them, longest first."""
    kernels: dict[str, tuple[int, int]]
    """Launches and their summed length by name, kernels, copies and memsets."""


def recount(path: Path) -> Recount | None:
    """Counts a file. None: nothing ran on a device."""
    events = read(path)
    done = list_device(events)
    if not done:
        return None
    find_launches(done)
    steps = sorted(span(event) for event in events if is_step(event))
    whole = steps_on_device(done, steps) or [(min(did.begin for did in done), max(did.end for did in done))]
    unseen = find_unseen(done, whole, min(span(event)[0] for event in events if event.get("cat", "").lower() in KNOWN))
    windows = [part for window in whole for part in cut(window, unseen)]
    queue_ns, queue_max, empty_ns = measure_queue(done, windows)
    return Recount(
        steps=len(steps), step_ns=[end - begin for begin, end in whole] if steps else [],
        times=measure_times(done, windows), queue_ns=queue_ns, queue_max=queue_max, empty_ns=empty_ns,
        launches=sum(belongs(did, steps, whole) for did in done),
        unseen_ns=sum(overlap(begin, end, whole) for begin, end in unseen), gaps=list_gaps(done, windows),
        kernels=total_kernels(done, steps, whole),
    )  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    """The file's complete events."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = json.loads(text, parse_float=Decimal)["traceEvents"]
    return [event for event in found if event.get("ph") == "X" and "dur" in event]


def span(event: dict[str, Any]) -> Span:
    """Begin and end, ns."""
    begin = round(Decimal(event["ts"]) * 1000)
    return begin, begin + round(Decimal(event["dur"]) * 1000)


def is_step(event: dict[str, Any]) -> bool:
    return event["name"].startswith("ProfilerStep#") and event["cat"].lower() in STEPS


def list_device(events: list[dict[str, Any]]) -> list[Did]:
    """The device events with their calls, ordered by begin."""
    calls: dict[int, Span] = {}
    for event in events:
        if event.get("cat", "").lower() in CALLS:
            number = event.get("args", {}).get("correlation", 0)
            if number > 0:
                calls[number] = min(calls.get(number, span(event)), span(event))
    done = []
    for event in events:
        kind = DEVICE.get(event.get("cat", "").lower())
        if kind is not None:
            kind = "exchange" if kind == "kernel" and COMMUNICATES.search(event["name"]) else kind
            args = event["args"]
            done.append(
                Did(event["name"], kind, str(args["stream"]), *span(event), calls.get(args.get("correlation", 0)))
            )
    return sorted(done, key=lambda did: did.begin)


def find_launches(done: list[Did]) -> None:
    """Fills in when each was launched."""
    known = Counter(did.stream for did in done if did.call)
    seen: Counter[str] = Counter()
    first_of_call: dict[Span, int] = {}
    for did in done:
        if did.call:
            seen[did.stream] += 1
            did.launch = did.call[0]
            did.launched = min(did.call[1], first_of_call.setdefault(did.call, did.begin))
        elif known[did.stream] and not seen[did.stream]:
            did.launch = EARLY


def steps_on_device(done: list[Did], steps: list[Span]) -> list[Span]:
    """The steps between events on the stream that computes longest."""
    work: Counter[str] = Counter()
    for did in done:
        if did.kind != "exchange":
            work[did.stream] += did.end - did.begin
    main = [did for did in done if did.kind != "exchange" and did.stream == work.most_common(1)[0][0]]

    def fire(time: int) -> int:
        return max([time, *(did.end for did in main if (did.begin if did.launch is None else did.launch) < time)])

    return [(fire(begin), fire(end)) for begin, end in steps]


def belongs(did: Did, steps: list[Span], windows: list[Span]) -> bool:
    if not steps:
        return True
    if did.launch is None:
        return any(begin <= did.begin < end for begin, end in windows)
    return any(begin <= did.launch < end for begin, end in steps)


def walk_gaps(done: list[Did], begin: int) -> list[tuple[int, int, Did | None]]:
    """Idle stretches from a time on, with what was launched first of what ends each; None: not known."""
    found, last = [], begin
    whole = sorted((did for did in done if did.end > did.begin), key=lambda did: did.begin)
    for did in whole:
        if did.begin > last:
            ending = [other for other in whole if other.begin == did.begin and other.launched is not None]
            found.append((last, did.begin, min(ending, key=lambda other: other.launched or 0, default=None)))
        last = max(last, did.end)
    return found


def find_unseen(done: list[Did], windows: list[Span], begin: int) -> list[Span]:
    """Idle stretches in which what had been launched before the file began may have run."""
    whole = sorted((did for did in done if did.end > did.begin), key=lambda did: did.begin)
    kernels = [did for did in whole if did.kind in ("kernel", "exchange")]
    first = min(did.begin for did in kernels)
    unknown = any(did.launch == EARLY for did in kernels if did.begin == first)
    opening: dict[str, Did] = {}
    for did in whole:
        opening.setdefault(did.stream, did)
    gaps, late = walk_gaps(done, min(windows[0][0], whole[0].begin)), []
    for start, end, ending in gaps:
        launched = end if ending is None or ending.launched is None else max(start, ending.launched)
        if end - launched > 100_000:
            unknown = unknown or end == first
            if ending and opening[ending.stream] is ending and 2 * (end - launched) > end - begin:
                late.append((launched, end))
    early = [(start, end) for start, end, _ in gaps if unknown and end <= first]
    return early + [part for part in late if not unknown or part[1] > first]


def cut(window: Span, holes: list[Span]) -> list[Span]:
    """What is left of a window."""
    left, last = [], window[0]
    for begin, end in holes:
        left.append((last, min(begin, window[1])))
        last = max(last, end)
    return [(begin, end) for begin, end in [*left, (last, window[1])] if end > begin]


def list_gaps(done: list[Did], windows: list[Span]) -> list[tuple[int, str]]:
    found = []
    for start, end, did in walk_gaps(done, min(windows[0][0], min(did.begin for did in done if did.end > did.begin))):
        if did is not None and did.launched is not None:
            long = overlap(max(start, did.launched), end, windows)
            found += [(long, did.name)] if long else []
    return sorted(found, key=lambda gap: -gap[0])


def total_kernels(done: list[Did], steps: list[Span], windows: list[Span]) -> dict[str, tuple[int, int]]:
    totals: dict[str, tuple[int, int]] = {}
    for did in done:
        if belongs(did, steps, windows):
            count, ns = totals.get(did.name, (0, 0))
            totals[did.name] = count + 1, ns + max(did.end - did.begin, 0)
    return totals


def overlap(begin: int, end: int, windows: list[Span]) -> int:
    return sum(max(0, min(end, last) - max(begin, first)) for first, last in windows)


def measure_times(done: list[Did], windows: list[Span]) -> dict[str, int]:
    """Walks from edge to edge, and assigns each stretch by what runs in it."""
    names = ("compute", "memory", "idle_communication", "idle_host", "idle_launch", "idle_unknown")
    times = dict.fromkeys((*names, "memory_busy", "communication_busy"), 0)
    times["span"] = sum(end - begin for begin, end in windows)
    whole = [did for did in done if did.end > did.begin]
    changes = [(did.begin, 1, did.kind) for did in whole] + [(did.end, -1, did.kind) for did in whole]
    changes.sort()
    running: Counter[str] = Counter()
    first_launched: dict[int, int] = {}
    for did in whole:
        if did.launched is not None:
            first_launched[did.begin] = min(first_launched.get(did.begin, did.launched), did.launched)
    last = min(windows[0][0], changes[0][0])
    for time, change, kind in changes:
        if time > last:
            part = overlap(last, time, windows)
            times["memory_busy"] += part * bool(running["memory"])
            times["communication_busy"] += part * bool(running["exchange"])
            if running["kernel"]:
                times["compute"] += part
            elif running["memory"]:
                times["memory"] += part
            elif running["exchange"]:
                times["idle_communication"] += part
            else:
                book_gap(times, last, time, first_launched.get(time), windows)
        running[kind] += change
        last = time
    times["idle_unknown"] += overlap(last, max(last, windows[-1][1]), windows)
    return times


def book_gap(times: dict[str, int], begin: int, end: int, launched: int | None, windows: list[Span]) -> None:
    """An idle stretch, up to the begin of what was launched then."""
    if launched is None:
        times["idle_unknown"] += overlap(begin, end, windows)
        return
    cut = min(max(launched, begin), end)
    times["idle_host"] += overlap(begin, cut, windows)
    times["idle_launch"] += overlap(cut, end, windows)


def measure_queue(done: list[Did], windows: list[Span]) -> tuple[int, int, int]:
    """Length times time, the largest length, and the time with an empty queue."""
    waiting = [(did.begin if did.launched is None else did.launched, did.end) for did in done]
    changes = [(begin, 1) for begin, end in waiting if end > begin]
    changes += [(end, -1) for begin, end in waiting if end > begin]
    changes.sort()
    length, last, total, most, filled = 0, changes[0][0], 0, 0, 0
    for time, change in changes:
        part = overlap(last, time, windows)
        total += part * length
        filled += part * (length > 0)
        most = max(most, length) if part else most
        length, last = length + change, time
    return total, most, sum(end - begin for begin, end in windows) - filled
