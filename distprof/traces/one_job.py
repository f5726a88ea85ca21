"""What does a trace say about its job, and do several belong to one? They are refused if two contradict each other.

These are contradictions: different world sizes, different backends of the default group, a process group that one
member lists and another does not, devices of different vendors, and times that are far apart. Different GPU models are
not: some jobs run on mixed nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import numpy as np
from msgspec import Struct

from distprof.errors import DataError
from distprof.facts.trace import Trace, TraceHead

BY_ORDER = "process order"
"""The rank source of processes that the reader numbered itself."""
MAX_APART_NS = 60 * 10**9
"""A minute between the end of one trace and the begin of another. Ranks of one job take part in the same collectives,
so their traces overlap, apart from the difference between the hosts' clocks."""
MAX_APART_UNNAMED_NS = 10**9
"""The same where one of the two traces names no rank: only the time shows that they belong to one job."""
_LONG = ((86_400 * 10**9, "days"), (3_600 * 10**9, "hours"), (60 * 10**9, "minutes"), (10**9, "seconds"))
_DEVICE_TYPES = {"NVIDIA": "cuda", "AMD": "cuda", "Intel": "xpu", "Huawei": "npu"}
"""By vendor, what PyTorch calls its devices."""
UNIX_NS = 10**18
"""Later times are on the Unix clock: since 2001."""
_VENDORS = {
    "AMD": re.compile(r"\bAMD\b|Instinct|Radeon|^gfx\d", re.IGNORECASE),
    "NVIDIA": re.compile(r"NVIDIA|Tesla|GeForce|Quadro", re.IGNORECASE),
    "Intel": re.compile(r"\bIntel\b|\bArc\b|Data Center GPU Max|Ponte Vecchio", re.IGNORECASE),
    "Huawei": re.compile(r"\bAscend", re.IGNORECASE),
}
_CALLS = {
    "AMD": re.compile(r"hip[A-Z]"), "NVIDIA": re.compile(r"cu(?:da)?[A-Z]"),
    "Intel": re.compile(r"(?:ur|ze|xpti|sycl)[A-Z]"), "Huawei": re.compile(r"acl(?:rt|nn|op|md)"),
}  # fmt: skip


class Claim(Struct, frozen=True, kw_only=True):
    """What one trace says about its job."""

    head: TraceHead
    extent_ns: tuple[int, int] | None
    """First begin and last end on the Unix clock. None: the trace uses another clock."""
    vendor: str | None
    """The device's vendor. None: there is no device, or the vendor is unknown."""


def read_claim(trace: Trace) -> Claim:
    """What the trace says about its job."""
    return Claim(head=trace.head, extent_ns=_compute_extent(trace), vendor=_infer_vendor(trace))


def _compute_extent(trace: Trace) -> tuple[int, int] | None:
    tables = [table for table in (trace.gpu, trace.calls, trace.ops, trace.ranges) if len(table.begin_ns)]
    if not tables:
        return None
    start_ns = trace.head.session_start_ns or 0
    begin_ns = start_ns + min(int(table.begin_ns.min()) for table in tables)
    end_ns = start_ns + max(int(max(table.begin_ns.max(), table.end_ns.max())) for table in tables)
    return (begin_ns, end_ns) if begin_ns > UNIX_NS else None


def _infer_vendor(trace: Trace) -> str | None:
    """From the device's name, else from the runtime that was called."""
    for vendor, pattern in _VENDORS.items():
        if trace.head.device_name and pattern.search(trace.head.device_name):
            return vendor
    called = [trace.names[code] for code in np.unique(trace.calls.name).tolist()]
    found = [vendor for vendor, pattern in _CALLS.items() if any(map(pattern.match, called))]
    return found[0] if len(found) == 1 else None


def infer_device_type(trace: Trace) -> str | None:
    """What the process ran on, as PyTorch calls it; "cpu" if nothing in the file speaks of a device. None: unknown."""
    head, vendor = trace.head, _infer_vendor(trace)
    if vendor is not None:
        return _DEVICE_TYPES[vendor]
    used = bool(len(trace.gpu.begin_ns))
    if "nccl" in (head.backend or "") or any(name.startswith("nccl") for name in trace.names):
        return "cuda"
    if used and head.tool == "nsys":
        return "cuda"
    dark = head.unknown_events is not None or head.memory_peak_bytes is not None or head.lists_devices
    return None if used or dark else "cpu"


def require_one_job(claims: Sequence[Claim], *, at_several_times: bool = False) -> None:
    """Refuses traces that contradict each other.

    Args:
        claims: One per trace.
        at_several_times: A rank may have several traces, taken at different times.

    Raises:
        DataError: Two of them are of different jobs; the message says which, and why.
    """
    for reason in _find_contradictions(claims, at_several_times=at_several_times):
        raise DataError(f"{reason}: different jobs: pass traces of one job")


def _find_contradictions(claims: Sequence[Claim], *, at_several_times: bool) -> Iterator[str]:
    yield from _compare((claim, f"a job of {claim.head.world_size} ranks") for claim in claims if says_world(claim))
    yield from _compare(
        (claim, f"the {claim.head.backend} backend") for claim in claims if claim.head.backend is not None
    )
    yield from _compare((claim, f"{claim.vendor} devices") for claim in claims if claim.vendor is not None)
    if not at_several_times or not _has_repeated(claims):
        yield from _compare_times(claims)
    yield from _compare_groups(claims)


def require_after(started_utc: str | None, claims: Sequence[Claim]) -> None:
    """Refuses traces that were over before a run began.

    Raises:
        DataError: One was.
    """
    try:
        started_ns = datetime.fromisoformat(started_utc or "").timestamp() * 1e9
    except (ValueError, OverflowError):
        return  # the run does not say when it began
    for claim in claims:
        if claim.extent_ns is not None and claim.extent_ns[1] < started_ns - MAX_APART_NS:
            when = f"ends {_format_time(claim.extent_ns[1])}, but the run started {_format_time(int(started_ns))}"
            raise DataError(f"{claim.head.path} {when}: different jobs: pass traces of this run")


def says_world(claim: Claim) -> bool:
    """Whether the file itself states the number of ranks, rather than the reader having counted them."""
    return claim.head.world_size is not None and claim.head.rank_source != BY_ORDER


def _compare(said: Iterable[tuple[Claim, str]]) -> Iterator[str]:
    """The first claim that contradicts an earlier one."""
    first: tuple[Claim, str] | None = None
    for claim, what in said:
        if first is None:
            first = claim, what
        elif what != first[1]:
            yield f"{first[0].head.path} is from {first[1]}, {claim.head.path} from {what}"
            return


def _has_repeated(claims: Sequence[Claim]) -> bool:
    said = [claim.head for claim in claims if claim.head.rank_source != BY_ORDER]
    ranks = [head.rank for head in said if head.rank is not None]
    return len(set(ranks)) < len(ranks)


def _compare_times(claims: Sequence[Claim]) -> Iterator[str]:
    """Traces of one job overlap or nearly so: finds the first gap in time that is too long and that no trace spans."""
    timed = sorted(
        (claim.extent_ns, claim.head.path, claim.head.rank is not None)
        for claim in claims if claim.extent_ns is not None
    )  # fmt: skip
    if not timed:
        return
    (_, reached_ns), last, last_named = timed[0]
    for (begin_ns, end_ns), path, named in timed[1:]:
        unnamed = not (named and last_named)
        if begin_ns - reached_ns > (MAX_APART_UNNAMED_NS if unnamed else MAX_APART_NS):
            later = f"{_format_duration(begin_ns - reached_ns)} later, {_format_time(begin_ns)}"
            why = ", and not both name their rank" if unnamed else ""
            yield f"{last} ends {_format_time(reached_ns)}, {path} begins {later}{why}"
            return
        if end_ns > reached_ns:
            reached_ns, last, last_named = end_ns, path, named


def _format_time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _format_duration(long_ns: int) -> str:
    unit_ns, name = next((item for item in _LONG if long_ns >= 2 * item[0]), _LONG[-1])
    return f"{long_ns / unit_ns:,.0f} {name}"


def _compare_groups(claims: Sequence[Claim]) -> Iterator[str]:
    """Every member of a group creates it, so each of them must list it, under whatever name."""
    listed = {
        claim.head.rank: (claim, {frozenset(ranks) for ranks in claim.head.group_ranks.values()})
        for claim in claims if claim.head.rank is not None and claim.head.group_ranks
    }  # fmt: skip
    for claim, groups in listed.values():
        for group in groups:
            for rank in sorted(group & listed.keys()):
                other, others = listed[rank]
                if group not in others:
                    members = ", ".join(map(str, sorted(group)[:8])) + (", ..." if len(group) > 8 else "")
                    yield (
                        f"{claim.head.path} lists a process group of ranks {members}, but {other.head.path} of rank "
                        f"{rank} does not"
                    )
                    return
