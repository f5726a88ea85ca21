"""File types are detected from content."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest

from distprof.errors import DataError
from distprof.traces.sources import list_sources


def make_kineto(path: Path) -> Path:
    event = '{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{event}]}}')
    return path


def make_nsys(path: Path) -> Path:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    database.commit()
    database.close()
    return path


def test_files_are_told_apart_whatever_they_are_called(tmp_path: Path) -> None:
    make_kineto(tmp_path / "one.sqlite")
    make_nsys(tmp_path / "two.json")
    (tmp_path / "three.nsys-rep").write_bytes(b"anything")
    found, _ = list_sources([tmp_path / "one.sqlite", tmp_path / "two.json", tmp_path / "three.nsys-rep"])
    assert [source.kind for source in found] == ["kineto", "nsys", "nsys-rep"]


def test_a_folder_gives_its_traces_by_name_one_level_down_and_each_once(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    make_kineto(tmp_path / "b.json")
    make_kineto(tmp_path / "kernels" / "a.json")
    (tmp_path / "notes.txt").write_text("nothing to read")
    found, unread = list_sources([tmp_path, tmp_path / "b.json"])
    assert [source.path.name for source in found] == ["b.json", "a.json"]
    assert unread == []


def test_a_capture_is_left_to_its_export(tmp_path: Path) -> None:
    make_nsys(tmp_path / "node0.sqlite")
    (tmp_path / "node0.nsys-rep").write_bytes(b"anything")
    (tmp_path / "node1.nsys-rep").write_bytes(b"anything")
    assert [source.path.name for source in list_sources([tmp_path])[0]] == ["node0.sqlite", "node1.nsys-rep"]


def test_a_folder_with_run_json_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    make_kineto(tmp_path / "trace.json")
    assert [source.kind for source in list_sources([tmp_path])[0]] == ["run"]


@pytest.mark.parametrize("name", ["absent.json", "text.json", "empty", "pickle.json"])
def test_anything_else_is_refused_by_name_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "pickle.json").write_bytes(b"\x80\x04\x95")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=name) as refused:
        list_sources([tmp_path / name])
    assert "\n" not in str(refused.value)


def test_what_cannot_be_read_is_named_beside_what_can(tmp_path: Path) -> None:
    """In a folder, files named like traces that are not; other JSON may lie there."""
    make_kineto(tmp_path / "rank0.json")
    (tmp_path / "settings.json").write_text('{"epochs": 3}')
    (tmp_path / "notes.txt").write_text("nothing to read")
    (tmp_path / "rank1.json").write_text("")
    (tmp_path / "rank2.json.gz").write_bytes(b"\x1f\x8b\x08 damaged")
    (tmp_path / "rank3.sqlite").write_bytes(b"SQLite form")
    (tmp_path / "rank4.json").write_text("hello")
    (tmp_path / "rank5.json").write_text('{"schemaVersion": 1, "deviceProp')
    (tmp_path / "rank6.json.gz").write_bytes(gzip.compress(b'{"schemaVersion": 1, "record_shapes": 0, ')[:-10])
    (tmp_path / "lines.json").write_text('{"loss": 1}\n{"loss": NaN}\n{')
    (tmp_path / "comments.json").write_text('{"epochs": 3, // enough\n}')
    sources, unread = list_sources([tmp_path, tmp_path / "absent.json", tmp_path / "notes.txt"])
    assert [source.path.name for source in sources] == ["rank0.json"]
    assert [reason.removeprefix(f"{tmp_path}/").split(": ")[:2] for reason in unread] == [
        ["rank1.json", "empty"], ["rank2.json.gz", "byte 11 or before"], ["rank3.sqlite", "not a database"],
        ["rank4.json", "not JSON"], ["rank5.json", "ends in the middle"], ["rank6.json.gz", "byte 50"],
        ["absent.json", "no such file or folder"],
        ["notes.txt", "not a file that distprof can read"],
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"absent\.json.* \(and 1 more that cannot be read\)"):
        list_sources([tmp_path / "absent.json", tmp_path / "notes.txt"])
