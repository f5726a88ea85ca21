"""PyTorch profiler traces with fields that are missing, repeated, huge, or of another type."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fuzz.values import NUMBERS, SCALARS, Raw, Twin, draw_hurtful, draw_value, dump, mutate

Json = dict[Any, Any]
PID, MAIN, BACKWARD = 77, 77, 78
STEPS = 4
MILLION_RATIO = 0.02
"""How often a case with many names has a million."""
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EVENT_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGUMENTS = (
    "correlation", "stream", "device", "bytes", "In msg nelems", "Out msg nelems", "dtype", "Group size",
    "Process Group Name", "Collective name", "Total Reserved", "Device Type", "Ev Idx", "External id",
)  # fmt: skip
CATEGORIES = (
    "kernel", "Kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "Operator",
    "user_annotation", "gpu_user_annotation", "python_function", "cpu_instant_event", "ac2g", "fwdbwd", "Trace",
    "mtia_runtime", "mtia_insight", "xpu_runtime", "overhead", "privateuse1_driver", "hip_runtime",
)  # fmt: skip
NAMES = ("ProfilerStep#0", "ProfilerStep#99999999999999999", "ProfilerStep#\u00b2", "distprof.step", NCCL, "warm-up",
         "distprof.forward", "nn.Module: ", "Memcpy DtoH (Device -> Pageable)", "Memcpy ???", "train_step 3",
         "ncclDevKernel_SendRecv(x)", "cudaStreamSynchronize", "cudaGraphLaunch")  # fmt: skip
HEAD_KEYS = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "schemaVersion", "distprof", "traceEvents",
             "displayTimeUnit", "traceName", "record_shapes")  # fmt: skip


def make_sound_trace(rank: int = 0, world_size: int = 2) -> Json:
    """One rank's trace."""
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": world_size,
               "ranks": list(range(world_size))}]  # fmt: skip
    return {
        "schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_config": groups},
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 80 << 30, "computeMajor": 9,
                              "computeMinor": 0}],
        "distprof": {"rank": rank, "world_size": world_size, "host": "host-a"},
        "traceEvents": [event for step in range(STEPS) for event in _make_step(step)], "displayTimeUnit": "ms",
    }  # fmt: skip


def _make_step(step: int) -> list[Json]:
    at, number = 1000.5 + 1000 * step, 100 * step

    def span(cat: str, name: str, begin: float, long: float, tid: Any = MAIN, pid: Any = PID, **args: Any) -> Json:
        words = {key.replace("_", " "): value for key, value in args.items()}
        times = {"ts": at + begin, "dur": long}
        return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": words}

    def launch(nth: int, begin: float, call: str = "cudaLaunchKernel") -> Json:
        return span("cuda_runtime", call, begin, 6, correlation=number + nth)

    def run(nth: int, name: str, begin: float, long: float, cat: str = "kernel", stream: int = 7, **args: Any) -> Json:
        event = span(cat, name, begin, long, tid=stream, pid=0, **args)
        event["args"] |= {"device": 0, "stream": stream, "correlation": number + nth}
        return event

    message: Json = {"Process_Group_Name": "0", "Collective_name": "allreduce", "dtype": "Float", "In_msg_nelems": 1000,
               "Out_msg_nelems": 1000, "Group_size": 2}  # fmt: skip
    return [
        span("user_annotation", f"ProfilerStep#{step}", 0, 990), span("user_annotation", "forward", 50, 250),
        span("user_annotation", "## backward ##", 310, 400),
        span("user_annotation", "Optimizer.step#AdamW.step", 800, 100),
        span("python_function", "nn.Module: Linear_0", 60, 100), span("python_function", "nn.Module: Model_0", 55, 200),
        span("cpu_op", "aten::mm", 70, 60, Ev_Idx=3, Sequence_number=step, Fwd_thread_id=0),
        span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 315, 70, BACKWARD),
        span("cpu_op", "MmBackward0", 318, 65, BACKWARD, Sequence_number=step, Fwd_thread_id=1),
        span("cpu_op", "aten::mm_backward", 320, 60, BACKWARD), launch(1, 80), run(1, "gemm", 100, 150.125),
        launch(2, 330), run(2, "gemm_back", 340, 200), launch(3, 500), run(3, NCCL, 550, 200, stream=20, **message),
        launch(4, 600, "cudaMemcpyAsync"),
        run(4, "Memcpy HtoD (Pageable -> Device)", 610, 20, "gpu_memcpy", bytes=4096),
        launch(5, 620, "cudaMemsetAsync"), run(5, "Memset (Device)", 640, 5, "gpu_memset", bytes=64),
        launch(6, 700, "cudaDeviceSynchronize"),
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": PID, "tid": MAIN, "ts": at + 5, "s": "t",
         "args": {"Total Reserved": 1 << 30, "Device Type": 1, "Device Id": 0, "Bytes": 64}},
        {"ph": "s", "id": number + 1, "pid": PID, "tid": MAIN, "ts": at + 80, "cat": "ac2g", "name": "ac2g"},
        {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": at, "args": {"name": "python"}},
    ]  # fmt: skip


def make_kineto_case(path: Path, draws: random.Random, rank: int = 0, world_size: int = 2) -> list[str]:
    """Writes a changed trace, sometimes gzipped. Returns the changes."""
    document = make_sound_trace(rank, world_size)
    told = []
    for _ in range(draws.choice((1, 1, 1, 2, 3, 6))):
        change = draws.choices(list(CHANGES), list(CHANGES.values()))[0]
        told.append(change(document, draws))
    top: Any = document
    if draws.random() < 0.02:
        top = draws.choice(SCALARS)
        told.append(f"the whole file is {str(top)[:40]}")
    content = dump(top).encode("utf-8", "surrogatepass" if draws.random() < 0.2 else "replace")
    if draws.random() < 0.1:
        content, said = _damage(content, draws)
        told.append(said)
    path.write_bytes(gzip.compress(content, 1, mtime=0) if draws.random() < 0.15 else content)
    return told


def _damage(content: bytes, draws: random.Random) -> tuple[bytes, str]:
    how = draws.choice(("cut", "byte", "behind", "before", "line"))
    at = draws.randrange(len(content))
    if how == "cut":
        return content[:at], how
    if how == "byte":
        return content[:at] + draws.choice((b"\0", b"\xff", b'"', b"{", b"]", b"\\", b",")) + content[at + 1 :], how
    if how == "behind":
        return content + draws.choice((b"\n", b"x", b"{}", content, bytes(100))), how
    return draws.choice((b"\xef\xbb\xbf", b" " * 5000, b"[", b"//\n")) + content, how


def _find_events(document: Json) -> list[Json]:
    found = document.get("traceEvents")
    return [event for event in found if isinstance(event, dict)] if isinstance(found, list) else []


def _choose(document: Json, draws: random.Random) -> list[Json]:
    """One event, those of one category, every second one, or all."""
    events = _find_events(document)
    if not events:
        return []
    one = draws.choice(events)
    same = [event for event in events if event.get("cat") == one.get("cat")]
    return draws.choice(([one], [one], same, events[::2], events))


def change_field(document: Json, draws: random.Random) -> str:
    """Changes one field of events."""
    key, value, twice = draws.choice(EVENT_KEYS), draw_value(draws), draws.random() < 0.1
    for event in _choose(document, draws):
        event[Twin(key) if twice else key] = value
    return f"{key} is {str(value)[:40]}"


def change_argument(document: Json, draws: random.Random) -> str:
    """Changes one argument of events."""
    key, value = draws.choice(ARGUMENTS), draw_value(draws)
    for event in _choose(document, draws):
        if isinstance(event.get("args"), dict):
            event["args"][key] = value if draws.random() < 0.7 else draw_value(draws, event["args"].get(key))
    return f"args.{key} is {str(value)[:40]}"


def change_tree(document: Json, draws: random.Random) -> str:
    """Changes anything anywhere."""
    return mutate(document, draws)


def change_event(document: Json, draws: random.Random) -> str:
    """Changes anything in one event."""
    events = _find_events(document)
    return mutate(draws.choice(events), draws) if events else "nothing"


def change_head(document: Json, draws: random.Random) -> str:
    """Changes the file's metadata."""
    key = draws.choice(HEAD_KEYS)
    below = document.get(key)
    if isinstance(below, dict | list) and key != "traceEvents" and draws.random() < 0.7:
        return f"{key}: {mutate(below, draws)}"
    if key == "traceEvents" and draws.random() < 0.5:
        return "nothing"
    document[Twin(key) if draws.random() < 0.2 else key] = draw_value(draws, below)
    return f"{key} replaced"


def change_times(document: Json, draws: random.Random) -> str:
    """Multiplies or shifts times of events."""
    numbers = [one for one in NUMBERS if not isinstance(one, Raw)]
    by, more = draws.choice((1, 1e-6, 0, -1, 1e3, 1e9, 1e300)), draws.choice((0, 0, 1e12, *numbers))
    key = draws.choice(("ts", "dur"))
    for event in _choose(document, draws):
        if isinstance(event.get(key), int | float):
            event[key] = event[key] * by + more
    return f"{key} times {by:g} and {more}"


def change_category(document: Json, draws: random.Random) -> str:
    """Moves events to another category, or changes their type."""
    category, phase = draws.choice(CATEGORIES), draws.choice(("X", "X", "X", "B", "E", "i", "s", "M", ""))
    for event in _choose(document, draws):
        event["cat"], event["ph"] = category, phase
    return f"cat is {category}, ph {phase}"


def change_list(document: Json, draws: random.Random) -> str:
    """Removes, repeats or reorders events, or inserts something else."""
    events = document.get("traceEvents")
    if not isinstance(events, list) or not events:
        return "nothing"
    how = draws.choice(("lose", "shuffle", "twice", "nest", "else", "reverse"))
    if how == "lose":
        del events[draws.randrange(len(events)) :]
    elif how == "shuffle":
        draws.shuffle(events)
    elif how == "twice":
        events += json.loads(json.dumps([one for one in events if _is_plain(one)][: draws.choice((1, 20))]))
    elif how == "reverse":
        events.reverse()
    else:
        events.insert(draws.randrange(len(events)), [events[0]] if how == "nest" else draw_value(draws))
    return f"events: {how}"


def _is_plain(event: Any) -> bool:
    try:
        json.dumps(event)
    except (TypeError, ValueError):
        return False
    return True


def change_name(document: Json, draws: random.Random) -> str:
    """Uses names with a meaning."""
    name = draws.choice((*NAMES, *(draw_hurtful(draws) for _ in NAMES)))
    for event in _choose(document, draws):
        event["name"] = name
    return f"name is {name[:40]}"


def change_words(document: Json, draws: random.Random) -> str:
    """Puts a hurtful text wherever a name is read apart from an event's own."""
    text, key = draw_hurtful(draws), draws.choice(("Process Group Name", "Collective name", "dtype", "cat"))
    for event in _choose(document, draws):
        if key == "cat":
            event["cat"] = text
        elif isinstance(event.get("args"), dict):
            event["args"][key] = text
    return f"{key} is {text[:40]}"


def add_names(document: Json, draws: random.Random) -> str:
    """Adds many events, each with a name of its own."""
    events = document.get("traceEvents")
    if not isinstance(events, list):
        return "nothing"
    count = draws.choice((2_000, 20_000, *([1_000_000] if draws.random() < MILLION_RATIO else [])))
    name, category = draw_hurtful(draws, 20), draws.choice(("kernel", "user_annotation", "cpu_op", "cuda_runtime"))
    kept = draws.choice((json.dumps(name)[1:-1], "ProfilerStep#", "layer.", "nn.Module: a_"))
    events.append(Raw(",".join(
        f'{{"ph":"X","cat":"{category}","name":"{kept}{number}","pid":7,"tid":7,"ts":{5000 + number},"dur":1}}'
        for number in range(count)
    )))  # fmt: skip
    return f"{count:,} of {category} called {kept[:40]}..."


CHANGES: dict[Callable[[Json, random.Random], str], int] = {
    change_field: 20, change_argument: 18, change_tree: 10, change_event: 10, change_head: 14, change_times: 10,
    change_category: 8, change_list: 6, change_name: 8,
    change_words: 3, add_names: 2,
}  # fmt: skip
"""With the weight of each."""
