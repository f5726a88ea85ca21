"""Who waits for whom, as a table whose cells are as dark as they are long."""

from __future__ import annotations

from distprof.render.html.maps import show_choice
from distprof.render.markup import show
from distprof.render.sections.rank_names import name_rank
from distprof.render.units import format_milliseconds
from distprof.report.page_report import PageReport
from distprof.report.report import Report

LEVELS = 8
ABOUT = (
    "Milliseconds per step that the rank of the column stands still in collectives until the rank of the row, which "
    "comes last, has come; waits that overlap with compute are not in it."
)


def tabulate_who_waits(report: Report, page: PageReport | None) -> str:
    """A row for each rank that others wait for, the longest first; empty if that is not known."""
    waits = None if page is None else page.who_waits
    if waits is None:
        return ""
    names = [name_rank(report, rank) if rank is not None else "all other ranks" for rank in waits.last]
    names += ["not certain"] if waits.unclear else []
    longest_ns = float(waits.stood_ns.max())
    heads = "".join(
        f'<th scope="col">{_name_column(report, place, waits.each)}</th>' for place in range(waits.stood_ns.shape[1])
    )
    rows = "".join(
        f'<tr><th scope="row">{show(name)}</th>{"".join(_show_cell(time_ns, longest_ns) for time_ns in times_ns)}</tr>'
        for name, times_ns in zip(names, waits.stood_ns.tolist(), strict=True)
    )
    mean = f" A column is the mean of {waits.each:,} ranks." if waits.each > 1 else ""
    return (
        f"<p>{ABOUT}{mean}</p>{show_choice('who-waits')}"
        '<div class="wide matrix" role="region" aria-label="Who waits for whom"><table>'
        f'<thead><tr><th scope="col">last</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _name_column(report: Report, place: int, each: int) -> str:
    ranks = report.ranks[place * each : (place + 1) * each]
    return f"rank {ranks[0].rank}" if len(ranks) == 1 else f"{ranks[0].rank}-{ranks[-1].rank}"


def _show_cell(time_ns: float, longest_ns: float) -> str:
    level = round(LEVELS * time_ns / longest_ns)
    return f'<td class="h{level}">{format_milliseconds(time_ns) if time_ns else ""}</td>'
