"""The house rules that a program can check: who may import whom, what lies where, how long a file is."""

from __future__ import annotations

import ast
import builtins
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "distprof"

ROOMS: tuple[str, ...] = (
    "errors", "error_boundary", "facts world compiling patching unseen child_process", "report config", "storage",
    "record traces modules observe", "analyze",
    "render", "profiler", "train", "attach", "cli", "__main__",
)  # fmt: skip
"""From the bottom up; rooms on one floor do not know each other. A module imports from lower floors and from its room.
"""

SUB_ROOMS: dict[str, tuple[str, ...]] = {
    "analyze": (
        "stats", "clocks", "cycles", "replay", "timeline", "links traces/findings pipeline",
        "traces summary predict", "causes", "live compare", ".",
    ),
    "record": ("step device", "collectives hosts", "stalls", "gather", "windows", "."),
    "render": (".", "finding_texts", "sections", "summary", "terminal html", "files wandb"),
    "profiler": ("job metrics", "windows loggers", "rank", "session", "."),
}  # fmt: skip
"""The large rooms from the bottom up, by the same law; ``.``: the files beside the sub-rooms."""
MOST_FILES, MOST_AT_THE_TOP = 25, 3
"""Of a folder beside its ``__init__.py``, and of those in `SUB_ROOMS` beside their sub-rooms."""

ALLOWED = {
    "torch": "world compiling unseen record modules observe profiler train attach cli/model_target.py "
    "cli/bench/wrapped.py cli/doctor/probe_torch.py",
    "accelerate": "train attach",
    "transformers": "attach/transformers.py",
    "lightning": "attach/lightning.py",
    "pytorch_lightning": "attach/lightning.py",
    "wandb": "render/wandb/wandb_log.py render/wandb/wandb_sweep.py",
    "opentelemetry": "profiler/loggers/otel.py",
    "tensorboard": "profiler/loggers/tensorboard.py",
    "wandb_workspaces": "render/wandb/wandb_workspace.py",
    "rich": "render/terminal cli __main__ train/job.py",
    "nvtx": "record",
    "perfetto": "render/files/trace_protobuf.py",
    "pyarrow": "render/files/column_files.py traces/operations/read_operations.py",
    "fsspec": "storage/remote.py",
    "distributed": "traces/executors.py",
    "ray": "traces/executors.py",
    "hydra": "config/compose cli/sweep",
    "omegaconf": "config/compose cli/sweep",
    "dataclasses": "modules/calls.py",
}
"""Who may import a heavy or a foreign package, also inside a function: a room, a folder or a file of one."""

PUBLIC_TO_TRAIN = {"errors", "facts", "world", "config", "modules", "profiler", "train"}
VAGUE = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
LONGEST_FILE_LINES = 500

FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = [path for path in FILES if path != PACKAGE / "__init__.py"]
ALL_ROOMS = sorted(" ".join(ROOMS).split())


def name_file(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def name_module(path: Path) -> str:
    return ".".join(("distprof", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def name_room(path: Path) -> str:
    """The room: the first part of the module's path inside the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def find_imports(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Dotted names that are imported; ``from a import b`` counts as ``a`` and as ``a.b``, which may be a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


class Code(NamedTuple):
    """What the rules ask of a file, from one look at its tree."""

    imports: set[str]
    at_import: set[str]
    """Those that its own import imports."""
    classes: list[str]


@functools.cache
def read_code(path: Path) -> Code:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    return Code(
        imports=set(find_imports(iter(nodes))), at_import=set(find_imports(iter(tree.body))),
        classes=[node.name for node in nodes if isinstance(node, ast.ClassDef)],
    )  # fmt: skip


def read_imports(path: Path) -> set[str]:
    return read_code(path).imports


def list_room(room: str) -> list[Path]:
    return [path for path in MODULES if name_room(path) == room]


def read_own_rooms(path: Path) -> set[str]:
    """Which parts of distprof a file imports from; names of the package itself, such as its version, are no part."""
    words = {name.split(".")[1] for name in read_imports(path) if name.startswith("distprof.")}
    return {word for word in words if (PACKAGE / word).is_dir() or (PACKAGE / f"{word}.py").is_file()}


def find_floor(room: str) -> int:
    found = [floor for floor, rooms in enumerate(ROOMS) if room in rooms.split()]
    assert found, f"distprof/{room}: no room of the house; put it into one, or build one in ROOMS and say why"
    return found[0]


def test_every_module_lies_in_a_room() -> None:
    assert sorted({name_room(path) for path in MODULES}) == ALL_ROOMS


@pytest.mark.parametrize("room", ALL_ROOMS)
def test_imports_go_down(room: str) -> None:
    floor = find_floor(room)
    for path in list_room(room):
        wrong = {word for word in read_own_rooms(path) if word != room and find_floor(word) >= floor}
        assert not wrong, f"{name_file(path)} imports {sorted(wrong)}, which do not lie below '{room}'"


def find_sub_floor(room: str, folder: str) -> int:
    found = [floor for floor, folders in enumerate(SUB_ROOMS[room]) if folder in folders.split()]
    assert found, (
        f"distprof/{room}/{folder}: no sub-room; put its files into one, or build one in SUB_ROOMS and say why"
    )
    return found[0]


@pytest.mark.parametrize("room", sorted(SUB_ROOMS))
def test_imports_go_down_inside_the_large_rooms(room: str) -> None:
    modules = {name_module(path): path.relative_to(PACKAGE / room).parent.as_posix() for path in list_room(room)}
    for path in list_room(room):
        here = path.relative_to(PACKAGE / room).parent.as_posix()
        floor = find_sub_floor(room, here)
        others = {modules[name] for name in modules.keys() & read_imports(path)} - {here}
        wrong = {other for other in others if find_sub_floor(room, other) >= floor}
        assert not wrong, f"{name_file(path)} imports from {sorted(wrong)}, which do not lie below {here!r}"


def test_the_sub_rooms_are_there() -> None:
    for room, floors in SUB_ROOMS.items():
        listed = sorted(" ".join(floors).split())
        assert listed == sorted({path.relative_to(PACKAGE / room).parent.as_posix() for path in list_room(room)})


def test_no_folder_holds_more_than_one_can_see() -> None:
    counts = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert not {name_file(folder): count for folder, count in counts.items() if count > MOST_FILES}
    assert not {room: counts[PACKAGE / room] for room in SUB_ROOMS if counts[PACKAGE / room] > MOST_AT_THE_TOP}


def list_constants(path: Path) -> Iterator[str]:
    """Names of constants, as often as the module itself assigns them."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = (name for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target]))
        yield from (name.id for name in names if isinstance(name, ast.Name) and name.id.isupper())


def test_no_constant_has_two_values() -> None:
    """Functions above the second assignment would take that one, as when two files become one."""
    for path in FILES:
        twice = [name for name, count in Counter(list_constants(path)).items() if count > 1]
        assert not twice, f"{name_file(path)} assigns {twice} twice"


def test_contributing_lists_the_rooms_and_no_others() -> None:
    """From the top floor to the bottom, as the table says."""
    lines = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    listed = [line.split("`")[1].removeprefix("distprof/") for line in lines if line.startswith("| `distprof/")]
    assert all((PACKAGE / path).is_dir() if path.endswith("/") else (PACKAGE / path).is_file() for path in listed)
    rooms = [path.removesuffix("/").removesuffix(".py") for path in listed]
    assert sorted(rooms) == sorted(" ".join(ROOMS).split())
    assert [find_floor(room) for room in rooms] == sorted(map(find_floor, rooms), reverse=True)


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = {".".join(("distprof", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in MODULES}
    TopologicalSorter({name: modules.keys() & read_imports(path) for name, path in modules.items()}).prepare()


def test_foreign_packages_stay_where_they_belong() -> None:
    for path in FILES:
        packages = {name.split(".")[0] for name in read_imports(path)} & ALLOWED.keys()
        here = {name_room(path), name_file(path), path.relative_to(PACKAGE).parent.as_posix()}
        wrong = {package for package in packages if not here & set(ALLOWED[package].split())}
        assert not wrong, f"{name_file(path)} imports {sorted(wrong)}; allowed: {[ALLOWED[name] for name in wrong]}"


def test_the_page_is_made_without_rich() -> None:
    """The terminal and the page share sections and nothing of each other: followed through every module imported."""
    modules = {".".join(("distprof", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in MODULES}
    found, new = set[str](), {"distprof.render.html.html"}
    while new:
        found |= new
        new = {name for module in new for name in modules.keys() & read_imports(modules[module])} - found
    assert "distprof.render.sections.sections" in found
    wrong = sorted(name for name in found if any(word.split(".")[0] == "rich" for word in read_imports(modules[name])))
    assert not wrong, f"render/html/html.py imports {wrong}, which import rich"


def test_slow_imports_wait_until_they_are_needed() -> None:
    for path in FILES:
        at_import = {name.split(".")[0] for name in read_code(path).at_import} - {path.stem}  # a framework's own file
        wrong = at_import & {
            "wandb", "wandb_workspaces", "accelerate", "distributed", "fsspec", "nvtx", "opentelemetry", "perfetto",
            "pyarrow", "pynvml", "ray", "tensorboard",
        }  # fmt: skip
        assert not wrong, f"{name_file(path)}: import {sorted(wrong)} inside a function"


@pytest.mark.parametrize("path", sorted((PACKAGE / "train").glob("*.py")), ids=name_file)
def test_the_workload_uses_the_public_profiler_only(path: Path) -> None:
    if path.name == "job.py":  # puts the application together: the one file of train/ that knows the rest
        assert not read_own_rooms(path) & {"cli", "attach"}
    else:
        assert read_own_rooms(path) <= PUBLIC_TO_TRAIN


def test_files_say_what_they_are_and_stay_short() -> None:
    vague = [name_file(path) for path in FILES if {*path.relative_to(PACKAGE).parent.parts, path.stem} & VAGUE]
    lines = {name_file(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not vague
    assert not {name: count for name, count in lines.items() if count > LONGEST_FILE_LINES}


def find_texts(tree: ast.AST) -> Iterator[str]:
    """Strings that a file may show to someone, ``{}`` for what is put into them; docstrings are not among them."""
    nodes = list(ast.walk(tree))
    silent = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    silent |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value


@pytest.mark.parametrize("room", ["facts", "report", "traces", "analyze"])
def test_milliseconds_and_percent_are_written_in_render_only(room: str) -> None:
    for path in list_room(room):
        texts = find_texts(ast.parse(path.read_text(encoding="utf-8")))
        wrong = [text for text in texts if re.search(r"[\d}] ?(%|[mun]s\b|percent)", text)]
        assert not wrong, f"{name_file(path)}: carry the number, and put it into words in render/: {wrong}"


def test_no_two_classes_share_a_name() -> None:
    others = [path for path in (PACKAGE.parent / "benchmarks").rglob("*.py") if path.parent.name != "programs"]
    files = [*FILES, *others]
    found = [(name, path) for path in files for name in read_code(path).classes]
    repeated = {name for name, count in Counter(name for name, _ in found).items() if count > 1}
    assert not repeated, [f"{name} in {path}" for name, path in found if name in repeated]


def read_all_names() -> set[str]:
    """Every name in the code of the repository, and the parts of its files' paths."""
    root = PACKAGE.parent
    paths = [
        *(root / "launch").iterdir(),
        *(path for part in (PACKAGE, root / "benchmarks") for path in part.rglob("*.py")),
    ]
    names = {part for path in paths for part in re.split(r"[/.]", path.relative_to(root).as_posix())}
    for path in paths:
        if path.suffix == ".py":
            lines = io.StringIO(path.read_text(encoding="utf-8")).readline
            names |= {token.string for token in tokenize.generate_tokens(lines) if token.type == tokenize.NAME}
    return names


def test_names_in_backticks_exist() -> None:
    """`read_columns`, `nesting.Spots` or `launch/nsys.sh` in a text must not outlive what it names."""
    there = read_all_names() | {*dir(builtins)}
    for path in FILES:
        found = re.findall(r"(?<!`)`([\w./]+)`(?!`)", path.read_text(encoding="utf-8"))
        gone = [name for name in found if not {*re.split(r"[/.]", name.strip("/"))} <= there]
        assert not gone, f"{name_file(path)} speaks of {gone}, which are not there"


def test_reports_are_made_without_torch() -> None:
    """The same rule, as Python sees it: what an imported module imports in turn counts too."""
    allowed = {*ALLOWED["torch"].split(), *ALLOWED["hydra"].split(), "__main__", "cli/train.py"}
    names = [
        ".".join(("distprof", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in MODULES
        if not allowed & {name_room(path), name_file(path), path.relative_to(PACKAGE).parent.as_posix()}
    ]
    lines = [*(f"import {name}" for name in names), "import sys", "print(*sorted({'torch', 'wandb'} & {*sys.modules}))"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
