"""The modules of a model as a tree in which identical siblings that are numbered, as in a list, are one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class TreeRow(Protocol):
    """A module of a report."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> int | None: ...
    @property
    def likeness(self) -> tuple[object, ...]: ...


Row = TypeVar("Row", bound=TreeRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Generic[Row]):
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
