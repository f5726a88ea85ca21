"""A module profile on disk: whole when it comes back, and refused in one line when it is not what it should be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.facts.modules import ModuleTable, RankMemory
from distprof.facts.plain import make_plain
from distprof.storage import module_files
from distprof.storage.module_files import encode_modules, module_path, read_modules
from distprof.storage.safe_open import open_folder
from tests.made_modules import make_table

MEMORY = RankMemory(parameters=1, gradients=None, optimizer=0, buffers=3, activations=4, communication=None)
SIZES = make_plain(MEMORY)


def write(folder: Path, table: ModuleTable, change: Callable[[Any], Any] | None = None) -> Path:
    path = module_path(folder, table.rank)
    path.parent.mkdir(exist_ok=True)
    fields = json.loads(encode_modules(table, "run"))
    path.write_text(json.dumps(fields if change is None else change(fields) or fields))
    return path


def read(folder: Path, ranks: int = 2) -> tuple[list[ModuleTable], list[str]]:
    with open_folder(folder) as root:
        return read_modules(folder, root, "run", range(ranks))


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    tables = [
        make_table(0, notes=("compiled",), memory=MEMORY, peak_bytes=7),
        make_table(1, forward_ms={"head": [1, 2, 3, 4, 5]}),
    ]
    tables[1].forward_ns[3, 2] = np.nan
    for table in tables:
        write(tmp_path, table)
    found, left_out = read(tmp_path)
    assert left_out == []
    for table, back in zip(tables, found, strict=True):
        for field in ModuleTable.__struct_fields__:
            np.testing.assert_equal(
                np.round(value) if isinstance(value := getattr(table, field), np.ndarray) else value,
                getattr(back, field),
            )


def test_ranks_without_a_file_and_runs_without_the_folder_are_no_fault(tmp_path: Path) -> None:
    assert read(tmp_path) == ([], [])
    write(tmp_path, make_table(1))
    assert [table.rank for table in read(tmp_path)[0]] == [1] and read(tmp_path)[1] == []


def test_a_profile_without_timed_steps_is_read(tmp_path: Path) -> None:
    write(tmp_path, make_table(0, num_steps=0, counted_step=None))
    (found,), left_out = read(tmp_path)
    assert left_out == [] and found.forward_ns.shape == (10, 0)


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another run": (lambda fields: fields.update(run_id="other"), "belongs to another run"),
    "another rank": (lambda fields: fields.update(rank=1), "says it is rank 1"),
    "a later version": (lambda fields: fields.update(schema="distprof.rank_modules/2"), "major version"),
    "no object": (lambda fields: [fields], "not valid"),
    "a field is gone": (lambda fields: fields.pop("names") and None, "missing required field `names`"),
    "text for a number": (lambda fields: fields["parameters"].__setitem__(3, "x"), "Expected `int`, got `str`"),
    "a negative time": (lambda fields: fields["forward_ns"][2].__setitem__(0, -1), ">= 0"),
    "an endless time": (lambda fields: fields["forward_ns"][2].__setitem__(0, 1e300), "< 9007199254740992.0"),
    "a huge number": (lambda fields: fields["parameters"].__setitem__(0, 10**30), "not valid"),
    "a short column": (lambda fields: fields["kinds"].pop() and None, "columns of different lengths"),
    "a short row": (lambda fields: fields["backward_ns"][4].pop() and None, "rows of different lengths"),
    "no modules": (lambda fields: fields.update({name: [] for name, value in fields.items() if value and
                   isinstance(value, list) and len(value) == 10}), "columns of different lengths"),
    "held by a later one": (lambda fields: fields["parents"].__setitem__(2, 5), "module 2 is held by none before it"),
    "held by itself": (lambda fields: fields["parents"].__setitem__(2, 2), "module 2 is held by none before it"),
    "two models": (lambda fields: fields["parents"].__setitem__(4, None), "module 4 is held by none before it"),
    "no model": (lambda fields: fields["parents"].__setitem__(0, 0), "the first module is not the model"),
    "a name twice": (lambda fields: fields["names"].__setitem__(3, "head"), "a name stands twice"),
    "an unknown clock": (lambda fields: fields.update(clock="wall"), "an unknown clock"),
    "memory below zero": (lambda fields: fields.update(memory={**SIZES, "buffers": -1}), ">= 0"),
    "endless memory": (lambda fields: fields.update(predicted_memory={**SIZES, "buffers": 2**62}), "not valid"),
    "memory of no kind": (lambda fields: fields.update(memory={}), "missing required field `parameters`"),
    "memory as text": (lambda fields: fields.update(memory="2 GiB"), "not valid"),
    "an endless peak": (lambda fields: fields.update(peak_bytes=10**30), "not valid"),
    "four kinds of FLOPs": (lambda fields: fields["flops"][0].append(1), "not valid"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES)
def test_a_file_that_contradicts_itself_is_one_line(tmp_path: Path, change: Callable[[Any], Any], said: str) -> None:
    write(tmp_path, make_table(0), change)
    write(tmp_path, make_table(1))
    found, (line,) = read(tmp_path)
    assert [table.rank for table in found] == [1]
    assert line.startswith("the module profile of rank 0 is left out: ") and said in line and "\n" not in line
    assert str(tmp_path) not in line


def test_a_chain_of_modules_cannot_be_endless(tmp_path: Path) -> None:
    count = module_files.MAX_DEPTH + 2

    def chain(fields: Any) -> None:
        for name in ("names", "kinds", "calls", "own_parameters", "parameters", "held_parameters", "flops",
                     *module_files.TIMES):  # fmt: skip
            fields[name] = [fields[name][0]] * count
        fields["names"] = [str(number) for number in range(count)]
        fields["parents"] = [None, *range(count - 1)]

    write(tmp_path, make_table(0), chain)
    assert "too deep" in read(tmp_path)[1][0]


PLANTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (lambda path: path.symlink_to("/etc/passwd"), "a link, which is not followed"),
    "a pipe": (os.mkfifo, "a pipe"),
    "a folder": (Path.mkdir, "a folder"),
    "not JSON": (lambda path: path.write_bytes(b'{"schema": "dist'), "not valid"),
    "bytes": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not valid"),
    "nested": (lambda path: path.write_bytes(b"[" * 1_000_000), "not valid"),
    "large": (lambda path: path.write_bytes(b" " * 2_001), "more than the limit"),
}


@pytest.mark.parametrize(("plant", "said"), PLANTED.values(), ids=PLANTED)
def test_planted_files_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path], object], said: str
) -> None:
    if said == "more than the limit":
        monkeypatch.setattr(module_files, "MAX_FILE_BYTES", 2_000)
    path = module_path(tmp_path, 0)
    path.parent.mkdir()
    plant(path)
    found, (line,) = read(tmp_path)
    assert found == [] and said in line


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, make_table(0))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "modules").symlink_to(tmp_path / "modules")
    found, (line,) = read(tmp_path / "run")
    assert found == [] and "a link, which is not followed" in line


def test_all_files_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes, *_ = [write(tmp_path, make_table(rank)).stat().st_size for rank in range(4)]
    monkeypatch.setattr(module_files, "MAX_TOTAL_BYTES", 2 * size_bytes + 1)
    found, (line,) = read(tmp_path, 4)
    assert [table.rank for table in found] == [0, 1] and line.startswith("module profiles from rank 2 on are left out")
