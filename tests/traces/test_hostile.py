"""Hostile files, on the command line: a documented exit code, one line, bounded memory and time, and no effect."""

from __future__ import annotations

import ast
import contextlib
import gzip
import json
import pickle
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NoReturn

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import DataError
from distprof.storage.safe_open import Limits
from distprof.traces.kineto.read_kineto import read_kineto
from tests.ranks import REPOSITORY, make_environment
from tests.traces.hostile_files import CANARY, CORPUS, EVIL_NAMES, Hostile, make_events, write_trace

pytestmark = pytest.mark.slow

ROOM_BYTES = 1 << 30
"""Address space that a report of a small file may use in addition: its threads alone reserve half of it."""
BOMB_ROOM_BYTES = 3 << 29
"""For a whole process, including what NumPy reserves."""


class Tags(HTMLParser):
    """What could act in a page: scripts, handlers, and whatever loads something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed", "img", "link", "base", "form", "meta"):
            self.found.append(tag)
        self.found += [name for name, _ in attrs if name.startswith("on") or name in ("src", "href", "style")]


@contextlib.contextmanager
def bound_memory(room_bytes: int) -> Iterator[None]:
    """Limits the additional address space of the process."""
    now_bytes = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + room_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def list_tree(folder: Path) -> dict[str, int]:
    """The contents of a folder with sizes; links are not followed."""
    return {path.relative_to(folder).as_posix(): path.lstat().st_size for path in folder.rglob("*")}


def read_tags(page: Path) -> list[str]:
    tags = Tags()
    tags.feed(page.read_text(encoding="utf-8"))
    return tags.found


def refuse_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture(scope="module")
def usual_tags(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The active parts of the page for a harmless trace."""
    folder = tmp_path_factory.mktemp("sound")
    path = write_trace(folder / "trace.json", make_events())
    assert run_verb(["report", str(path), "--out", str(folder / "out")]) == 0
    return set(read_tags(folder / "out" / "report.html"))


def test_the_corpus_is_large_and_every_file_has_its_own_name() -> None:
    assert len(CORPUS) >= 40 and len({hostile.name for hostile in CORPUS}) == len(CORPUS)


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("hostile", CORPUS, ids=lambda hostile: hostile.name.strip("/").replace("/", " "))
def test_fault_16_to_21_a_hostile_file_is_refused_in_one_line_or_reported_with_what_is_wrong(
    hostile: Hostile,
    tmp_path: Path,
    usual_tags: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    for name in ("given", "here", "temporary"):
        (tmp_path / name).mkdir()
    path = hostile.make(given)
    before = list_tree(given)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("NSYS", raising=False)
    capsys.readouterr()
    with bound_memory(ROOM_BYTES):
        exit_code = run_verb(["report", str(path), "--out", str(out), "--width", "110"])
    said, shown = capsys.readouterr().err, ""
    if exit_code == 1:
        assert said.count("\n") == 1 and said.startswith("distprof: ") and len(said) < 2100
        assert not out.exists()
    else:
        assert said == ""
        shown = check_files(out, usual_tags)
    assert exit_code in hostile.exits
    assert hostile.says in said or hostile.says in shown
    assert said.rstrip("\n").isprintable()
    assert list_tree(given) == before and CANARY not in list_tree(tmp_path)
    assert not list_tree(tmp_path / "here") and not list_tree(tmp_path / "temporary")


def check_files(out: Path, usual_tags: set[str]) -> str:
    """Checks that nothing in the report's files acts, and that all JSON is strict. Returns the report's warnings."""
    assert set(read_tags(out / "report.html")) == usual_tags
    report = json.loads((out / "report.json").read_bytes(), parse_constant=refuse_constant)
    json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()), parse_constant=refuse_constant)
    return json.dumps(report, ensure_ascii=False)


def test_fault_16_names_that_are_code_reach_the_terminal_and_the_page_as_text_only(
    tmp_path: Path, usual_tags: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (hostile,) = (item for item in CORPUS if item.name == "names that are code")
    assert (
        run_verb(["report", str(hostile.make(tmp_path)), "--details", "--out", str(tmp_path / "out"), "--width", "150"])
        == 0
    )
    shown = capsys.readouterr().out
    assert re.sub(r"[\n]", "", shown).isprintable()
    assert (
        "</script><script>alert(1)</script>" in shown and "[bold red]markup[/]" in shown
    )  # as they are, not as markup
    assert "[31mred" not in shown and EVIL_NAMES[3][0] not in shown
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "alert(1)" in page and "<script>alert(1)" not in page and "Content-Security-Policy" in page


def run_bounded(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Makes a report in a process with limited memory."""
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({BOMB_ROOM_BYTES},) * 2); "
        "from distprof.__main__ import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "report", str(path), "--out", str(folder / "out")], cwd=folder, text=True,
        env=make_environment(OPENBLAS_NUM_THREADS="1"), capture_output=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["gzip bomb in a name", "deep lists", "a pickle as trace.json"])
def test_fault_19_a_process_of_little_memory_says_so_in_one_line_too(name: str, tmp_path: Path) -> None:
    (hostile,) = (item for item in CORPUS if item.name == name)
    done = run_bounded(hostile.make(tmp_path), tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("distprof: ") and "Traceback" not in done.stderr
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize("name", [item.name for item in CORPUS if item.name.startswith("a pickle")])
def test_fault_21_a_pickle_is_not_loaded_whatever_it_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (hostile,) = (item for item in CORPUS if item.name == name)
    path = hostile.make(tmp_path)
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.setenv("PATH", "")
    for verb in (["report", str(path), "--out", str(tmp_path / "out")], ["tables", str(path)]):
        assert run_verb(verb) == 1
    assert capsys.readouterr().err.count("\n") == 2
    assert list_tree(tmp_path).keys() == {path.name}
    pickle.loads(path.read_bytes())
    assert (tmp_path / CANARY).exists()  # it would have been seen


def test_fault_21_nothing_in_the_package_unpickles() -> None:
    package = REPOSITORY / "distprof"
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else set()
            module = node.module if isinstance(node, ast.ImportFrom) else None
            assert not {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve"} & {*names, module}, path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load"):
                safe = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert safe.get("weights_only") == "True", f"{path}:{node.lineno}"


@pytest.mark.nsys
@pytest.mark.parametrize("name", ["a capture of garbage", "a pickle as trace.nsys-rep"])
def test_nsys_itself_makes_nothing_of_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (hostile,) = (item for item in CORPUS if item.name == name)
    path = hostile.make(tmp_path)
    assert run_verb(["report", str(path), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "nsys export made no file" in said
    assert list_tree(tmp_path) == {path.name: path.stat().st_size}


def test_fault_19_more_events_than_the_limit_are_refused_where_the_limit_is_passed(tmp_path: Path) -> None:
    """Ten million events would be the same file, 100 times as long: gzip members of 1,200 events each."""
    events = ", ".join(json.dumps(event) for event in make_events(steps=400))
    member = gzip.compress(f"{events}, ".encode())
    path = tmp_path / "long.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [') + member * 80 + gzip.compress(b'{"ph": "M"}]}'))
    assert len(read_kineto(path).gpu.begin_ns) == 32_000
    with pytest.raises(DataError, match="more than 20000 events: profile fewer steps"):
        read_kineto(path, Limits(max_events=20_000))
