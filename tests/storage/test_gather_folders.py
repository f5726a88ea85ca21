"""Parts of a run that hosts without a shared disk have written, brought together; the parts are made by hand."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL, EXIT_USAGE, DataError
from distprof.facts.run import Run
from distprof.storage.gather_folders import gather_folders
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import rank_path, read_run, write_meta
from tests.faults.run_folder import make_late_run, write_run, write_stream
from tests.ranks import REPOSITORY

RUN = make_late_run()
"""Four ranks, of which ranks 2 and 3 are on a host that does not see rank 0's folder."""
FAR = (2, 3)


def write_instead(folder: Path, rank: int, *, run: Run = RUN, steps: int | None = None) -> None:
    """What rank 0 writes for a rank that does not see its folder: rows, no collectives and no end."""
    info = replace(run.ranks[rank], ended=None)
    writer = StreamWriter(rank_path(folder, rank), run_id=run.meta.run_id, world_size=4, info=info)
    rows = list(run.rows[rank].round())[:steps]
    writer.write_steps(rows, [None] * len(rows))
    writer.close()


@pytest.fixture
def near(tmp_path: Path) -> Path:
    folder = tmp_path / "near"
    write_run(folder, replace(RUN, ranks=RUN.ranks[:2]))
    for rank in FAR:
        write_instead(folder, rank)
    (folder / "config.yaml").write_text("name: made\n")
    (folder / "report.json").write_text("{}")
    return folder


@pytest.fixture
def far(tmp_path: Path) -> Path:
    folder = tmp_path / "far"
    (folder / "ranks").mkdir(parents=True)
    for rank in FAR:
        write_stream(folder, RUN, rank)
    return folder


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_rank_has_the_stream_that_it_wrote_itself(near: Path, far: Path, tmp_path: Path) -> None:
    before = read_tree(near), read_tree(far)
    gathered = gather_folders([near, far], tmp_path / "new" / "all")
    assert (gathered.ranks, gathered.own, gathered.left_out) == ((0, 1, 2, 3), 2, ())
    tree = read_tree(tmp_path / "new" / "all")
    streams = {f"ranks/rank-0000{rank}.jsonl": rank for rank in range(4)}
    assert tree.keys() == {"run.json", "config.yaml", *streams}  # the report is made anew
    assert all(tree[name] == before[rank in FAR][name] for name, rank in streams.items())
    assert before == (read_tree(near), read_tree(far))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["all"]


def test_what_was_known_as_sums_is_there_by_collective(near: Path, far: Path, tmp_path: Path) -> None:
    alone = read_run(near)
    assert alone.collectives[0].ranks.tolist() == [0, 1] and "ranks 2, 3" in alone.warnings[0]
    gather_folders([far, near], tmp_path / "all")
    run = read_run(tmp_path / "all")
    assert run.warnings == () and [info.ended for info in run.ranks] == ["completed"] * 4
    np.testing.assert_array_equal(run.rows, RUN.rows.round())
    np.testing.assert_array_equal(run.collectives[0].arrival_ns, RUN.collectives[0].arrival_ns.round())


def test_what_lies_beside_a_stream_comes_from_where_the_rank_wrote_it(near: Path, far: Path, tmp_path: Path) -> None:
    for folder, ranks in ((near, (0, 2)), (far, FAR)):
        for name in ("ranks/rank-{}.position", "ranks/flight_recorder-rank-{}.json", "modules/rank-{}.json",
                     "kernels/rank-{}.json.gz", "kernels/step-00000007/rank-{}.json.gz"):  # fmt: skip
            for rank in ranks:
                path = folder / name.format(f"{rank:05d}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{folder.name} {rank}")
    (far / "kernels" / "rank-00000.json.gz").write_text("of a rank that has no stream in this folder")
    (far / "modules" / "notes.txt").write_text("of nobody")
    (far / "modules" / "rank-00003.json").unlink()
    (far / "modules" / "rank-00003.json").symlink_to("/etc/hostname")
    gathered = gather_folders([near, far], tmp_path / "all")
    assert len(gathered.left_out) == 1 and "a link, which is not followed" in gathered.left_out[0]
    tree = read_tree(tmp_path / "all")
    said = {name: text.decode() for name, text in tree.items() if not name.endswith((".jsonl", "run.json", ".yaml"))}
    assert set(said) == {
        *(f"ranks/rank-0000{rank}.position" for rank in (0, 2, 3)),
        *(f"modules/rank-0000{rank}.json" for rank in (0, 2)),
        *(f"ranks/flight_recorder-rank-0000{rank}.json" for rank in (0, 2, 3)),
        *(f"kernels/rank-0000{rank}.json.gz" for rank in (0, 2, 3)),
        *(f"kernels/step-00000007/rank-0000{rank}.json.gz" for rank in (0, 2, 3)),
    }  # fmt: skip
    for name, text in said.items():
        rank = int(name.partition("rank-")[2][:5])
        assert text == f"{'far' if rank in FAR else 'near'} {rank}", name


def test_both_files_of_a_stream_that_keeps_the_latest_steps_are_taken(near: Path, tmp_path: Path) -> None:
    far = tmp_path / "far"
    (far / "ranks").mkdir(parents=True)
    for rank in FAR:
        info = replace(RUN.ranks[rank], ended=None)
        path = rank_path(far, rank)
        writer = StreamWriter(path, run_id=RUN.meta.run_id, world_size=4, info=info, keep_steps=8)
        for row in RUN.rows[rank].round():
            writer.write_steps([row], [None])
        writer.close()
    gathered = gather_folders([near, far], tmp_path / "all")
    assert gathered.left_out == ()
    names = {name for name in read_tree(tmp_path / "all") if "rank-00002" in name}
    assert names == {"ranks/rank-00002.jsonl", "ranks/rank-00002.earlier.jsonl"}


def test_when_a_file_was_written_stays_known(near: Path, far: Path, tmp_path: Path) -> None:
    os.utime(rank_path(far, 2), (1_700_000_000, 1_700_000_000))
    gather_folders([near, far], tmp_path / "all")
    assert rank_path(tmp_path / "all", 2).stat().st_mtime == 1_700_000_000


def gather(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """The exit code of the verb, and the lines on standard error."""
    code = run_verb(["gather", *map(str, words)])
    return code, capsys.readouterr().err


def test_the_verb_says_what_is_there_and_what_next(
    near: Path, far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb(["gather", str(near), str(far), "--out", str(tmp_path / "all")]) == EXIT_OK
    out, err = capsys.readouterr()
    assert (out.splitlines()[0].endswith("all  (4 of 4 ranks, 2 from other hosts)"), err) == (True, "")
    assert run_verb(["report", str(tmp_path / "all"), "--no-write"]) == EXIT_OK


def test_a_foreign_folder_is_refused(near: Path, far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank_path(far, 3).unlink()
    write_stream(far, RUN, 3, run_id="another")
    code, said = gather(capsys, near, far, "--out", tmp_path / "all")
    assert code == EXIT_FAILED and not (tmp_path / "all").exists()
    assert said.count("\n") == 1 and "rank-00003.jsonl: of another run than" in said
    other = tmp_path / "other"
    write_run(other, replace(RUN, meta=replace(RUN.meta, run_id="another")))
    code, said = gather(capsys, near, other, "--out", tmp_path / "all")
    assert code == EXIT_FAILED and "near and " in said and "two runs" in said


def test_nothing_is_overwritten(near: Path, far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_tree(near)
    for out in (near, near / "run.json"):
        code, said = gather(capsys, near, far, "--out", out)
        assert code == EXIT_USAGE and "exists already, and nothing is overwritten" in said
    assert read_tree(near) == before
    (tmp_path / "empty").mkdir()
    assert gather(capsys, near, far, "--out", tmp_path / "empty") == (EXIT_OK, "")


def test_a_rank_that_is_there_twice_must_be_the_same(
    near: Path, far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(far, tmp_path / "again")
    assert gather(capsys, near, far, far, tmp_path / "again", "--out", tmp_path / "one") == (EXIT_OK, "")
    rank_path(tmp_path / "again", 3).unlink()
    write_instead(tmp_path / "again", 3)
    code, said = gather(capsys, near, far, tmp_path / "again", "--out", tmp_path / "two")
    assert code == EXIT_FAILED and said.count("\n") == 1 and "both have rank 3, and differ" in said
    rank_path(far, 3).rename(rank_path(far, 1))  # it says that it is rank 3
    code, said = gather(capsys, near, far, "--out", tmp_path / "two")
    assert code == EXIT_FAILED and "says it is rank 3: a rank exists twice" in said
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("damage", ["header", "empty", "link"])
def test_of_a_damaged_stream_rank_0s_is_kept(
    damage: str, near: Path, far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rank_path(far, 2)
    data = path.read_bytes()
    path.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(b"" if damage == "empty" else b"x" + data)
    code, said = gather(capsys, near, far, "--out", tmp_path / "all")
    if damage == "link":  # no file of ours, and not looked at, as in a report
        assert (code, said) == (EXIT_OK, "")
    else:
        assert code == EXIT_PARTIAL and said.count("\n") == 1 and f"{path}: " in said
    assert rank_path(tmp_path / "all", 2).read_bytes() == rank_path(near, 2).read_bytes()
    assert rank_path(tmp_path / "all", 3).read_bytes() == rank_path(far, 3).read_bytes()


@pytest.mark.parametrize("rank", FAR)
def test_a_rank_that_nobody_has_is_named(
    rank: int, near: Path, far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (near, far):
        rank_path(folder, rank).unlink()
    code, said = gather(capsys, near, far, "--out", tmp_path / "all")
    assert (code, said) == (EXIT_PARTIAL, f"distprof: left out: rank {rank}: no folder has its stream\n")
    assert not rank_path(tmp_path / "all", rank).exists()


def test_a_stream_that_ends_before_what_rank_0_got_of_it_is_not_kept(near: Path, far: Path, tmp_path: Path) -> None:
    """As of a host whose disk was full."""
    rank_path(far, 3).unlink()
    write_instead(far, 3, steps=12)
    (left_out,) = gather_folders([near, far], tmp_path / "all").left_out
    assert left_out.endswith("rank-00003.jsonl: ends before step 19, which rank 0 has of it: rank 0's is kept")
    assert rank_path(tmp_path / "all", 3).read_bytes() == rank_path(near, 3).read_bytes()


def test_without_rank_0s_folder_there_is_no_run(far: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no run\.json here or in another folder"):
        gather_folders([far], tmp_path / "all")
    (tmp_path / "empty").mkdir()
    write_meta(tmp_path / "empty", RUN.meta)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"not a part of a run folder \(no ranks/\)"):
        gather_folders([far, tmp_path / "empty"], tmp_path / "all")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "far", "nothing"]


def test_a_full_disk_leaves_nothing_behind(
    near: Path, far: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[object] = []

    def copy(source: object, target: object) -> None:
        copied.append(source)
        if len(copied) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "all")

    monkeypatch.setattr(shutil, "copyfileobj", copy)
    code, said = gather(capsys, near, far, "--out", tmp_path / "all")
    assert (code, said) == (EXIT_FAILED, "distprof: all: No space left on device\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "near"]


def test_a_job_that_still_runs_is_said(tmp_path: Path, far: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near = tmp_path / "near"
    write_run(near, replace(RUN, ranks=RUN.ranks[1:2], rows=RUN.rows[1:2]))
    # a process that holds its stream, as a rank does; this one could not tell its own lock from none
    path = rank_path(near, 0)
    code = "\n".join((
        "import sys; from tests.storage import test_gather_folders as made",
        "info = made.replace(made.RUN.ranks[0], ended=None, host=made.os.uname().nodename)",
        f"made.StreamWriter(made.Path({str(path)!r}), run_id=made.RUN.meta.run_id, world_size=4, info=info)",
        "print('there', flush=True); sys.stdin.read()",
    ))  # fmt: skip
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == "there\n"
        exit_code, said = gather(capsys, near, far, "--out", tmp_path / "all")
        assert rank.stdin is not None
        rank.stdin.close()
    assert exit_code == EXIT_PARTIAL and "it is still running; gather again" in said


@given(places=st.lists(st.sampled_from([0, 1, 2]), min_size=4, max_size=4), order=st.permutations([0, 1, 2]))
def test_however_the_ranks_are_spread_the_run_is_the_same(
    places: list[int], order: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The part of rank 0's host is told by its ``run.json``, wherever it stands among the folders."""
    place = tmp_path_factory.mktemp("spread")
    parts = [place / str(number) for number in range(3)]
    for part in parts:
        (part / "ranks").mkdir(parents=True)
    write_meta(parts[places[0]], RUN.meta)
    for rank in range(4):
        write_stream(parts[places[rank]], RUN, rank)
        if places[rank] != places[0]:
            write_instead(parts[places[0]], rank)
    gathered = gather_folders([parts[number] for number in order], place / "all")
    assert gathered.left_out == () and gathered.own == sum(each != places[0] for each in places)
    run = read_run(place / "all")
    np.testing.assert_array_equal(run.rows, RUN.rows.round())
    assert run.collectives[0].ranks.tolist() == [0, 1, 2, 3] and run.warnings == ()
    shutil.rmtree(place)
