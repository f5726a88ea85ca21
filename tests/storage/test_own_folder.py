"""What takes the place of a run folder is not written into."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from distprof.storage import safe_open
from distprof.storage.safe_open import keep_in_mind, require_own
from distprof.storage.whole_file import write_whole


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(safe_open, "_known", {})
    made = tmp_path / "run"
    (made / "kernels").mkdir(parents=True)
    keep_in_mind(made)
    return made


def swap_for_link(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.with_name("theirs").mkdir()
    folder.symlink_to("theirs")


def swap_for_folder(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.mkdir()


def link_inside(folder: Path) -> None:
    (folder / "kernels").rmdir()
    folder.with_name("theirs").mkdir()
    (folder / "kernels").symlink_to("../theirs")


@pytest.mark.parametrize("change", [swap_for_link, swap_for_folder, link_inside])
def test_fault_50_what_has_taken_the_place_of_a_run_folder_is_not_written_into(
    change: Callable[[Path], None], folder: Path
) -> None:
    write_whole(folder / "kernels" / "before", "x")
    (folder / "kernels" / "before").unlink()
    change(folder)
    with pytest.raises(OSError, match="something else") as refusal:
        write_whole(folder / "kernels" / "after", "x")
    assert refusal.value.errno == errno.ESTALE
    assert [path for path in folder.parent.rglob("*") if path.is_file()] == []


def test_a_folder_that_was_moved_and_linked_to_and_a_deleted_one_are_no_strangers(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    require_own(folder / "x")  # whoever writes says that it is gone
    folder.symlink_to("moved")
    write_whole(folder / "x", "y")
    assert (folder.with_name("moved") / "x").read_text() == "y"


def test_a_run_folder_that_was_asked_for_as_a_link_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_open, "_known", {})
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    keep_in_mind(tmp_path / "link")
    write_whole(tmp_path / "link" / "x", "y")


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o007, 0o660)])
def test_fault_50_a_file_is_as_private_as_the_umask_says(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "x", "y")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode
