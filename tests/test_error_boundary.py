"""What is ours and fails in the observed process: it is swallowed, said once, and switched off."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from distprof.error_boundary import ErrorBoundary
from distprof.errors import UsageError

PACKAGE = Path(__file__).resolve().parent.parent / "distprof"
BROAD = {
    "attach": 3, "cli": 3, "error_boundary": 2, "errors": 1, "modules": 1, "observe": 3, "profiler": 9, "record": 13,
    "render": 5,
}  # fmt: skip
"""How often a room catches any `Exception`. Such a number may only fall.

Inside the observed process these are hot lines, where a call of `ErrorBoundary.run` would cost too much, and lines that
pass the error on to somebody; each says so.
"""


def find_broad(path: Path) -> int:
    """Handlers of `Exception`, of everything unless they raise it again, and ``suppress(Exception)``."""
    count = 0
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            names = {name.id for name in ast.walk(node.type or ast.Name("BaseException")) if isinstance(name, ast.Name)}
            raises = any(isinstance(each, ast.Raise) for each in ast.walk(node))
            count += "Exception" in names or ("BaseException" in names and not raises)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "suppress":
            count += any(isinstance(name, ast.Name) and name.id == "Exception" for name in node.args)
    return count


def test_broad_excepts_become_fewer() -> None:
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        found[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] += find_broad(path)
    assert found <= Counter(BROAD), "more than allowed: run what may fail inside an ErrorBoundary"
    assert found.total() == sum(BROAD.values()), "fewer: lower the numbers, so that they stay so"


def fail(error: BaseException) -> None:
    raise error


def test_the_first_error_is_said_and_switches_the_part_off() -> None:
    said: list[str] = []
    boundary = ErrorBoundary("steps are not recorded", said.append)
    assert boundary.run(divmod, 7, 2) == (3, 1) and boundary.on
    assert boundary.run(fail, LookupError("ours\nand more")) is None and not boundary.on
    assert boundary.run(divmod, 7, 2) is None
    boundary.fail(ValueError("another"))
    assert said == ["steps are not recorded: LookupError: ours"]


def test_an_error_with_a_sentence_of_its_own_is_that_sentence() -> None:
    said: list[str] = []
    with ErrorBoundary("nothing is recorded", said.append):
        raise UsageError("no folder: make one")
    assert said == ["nothing is recorded: no folder: make one"]


def test_nobody_who_cannot_be_told_is_an_error() -> None:
    boundary = ErrorBoundary("steps are not recorded", lambda line: fail(OSError("gone")))
    boundary.run(fail, LookupError("ours"))
    ErrorBoundary("in silence").run(fail, LookupError("ours"))
    assert not boundary.on


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_is_no_error_passes(error: BaseException) -> None:
    boundary = ErrorBoundary("steps are not recorded")
    with pytest.raises(type(error)):
        boundary.run(fail, error)
    with pytest.raises(type(error)), boundary:
        raise error
    assert boundary.on
