"""The house rules that a program can check: who may import whom, what lies where, how long a file is."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "distprof"

LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(layer.split())
    for layer in (
        "errors redact trace rank_names signals",
        "decode rank_activity activity_report opening presence standard_streams",
        "config run waiting",
        "check hardware flops provenance report collective_lines nsys_tool rank_records record_lines",
        "stream matching",
        "folder activity",
        "world",
        "compose record gather live remote importers simulate analyze",
        "profiler render",
        "budget",
        "start",
        "train attach",
        "application",
        "bench report_command tables_command doctor capture",
        "cli",
        "__main__",
    )
)
"""From the bottom up. A module imports from lower layers and from its own package, and from no sibling."""

ALLOWED = {
    "torch": "world record gather profiler start train attach bench/wrapped.py doctor/torch_facts.py",
    "accelerate": "train attach",
    "wandb": "render/wandb_log.py",
    "rich": "render cli report_command tables_command application __main__ train/job.py bench doctor/command.py",
    "nvtx": "record",
    "hydra": "compose",
    "omegaconf": "compose",
}
"""Who may import a heavy or a foreign package, also inside a function: a layer's word, or one file."""

PUBLIC_TO_TRAIN = {"profiler", "train", "world", *(name for layer in LAYERS[:5] for name in layer)}
VAGUE = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
LONGEST_FILE_LINES = 300

FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = [path for path in FILES if path != PACKAGE / "__init__.py"]


def name_file(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def name_word(path: Path) -> str:
    """The layer's word: the first part of the module's path inside the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def find_imports(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Dotted names that are imported; ``from distprof import x`` counts as ``distprof.x``."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            yield from (f"distprof.{alias.name}" for alias in node.names) if module == "distprof" else (module,)


@functools.cache
def read_imports(path: Path) -> set[str]:
    return set(find_imports(ast.walk(ast.parse(path.read_text(encoding="utf-8")))))


def read_own_words(path: Path) -> set[str]:
    """Which parts of distprof a file imports from; names of the package itself, such as its version, are no part."""
    words = {name.split(".")[1] for name in read_imports(path) if name.startswith("distprof.")}
    return {word for word in words if (PACKAGE / word).is_dir() or (PACKAGE / f"{word}.py").is_file()}


def find_layer(word: str) -> int:
    found = [level for level, layer in enumerate(LAYERS) if word in layer]
    assert found, f"distprof/{word}: a new part of the package; give it a layer in LAYERS"
    return found[0]


@pytest.mark.parametrize("path", MODULES, ids=name_file)
def test_imports_go_down(path: Path) -> None:
    own = name_word(path)
    layer = find_layer(own)
    wrong = {word for word in read_own_words(path) if word != own and find_layer(word) >= layer}
    assert not wrong, f"{name_file(path)} imports {sorted(wrong)}, which do not lie below '{own}'"


@pytest.mark.parametrize("path", FILES, ids=name_file)
def test_foreign_packages_stay_where_they_belong(path: Path) -> None:
    packages = {name.split(".")[0] for name in read_imports(path)}
    here = {name_word(path), name_file(path)}
    wrong = {package for package, places in ALLOWED.items() if package in packages and not here & set(places.split())}
    assert not wrong, f"{name_file(path)} imports {sorted(wrong)}; allowed: {[ALLOWED[package] for package in wrong]}"


@pytest.mark.parametrize("path", FILES, ids=name_file)
def test_slow_imports_wait_until_they_are_needed(path: Path) -> None:
    at_import = {name.split(".")[0] for name in find_imports(iter(ast.parse(path.read_text(encoding="utf-8")).body))}
    assert not at_import & {"wandb", "accelerate", "nvtx", "pynvml"}, f"{name_file(path)}: import it inside a function"


@pytest.mark.parametrize("path", sorted((PACKAGE / "train").glob("*.py")), ids=name_file)
def test_the_workload_uses_the_public_profiler_only(path: Path) -> None:
    if path.name == "job.py":  # puts the application together: the one file of train/ that knows the rest
        assert not read_own_words(path) & {"record", "gather", "attach"}
    else:
        assert read_own_words(path) <= PUBLIC_TO_TRAIN


@pytest.mark.parametrize("path", FILES, ids=name_file)
def test_files_say_what_they_are_and_stay_short(path: Path) -> None:
    assert not {*path.relative_to(PACKAGE).parent.parts, path.stem} & VAGUE
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE_LINES


def test_reports_are_made_without_torch() -> None:
    """The same rule, as Python sees it: what an imported module imports in turn counts too."""
    allowed = set(ALLOWED["torch"].split()) | {"compose", "application", "attach", "__main__"}
    names = [
        ".".join(("distprof", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in MODULES
        if name_word(path) not in allowed
    ]
    lines = [*(f"import {name}" for name in names), "import sys", "print(*sorted({'torch', 'wandb'} & {*sys.modules}))"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
