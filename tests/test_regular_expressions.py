"""No regular expression of distprof takes more than linear time, whatever a stranger writes into a file.

Every pattern of the package is found, and run on texts made to hurt it, of one length and of four times that length.
"""

from __future__ import annotations

import ast
import functools
import importlib
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import distprof
from tests.backtracking import FAILED, MAX_STEPS, Matcher, make_texts

ROOT = Path(distprof.__file__).parent
METHODS = frozenset(("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"))
FEW, TIMES = 20, 4
MAX_GROWTH = 6.0
"""Of the steps on a text of four times the length: 4 is linear, 16 is quadratic."""
ENOUGH = 2_000
"""Steps that no pattern needs for `FEW` repetitions: those of a pattern with small limits end well below."""
OWN_TEXT = frozenset(("record/device/rank_info.py", "cli/capture/command.py", "facts/hardware.py"))
"""Files whose patterns are put together where they are used: on /proc, on options, and from the table of devices."""


@functools.cache  # every process that runs tests finds the cases anew
def find_sources() -> dict[str, ast.Module]:
    """The files that use regular expressions."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
    return {
        str(path.relative_to(ROOT)): ast.parse(text) for path, text in texts.items() if re.search(r"\bre\.[a-z]", text)
    }


def find_patterns(value: object) -> Iterator[re.Pattern[Any]]:
    """The patterns in a variable: alone, or in a table."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict | tuple | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from find_patterns(item)


def find_methods(tree: ast.Module) -> tuple[dict[str, set[str]], set[str]]:
    """By variable, the methods of patterns that are called; and those called on anything else than a module's name.

    ``match`` with a position moves through the text as ``finditer`` does.
    """
    constants = {
        name.id
        for node in tree.body
        for target in (node.targets if isinstance(node, ast.Assign) else [])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    moving = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1
    }
    by_name: dict[str, set[str]] = {}
    others = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in METHODS or not isinstance(node.value, ast.Name):
            continue
        once = node.attr == "search" or (node.attr in ("match", "fullmatch") and id(node) not in moving)
        method = node.attr if once else "finditer"
        if node.value.id in constants:
            by_name.setdefault(node.value.id, set()).add(method)
        elif node.value.id != "re":
            others.add(method)
    return by_name, others


def find_cases() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Every pattern in a module's variables: where, the pattern, and how it is used."""
    for file, tree in find_sources().items():
        module = importlib.import_module("distprof." + file.removesuffix(".py").replace("/", "."))
        by_name, others = find_methods(tree)
        for name, value in vars(module).items():
            for index, pattern in enumerate(find_patterns(value)):
                for method in sorted(by_name.get(name, others) or {"search"}):
                    yield f"{file}:{name}[{index}].{method}", pattern, method


def find_calls() -> Iterator[tuple[str, str | bytes | None, str]]:
    """Every call such as ``re.sub(PATTERN, ...)`` in a function: where, its pattern if it can be read, and the method.

    What is formatted into a pattern counts as a letter.
    """
    for file, tree in find_sources().items():
        inside = {id(node) for parent in tree.body if isinstance(parent, ast.Assign) for node in ast.walk(parent)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and id(node) not in inside
            ):
                method = node.func.attr if node.func.attr in ("match", "fullmatch", "search") else "finditer"
                if node.func.attr in {*METHODS, "compile"}:
                    yield f"{file}:{node.lineno}", read_text(node.args[0]), method


def read_text(node: ast.expr) -> str | bytes | None:
    """The text of an expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(read_text(part) or "x") for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(text := read_text(node.left), bytes):
        return text.replace(b"%s", b"x")
    return None


def measure(pattern: re.Pattern[Any], method: str) -> tuple[float, str]:
    """How much the steps grow on the worst text that is four times as long, and that text."""
    matcher, worst = Matcher(pattern, shrink=True), (0.0, "")
    for make in make_texts(pattern):
        few, many = (matcher.count(make(count), method) for count in (FEW, FEW * TIMES))
        growth = math.inf if few > MAX_STEPS else many / max(few, 1)
        if many > ENOUGH and growth > worst[0]:
            worst = growth, make(3)
            if growth > MAX_GROWTH:
                break
    return worst


CASES = {where: (pattern, method) for where, pattern, method in find_cases()}
CALLS = {where: (text, method) for where, text, method in find_calls()}


@pytest.mark.parametrize("where", CASES)
def test_every_pattern_is_linear(where: str) -> None:
    growth, text = measure(*CASES[where])
    assert growth < MAX_GROWTH, f"{growth:.0f} times the steps on a text 4 times as long, such as {text!r}"


@pytest.mark.parametrize("where", CALLS)
def test_every_pattern_in_a_function_is_linear(where: str) -> None:
    text, method = CALLS[where]
    if text is None:
        assert where.partition(":")[0] in OWN_TEXT, "a pattern that no test can read: name it at the module's top"
        return
    growth, hurtful = measure(re.compile(text), method)
    assert growth < MAX_GROWTH, f"{growth:.0f} times the steps on a text 4 times as long, such as {hurtful!r}"


def test_patterns_are_found() -> None:
    files = {where.partition(":")[0] for where in (*CASES, *CALLS)}
    assert files == set(find_sources())
    assert len(CASES) > 80
    assert "traces/reduce/phase_names.py:_PATTERNS[3].fullmatch" in CASES


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"gem(v|m(k1|sn)_).*<[^a-z]*(int, int, )?float,", "search"),
        (r"(_v\d+|_ptsz|_ptds|_spt)+$", "sub"),
        (r"(?:a+)+b", "match"),
        (r"(?:ab|(?:ab)+)*c", "fullmatch"),
        (r"\d+ steps", "search"),
        (r"x(?!\w*_end)y", "findall"),
        (r"^start.*?^end", "search"),
        (r"(?i)\s*+=", "search"),
    ],
)
def test_hurt_patterns_are_seen(pattern: str, method: str) -> None:
    growth, _ = measure(re.compile(pattern, re.M | re.S), method)
    assert growth > MAX_GROWTH


@pytest.mark.parametrize("where", CASES)
def test_the_counting_matcher_finds_what_python_finds(where: str) -> None:
    pattern, _ = CASES[where]
    matcher, draws = Matcher(pattern), random.Random(where)
    texts = [make(draws.choice((0, 1, 2, 5))) for make in make_texts(pattern)]
    for text in draws.sample(texts, min(25, len(texts))):
        for full in (False, True):
            given: Any = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
            found = pattern.fullmatch(given) if full else pattern.match(given)
            assert matcher.match(text, full=full) == (found.end() if found else FAILED), text
