"""The modules of a model as a tree in which identical siblings that are numbered, as in a list, are one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distprof.report.module_report import ModuleReport, ModuleRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One row of the tree: a module, or identical ones in the same place of identical modules."""

    rows: tuple[ModuleRow, ...]
    """In the model's order."""
    inner: tuple[Branch, ...]

    @property
    def first(self) -> ModuleRow:
        """The module that stands for all."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """``0-11``, or the last part of the one name that all have."""
        names = [row.name.rpartition(".")[2] for row in self.rows]
        return names[0] if len({*names}) == 1 else f"{names[0]}-{names[-1]}"


def grow_tree(report: ModuleReport, *, fold: bool) -> Branch:
    """The tree of a report; ``fold``: identical siblings with consecutive numbers become one branch."""
    inner: list[list[int]] = [[] for _ in report.rows]
    for row, item in enumerate(report.rows):
        if item.parent is not None:
            inner[item.parent].append(row)
    branches: dict[int, Branch] = {}
    for row in reversed(range(len(report.rows))):  # submodules come after what holds them
        children = [branches.pop(child) for child in inner[row]]
        branches[row] = Branch(rows=(report.rows[row],), inner=tuple(_fold(children) if fold else children))
    return branches[0]


def walk_tree(branch: Branch) -> Iterator[tuple[int, str, Branch]]:
    """Every branch with its depth and its whole name, ``blocks.0-11.attention``, each before those inside it."""
    pending = [(0, "", branch)]
    while pending:
        depth, name, each = pending.pop()
        yield depth, name, each
        pending += [(depth + 1, f"{name}.{inner.name}".lstrip("."), inner) for inner in reversed(each.inner)]


def _fold(children: Sequence[Branch]) -> list[Branch]:
    """One branch for each run of siblings that are alike."""
    runs: list[list[Branch]] = []
    for child in children:
        if runs and child.name.isdecimal() and runs[-1][0].name.isdecimal() and _is_alike(runs[-1][0], child):
            runs[-1].append(child)
        else:
            runs.append([child])
    return [_join(run) for run in runs]


def _join(run: Sequence[Branch]) -> Branch:
    if len(run) == 1:
        return run[0]
    return Branch(
        rows=tuple(row for branch in run for row in branch.rows),
        inner=tuple(_join(inner) for inner in zip(*(branch.inner for branch in run), strict=True)),
    )


def _is_alike(left: Branch, right: Branch) -> bool:
    """Whether two siblings are the same at every depth, except for their own names."""
    if _describe(left.first) != _describe(right.first) or len(left.inner) != len(right.inner):
        return False
    return all(
        len(one.rows) == len(other.rows) and one.name == other.name and _is_alike(one, other)
        for one, other in zip(left.inner, right.inner, strict=True)
    )


def _describe(row: ModuleRow) -> tuple[object, ...]:
    return (
        row.kind, row.calls, row.output_shapes, row.own_parameters, row.parameters, row.held_parameters,
        row.self_flops, row.total_flops,
    )  # fmt: skip
