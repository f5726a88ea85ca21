"""Files that are written one by one: what one cannot be costs no other."""

from __future__ import annotations

from pathlib import Path

from distprof.render.files.files import write_each


def test_a_file_that_fails_costs_no_other_and_is_named_with_the_reason(tmp_path: Path) -> None:
    def draw(path: Path) -> None:
        raise ValueError("cannot convert float NaN to integer\nand more")

    def store(path: Path) -> None:
        raise IsADirectoryError(21, "Is a directory")

    written = write_each(tmp_path, {"a.html": draw, "b.json": store, "c.txt": lambda path: path.touch()})
    assert written.names == ("c.txt",) and (tmp_path / "c.txt").exists() and not written.whole
    assert written.problem == (
        "a.html, b.json could not be written (it cannot be drawn: ValueError: cannot convert float NaN to integer, "
        "Is a directory)"
    )
