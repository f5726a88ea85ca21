"""Where and when: places in the page that its script draws into, each with a table of what matters most in it."""

from __future__ import annotations

import numpy as np

from distprof.render.markup import show, show_rows, tabulate
from distprof.render.sections.rank_names import describe_place, name_rank
from distprof.render.units import NOT_MEASURED, format_ratio, format_time
from distprof.report.page_report import PageReport
from distprof.report.report import Report

MOST_RANKS = 12
NAME_LIMIT = 60
WHERE_ABOUT = (
    "Each cell is a rank: by how much its own time exceeds the median of the others' in a step, the mean over measured "
    "steps (0 where it does not exceed it). A step waits for several ranks at once, so the cells do not add up to what "
    "is lost. One bright cell is a machine, a stripe is a stage or a host; where all cells are alike, look for data, "
    "noise, or the network, which is not on this map."
)


def show_where(report: Report, page: PageReport | None) -> str:
    """The heat map of ranks in the mesh."""
    if page is None or not np.isfinite(page.excess_ns).any():
        few = "one rank has no others to compare it with" if report.world_size < 2 else "own time was not measured"
        return f"<p>Not drawn: {few}.</p>"
    return (
        f"<p>{WHERE_ABOUT}</p>{show_choice('where')}"
        '<div class="controls" id="where-orders" role="group" aria-label="Order of the ranks"></div>'
        f"{_place('where', 'Heat map of the ranks: how far each falls behind the others')}"
        f"{_fold('The same in numbers, of all measured steps', _tabulate_ranks(report, page))}"
    )


def show_when(report: Report, page: PageReport | None) -> str:
    """Step time by phase, and the heat map of ranks by steps."""
    if page is None:
        return "<p>Not drawn: no step is marked.</p>"
    shown = f"Each column is the longest of {page.steps_each:,} steps. " if page.steps_each > 1 else ""
    names = sorted(page.cells_ns, key=lambda name: name != "own" or report.world_size < 2)
    options = "".join(f'<option value="{show(name)}">{show(_QUANTITIES.get(name, name))}</option>' for name in names)
    cells = [f"{count:,} {of}" for count, of in ((page.ranks_each, "ranks"), (page.steps_each, "steps")) if count > 1]
    largest = f" Each cell is the longest time of {' x '.join(cells)}." if cells else ""
    return (
        f"<p>Mean over ranks by phase, {page.clock} clock, warm-up paler, steps beyond the top marked there. {shown}"
        "Drag across the picture, or move the two sliders, to choose the steps of the table and the map below, and of "
        "<em>where</em>, <em>who waits for whom</em> and <em>phases by rank</em>.</p>"
        f"{_place('stack', 'Step time by phase over all steps')}"
        '<div class="controls"><label>first step <input type="range" id="from" min="0" value="0"></label>'
        '<label>last step <input type="range" id="to" min="0"></label>'
        '<button type="button" id="all">all steps</button><output id="chosen" for="from to"></output></div>'
        '<ul class="marks" id="marks"></ul>'
        '<div id="selection" class="wide" role="region" aria-label="The chosen steps by phase"></div>'
        "<h3>Ranks by steps</h3>"
        f'<div class="controls"><label>quantity <select id="quantity">{options}</select></label></div>'
        f"<p>Ranks down, steps across; bright is long.{largest}</p>"
        f"{_place('cells', 'Heat map of ranks by steps')}"
        f"{_fold('The longest of all steps in numbers', _tabulate_longest(report))}"
    )


_QUANTITIES = {
    "step": "step time",
    "own": "own time (step less exposed communication)",
    "wait": "wait (exposed communication)",
}


def show_choice(key: str) -> str:
    """A line in which the script says which steps what follows shows."""
    return f'<p class="of" id="{key}-of" role="status">Of all measured steps.</p>'


def _place(key: str, label: str) -> str:
    """A canvas that can be focused, and a line that says what is under its cursor."""
    return (
        f'<canvas id="{key}" tabindex="0" role="img" aria-label="{label}; arrow keys move a cursor" '
        f'aria-describedby="{key}-says"></canvas>'
        f'<p class="says" id="{key}-says" role="status"></p>'
    )


def _fold(title: str, table: str) -> str:
    return f"<details><summary>{title}</summary>{table}</details>" if table else ""


def _tabulate_ranks(report: Report, page: PageReport) -> str:
    known = np.flatnonzero(np.isfinite(page.excess_ns))
    order = known[np.argsort(-page.excess_ns[known], kind="stable")][:MOST_RANKS].tolist()
    step_ns = report.headline.step_mean_ns
    rows = []
    for position in order:
        rank = report.ranks[position]
        excess_ns = float(page.excess_ns[position])
        share = format_ratio(excess_ns / step_ns) if step_ns else format_ratio(None)
        place = describe_place(report, rank.rank)
        rows.append([str(rank.rank), show(place), show(rank.host, NAME_LIMIT), format_time(excess_ns), share])
    heads, kind = ["rank", "place", "host", "lost to it per step", "of the step"], "wide left-3"
    if not any(row[1] for row in rows):
        heads, rows, kind = [heads[0], *heads[2:]], [[row[0], *row[2:]] for row in rows], "wide left-2"
    return tabulate(heads, rows, kind) + _count_left_out(len(known) - len(order), "ranks lose less")


def _count_left_out(count: int, what: str) -> str:
    return f"<p>{count:,} other {what}.</p>" if count > 0 else ""


def _tabulate_longest(report: Report) -> str:
    """The longest steps, and what took longer in them than usual."""
    heads = ["step", "time", "usual", "most longer", "in", "by"]
    rows = [
        [
            f"{each.step:,}", format_time(each.step_ns), format_time(each.usual_ns),
            NOT_MEASURED if each.rank is None else name_rank(report, each.rank), each.phase or NOT_MEASURED,
            format_time(each.more_ns),
        ]
        for each in report.longest_steps
    ]  # fmt: skip
    return tabulate(heads, show_rows(rows), "wide")
