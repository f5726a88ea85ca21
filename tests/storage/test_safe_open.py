"""Opening untrusted files: no pipe blocks, no device is read, no link is followed inside a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distprof.errors import DataError
from distprof.storage.safe_open import open_file, open_folder


def make_strange(folder: Path) -> dict[str, str]:
    """Things that are not files, by name, with their descriptions."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "file").write_bytes(b"content")
    (folder / "link").symlink_to(folder / "file")
    return {"pipe": "not a file: a pipe", "folder": "not a file: a folder"}


@pytest.mark.timeout(20)
def test_only_files_are_opened(tmp_path: Path) -> None:
    strange = make_strange(tmp_path)
    for name, said in {**strange, "zero": "not a file: a device"}.items():
        with pytest.raises(DataError, match=f"{name}: {said}"):
            open_file(tmp_path / name)
    with open_file(tmp_path / "link") as file:  # a user may name a link
        assert file.read() == b"content"


@pytest.mark.timeout(20)
def test_inside_a_folder_no_link_is_followed(tmp_path: Path) -> None:
    strange = make_strange(tmp_path)
    (tmp_path / "inner").symlink_to(tmp_path / "folder")
    with open_folder(tmp_path) as inside:
        for name, said in {**strange, "zero": "not a file: a link", "link": "not a file: a link"}.items():
            with pytest.raises(DataError, match=f"{name}: {said}"):
                open_file(tmp_path / name, inside=inside)
        with (
            pytest.raises(DataError, match="inner: not a folder: a link"),
            open_folder(tmp_path / "inner", inside=inside),
        ):
            pass
        with open_file(tmp_path / "file", inside=inside) as file:
            assert file.read() == b"content"


def test_a_folder_stays_the_one_that_was_opened(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"first")
    with open_folder(tmp_path / "a") as inside:
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "file").write_bytes(b"second")
        with open_file(tmp_path / "a" / "file", inside=inside) as file:
            assert file.read() == b"first"


def test_a_large_file_is_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)
    with pytest.raises(DataError, match="more than the limit of 1,000"):
        open_file(tmp_path / "large", max_bytes=1000)
