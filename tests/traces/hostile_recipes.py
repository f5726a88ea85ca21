"""Building blocks for hostile files."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL

Make = Callable[[Path], Path]
"""Makes something in a folder, and returns what to report on."""

CANARY = "canary"
"""If a file with this name appears beside a hostile one, code in it was run."""
EVIL_NAMES = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\x1b[31mred\x1b]0;title\x07\x1b[2J",
    "\u202eesrever\u2066", "=cmd|' /C calc'!A0", "[bold red]markup[/] [link=file:///etc/passwd]", "", "%s%n{0}${HOME}",
    "a\nb\rc\x00d", "javascript:alert(1)", "../../../../etc/passwd", "\\u0000'; DROP TABLE StringIds; --",
)  # fmt: skip


class Hostile(Struct, frozen=True, kw_only=True):
    """One kind of attack."""

    name: str
    make: Make
    exits: frozenset[int]
    """Acceptable exit codes."""
    says: str
    """A text that must occur in the one line of a refusal, or in the report's own words."""


def refuse(name: str, make: Make, says: str) -> Hostile:
    """Nothing in it is usable."""
    return Hostile(name=name, make=make, exits=frozenset({EXIT_FAILED}), says=says)


def accept(name: str, make: Make, says: str = "") -> Hostile:
    """The rest of it is usable."""
    return Hostile(name=name, make=make, exits=frozenset({EXIT_OK, EXIT_PARTIAL}), says=says)


def make_event(name: str, begin_us: Any, span_us: Any, cat: str = "cpu_op", **more: Any) -> dict[str, Any]:
    """A PyTorch profiler event on the main thread."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 10, "tid": 10, "ts": begin_us, "dur": span_us, **more}


def make_kernel(name: str, begin_us: Any, span_us: Any, **args: Any) -> dict[str, Any]:
    """A kernel with these arguments."""
    return make_event(name, begin_us, span_us, "kernel", args={"device": 0, "stream": 7, **args})


def make_events(*, steps: int = 2) -> list[dict[str, Any]]:
    """A small valid trace: in each step of 1 ms, a launch and its kernel of 300 us."""
    events = []
    for step in range(steps):
        at = 1000.0 * step
        launch = {"correlation": step + 1}
        events += [
            make_event(f"ProfilerStep#{step}", at, 1000.0, "user_annotation"),
            make_event("cudaLaunchKernel", at + 100, 10, "cuda_runtime", args=launch),
            make_kernel("gemm", at + 200, 300, **launch),
        ]
    return events


def write_trace(path: Path, events: Any, **top: Any) -> Path:
    """A file of events, with other top-level keys before them."""
    path.write_bytes(json.dumps({"schemaVersion": 1, **top, "traceEvents": events}).encode())
    return path


def of_bytes(content: bytes, name: str = "trace.json") -> Make:
    """A file with these bytes."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def of_events(*more: Any) -> Make:
    """A valid trace with these events after its own."""
    return lambda folder: write_trace(folder / "trace.json", [*make_events(), *more])


def of_text(old: str, new: str) -> Make:
    """A valid trace in which a text is replaced, possibly by something that is not JSON."""

    def make(folder: Path) -> Path:
        text = json.dumps({"schemaVersion": 1, "traceEvents": make_events()})
        assert old in text
        (folder / "trace.json").write_text(text.replace(old, new), encoding="utf-8")
        return folder / "trace.json"

    return make


def of_ranks(*infos: dict[str, Any]) -> Make:
    """A folder of traces, each with these statements about its rank."""

    def make(folder: Path) -> Path:
        (folder / "ranks").mkdir()
        for number, info in enumerate(infos):
            write_trace(folder / "ranks" / f"{chr(97 + number)}.json", make_events(), distributedInfo=info)
        return folder / "ranks"

    return make


def of_run(text: str, rows: bytes = b"") -> Make:
    """A run folder with this metadata, and this file for rank 0."""

    def make(folder: Path) -> Path:
        (folder / "run" / "ranks").mkdir(parents=True)
        (folder / "run" / "run.json").write_text(text, encoding="utf-8")
        (folder / "run" / "ranks" / "rank-00000.jsonl").write_bytes(rows)
        return folder / "run"

    return make


class Payload:
    """When unpickled, it creates the canary."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / CANARY)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (self._path,)


def of_pickle(name: str) -> Make:
    """A pickle that does something when loaded, under another file name."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(pickle.dumps(Payload(folder)))
        return folder / name

    return make
