"""The modules of a model as a tree in which identical siblings that are numbered, as in a list, are one row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from distprof.render.markup import show
from distprof.render.units import clean_text, format_time
from distprof.report.wait_report import Spread


class TreeRow(Protocol):
    """A module of a report."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> int | None: ...
    @property
    def likeness(self) -> tuple[object, ...]: ...


Row = TypeVar("Row", bound=TreeRow)


class Branch(Struct, Generic[Row], frozen=True, kw_only=True):
    """One row of the tree: a module, or identical ones in the same place of identical modules."""

    rows: tuple[Row, ...]
    """In the model's order."""
    names: tuple[str, ...]
    """Of each, inside the module that it is shown under: ``blocks.0`` where the list has no row of its own."""
    inner: tuple[Branch[Row], ...]

    @property
    def first(self) -> Row:
        """The module that stands for all."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """``0-11`` or ``blocks.0-11``, or the one name that all have."""
        first, last = self.names[0], self.names[-1]
        return first if len({*self.names}) == 1 else f"{first}-{last.rpartition('.')[2]}"


def grow_tree(rows: Sequence[Row], *, fold: bool) -> Branch[Row]:
    """The tree of a report's rows; ``fold``: identical siblings with consecutive numbers become one branch."""
    inner: list[list[int]] = [[] for _ in rows]
    for row, item in enumerate(rows):
        if item.parent is not None:
            inner[item.parent].append(row)
    branches: dict[int, Branch[Row]] = {}
    for row in reversed(range(len(rows))):  # submodules come after what holds them
        children = [branches.pop(child) for child in inner[row]]
        item = rows[row]
        name = item.name if item.parent is None else item.name.removeprefix(f"{rows[item.parent].name}.")
        branches[row] = Branch(rows=(item,), names=(name,), inner=tuple(_fold(children) if fold else children))
    return branches[0]


def walk_tree(branch: Branch[Row]) -> Iterator[tuple[int, str, Branch[Row]]]:
    """Every branch with its depth and its whole name, ``blocks.0-11.attention``, each before those inside it."""
    pending = [(0, "", branch)]
    while pending:
        depth, name, each = pending.pop()
        yield depth, name, each
        pending += [(depth + 1, f"{name}.{inner.name}".lstrip("."), inner) for inner in reversed(each.inner)]


def _fold(children: Sequence[Branch[Row]]) -> list[Branch[Row]]:
    """One branch for each run of siblings that are alike."""
    runs: list[list[Branch[Row]]] = []
    for child in children:
        if runs and _is_next(runs[-1][0], child) and _is_alike(runs[-1][0], child):
            runs[-1].append(child)
        else:
            runs.append([child])
    return [_join(run) for run in runs]


def _is_next(left: Branch[Row], right: Branch[Row]) -> bool:
    """Whether both are numbered, in the same list."""
    (list_name, _, one), (other_name, _, other) = left.name.rpartition("."), right.name.rpartition(".")
    return list_name == other_name and one.isdecimal() and other.isdecimal()


def _join(run: Sequence[Branch[Row]]) -> Branch[Row]:
    if len(run) == 1:
        return run[0]
    return Branch(
        rows=tuple(row for branch in run for row in branch.rows),
        names=tuple(name for branch in run for name in branch.names),
        inner=tuple(_join(inner) for inner in zip(*(branch.inner for branch in run), strict=True)),
    )


def _is_alike(left: Branch[Row], right: Branch[Row]) -> bool:
    """Whether two siblings are the same at every depth, except for their own names."""
    if left.first.likeness != right.first.likeness or len(left.inner) != len(right.inner):
        return False
    return all(
        len(one.rows) == len(other.rows) and one.name == other.name and _is_alike(one, other)
        for one, other in zip(left.inner, right.inner, strict=True)
    )


TOP = 14
"""Rows of a table."""


def choose_largest(
    rows: Sequence[Row], weigh: Callable[[Branch[Row]], float]
) -> tuple[list[tuple[int, Branch[Row]]], list[str]]:
    """The branches that weigh most, with their depths and in the tree's order, and a note if there are others."""
    branches = [(level, branch) for level, _, branch in walk_tree(grow_tree(rows, fold=True))]
    by_weight = sorted(range(len(branches)), key=lambda row: -weigh(branches[row][1]))
    note = f"a terminal shows the {TOP} largest rows, report.html the whole tree, report.json every module"
    return [branches[row] for row in sorted(by_weight[:TOP])], [note] if len(branches) > TOP else []


MAX_SHOWN = 2_000
"""Rows of the page's tree."""
OPEN_LEVELS = 2


def name_branch(branch: Branch[Row], first: str = "(model)", *, level: int = 0) -> str:
    """``blocks``, ``0-11 (12 x)``, or ``first`` for what has no name; indented by so many levels."""
    times = f" ({len(branch.rows)} x)" if len(branch.rows) > 1 else ""
    return "  " * level + clean_text(branch.name or first) + times


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
        f"{format_time(least[1].min)}, rank {least[1].min_rank}{_format_difference(branch, least[0])}",
        f"{format_time(most[1].max)}, rank {most[1].max_rank}{_format_difference(branch, most[0])}",
    ]


def _format_difference(branch: Branch[Row], row: Row) -> str:
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
    filled = [place for place in range(len(heads)) if any(row[place] for row in rows)]

    def lay_out(cells: Sequence[str]) -> str:
        return "".join(f"<span>{show(cells[place])}</span>" for place in filled)

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
