"""The table of faults in docs/faults.md: every row has tests, and lists them."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
TABLE = TESTS.parent / "docs" / "faults.md"
ROWS = [int(row) for row in re.findall(r"^\| (\d+) \|", TABLE.read_text(encoding="utf-8"), re.M)]


@functools.cache
def find_tests() -> dict[int, list[str]]:
    """By row, ``path::test`` of every test whose name has the number, in the order of the table."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for row in find_rows(node.name):
                    found[row].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def find_rows(name: str) -> list[int]:
    """The rows in a test's name: ``fault_05``, possibly twice, or ``fault_16_to_21``."""
    rows: list[int] = []
    for first, last in re.findall(r"(?:test|and)_fault_(\d\d)(?:_to_(\d\d))?_", name):
        rows += range(int(first), int(last or first) + 1)
    return rows


def test_names_tell_rows() -> None:
    assert find_rows("test_fault_39_this_and_fault_05_that") == [39, 5]
    assert find_rows("test_fault_16_to_18_files") == [16, 17, 18]
    assert find_rows("test_default_05_is_no_row") == []


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_tests_and_the_table_names_them(row: int) -> None:
    (line,) = re.findall(rf"^\| {row} \|.*$", TABLE.read_text(encoding="utf-8"), re.M)
    assert re.findall(r"`([\w/]+\.py::\w+)`", line) == find_tests()[row] != []
