"""What the texts of all rules share: how ranks, names and numbers by rank are put into words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from distprof.facts.run import name_ranks
from distprof.render.units import clean_text, format_ratio
from distprof.report.finding_report import EvidenceItem, Finding, NotChecked

MAX_RANK_LINES = 3
"""Ranks that get a line of evidence of their own."""
MAX_NAMED = 60
"""Characters of a list of ranks."""
NAME_LIMIT = 80
"""Characters of a name from data in a finding."""
_NOISE = re.compile(r"\(anonymous namespace\)::|<unnamed>::|at::native::|\(int\)|(?<![\w:])void ")


class FigureText(Struct, frozen=True, kw_only=True):
    """One line of evidence."""

    what: str
    """What the numbers are, in words."""
    value: str
    """The numbers with their units."""
    where: str
    """Ranks, kernels or ranges."""


class FindingText(Struct, frozen=True, kw_only=True):
    """A finding in words, safe to show."""

    title: str
    """The finding in one sentence."""
    evidence: tuple[FigureText, ...]
    """The numbers that it is based on, in words."""
    consequence: str
    """What it costs or means."""
    remedy: str
    """What to do about it."""


def format_name(name: str | None) -> str:
    """A name from data, cut to a length that fits into a sentence."""
    return clean_text(name or "", NAME_LIMIT) or "(no name)"


def name_kernel(name: str, limit: int) -> str:
    """A kernel's name without the words that nearly all of them have, cut to a length."""
    return clean_text(_NOISE.sub("", name[:4_000]).strip(), limit) or "(no name)"


def format_kernel(figure: EvidenceItem) -> str:
    """The kernel of a figure, cut to a length that fits into a sentence."""
    return name_kernel(figure.name or "", NAME_LIMIT)


def name_some(ranks: Iterable[int]) -> str:
    """Ranks in few words, however many and scattered they are."""
    numbers = sorted(set(ranks))
    named = name_ranks(numbers)
    return named if len(named) <= MAX_NAMED else f"{len(numbers):,} ranks"


def format_ranks(finding: Finding) -> str:
    """`` on rank 3``; empty where all ranks are concerned."""
    return "" if len(finding.ranks) == finding.ranks_checked else f" on {name_some(finding.ranks)}"


def format_worst_rank(finding: Finding) -> str:
    """The worst rank."""
    return f"rank {finding.ranks[0]}"


def format_window(finding: Finding) -> str:
    """What sums cover: ``per step``, or the whole trace."""
    return "per step" if finding.per_step else "in the whole trace"


def format_span(finding: Finding) -> str:
    """What shares of time are shares of."""
    return "the step" if finding.per_step else "the traced time"


def list_by_rank(
    finding: Finding, measure: str, what: str, show: Callable[[float], str] = format_ratio
) -> tuple[FigureText, ...]:
    """A line for each of the worst ranks and one for all the others; a single line where all are shown alike."""
    numbers = finding.by_rank[measure]
    shown = list(zip(finding.ranks, map(show, numbers), strict=True))
    if len({value for _, value in shown}) == 1:
        return (FigureText(what=what, value=shown[0][1], where=name_some(finding.ranks)),)
    own = len(shown) if len(shown) == MAX_RANK_LINES + 1 else MAX_RANK_LINES
    lines = [FigureText(what=what, value=value, where=f"rank {rank}") for rank, value in shown[:own]]
    if others := numbers[own:]:
        ends = dict.fromkeys((show(min(others)), show(max(others))))
        lines.append(FigureText(what=what, value=" to ".join(ends), where=name_some(finding.ranks[own:])))
    return tuple(lines)


def make_line(figure: EvidenceItem, value: str, *, what: str | None = None) -> FigureText:
    """A line about a figure, by default under its name."""
    return FigureText(
        what=format_name(figure.name) if what is None else what, value=value, where=name_some(figure.ranks)
    )


def describe_lack(item: NotChecked) -> str:
    """The data that a rule lacked."""
    return item.lack.why.format(share=format_ratio(item.share_ratio), ranks=name_some(item.ranks))
