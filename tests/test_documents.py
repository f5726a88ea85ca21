"""What README, CONTRIBUTING and docs/ name exists: links, paths, functions, rooms."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
NAMED_PATH = re.compile(r"\b((?:distprof|tests|conf|launch|docs|benchmarks)/[\w./-]*\w/?)(?![\w<*])")
LONGEST_README_LINES = 80
LARGEST_PICTURE_BYTES = 90_000

pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def read_prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def name_anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pages
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", read_prose(page))
    for link in links:
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.is_file() and path.is_relative_to(ROOT), f"{page.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", read_prose(path), re.M)
            assert anchor in map(name_anchor, headings), f"{page.name}: {link}"


@pages
def test_paths_that_are_named_exist(page: Path) -> None:
    missing = [path for path in NAMED_PATH.findall(page.read_text(encoding="utf-8")) if not (ROOT / path).exists()]
    assert not missing, f"{page.name}: {missing}"


@pages
def test_every_page_has_a_command_to_try(page: Path) -> None:
    commands = re.findall(r"^```(?:bash)?$(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    assert any(word in text for text in commands for word in ("distprof", "launch/", "pytest"))


def test_links_are_found() -> None:
    assert sum(len(re.findall(r"\]\(([^)\s]+)\)", read_prose(page))) for page in PAGES) > 20


def test_the_tests_of_the_gpu_page_exist() -> None:
    named = re.findall(r"`(\w[\w/]*\.py)(?:::(\w+))?`", (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"))
    tests = [(ROOT / "tests" / path, name) for path, name in named if not path.startswith(("distprof/", "benchmarks/"))]
    assert len(tests) > 20
    assert not [name for path, name in tests if f"def {name or 'test_'}" not in path.read_text(encoding="utf-8")]


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    readme = PAGES[0].read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= LONGEST_README_LINES
    assert not [page.name for page in PAGES[2:] if f"](docs/{page.name}" not in readme]


def test_every_picture_of_the_gallery_is_small_and_has_the_command_that_makes_it() -> None:
    """As `launch/gallery.sh` reads the page: the block below a picture writes to the folder of its name."""
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    names = re.findall(r"^!\[.*\]\(pictures/(.*)\.png\)$", text, re.M)
    commands = dict(re.findall(r"^!\[.*\]\(pictures/(.*)\.png\)\n\n```bash\n((?:.+\n)+?)```$", text, re.M))
    pictures = {path.stem: path.stat().st_size for path in (ROOT / "docs" / "pictures").glob("*.png")}
    assert names == list(commands) and len(names) == text.count("\n## ") and set(names) == set(pictures)
    assert not [name for name in names if not re.search(rf"[= ]runs/gallery/{name}\s", commands[name])]
    assert max(pictures.values()) <= LARGEST_PICTURE_BYTES


def find_rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of CONTRIBUTING, without its head."""
    section = PAGES[1].read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


NUMBERS = find_rows("Where a number comes from")


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: row[0])
def test_every_number_names_the_function_that_computes_it(row: list[str]) -> None:
    _, files, function = row
    path = ROOT / files.split("`")[1]
    names = {
        node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)
    }
    assert function.strip("`") in names, f"{path.name} has {sorted(names)}"


def test_thirty_three_numbers_are_explained() -> None:
    assert len({row[0] for row in NUMBERS}) == 33
