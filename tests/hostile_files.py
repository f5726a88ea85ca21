"""Files that somebody could hand to ``distprof report``: each a few bytes to make, and made to do harm."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import pickle
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL
from tests.nsys_file import make_training_export

CANARY = "canary"
"""A file of this name, beside a hostile one, says that something of it was run."""
REFUSED = frozenset({EXIT_FAILED})
USABLE = frozenset({EXIT_OK, EXIT_PARTIAL})
EVIL_NAMES = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\x1b[31mred\x1b]0;title\x07\x1b[2J",
    "\u202eesrever\u2066", "=cmd|' /C calc'!A0", "[bold red]markup[/] [link=file:///etc/passwd]", "", "%s%n{0}${HOME}",
    "a\nb\rc\x00d", "javascript:alert(1)", "../../../../etc/passwd", "\\u0000'; DROP TABLE StringIds; --",
)  # fmt: skip
BOMB_MB = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One way to attack."""

    name: str
    make: Callable[[Path], Path]
    """Makes it in a folder, and returns what to report on."""
    exits: frozenset[int]
    """Exit codes that will do."""
    says: str
    """Stands in the one line of the refusal, or in the report's warnings."""


# PyTorch's traces


def make_event(name: str, begin_us: Any, span_us: Any, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    """An event of the main thread."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 10, "tid": 10, "ts": begin_us, "dur": span_us, **more}


def make_events(*, steps: int = 2) -> list[dict[str, Any]]:
    """A small, sound trace: in each step of 1 ms a launch and its kernel of 300 us."""
    events = []
    for step in range(steps):
        at = 1000.0 * step
        events += [
            make_event(f"ProfilerStep#{step}", at, 1000.0, "user_annotation"),
            make_event("cudaLaunchKernel", at + 100, 10, "cuda_runtime", args={"correlation": step + 1}),
            make_event(
                "gemm", at + 200, 300, "kernel", args={"correlation": step + 1, "device": 0, "stream": 7}
            ),
        ]  # fmt: skip
    return events


def write_trace(path: Path, events: Any, **top: Any) -> Path:
    """A file of events, with other keys at its top in front."""
    text = json.dumps({"schemaVersion": 1, **top, "traceEvents": events})
    path.write_bytes(text.encode())
    return path


def of_bytes(content: bytes, name: str = "trace.json") -> Callable[[Path], Path]:
    """A file of these bytes."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def of_events(*more: Any) -> Callable[[Path], Path]:
    """A sound trace with these events among its own."""
    return lambda folder: write_trace(folder / "trace.json", [*make_events(), *more])


def of_text(old: str, new: str) -> Callable[[Path], Path]:
    """A sound trace in which a text is another one, which need not be JSON."""

    def make(folder: Path) -> Path:
        text = json.dumps({"schemaVersion": 1, "traceEvents": make_events()})
        assert old in text
        (folder / "trace.json").write_text(text.replace(old, new), encoding="utf-8")
        return folder / "trace.json"

    return make


def of_ranks(*infos: dict[str, Any]) -> Callable[[Path], Path]:
    """A folder of traces, each with what it says of its rank."""

    def make(folder: Path) -> Path:
        (folder / "ranks").mkdir()
        for number, info in enumerate(infos):
            write_trace(folder / "ranks" / f"{chr(97 + number)}.json", make_events(), distributedInfo=info)
        return folder / "ranks"

    return make


def make_bomb(folder: Path) -> Path:
    """200 MB of one event's name in 200 kB: one deflated block, repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    begin = packer.compress(b'{"schemaVersion": 1, "traceEvents": [{"name": "') + packer.flush(zlib.Z_FULL_FLUSH)
    raw = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = raw.compress(b"a" * 1_000_000) + raw.flush(zlib.Z_FULL_FLUSH)
    (folder / "bomb.json.gz").write_bytes(begin + block * BOMB_MB)
    return folder / "bomb.json.gz"


def make_bomb_of_members(folder: Path) -> Path:
    """The same as many files in one, of spaces between events."""
    begin, space = gzip.compress(b'{"traceEvents": ['), gzip.compress(b" " * 1_000_000)
    (folder / "bomb.json.gz").write_bytes(begin + space * BOMB_MB)
    return folder / "bomb.json.gz"


def make_yaml_bomb(folder: Path) -> Path:
    """Aliases of aliases, and a tag that would call something."""
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10)]
    text = "\n".join(["l0: &l0 [lol]", *levels, f"x: !!python/object/apply:os.mknod [{folder / CANARY}]"])
    (folder / "trace.json").write_text(text, encoding="utf-8")
    return folder / "trace.json"


class Payload:
    """Pickled, it makes the canary when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / CANARY)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (self._path,)


def of_pickle(name: str) -> Callable[[Path], Path]:
    """A pickle that does something when it is loaded, under another name."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(pickle.dumps(Payload(folder)))
        return folder / name

    return make


def make_zip(folder: Path) -> Path:
    """An archive with a member that would lie above the folder."""
    with zipfile.ZipFile(folder / "trace.json", "w") as archive:
        archive.writestr(f"../{CANARY}", json.dumps({"traceEvents": make_events()}))
    return folder / "trace.json"


def make_tar(folder: Path) -> Path:
    """The same, gzipped, as traces are."""
    with tarfile.open(folder / "trace.json.gz", "w:gz") as archive:
        member = tarfile.TarInfo(f"../{CANARY}")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"{}"))
    return folder / "trace.json.gz"


def make_loop(folder: Path) -> Path:
    """A link to itself."""
    (folder / "trace.json").symlink_to(folder / "trace.json")
    return folder / "trace.json"


def make_tree_of_links(folder: Path) -> Path:
    """A folder that links to itself and to the root, and holds no trace."""
    (folder / "traces").mkdir()
    (folder / "traces" / "again").symlink_to(folder / "traces")
    (folder / "traces" / "gone").symlink_to(folder / "nowhere")
    return folder / "traces"


def make_pipe(folder: Path) -> Path:
    """A pipe that nobody writes to: whoever opens it waits."""
    os.mkfifo(folder / "trace.json")
    return folder / "trace.json"


def make_folder_with_pipe(folder: Path) -> Path:
    """The same beside a sound trace."""
    (folder / "traces").mkdir()
    os.mkfifo(folder / "traces" / "rank1.json")
    write_trace(folder / "traces" / "rank0.json", make_events())
    return folder / "traces"


def make_empty_folder(folder: Path) -> Path:
    """A folder by the name of a trace."""
    (folder / "trace.json").mkdir()
    return folder / "trace.json"


def of_path(path: str) -> Callable[[Path], Path]:
    """A file of the system."""
    return lambda folder: Path(path)


def make_evil_names(folder: Path) -> Path:
    """Names of everything that has one."""
    events = make_events()
    for number, name in enumerate(EVIL_NAMES):
        events += [
            make_event(name, 50 * number, 40, "user_annotation"),
            make_event(name, 2 + 50 * number, 3, "cuda_runtime", args={"correlation": 50 + number}),
            make_event(name, 600 + 20 * number, 20, "kernel", args={
                "correlation": 50 + number, "device": 0, "stream": 7, "Process Group Name": name, "dtype": name,
                "Collective name": name,
            }),
        ]  # fmt: skip
    info = {"rank": 0, "world_size": 1, "backend": EVIL_NAMES[0] + EVIL_NAMES[2]}
    devices = [{"id": 0, "name": EVIL_NAMES[0] + EVIL_NAMES[2], "totalGlobalMem": 2**70}]
    return write_trace(folder / "\x1b[31m<script>.json", events, distributedInfo=info, deviceProperties=devices)


DEEP = 100_000
_TRACES = [
    Hostile(name="gzip bomb in a name", make=make_bomb, exits=REFUSED, says="grows more than 200-fold"),
    Hostile(name="gzip bomb of members", make=make_bomb_of_members, exits=REFUSED, says="grows more than 200-fold"),
    Hostile(
        name="truncated gzip", exits=REFUSED, says="cut short",
        make=of_bytes(gzip.compress(json.dumps({"traceEvents": make_events(steps=99)}).encode())[:-300], "t.json.gz"),
    ),
    Hostile(
        name="gzip with a wrong checksum", exits=REFUSED, says="not a file that",
        make=of_bytes(gzip.compress(json.dumps({"traceEvents": make_events()}).encode())[:-8] + b"\0" * 8, "t.json.gz"),
    ),
    Hostile(name="gzip of gzip", make=of_bytes(gzip.compress(gzip.compress(b"{}"))), exits=REFUSED, says="not a file"),
    Hostile(name="gzip's magic alone", make=of_bytes(b"\x1f\x8b"), exits=REFUSED, says="not a file that"),
    Hostile(name="nothing", make=of_bytes(b""), exits=REFUSED, says="not a file that distprof reads"),
    Hostile(name="garbage", make=of_bytes(bytes(range(256)) * 50), exits=REFUSED, says="not a file that"),
    Hostile(name="garbage in braces", make=of_bytes(b'{"traceEvents": [{\xff\xfe\0]]}}'), exits=REFUSED, says="damaged"),
    Hostile(
        name="deep lists", exits=REFUSED, says="",
        make=of_bytes(b'{"traceEvents": ' + b"[" * DEEP + b"]" * DEEP + b"}"),
    ),
    Hostile(
        name="deep before the events", exits=REFUSED | USABLE, says="",
        make=of_bytes(b'{"x": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b', "traceEvents": [{"ph": "X"}]}'),
    ),
    Hostile(name="deep arguments", exits=REFUSED | USABLE, says="", make=of_text('{"correlation": 1}', "[" * DEEP + "]" * DEEP)),
    Hostile(name="5,000 digits of time", make=of_text('"ts": 1000.0', '"ts": ' + "9" * 5000), exits=USABLE, says=""),
    Hostile(name="5,000 digits of pid", make=of_text('"pid": 10', '"pid": ' + "9" * 5000), exits=REFUSED | USABLE, says=""),
    Hostile(
        name="5,000 digits of rank", exits=USABLE, says="",
        make=of_text('"schemaVersion": 1', f'"distributedInfo": {{"rank": {"9" * 5000}, "world_size": 2}}'),
    ),
    Hostile(name="NaN and Infinity", make=of_text("1000.0", "NaN"), exits=REFUSED | USABLE, says=""),
    Hostile(name="Infinity as a duration", make=of_text('"dur": 300', '"dur": -Infinity'), exits=USABLE, says="strict JSON"),
    Hostile(name="lone surrogates", make=of_text('"gemm"', '"\\ud800x\\udc00"'), exits=USABLE, says=""),
    Hostile(name="a megabyte of name", make=of_events(make_event("n" * 2**20, 1, 2)), exits=USABLE, says="cut"),
    Hostile(name="names that are code", make=make_evil_names, exits=USABLE, says=""),
    Hostile(name="negative durations", make=of_events(make_event("a", 5, -7)), exits=USABLE, says="negative duration"),
    Hostile(
        name="times of 2^63 and 1e308", exits=USABLE, says="events dropped",
        make=of_events(make_event("a", 2**63, 1), make_event("b", 1e308, 1e308), make_event("c", 1, 2**63)),
    ),
    Hostile(
        name="times that add up beyond", exits=USABLE, says="",
        make=of_events(make_event("ProfilerStep#9", 4.2e15, 1e14, "user_annotation"), make_event("a", 0, 9.9e13)),
    ),
    Hostile(
        name="numbers of 2^63 everywhere", exits=USABLE, says="",
        make=of_events(make_event("gemm", 1600, 10, "kernel", args=dict.fromkeys(
            ("correlation", "device", "stream", "bytes", "In msg nelems", "Out msg nelems"), 2**63))),
    ),
    Hostile(
        name="numbers of the largest kind", exits=USABLE, says="",
        make=of_events(make_event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1600, 10, "kernel", args={
            "dtype": "float", **dict.fromkeys(
                ("correlation", "device", "stream", "bytes", "In msg nelems", "Out msg nelems"), 2**62)})),
    ),
    Hostile(name="events are no list", make=of_bytes(b'{"traceEvents": {"a": 1}}'), exits=REFUSED, says="traceEvents"),
    Hostile(name="events are null", make=of_bytes(b'{"traceEvents": null}'), exits=REFUSED, says="traceEvents"),
    Hostile(name="events are missing", make=of_bytes(b'{"distributedInfo": {}}'), exits=REFUSED, says="traceEvents"),
    Hostile(name="no events", make=of_bytes(b'{"traceEvents": []}'), exits=REFUSED, says="no kernel"),
    Hostile(name="events are no objects", make=of_events(1, "x", None, [], [[]]), exits=REFUSED | USABLE, says=""),
    Hostile(name="arguments are no object", make=of_text('{"correlation": 1}', '"x"'), exits=USABLE, says=""),
    Hostile(name="keys twice", make=of_text('"schemaVersion": 1', '"traceEvents": 1'), exits=REFUSED | USABLE, says=""),
    Hostile(
        name="a key in a name", exits=USABLE, says="",
        make=lambda folder: write_trace(folder / "t.json", make_events(), trap='"traceEvents": [{"ph": "X"}] \\'),
    ),
    Hostile(name="a byte order mark", make=of_text('{"schemaVersion"', '\ufeff{"schemaVersion"'), exits=USABLE, says=""),
    Hostile(
        name="UTF-16", exits=REFUSED, says="not a file that",
        make=of_bytes(json.dumps({"traceEvents": make_events()}).encode("utf-16")),
    ),
    Hostile(
        name="cut in an event", exits=REFUSED, says="cut short",
        make=of_bytes(json.dumps({"traceEvents": make_events()}).encode()[:-70]),
    ),
    Hostile(
        name="types that are none", exits=USABLE, says="",
        make=of_events(*({**make_event("a", 1, 2), key: value} for key, value in itertools.product(
            ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"), (None, True, [], {}, "", "1", -1, 0.5)))),
    ),
    Hostile(name="a million steps", exits=USABLE, says="", make=of_events(*(
        make_event(f"ProfilerStep#{10**17 + number}", 2000 + number, 1, "user_annotation") for number in range(3000)))),
    Hostile(name="a YAML bomb", make=make_yaml_bomb, exits=REFUSED, says="not a file that"),
    *(Hostile(name=f"a pickle as {name}", make=of_pickle(name), exits=REFUSED, says="") for name in (
        "trace.json", "trace.sqlite", "trace.nsys-rep", "trace.json.gz")),
    Hostile(name="a zip that climbs", make=make_zip, exits=REFUSED, says="not a file that"),
    Hostile(name="a tar that climbs", make=make_tar, exits=REFUSED, says="not a file that"),
    Hostile(name="a link to itself", make=make_loop, exits=REFUSED, says=""),
    Hostile(name="a folder of links", make=make_tree_of_links, exits=REFUSED, says="holds nothing"),
    Hostile(name="a pipe", make=make_pipe, exits=REFUSED, says="not a file that"),
    Hostile(name="a folder with a pipe", make=make_folder_with_pipe, exits=USABLE, says=""),
    Hostile(name="a folder named as a file", make=make_empty_folder, exits=REFUSED, says="holds nothing"),
    *(Hostile(name=path, make=of_path(path), exits=REFUSED, says="") for path in (
        "/dev/zero", "/dev/full", "/dev/null", "/proc/self/mem", "/proc/self/environ")),
    Hostile(name="a name that no system takes", make=of_path("/" + "n" * 5000), exits=REFUSED, says=""),
    Hostile(name="a name with a null", make=of_path("a\0b"), exits=REFUSED, says="no such file"),
    Hostile(
        name="a name of escapes", exits=REFUSED, says="not a file that", make=of_bytes(b"x", "\x1b[2J\x1b]0;t\x07\n\u202ea\r.json")
    ),
    Hostile(name="an answer from the web", make=of_bytes(b"<!doctype html><script>1</script>"), exits=REFUSED, says="not a"),
]  # fmt: skip

# Ranks

_RANKS = [
    Hostile(name="a world of none", make=of_ranks({"rank": 0, "world_size": 0}), exits=USABLE, says="world_size"),
    Hostile(name="rank -1", make=of_ranks({"rank": -1, "world_size": 2}), exits=USABLE, says="rank is"),
    Hostile(name="a rank beyond the world", make=of_ranks({"rank": 5, "world_size": 2}), exits=USABLE, says="rank is"),
    Hostile(
        name="a rank twice", make=of_ranks(*[{"rank": 0, "world_size": 2}] * 2), exits=REFUSED, says="both are of rank 0"
    ),
    Hostile(
        name="worlds that differ", exits=REFUSED, says="of a world of 2",
        make=of_ranks({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 4}),
    ),
    Hostile(
        name="ten million ranks", exits=USABLE, says="world_size is",
        make=of_ranks({"rank": 9_999_999, "world_size": 10_000_000}),
    ),
    Hostile(name="too many ranks", make=of_ranks({"rank": 10**15, "world_size": 10**16}), exits=USABLE, says="rank is"),
    Hostile(
        name="ranks of other kinds", exits=USABLE, says="",
        make=of_ranks({"rank": "0; rm -rf /", "world_size": [2]}, {"rank": True, "world_size": 2.0}),
    ),
    Hostile(
        name="groups that cannot be", exits=USABLE, says="",
        make=of_ranks({"rank": 0, "world_size": 1, "pg_config": [
            {"pg_name": "0", "ranks": [-1, 10**9]}, {"pg_name": None, "ranks": {}}, 7, {"pg_name": "x" * 9999, "ranks": [0]}]}),
    ),
]  # fmt: skip

# Exports of nsys


def make_export(folder: Path, *statements: str, name: str = "node.sqlite") -> Path:
    """A sound export of two ranks, after these statements."""
    path = make_training_export().write(folder / name)
    base = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        base.execute(statement)
    base.close()
    return path


def of_sql(*statements: str) -> Callable[[Path], Path]:
    """The same, as a recipe."""
    return lambda folder: make_export(folder, *statements)


def of_cut_export(cut: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    """An export whose bytes are others."""

    def make(folder: Path) -> Path:
        path = make_export(folder)
        path.write_bytes(cut(path.read_bytes()))
        return path

    return make


def make_wal(folder: Path) -> Path:
    """An export in WAL mode, whose rows are still in the file beside it."""
    path = make_export(folder, "PRAGMA journal_mode=WAL")
    base = sqlite3.connect(path)
    base.execute("UPDATE StringIds SET value = 'x'")
    base.commit()
    copy = folder / "copy.sqlite"
    for end in ("", "-wal"):
        Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    base.close()
    return copy


def make_other_database(folder: Path) -> Path:
    """Somebody's notes."""
    base = sqlite3.connect(folder / "notes.sqlite")
    base.execute("CREATE TABLE notes (text)")
    base.commit()
    base.close()
    return folder / "notes.sqlite"


def make_evil_export(folder: Path) -> Path:
    """Names of ranges, kernels, calls and the host."""
    export = make_training_export(num_ranks=1)
    pid, host = 4101, EVIL_NAMES[0] + EVIL_NAMES[2]
    export.add("TARGET_INFO_SYSTEM_ENV", globalVid=1 << 48, name="Hostname", nameEnum=619, value=host)
    for number, name in enumerate(EVIL_NAMES):
        at_ns = 110_000_000 + number * 1_000_000
        export.add_range(pid, name, at_ns, at_ns + 900_000, domain=name, registered=number % 2 == 0)
        export.launch(pid, name, at_ns + 1, at_ns + 2, at_ns + 3)
        export.add_os_call(pid, name, at_ns, at_ns + 5)
    return export.write(folder / "evil.sqlite")


_KERNELS, _CALLS, _NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start FROM n"
_EXPORTS = [
    Hostile(name="an export of 0 bytes", make=of_bytes(b"", "n.sqlite"), exits=REFUSED, says="not a file that"),
    Hostile(name="a truncated export", make=of_cut_export(lambda file: file[: len(file) // 2]), exits=REFUSED, says="export"),
    Hostile(
        name="garbage behind the magic", exits=REFUSED, says="export it again",
        make=of_cut_export(lambda file: file[:16] + bytes(range(256)) * 40),
    ),
    Hostile(name="the magic alone", make=of_cut_export(lambda file: file[:16]), exits=REFUSED, says="export it again"),
    Hostile(
        name="pages full of garbage", exits=REFUSED | USABLE, says="",
        make=of_cut_export(lambda file: file[:4096] + bytes(byte ^ 0x55 for byte in file[4096:])),
    ),
    Hostile(
        name="a header of too many pages", exits=REFUSED | USABLE, says="",
        make=of_cut_export(lambda file: file[:28] + b"\xff\xff\xff\xff" + file[32:]),
    ),
    Hostile(
        name="a view as a table", exits=REFUSED, says="is a view",
        make=of_sql(f"ALTER TABLE {_NVTX} RENAME TO t", f"CREATE VIEW {_NVTX} AS SELECT * FROM t"),
    ),
    Hostile(
        name="a view without an end", exits=REFUSED, says="is a view",
        make=of_sql(f"DROP TABLE {_NVTX}", f"CREATE VIEW {_NVTX} AS {_ENDLESS}"),
    ),
    Hostile(
        name="a trigger", exits=USABLE, says="",
        make=of_sql(f"CREATE TRIGGER t AFTER INSERT ON {_NVTX} BEGIN DELETE FROM StringIds; END"),
    ),
    Hostile(
        name="a virtual table", exits=REFUSED, says="virtual table",
        make=of_sql(f"DROP TABLE {_NVTX}", f"CREATE VIRTUAL TABLE {_NVTX} USING fts5(start)"),
    ),
    Hostile(
        name="a table named as SQL", exits=USABLE, says="",
        make=of_sql('CREATE TABLE "x""; DROP TABLE StringIds; --" (a)', 'CREATE TABLE "PRAGMA writable_schema=1" (a)'),
    ),
    Hostile(
        name="a column that computes", exits=REFUSED | USABLE, says="",
        make=of_sql(f"ALTER TABLE {_NVTX} ADD COLUMN x GENERATED ALWAYS AS (zeroblob(500000000)) VIRTUAL"),
    ),
    Hostile(
        name="missing columns", make=of_sql(f"ALTER TABLE {_KERNELS} DROP COLUMN globalPid"), exits=REFUSED, says="globalPid"
    ),
    Hostile(
        name="text as times", exits=USABLE, says="of a wrong type",
        make=of_sql(f"UPDATE {_CALLS} SET start = 'yesterday' WHERE correlationId = 1"),
    ),
    Hostile(name="no times at all", make=of_sql(f"UPDATE {_KERNELS} SET start = NULL"), exits=USABLE, says="wrong type"),
    Hostile(
        name="nothing but NULL", exits=REFUSED | USABLE, says="",
        make=of_sql(*(f"UPDATE {table} SET start = NULL, end = NULL" for table in (_KERNELS, _CALLS, _NVTX))),
    ),
    Hostile(
        name="blobs as names", make=of_sql("UPDATE StringIds SET value = x'00ff1b5b33316d'"), exits=USABLE, says=""
    ),
    Hostile(
        name="names of 10 MB", make=of_sql("UPDATE StringIds SET value = hex(zeroblob(5000000)) WHERE id < 4"),
        exits=USABLE, says="",
    ),
    Hostile(name="names that are gone", make=of_sql("DROP TABLE StringIds"), exits=USABLE, says=""),
    Hostile(
        name="times of 2^63 - 1", exits=USABLE, says="possible time",
        make=of_sql(f"UPDATE {_KERNELS} SET end = 9223372036854775807",
                    f"UPDATE {_CALLS} SET start = -9223372036854775808 WHERE correlationId = 1"),
    ),
    Hostile(
        name="threads and payloads of 2^63 - 1", exits=REFUSED | USABLE, says="",
        make=of_sql(*(f"UPDATE {_NVTX} SET {column} = 9223372036854775807" for column in (
            "int64Value", "domainId", "endGlobalTid", "textId", "eventType")),
            f"UPDATE {_CALLS} SET globalTid = -9223372036854775808"),
    ),
    Hostile(
        name="negative durations in an export", exits=USABLE, says="end before they begin",
        make=of_sql(f"UPDATE {_KERNELS} SET end = start - 5"),
    ),
    Hostile(
        name="sizes and kinds that cannot be", exits=USABLE, says="",
        make=of_sql("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = -1, copyKind = 1000000, srcKind = -5, "
                    "deviceId = 9223372036854775807, streamId = -9223372036854775808, correlationId = -1"),
    ),
    Hostile(name="a file still written to", make=make_wal, exits=REFUSED, says="wait for nsys"),
    Hostile(name="WAL mode at rest", make=of_sql("PRAGMA journal_mode=WAL"), exits=USABLE, says=""),
    Hostile(name="somebody's database", make=make_other_database, exits=REFUSED, says="no export of Nsight Systems"),
    Hostile(name="names that are code, in an export", make=make_evil_export, exits=USABLE, says=""),
    Hostile(
        name="an export by the name of JSON", exits=USABLE, says="", make=lambda folder: make_export(folder, name="t.json")
    ),
    Hostile(
        name="marks that lie", exits=REFUSED | USABLE, says="",
        make=of_sql("UPDATE StringIds SET value = 'rank=99999999999999999999 world=-1 host=\x1b[31m pid=x' "
                    "WHERE value LIKE 'rank=%'"),
    ),
    Hostile(
        name="a mark of a billion ranks", exits=USABLE, says="in the order of the processes",
        make=of_sql("UPDATE StringIds SET value = 'rank=999999998 world=999999999 host=h pid=1' WHERE value LIKE 'rank=%'"),
    ),
    Hostile(name="a capture of garbage", make=of_bytes(b"\0garbage" * 99, "n.nsys-rep"), exits=REFUSED, says="nsys"),
    Hostile(name="a capture that is a pipe", make=lambda folder: _make_capture_pipe(folder), exits=REFUSED, says="not a"),
]  # fmt: skip


def _make_capture_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "n.nsys-rep")
    return folder / "n.nsys-rep"


# Run folders


def of_run(text: str, rows: bytes = b"") -> Callable[[Path], Path]:
    """A run folder with this account of itself, and this file of rank 0."""

    def make(folder: Path) -> Path:
        (folder / "run" / "ranks").mkdir(parents=True)
        (folder / "run" / "run.json").write_text(text, encoding="utf-8")
        (folder / "run" / "ranks" / "rank-00000.jsonl").write_bytes(rows)
        return folder / "run"

    return make


_RUNS = [
    Hostile(name="a run of nothing", make=of_run(""), exits=REFUSED, says="run.json"),
    Hostile(name="a run of deep lists", make=of_run("[" * DEEP), exits=REFUSED, says="run.json"),
    Hostile(name="a run of NaN", make=of_run('{"format": NaN, "world_size": 1e999}'), exits=REFUSED, says="run.json"),
    Hostile(
        name="a run that climbs", exits=REFUSED, says="",
        make=of_run('{"format": 1, "run_id": "../../etc/passwd", "world_size": 9223372036854775808}', b"\0" * 99),
    ),
]  # fmt: skip

CORPUS = (*_TRACES, *_RANKS, *_EXPORTS, *_RUNS)
