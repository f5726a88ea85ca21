"""Do these traces belong to one job? They are refused if two of them contradict each other.

These are contradictions: different world sizes, different backends of the default group, a process group that one
member lists and another does not, devices of different vendors, and times that are far apart. Different GPU models are
not: some jobs run on mixed nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from distprof.errors import DataError
from distprof.traces.reduce.claims import Claim

BY_ORDER = "process order"
"""The rank source of processes that the reader numbered itself."""
MAX_APART_NS = 60 * 10**9
"""A minute between the end of one trace and the begin of another: ranks of one job take part in the same collectives,
so that their traces overlap but for how much the hosts' clocks differ."""
MAX_APART_UNNAMED_NS = 10**9
"""The same between traces of which one names no rank: nothing but the time says that they are of one job."""
_LONG = ((86_400 * 10**9, "days"), (3_600 * 10**9, "hours"), (60 * 10**9, "minutes"), (10**9, "seconds"))


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
            when = f"ends {_say_time(claim.extent_ns[1])}, but the run started {_say_time(int(started_ns))}"
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
            later = f"{_say_long(begin_ns - reached_ns)} later, {_say_time(begin_ns)}"
            why = ", and not both name their rank" if unnamed else ""
            yield f"{last} ends {_say_time(reached_ns)}, {path} begins {later}{why}"
            return
        if end_ns > reached_ns:
            reached_ns, last, last_named = end_ns, path, named


def _say_time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _say_long(long_ns: int) -> str:
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
