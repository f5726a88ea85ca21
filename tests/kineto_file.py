"""Small Kineto files built by hand: a function per kind of event, and one that writes events with their context."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

JsonObject = dict[str, Any]
PID, MAIN, BACKWARD = 77, 77, 78
REAL_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "kineto"


def find_real(name: str) -> Path | None:
    """A real trace from elsewhere, or None if these are not available."""
    path = REAL_FOLDER / name
    return path if path.is_file() else None


def make_event(cat: str, name: str, ts: Any, dur: Any, tid: Any = MAIN, pid: Any = PID, **args: Any) -> JsonObject:
    """A complete event; blanks in argument names are written as underscores."""
    words = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": words}


def make_op(name: str, ts: Any, dur: Any, **rest: Any) -> JsonObject:
    """An operator."""
    return make_event("cpu_op", name, ts, dur, **rest)


def make_launch(ts: Any, dur: Any, correlation: int, name: str = "cudaLaunchKernel", **rest: Any) -> JsonObject:
    """A call of the CUDA runtime."""
    return make_event("cuda_runtime", name, ts, dur, correlation=correlation, **rest)


def make_kernel(name: str, ts: Any, dur: Any, correlation: int, stream: int = 7, **args: Any) -> JsonObject:
    """A kernel on device 0."""
    words = {"device": 0, "stream": stream, "correlation": correlation} | args
    return make_event("kernel", name, ts, dur, tid=stream, pid=0, **words)


def make_step(number: int, ts: Any, dur: Any) -> JsonObject:
    """The profiler's annotation around a step."""
    return make_event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def make_sound() -> list[JsonObject]:
    """A step with an operator, the call in it and the kernel that it launches."""
    return [
        make_step(3, 100, 50),
        make_op("aten::mm", 101, 10),
        make_launch(102, 3, 9),
        make_kernel("gemm", 110.25, 20.5, 9),
    ]


def write_kineto(path: Path, events: list[Any], behind: JsonObject | None = None, **before: Any) -> Path:
    """Writes the file, gzipped if the name ends in ``.gz``."""
    head = json.dumps({"schemaVersion": 1, **before})[:-1]
    tail = json.dumps({"displayTimeUnit": "ms", **(behind or {})})[1:]
    return write_text(path, f'{head}, "traceEvents": {json.dumps(events)}, {tail}')


def write_text(path: Path, text: str | bytes) -> Path:
    """Writes any text, gzipped if the name ends in ``.gz``."""
    raw = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(raw, 1) if path.suffix == ".gz" else raw)
    return path
