"""Files behind URLs: listed, fetched within limits, put there; and whatever a backend raises is one line."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from distprof.errors import DataError, DistprofError, UsageError
from distprof.storage.remote import Url, fetch_file, list_remote, put_files, read_place


class _Broken(MemoryFileSystem):  # type: ignore[misc]
    protocol = "broken"

    def info(self, path: str, **options: Any) -> Any:
        raise RuntimeError("no credentials\nand a page of details")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("traces/a.json", Path("traces/a.json")), ("file:///tmp/x", Path("/tmp/x")), ("c:x", Path("c:x")),
        ("s3://b/k", Url("s3://b/k")), ("simplecache::s3://b/k", Url("simplecache::s3://b/k")),
    ],
)  # fmt: skip
def test_a_place_is_a_path_unless_it_is_a_url(text: str, place: object) -> None:
    assert read_place(text) == place


@pytest.mark.parametrize(
    ("text", "shown", "name"),
    [
        ("https://me:pw@host/a/t.json?X-Amz-Signature=1", "https://host/a/t.json", "t.json"),
        ("s3://bucket/what?/", "s3://bucket/what?/", "what?"),
    ],
)
def test_logins_and_signatures_are_not_shown(text: str, shown: str, name: str) -> None:
    assert (str(Url(text)), Url(text).name) == (shown, name)


def test_a_folder_a_pattern_and_a_file_are_listed(memory: MemoryFileSystem) -> None:
    for name in ("a.json", "in/b.json", "in/deep/er/c.json"):
        memory.pipe_file(f"/run/{name}", b"12")

    def look(text: str) -> tuple[bool, list[str]]:
        several, files = list_remote(Url(text))
        assert all(file.size_bytes == 2 for file in files)
        return several, [file.url.text for file in files]

    assert look("memory://run") == (True, ["memory:///run/a.json", "memory:///run/in/b.json"])
    assert look("memory://run/*.json") == (True, ["memory:///run/a.json"])
    assert look("memory://run/a.json") == (False, ["memory://run/a.json"])


def test_a_file_beyond_the_limit_is_refused(memory: MemoryFileSystem, tmp_path: Path) -> None:
    memory.pipe_file("/big", b"x" * 100)
    fetch_file(Url("memory://big"), tmp_path / "whole", max_bytes=100)
    assert (tmp_path / "whole").read_bytes() == b"x" * 100
    with pytest.raises(DataError, match="memory://big: more than the limit of 99 bytes"):
        fetch_file(Url("memory://big"), tmp_path / "part", max_bytes=99)


def test_files_are_put_below_the_url(memory: MemoryFileSystem, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    put_files(tmp_path, Url("memory://out/of/here/"))
    assert memory.cat_file("/out/of/here/report.json") == b"{}"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("memory://nothing", DataError, "memory://nothing: no such file or folder"),
        ("strange://x", DataError, "strange://x: cannot be reached: ValueError: Protocol not known: strange"),
        ("gone://x", UsageError, "gone://x: a package for such URLs is missing: Install gone"),
        ("broken://x", DataError, "broken://x: cannot be reached: RuntimeError: no credentials"),
    ],
)
def test_what_a_backend_raises_is_one_line(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type[DistprofError], said: str
) -> None:
    known = importlib.import_module("fsspec.registry").known_implementations
    monkeypatch.setitem(known, "gone", {"class": "no_such_package.System", "err": "Install gone"})
    monkeypatch.setitem(known, "broken", {"class": f"{__name__}._Broken"})
    with pytest.raises(kind) as refused:
        list_remote(Url(text))
    assert str(refused.value) == said
