"""Untrusted run folders: one line or a warning, in bounded time and memory, and nothing outside is touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL, DataError
from distprof.storage import run_folder
from distprof.storage import stream_part as stream
from distprof.storage.record_lines import decode_line
from distprof.storage.run_folder import rank_path, read_run, write_meta
from tests.storage.test_run_folder import META, write_rank
from tests.traces.hostile_recipes import make_events, write_trace
from tests.traces.test_hostile import bound_memory

ROOM_BYTES = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    (made / "ranks").mkdir(parents=True)
    write_meta(made, META)
    for rank in range(2):
        write_rank(made, rank, [0, 1])
    return made


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link(path: Path) -> None:
    """The same content, outside the folder."""
    path.rename(path.parents[1] / f"moved-{path.name}")
    path.symlink_to(path.parents[1] / f"moved-{path.name}")


def replace_by_zero(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_hole(path: Path) -> None:
    """A sparse file of a terabyte."""
    os.truncate(path, 1 << 40)


REPLACE: dict[str, Callable[[Path], None]] = {
    "not a file: a pipe": replace_by_pipe, "not a file: a link": replace_by_link,
    "run.json: not a file: a link": replace_by_zero, "not a file: a folder": replace_by_folder,
    "more than the": replace_by_hole,
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("says", REPLACE)
def test_fault_35_a_run_json_that_is_no_file_is_one_line(
    folder: Path, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    REPLACE[says](folder / "run.json")
    with bound_memory(ROOM_BYTES):
        assert run_verb(["report", str(folder), "--no-write"]) == EXIT_FAILED
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "run.json" in said and says in said


@pytest.mark.timeout(60)
@pytest.mark.parametrize("replace", REPLACE.values())
def test_fault_35_a_stream_that_is_no_file_costs_its_rank_and_is_named(
    folder: Path, replace: Callable[[Path], None]
) -> None:
    replace(rank_path(folder, 1))
    with bound_memory(ROOM_BYTES):
        run = read_run(folder)
    assert [info.rank for info in run.ranks] == [0]
    (warning,) = run.warnings
    assert warning.startswith("rank-00001.jsonl: ") and "\n" not in warning


@pytest.mark.parametrize("strange", ["link", "file", "pipe"])
def test_fault_35_streams_are_not_looked_for_elsewhere(folder: Path, tmp_path: Path, strange: str) -> None:
    (folder / "ranks").rename(tmp_path / "elsewhere")
    if strange == "link":
        (folder / "ranks").symlink_to(tmp_path / "elsewhere")
    elif strange == "file":
        (folder / "ranks").write_text("")
    else:
        os.mkfifo(folder / "ranks")
    with pytest.raises(DataError, match=f"run/ranks: not a folder: a {strange}"):
        read_run(folder)


def test_streams_that_nobody_may_read_are_not_taken_for_absent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: object, *args: int, **options: int) -> int:
        if path == "ranks":  # a superuser may read everything
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match=r"run/ranks: Permission denied: it belongs to user \d+: .*chmod -R a\+rX"):
        read_run(folder)


def test_fault_35_a_folder_deleted_while_it_is_read_gives_what_was_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = run_folder.read_stream

    def read_and_delete(path: Path, *, inside: int | None = None) -> stream.RankStream:
        try:
            return read(path, inside=inside)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    monkeypatch.setattr(run_folder, "read_stream", read_and_delete)
    run = read_run(folder)
    assert [info.rank for info in run.ranks] == [0]
    assert run.warnings == ("rank-00001.jsonl: No such file or directory: cannot be read, left out",)
    with pytest.raises(DataError, match="no such folder"):
        read_run(folder)


@pytest.mark.timeout(60)
def test_fault_35_a_stream_filled_while_it_is_read_is_read_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, more = decode_line, rank_path(folder, 0).read_bytes().splitlines(keepends=True)[2]

    def decode_and_fill(line: bytes) -> dict[str, object] | None:
        with rank_path(folder, 0).open("ab") as file:
            file.write(more)
        return decode(line)

    monkeypatch.setattr(stream, "decode_line", decode_and_fill)
    run = read_run(folder)
    assert run.column("step_host_ns").tolist() == [[100, 101], [110, 111]] and run.warnings == ()


def test_many_foreign_files_are_a_few_warnings(folder: Path) -> None:
    for number in range(500):
        (folder / "ranks" / f"x{number:03d}").touch()
    warnings = read_run(folder).warnings
    assert len(warnings) == 9 and warnings[-1] == "ranks/: 492 more files that are not rank streams, ignored"


def test_fault_22_a_name_that_says_the_rank_in_another_way_is_not_its_stream(folder: Path) -> None:
    other = folder / "ranks" / "rank-000000.jsonl"
    rank_path(folder, 0).rename(other)
    assert [info.rank for info in read_run(folder).ranks] == [1]
    shutil.copy(other, rank_path(folder, 0))
    run = read_run(folder)
    assert [info.rank for info in run.ranks] == [0, 1]
    assert run.warnings == ("rank-000000.jsonl: not a rank stream, ignored",)


def test_fault_22_a_report_is_not_written_through_links(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    names = ("report.html", "report.json", "trace.json.gz")
    for name in names:
        (folder / name).symlink_to(outside)
    run_verb(["report", str(folder)])
    assert outside.read_text() == "precious"
    assert all((folder / name).is_file() and not (folder / name).is_symlink() for name in names)


@pytest.mark.parametrize("where", ["kernels", "a trace in it"])
def test_fault_22_kernel_windows_are_not_looked_for_elsewhere(folder: Path, tmp_path: Path, where: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_trace(elsewhere / "trace.json", make_events(), distributedInfo={"rank": 0, "world_size": 2})
    if where == "kernels":
        (folder / "kernels").symlink_to(elsewhere)
    else:
        (folder / "kernels").mkdir()
        (folder / "kernels" / "trace.json").symlink_to(elsewhere / "trace.json")
    assert run_verb(["report", str(folder)]) in (EXIT_OK, EXIT_PARTIAL)
    report = json.loads((folder / "report.json").read_text())
    assert report["activity"] is None
    assert any("kernel windows are left out" in note for note in report["coverage"]["notes"])


def test_fault_22_links_in_a_folder_of_traces_stay_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tmp_path / "traces"
    (traces / "more").mkdir(parents=True)
    write_trace(tmp_path / "outside.json", make_events())
    (traces / "a.json").symlink_to(tmp_path / "outside.json")
    assert run_verb(["report", str(traces), "--no-write"]) == EXIT_FAILED
    assert "a.json: a link out of the folder, which is not followed" in capsys.readouterr().err
    write_trace(traces / "more" / "b.json", make_events())
    (traces / "a.json").unlink()
    (traces / "a.json").symlink_to("more/b.json")
    assert run_verb(["report", str(traces), "--no-write"]) == EXIT_OK  # inside it is one trace, under two names
    assert run_verb(["report", str(tmp_path / "outside.json"), "--no-write"]) == EXIT_OK


SCALARS = ("5", "-1.5", "true", "null", '"x"', "[]", "[[1]]", "{}")


@pytest.mark.parametrize("text", SCALARS)
@pytest.mark.parametrize("name", ["run.json", "sweep.json", "ranks/rank-00001.jsonl", "modules/rank-00000.json.gz"])
def test_a_file_that_is_no_object_is_one_line(
    name: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text + "\n")
    for path in (folder, folder / name):
        assert run_verb(["report", str(path)]) in (EXIT_OK, EXIT_FAILED, EXIT_PARTIAL)
        said = capsys.readouterr().err.splitlines()
        assert len(said) <= 1 and all(line.startswith("distprof") for line in said)
