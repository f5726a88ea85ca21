"""Files of every kind that hold a number, a text, null or a list where distprof expects keys with values."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

from benchmarks.fuzz.kineto import make_sound_trace
from benchmarks.fuzz.modules import write_tables
from benchmarks.fuzz.streams import Folder, add_checksum
from benchmarks.fuzz.values import NUMBERS, OTHERS, TEXTS, dump
from distprof.facts.sweep import Sweep, SweepJob
from distprof.storage.run_folder import rank_path
from distprof.storage.sweep_folder import FILE, write_sweep

Made = tuple[list[str], str]
"""The command line, and what was changed."""
RANK_FILES = (".jsonl", ".stack", ".position")
YAML_TEXTS = (
    b"- a\n- b\n", b"x", b"'x'", b"~", b"2020-01-01", b"0x1F", b"1_000", b"yes", b"---\n5\n---\n6\n", b"&a [*a]",
    b"!!int x",
    b"!!python/name:os.system ''", b"? 5", b"5: 6", b"{}", b"null: null", b"<<: 5", b"&a {b: *a}", b"defaults: 5",
    b"defaults: [5]", b"# @package 5\n5", b"\xff\xfe", b"%YAML 9.9\n---\n5", b"_target_: os.system",
)  # fmt: skip
"""What YAML has more."""


def make_top_case(folder: Path, draws: random.Random) -> tuple[list[str], list[str]]:
    """Writes sound files, one of which holds only a value. Returns the command line, and the change."""
    arguments, told = draws.choice(_CASES)(folder, draws)
    return arguments, [told]


def draw_text(draws: random.Random) -> bytes:
    """A whole file: one value, sometimes with something around it."""
    text = dump(draws.choice(draws.choice((NUMBERS, TEXTS, OTHERS)))).encode("utf-8", "replace")
    return (
        draws.choice((b"", b"", b"", b" ", b"\n\n", b"\xef\xbb\xbf"))
        + text
        + draws.choice((b"", b"\n", b" \n", b",", b"\0"))
    )


def _report(*paths: str) -> list[str]:
    return ["report", *paths, "--out", "out"]


def _replace_meta(folder: Path, draws: random.Random) -> Made:
    Folder().write(folder / "run")
    (folder / "run" / "run.json").write_bytes(draw_text(draws))
    return _report("run"), "run.json"


def _replace_rank_file(folder: Path, draws: random.Random) -> Made:
    Folder().write(folder / "run")
    path = rank_path(folder / "run", draws.randrange(2)).with_suffix(draws.choice(RANK_FILES))
    path.write_bytes(draw_text(draws))
    return _report("run"), path.name


def _replace_line(folder: Path, draws: random.Random) -> Made:
    """A line that is a value: plain, or behind a checksum as well as one can be."""
    made = Folder()
    file = made.pick_file(draws)
    text = draw_text(draws).replace(b"\n", b" ")
    file[draws.randrange(len(file))] = draws.choice(
        (text + b"\n", add_checksum(text), add_checksum(b'{"type":' + text + b"}"))
    )
    made.write(folder / "run")
    return _report("run"), "a line of a stream"


def _replace_modules(folder: Path, draws: random.Random) -> Made:
    Folder().write(folder / "run")
    paths = write_tables(folder / "run")
    draws.choice(paths).write_bytes(draw_text(draws))
    return _report("run"), "a profile of modules"


def _replace_window(folder: Path, draws: random.Random) -> Made:
    Folder().write(folder / "run")
    name = draws.choice(("window.request", "window.state"))
    (folder / "run" / name).write_bytes(draw_text(draws))
    return draws.choice((["window", "run"], _report("run"))), name


def _replace_sweep(folder: Path, draws: random.Random) -> Made:
    """The sweep's own file, or that of its job."""
    job = SweepJob(number=1, overrides=("a=1",), settings={"a": "1"}, ranks=2, status="completed", folder="jobs/001")
    Folder().write(folder / "sweep" / "jobs" / "001")
    write_sweep(
        folder / "sweep", Sweep(name="x", started_utc="2026-01-02T03:04:05+00:00", distprof_version="0", jobs=(job,))
    )
    name = draws.choice((FILE, "jobs/001/run.json"))
    (folder / "sweep" / name).write_bytes(draw_text(draws))
    return ["report", "sweep"], name


def _replace_trace(folder: Path, draws: random.Random) -> Made:
    """A trace; sometimes in a run folder, or beside a sound one."""
    inside = draws.random() < 0.3
    if inside:
        Folder().write(folder / "run")
    path = folder / ("run/kernels/rank-00000.json" if inside else "traces/0.json")
    path.parent.mkdir()
    if draws.random() < 0.5:
        (path.parent / ("rank-00001.json" if inside else "1.json")).write_text(json.dumps(make_sound_trace(1)), "utf-8")
    text = draw_text(draws)
    if draws.random() < 0.4:
        text = b'{"traceEvents":' + text + draws.choice((b"}", b',"distributedInfo":' + draw_text(draws) + b"}"))
    path.write_bytes(gzip.compress(text, 1, mtime=0) if draws.random() < 0.2 else text)
    paths = ["run"] if inside else draws.choice((["traces"], ["traces/0.json"]))
    return draws.choice((_report(*paths), ["tables", *paths])), path.name


def _replace_configuration(folder: Path, draws: random.Random) -> Made:
    """A file of a configuration of one's own: of a group, or the first one."""
    group = draws.choice(("train", "experiment", "strategy"))
    text = draws.choice((draw_text(draws), draws.choice(YAML_TEXTS)))
    if draws.random() < 0.8:
        path, chosen = folder / "conf" / group / "mine.yaml", ["--config-dir", "conf", f"{group}=mine"]
    else:
        path, chosen = folder / "conf" / "config.yaml", ["--config-path", "conf"]
    path.parent.mkdir(parents=True)
    path.write_bytes(text)
    return [*chosen, "--cfg", "job"], f"{path.name} of {group}: {text[:40]!r}"


_CASES: tuple[Callable[[Path, random.Random], Made], ...] = (
    _replace_meta, _replace_rank_file, _replace_line, _replace_modules, _replace_window, _replace_sweep,
    _replace_trace, _replace_trace, _replace_configuration,
)  # fmt: skip
