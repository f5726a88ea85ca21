"""Did a command do what every command must, whatever its input was?"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL, EXIT_USAGE
from distprof.report.operations_report import OPERATIONS_SCHEMA

SLACK_RATIO = 1e-6
CLOCKS_SLACK_RATIO = 0.006
"""How much the parts of a step may exceed it, because clocks round."""
MAX_PERCENT = 1e6
"""No possible share, or difference of two figures, comes near it."""
LONGEST_SAID_BYTES = 20_000
_PERCENT = re.compile(r"(-?[\d,.]+(?:e\+?\d+)?) ?%")
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def judge(exit_code: int, stdout: str, stderr: str, out: Path) -> list[str]:
    """Everything that is wrong; empty if nothing is.

    Args:
        exit_code: The command's exit code; negative: the signal that ended it.
        stdout: Its standard output.
        stderr: Its standard error.
        out: The folder that it was told to write to.
    """
    if "Traceback (most recent call last)" in stderr:
        return [f"traceback: {_find_error(stderr)}"]
    if exit_code not in (EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL):
        return [f"exit code {exit_code}: {stderr[-200:]}"]
    wrong = []
    if re.search(r"^\S+:\d+: \w*Warning:", stderr, re.MULTILINE):
        wrong.append(f"warning of Python: {stderr[:300]}")
    elif exit_code in (EXIT_FAILED, EXIT_USAGE) and not _says_why(stderr):
        wrong.append(f"not one line: {stderr[:300]!r}")
    if len(stderr) > LONGEST_SAID_BYTES:
        wrong.append(f"{len(stderr)} letters on stderr")
    for name, text in (("stdout", stdout), ("stderr", stderr)):
        if found := _CONTROL.search(text):
            wrong.append(f"{name} has the control character {found[0]!r}")
    if large := [text for text in _PERCENT.findall(stdout) if _read_percent(text) > MAX_PERCENT]:
        wrong.append(f"shows {large[0]} %")
    if exit_code in (EXIT_OK, EXIT_PARTIAL) and (out / "report.json").exists():
        wrong += _judge_files(out)
    return wrong


def _says_why(stderr: str) -> bool:
    """Whether there is exactly one line, after those that name files left out."""
    reasons = [line for line in stderr.splitlines() if not line.startswith("distprof: left out: ")]
    return len(reasons) == 1 and reasons[0].startswith("distprof") and stderr.endswith("\n")


def _find_error(stderr: str) -> str:
    """The last line, and where the error was raised."""
    lines = stderr.rstrip().splitlines()
    frames = [line.strip() for line in lines if line.strip().startswith("File ")]
    raised = re.sub(r'File ".*?([^/]+/[^/]+)", line (\d+), in (\w+)', r"\1:\2 \3", frames[-1]) if frames else "?"
    ours = [one for one in frames if "/distprof/" in one]
    mine = re.sub(r'File ".*?([^/]+/[^/]+)", line (\d+), in (\w+)', r"\1:\2 \3", ours[-1]) if ours else raised
    return f"{lines[-1][:160]} ({mine})"


def _read_percent(text: str) -> float:
    try:
        return abs(float(text.replace(",", "")))
    except ValueError:
        return 0.0


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _judge_files(out: Path) -> list[str]:
    try:
        report = json.loads((out / "report.json").read_bytes(), parse_constant=_refuse_constant)
        if report["schema"] == OPERATIONS_SCHEMA:
            return _judge_numbers(report)
        json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()), parse_constant=_refuse_constant)
    except (ValueError, OSError) as error:
        return [f"files of the report: {error}"]
    return [*_judge_numbers(report), *_judge_shares(report)]


def _walk(tree: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from _walk(item, f"{path}.{key}" if path else key)
    elif isinstance(tree, list):
        for item in tree:
            yield from _walk(item, path)
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield path, tree


SHARES = ("mfu_ratio", "hfu_ratio", "exposed_ratio", "held_ratio", "agree_ratio", "last_ratio", "overlap_ratio",
          "queue_empty_ratio", "share_ratio")  # fmt: skip
"""Fields that are parts of a whole."""
LENGTHS = ("mean_ns", "median_ns", "step_mean_ns", "step_median_ns", "step_p95_ns", "busy_ns", "exposed_ns",
           "overlapped_ns", "wait_ns", "transfer_ns", "span_ns", "compute_ns", "memory_ns", "waited_ns", "step_ns",
           "idle_communication_ns", "idle_host_ns", "idle_launch_ns", "idle_unknown_ns", "total_ns", "step_times_ns",
           "communication_busy_ns", "host_ns", "host_exclusive_ns", "gpu_ns", "gpu_exclusive_ns", "queue_mean",
           "tokens_per_s")  # fmt: skip
"""Fields that cannot be below 0."""


def _judge_numbers(report: dict[str, Any]) -> list[str]:
    wrong = {}
    own = {key: value for key, value in report.items() if key != "config"}
    for path, value in _walk(own):
        name = path.rpartition(".")[2]
        if not math.isfinite(value):
            wrong[path] = f"{path} is {value}"
        elif name in SHARES and not -SLACK_RATIO <= value <= 1 + CLOCKS_SLACK_RATIO:
            wrong[path] = f"{path} is {value}: not a share"
        elif name in LENGTHS and value < 0:
            wrong[path] = f"{path} is {value}: below 0"
    return list(wrong.values())


def _judge_shares(report: dict[str, Any]) -> list[str]:
    """Checks that parts sum to their whole."""
    wrong = []
    for clock in ("host", "device"):
        shares = [item["share_ratio"] or 0.0 for item in report["phases"] if item["clock"] == clock]
        if sum(shares) > 1 + CLOCKS_SLACK_RATIO:
            wrong.append(f"phases on the {clock} clock are {100 * sum(shares):.6g} % of the step")
    activity = report["activity"] or {"devices": [], "categories": []}
    for item in activity["devices"]:
        parts_ns = sum(item[name] for name in item if name in ("compute_ns", "memory_ns") or name.startswith("idle_"))
        if abs(parts_ns - item["span_ns"]) > 1 + SLACK_RATIO * abs(item["span_ns"]):
            wrong.append(f"parts of the device's span of rank {item['rank']} are not the span")
    if sum(item["share_ratio"] for item in activity["categories"]) > 1 + SLACK_RATIO:
        wrong.append("categories of kernels are more than all kernels")
    return wrong
