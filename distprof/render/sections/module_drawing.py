"""What tables of modules share: a row's name, its figures with the ranks side by side, and the tree for the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distprof.render.markup import show
from distprof.render.sections.module_tree import Branch, Row, walk_tree
from distprof.render.units import clean_text, format_time
from distprof.report.wait_report import Spread

MAX_SHOWN = 2_000
"""Rows of the page's tree."""
OPEN_LEVELS = 2


def name_branch(branch: Branch[Row], first: str = "(model)") -> str:
    """``blocks``, ``0-11 (12 x)``, or ``first`` for what has no name."""
    times = f" ({len(branch.rows)} x)" if len(branch.rows) > 1 else ""
    return clean_text(branch.name or first) + times


def add_up(values: Sequence[float | None]) -> float | None:
    """None: none of them is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def show_times(branch: Branch[Row], pick: Callable[[Row], Spread], num_ranks: int) -> list[str]:
    """The median of all, and the least and the most of one; of one rank only the first."""
    spreads = [(row, pick(row)) for row in branch.rows]
    median = add_up([spread.median for _, spread in spreads])
    known = [(row, spread) for row, spread in spreads if spread.min is not None and spread.max is not None]
    if median is None or not known:
        return ["", "", ""]
    if num_ranks == 1:
        return [format_time(median), "", ""]
    least = min(known, key=lambda item: item[1].min or 0.0)
    most = max(known, key=lambda item: item[1].max or 0.0)
    return [
        format_time(median),
        f"{format_time(least[1].min)}, rank {least[1].min_rank}{_tell_apart(branch, least[0])}",
        f"{format_time(most[1].max)}, rank {most[1].max_rank}{_tell_apart(branch, most[0])}",
    ]


def _tell_apart(branch: Branch[Row], row: Row) -> str:
    """Which of several identical modules it is: what their names do not share."""
    if len(branch.rows) == 1:
        return ""
    parts = [each.name.split(".") for each in branch.rows]
    own = row.name.split(".")
    differs = [part for place, part in enumerate(own) if len({names[place] for names in parts}) > 1]
    return f", in {clean_text('.'.join(differs))}"


def draw_tree(tree: Branch[Row], heads: Sequence[str], describe: Callable[[Branch[Row]], Sequence[str]]) -> str:
    """A tree that opens and closes, without the columns that tell nothing. Escaped.

    Args:
        tree: The modules.
        heads: Of the columns.
        describe: The cells of a row.
    """
    walked = walk_tree(tree)
    shown = [branch for _, branch in zip(range(MAX_SHOWN), walked, strict=False)]
    left_out = sum(1 for _ in walked)
    rows = [describe(branch) for _, _, branch in shown]
    told = [place for place in range(len(heads)) if any(row[place] for row in rows)]

    def lay_out(cells: Sequence[str]) -> str:
        return "".join(f"<span>{show(cells[place])}</span>" for place in told)

    parts = [f'<div class="wide"><div class="tree"><div class="heads">{lay_out(heads)}</div>']
    open_levels: list[int] = []
    for (level, _, branch), cells in zip(shown, rows, strict=True):
        while open_levels and open_levels[-1] >= level:
            open_levels.pop()
            parts.append("</details>")
        if branch.inner:
            open_levels.append(level)
            parts.append(f"<details{' open' if level < OPEN_LEVELS else ''}><summary>{lay_out(cells)}</summary>")
        else:
            parts.append(f"<div>{lay_out(cells)}</div>")
    parts += ["</details>"] * len(open_levels)
    more = f"<p>{left_out:,} more are in report.json.</p>" if left_out else ""
    return "".join(parts) + f"</div></div>{more}"
