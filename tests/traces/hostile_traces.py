"""Hostile files that pose as PyTorch profiler traces, as ranks of a job, or as nothing of the kind."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

from tests.traces.hostile_recipes import (
    CANARY,
    EVIL_NAMES,
    Make,
    accept,
    make_event,
    make_events,
    make_kernel,
    of_bytes,
    of_events,
    of_pickle,
    of_ranks,
    of_run,
    of_text,
    refuse,
    write_trace,
)

BOMB_MB = 200
DEEP = 100_000
MANY = 2_000
NO_TRACE = "not a file that distprof can read"
SOUND = json.dumps({"traceEvents": make_events(steps=99)}).encode()
COUNTERS = ("correlation", "device", "stream", "bytes", "In msg nelems", "Out msg nelems")
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def make_bomb(folder: Path) -> Path:
    """200 MB of one event's name in 200 kB: one deflated block, repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    begin = packer.compress(b'{"schemaVersion": 1, "traceEvents": [{"name": "') + packer.flush(zlib.Z_FULL_FLUSH)
    raw = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = raw.compress(b"a" * 1_000_000) + raw.flush(zlib.Z_FULL_FLUSH)
    (folder / "bomb.json.gz").write_bytes(begin + block * BOMB_MB)
    return folder / "bomb.json.gz"


def make_bomb_of_members(folder: Path) -> Path:
    """The same as many gzip members, with spaces between events."""
    begin, space = gzip.compress(b'{"traceEvents": ['), gzip.compress(b" " * 1_000_000)
    (folder / "bomb.json.gz").write_bytes(begin + space * BOMB_MB)
    return folder / "bomb.json.gz"


def make_yaml_bomb(folder: Path) -> Path:
    """Aliases of aliases, and a tag that would call something."""
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10)]
    text = "\n".join(["l0: &l0 [lol]", *levels, f"x: !!python/object/apply:os.mknod [{folder / CANARY}]"])
    (folder / "trace.json").write_text(text, encoding="utf-8")
    return folder / "trace.json"


def make_evil_names(folder: Path) -> Path:
    """Hostile names for everything that has one, including the file."""
    events = make_events()
    for number, name in enumerate(EVIL_NAMES):
        words = {"Process Group Name": name, "dtype": name, "Collective name": name, "correlation": 50 + number}
        launch = {"correlation": 50 + number}
        events += [
            make_event(name, 50 * number, 40, "user_annotation"),
            make_event(name, 2 + 50 * number, 3, "cuda_runtime", args=launch),
            make_kernel(name, 600 + 20 * number, 20, **words),
        ]
    info = {"rank": 0, "world_size": 1, "backend": EVIL_NAMES[0] + EVIL_NAMES[2]}
    devices = [{"id": 0, "name": EVIL_NAMES[0] + EVIL_NAMES[2], "totalGlobalMem": 2**70}]
    return write_trace(folder / "\x1b[31m<script>.json", events, distributedInfo=info, deviceProperties=devices)


def list_wrong_types() -> list[Any]:
    """Events in which one field is wrong."""
    values = (None, True, [], {}, "", "1", -1, 0.5)
    keys = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
    return [{**make_event("a", 1, 2), key: value} for key, value in itertools.product(keys, values)]


TRACES = (
    refuse("gzip bomb in a name", make_bomb, "grows more than 200-fold"),
    refuse("gzip bomb of members", make_bomb_of_members, "grows more than 200-fold"),
    refuse("truncated gzip", of_bytes(gzip.compress(SOUND)[:-300], "t.json.gz"), "truncated"),
    refuse("gzip with a wrong checksum", of_bytes(gzip.compress(SOUND)[:-8] + b"\0" * 8, "t.json.gz"), "damaged gzip"),
    refuse("gzip of gzip", of_bytes(gzip.compress(gzip.compress(SOUND)), "t.json.gz"), NO_TRACE),
    refuse("gzip's magic alone", of_bytes(b"\x1f\x8b"), NO_TRACE),
    refuse("nothing", of_bytes(b""), NO_TRACE),
    refuse("garbage", of_bytes(bytes(range(256)) * 50), NO_TRACE),
    refuse("garbage in braces", of_bytes(b'{"traceEvents": [{\xff\xfe\0]]}}'), "damaged"),
    refuse("an answer from the web", of_bytes(b"<!doctype html><script>1</script>"), NO_TRACE),
    refuse("a name of escapes", of_bytes(b"x", "\x1b[2J\x1b]0;t\x07\n\u202ea\r.json"), NO_TRACE),
    refuse("deep lists", of_bytes(b'{"traceEvents": ' + b"[" * DEEP + b"]" * DEEP + b"}"), "too deeply"),
    refuse(
        "deep before the events",
        of_bytes(b'{"x": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b', "traceEvents": [{"ph": "X"}]}'),
        "traceEvents",
    ),
    refuse("deep arguments", of_text('{"correlation": 1}', "[" * DEEP + "]" * DEEP), "too deeply"),
    accept("5,000 digits of time", of_text('"ts": 1000.0', '"ts": ' + "9" * 5000), "beyond 64 bits"),
    accept("5,000 digits of pid", of_text('"pid": 10', '"pid": ' + "9" * 5000), "fields not understood: pid"),
    accept(
        "5,000 digits of rank",
        of_text('"schemaVersion": 1', f'"distributedInfo": {{"rank": {"9" * 5000}, "world_size": 2}}'),
        "distributedInfo cannot be read",
    ),
    accept("NaN as a time", of_text("1000.0", "NaN"), "strict JSON"),
    accept("Infinity as a duration", of_text('"dur": 300', '"dur": -Infinity'), "strict JSON"),
    accept("lone surrogates", of_text('"gemm"', '"\\ud800x\\udc00"')),
    accept("a megabyte of name", of_events(make_event("n" * 2**20, 1, 2)), "cut: too long"),
    accept("names that are code", make_evil_names),
    accept("negative durations", of_events(make_event("a", 5, -7)), "negative duration"),
    accept(
        "times of 2^63 and 1e308",
        of_events(make_event("a", 2**63, 1), make_event("b", 1e308, 1e308), make_event("c", 1, 2**63)),
        "events dropped",
    ),
    accept(
        "times that add up beyond",
        of_events(make_event("ProfilerStep#9", 4.2e15, 1e14, "user_annotation"), make_event("a", 0, 9.9e13)),
        "days away from the others",
    ),
    accept("counters of 2^63", of_events(make_kernel("gemm", 1600, 10, **dict.fromkeys(COUNTERS, 2**63)))),
    accept("counters of 2^62", of_events(make_kernel(NCCL, 1600, 9, dtype="float", **dict.fromkeys(COUNTERS, 2**62)))),
    accept("steps of no length", of_bytes(json.dumps({"traceEvents": [
        make_event(f"ProfilerStep#{step}", 5, 0, "user_annotation") for step in range(9)]}).encode())),
    accept("steps of strange numbers", of_events(*(
        make_event(f"ProfilerStep#{10**17 + 3 * step}", 2000 + step, 1, "user_annotation") for step in range(MANY)))),
    accept("everything on its own thread", of_events(*(
        make_event(f"a{number}", number, 1, tid=f"t{number}") for number in range(MANY)))),
    accept("everything on its own stream", of_events(*(
        make_kernel(f"{NCCL}{number}", number, 1, device=number, stream=number, **{"Process Group Name": f"g{number}"})
        for number in range(MANY)))),
    accept("ranges nested deeply", of_events(*(
        make_event(f"r{number}", number / MANY, 1000, "user_annotation") for number in range(MANY)))),
    refuse("events are no list", of_bytes(b'{"traceEvents": {"a": 1}}'), "traceEvents"),
    refuse("events are null", of_bytes(b'{"traceEvents": null}'), "traceEvents"),
    refuse("events are missing", of_bytes(b'{"distributedInfo": {}}'), "traceEvents"),
    refuse("no events", of_bytes(b'{"traceEvents": []}'), "no kernel"),
    accept("events are no objects", of_events(1, "x", None, [], [[]]), "5 events dropped"),
    accept("arguments are no object", of_text('{"correlation": 1}', '"x"')),
    accept("types that are none", of_events(*list_wrong_types()), "events dropped"),
    accept("a key twice", of_text('"schemaVersion": 1', '"traceEvents": 1')),
    accept("a key in a name", lambda folder: write_trace(folder / "t.json", make_events(), trap='"traceEvents": [{"')),
    accept("a byte order mark", of_text('{"schemaVersion"', '\ufeff{"schemaVersion"')),
    refuse("UTF-16", of_bytes(SOUND.decode().encode("utf-16")), NO_TRACE),
    refuse("cut in an event", of_bytes(SOUND[:-70]), "truncated"),
    refuse("a YAML bomb", make_yaml_bomb, NO_TRACE),
    refuse("a pickle as trace.json", of_pickle("trace.json"), NO_TRACE),
    refuse("a pickle as trace.json.gz", of_pickle("trace.json.gz"), NO_TRACE),
    refuse("a pickle as trace.sqlite", of_pickle("trace.sqlite"), NO_TRACE),
    refuse("a pickle as trace.nsys-rep", of_pickle("trace.nsys-rep"), "only nsys can read it"),
)  # fmt: skip


def make_zip(folder: Path) -> Path:
    """An archive with a member whose path leads above the folder."""
    with zipfile.ZipFile(folder / "trace.json", "w") as archive:
        archive.writestr(f"../{CANARY}", SOUND)
    return folder / "trace.json"


def make_tar(folder: Path) -> Path:
    """The same, gzipped, as traces are."""
    with tarfile.open(folder / "trace.json.gz", "w:gz") as archive:
        member = tarfile.TarInfo(f"../{CANARY}")
        member.size = len(SOUND)
        archive.addfile(member, io.BytesIO(SOUND))
    return folder / "trace.json.gz"


def make_loop(folder: Path) -> Path:
    """A link to itself."""
    (folder / "trace.json").symlink_to(folder / "trace.json")
    return folder / "trace.json"


def make_tree_of_links(folder: Path) -> Path:
    """A folder with links to itself and to nowhere, without a trace."""
    (folder / "traces").mkdir()
    (folder / "traces" / "again").symlink_to(folder / "traces")
    (folder / "traces" / "gone").symlink_to(folder / "nowhere")
    return folder / "traces"


def of_pipe(name: str) -> Make:
    """A pipe that nobody writes to: opening it blocks."""

    def make(folder: Path) -> Path:
        os.mkfifo(folder / name)
        return folder / name

    return make


def make_folder_with_pipe(folder: Path) -> Path:
    """The same beside a valid trace."""
    (folder / "traces").mkdir()
    os.mkfifo(folder / "traces" / "rank1.json")
    write_trace(folder / "traces" / "rank0.json", make_events())
    return folder / "traces"


def make_empty_folder(folder: Path) -> Path:
    """A folder with a trace's name."""
    (folder / "trace.json").mkdir()
    return folder / "trace.json"


def of_path(path: str) -> Make:
    """A system file."""
    return lambda folder: Path(path)


SYSTEM = (
    refuse("a zip that climbs", make_zip, NO_TRACE),
    refuse("a tar that climbs", make_tar, NO_TRACE),
    refuse("a link to itself", make_loop, "no such file"),
    refuse("a folder of links", make_tree_of_links, "contains nothing that distprof can read"),
    refuse("a pipe", of_pipe("trace.json"), NO_TRACE),
    refuse("a capture that is a pipe", of_pipe("n.nsys-rep"), NO_TRACE),
    accept("a folder with a pipe", make_folder_with_pipe, "read from 1 kineto file"),
    refuse("a folder named as a file", make_empty_folder, "contains nothing that distprof can read"),
    *(refuse(path, of_path(path), NO_TRACE) for path in ("/dev/zero", "/dev/full", "/dev/null", "/proc/self/environ")),
    refuse("/proc/self/mem", of_path("/proc/self/mem"), "/proc/self/mem: "),
    refuse("a name that no system takes", of_path("/" + "n" * 5000), "nnn"),
    refuse("a name with a null", of_path("a\0b"), "no such file"),
)

RANKS = (
    accept("a world of none", of_ranks({"rank": 0, "world_size": 0}), "world_size is"),
    accept("rank -1", of_ranks({"rank": -1, "world_size": 2}), "rank is"),
    accept("a rank beyond the world", of_ranks({"rank": 5, "world_size": 2}), "rank is"),
    refuse("a rank twice", of_ranks(*[{"rank": 0, "world_size": 2}] * 2), "both are of rank 0"),
    refuse(
        "worlds that differ", of_ranks({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 4}), "a job of 2 ranks"
    ),
    accept("ten million ranks", of_ranks({"rank": 9_999_999, "world_size": 10_000_000}), "world_size is"),
    accept("too many ranks", of_ranks({"rank": 10**15, "world_size": 10**16}), "rank is"),
    accept(
        "ranks of other kinds",
        of_ranks({"rank": "0; rm -rf /", "world_size": [2]}, {"rank": True, "world_size": 2.0}),
        "rank is",
    ),
    accept(
        "groups that cannot be",
        of_ranks({"rank": 0, "world_size": 1, "pg_config": [
            {"pg_name": "0", "ranks": [-1, 10**9]}, {"pg_name": None, "ranks": {}}, 7,
            {"pg_name": "x" * 9999, "ranks": [0]}, {"pg_name": "1", "ranks": [0] * 9999},
        ]}),
    ),
)  # fmt: skip

RUNS = (
    refuse("a run of nothing", of_run(""), "not valid JSON"),
    refuse("a run of deep lists", of_run("[" * DEEP), "not valid JSON"),
    refuse("a run of NaN", of_run('{"schema": NaN, "world_size": 1e999}'), "not valid JSON"),
    refuse(
        "a run that climbs",
        of_run('{"schema": "distprof.run/1.0", "run_id": "../../etc", "world_size": 9223372036854775808}', b"\0" * 99),
        "run.json",
    ),
)
