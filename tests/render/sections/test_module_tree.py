"""Modules as a tree of rows: names inside what holds them, and identical ones folded."""

from __future__ import annotations

from msgspec import Struct

from distprof.render.sections.module_tree import grow_tree, walk_tree


class Row(Struct, frozen=True):
    """A module."""

    name: str
    parent: int | None
    likeness: tuple[object, ...] = ()


def test_a_list_without_a_row_of_its_own_is_in_the_names_and_folds_by_itself() -> None:
    """Calls show no ModuleList: its members stand right under the model, those of two lists side by side."""
    names = ["", "down.0", "down.0.conv", "down.1", "down.1.conv", "up.0", "up.1", "head"]
    rows = [Row(name, None if not name else 0 if name.count(".") < 2 else at - 1) for at, name in enumerate(names)]
    folded = grow_tree(rows, fold=True)
    assert [branch.name for branch in folded.inner] == ["down.0-1", "up.0-1", "head"]
    assert [name for _, name, _ in walk_tree(folded)] == ["", "down.0-1", "down.0-1.conv", "up.0-1", "head"]
    whole = [name for _, name, _ in walk_tree(grow_tree(rows, fold=False))]
    assert whole == names


def test_a_module_called_from_another_place_keeps_its_whole_name() -> None:
    tree = grow_tree([Row("", None), Row("decoder", 0), Row("encoder.embed", 1)], fold=True)
    assert [branch.name for branch in tree.inner[0].inner] == ["encoder.embed"]
