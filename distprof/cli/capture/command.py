"""Builds the command lines of a capture from the options for nsys, torchrun and distprof."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from distprof.errors import UsageError
from distprof.facts.range_names import OWN_DOMAIN, OWN_MEASURED

USAGE = "launch/nsys.sh [--per-rank] [--keep-secrets] [--no-report] [nsys options] -- [KEY=VALUE ...]"
DEFAULTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--trace", "-t"), "cuda,nvtx"),
    (("--cuda-graph-trace",), "node"),  # nsys' own default shows a graph as one block without its kernels
    (("--sample", "-s"), "none"),
    (("--cpuctxsw",), "none"),
    (("--capture-range", "-c"), "nvtx"),
    (("--nvtx-capture", "-p"), f"{OWN_MEASURED}@{OWN_DOMAIN}"),
    (("--capture-range-end",), "stop"),  # nsys' own default ends the job with the capture
    (("--wait", "-w"), "primary"),
)
"""nsys options by their spellings, with our defaults: nsys refuses repeated options."""
OURS = ("--output", "-o", "--force-overwrite", "-f", "--session-new")
"""nsys names a session by its process id by default, which in a process namespace is always the same."""


class CaptureRequest(Struct, frozen=True, kw_only=True):
    """The parsed command line."""

    per_rank: bool
    """One nsys around each rank, instead of one per node around torchrun."""
    keep_secrets: bool
    """Capture even if nsys will write secrets of other processes into its report."""
    report: bool
    """Report the capture at the end."""
    options: tuple[str, ...]
    """Options for nsys."""
    overrides: tuple[str, ...]
    """Overrides for distprof."""

    @property
    def traces_cuda(self) -> bool:
        """Whether nsys is to record kernels."""
        traced = _read_option(self.options, ("--trace", "-t")) or "cuda,nvtx"
        return any(name.strip().startswith("cuda") for name in traced.split(","))


class Ranks(Struct, frozen=True, kw_only=True):
    """How torchrun starts this node's ranks."""

    per_node: int
    nodes: int = 1
    node: int = 0
    rendezvous: tuple[str, ...] = ("--standalone",)


def read_request(arguments: Sequence[str]) -> CaptureRequest:
    """Parses the command line.

    Raises:
        UsageError: It cannot work.
    """
    split = list(arguments).index("--") if "--" in arguments else 0
    options, overrides = list(arguments[:split]), list(arguments[split + ("--" in arguments) :])
    if "--" not in arguments and any(text.startswith("-") for text in overrides):
        raise UsageError(f"nsys options and overrides must be separated by --: {USAGE}")
    own = {"--per-rank", "--keep-secrets", "--no-report"} & set(options)
    options = [text for text in options if text not in own]
    if given := [text for text in options if _is_one_of(text, OURS)]:
        raise UsageError(f"{given[0]}: distprof sets it: choose where captures go with runs_dir=FOLDER after the --")
    if "profile=kernels" in overrides:
        raise UsageError("profile=kernels: torch.profiler and nsys cannot both trace CUDA: leave one of them out")
    off = [text for text in overrides if text in ("profile=off", "profile.level=off", "profile.nvtx=false")]
    if off and not any(_is_one_of(text, ("--capture-range", "-c")) for text in options):
        raise UsageError(f"{off[0]}: without NVTX ranges the capture would never start: leave it out")
    if (value := _read_option(options, ("--capture-range", "-c"))) == "cudaProfilerApi" and "device=cpu" in overrides:
        raise UsageError(f"-c {value}: a job on the CPU never calls it, so the capture would never start: leave it out")
    return CaptureRequest(
        per_rank="--per-rank" in own, keep_secrets="--keep-secrets" in own,
        report="--no-report" not in own, options=tuple(options), overrides=tuple(overrides),
    )  # fmt: skip


def read_ranks(environment: Mapping[str, str], *, num_gpus: int) -> Ranks:
    """The number of ranks and how they connect, from NPROC, NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT.

    Raises:
        UsageError: A variable is not a number, or several nodes have no address to connect to.
    """
    per_node = _read_number(environment, "NPROC", num_gpus or 2, least=1)
    nodes = _read_number(environment, "NNODES", 1, least=1)
    if nodes == 1:
        return Ranks(per_node=per_node)
    node = _read_number(environment, "NODE_RANK", -1, least=0)
    if not environment.get("MASTER_ADDR") or not 0 <= node < nodes:
        raise UsageError(f"NNODES={nodes}: set MASTER_ADDR to node 0's address, and NODE_RANK to 0..{nodes - 1}")
    port = _read_number(environment, "MASTER_PORT", 29500, least=1)
    address = environment["MASTER_ADDR"]
    rendezvous = (
        "--nnodes", str(nodes), "--node-rank", str(node), "--master-addr", address, "--master-port", str(port),
    )  # fmt: skip
    return Ranks(per_node=per_node, nodes=nodes, node=node, rendezvous=rendezvous)


def make_command(request: CaptureRequest, ranks: Ranks, *, nsys: str, folder: Path) -> list[str]:
    """The complete command line of the job.

    Args:
        request: The request.
        ranks: How to start the ranks.
        nsys: The nsys command.
        folder: Where the report goes; it must exist.
    """
    name = "capture-rank%q{RANK}" if request.per_rank else "capture"
    output = str(folder.absolute()).replace("%", "%%") + f"/{name}"
    defaults = [
        f"{spellings[0]}={value}"
        for spellings, value in DEFAULTS
        if not any(_is_one_of(text, spellings) for text in request.options)
    ]
    session = f"--session-new=distprof-{os.getpid()}" + ("-%q{RANK}" if request.per_rank else "")
    profile = [nsys, "profile", *_drop_orphan(defaults, request), *request.options, session, f"--output={output}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *ranks.rendezvous, f"--nproc-per-node={ranks.per_node}"]
    job = ["-m", "distprof", *_place_run(request.overrides, folder)]
    if request.per_rank:
        return [*torchrun, "--no-python", *profile, *_keep_umask(), sys.executable, *job]
    return [*profile, *_keep_umask(), *torchrun, *job]


def read_run_dir(overrides: Sequence[str], folder: Path) -> Path:
    """The run folder of the job whose capture is in ``folder``."""
    found = _find_override(overrides, "run_dir=", "hydra.run.dir=")
    return folder / "run" if found is None else Path(found)


def read_runs_dir(overrides: Sequence[str]) -> str:
    """Where run folders are created."""
    return _find_override(overrides, "runs_dir=") or "runs"


def _find_override(overrides: Sequence[str], *keys: str) -> str | None:
    """The last value that overrides give one of these keys, without quotes. None: they give none."""
    found = [text.partition("=")[2].strip("'\"") for text in overrides if text.startswith(keys)]
    return found[-1] if found else None


def _keep_umask() -> list[str]:
    """Keeps our umask: nsys starts its program with umask 0, which would let everyone write into the run folder."""
    os.umask(own := os.umask(0o077))
    return ["/bin/sh", "-c", f'umask {own:04o}; exec "$@"', "sh"]


def _place_run(overrides: Sequence[str], folder: Path) -> list[str]:
    """Puts the job's run folder beside its capture, unless it was set."""
    if _find_override(overrides, "run_dir=", "hydra.run.dir=") is not None:
        return list(overrides)
    where = str(folder.absolute() / "run").replace("\\", "\\\\").replace("'", "\\'")
    return [*overrides, f"run_dir='{where}'"]


def _drop_orphan(defaults: list[str], request: CaptureRequest) -> list[str]:
    """Drops the capture range's name and end if the user replaced our capture range."""
    if any(_is_one_of(text, ("--capture-range", "-c")) for text in request.options):
        return [text for text in defaults if not text.startswith("--nvtx-capture=")]
    return defaults


def _read_option(options: Sequence[str], spellings: Sequence[str]) -> str | None:
    """The value of an nsys option: ``--trace=x``, ``--trace x``, ``-t x``, ``-tx``. None: it is not given."""
    for index, text in enumerate(options):
        for name in spellings:
            if text == name:
                return next(iter(options[index + 1 :]), None)
            if _is_one_of(text, (name,)):
                return text[len(name) :].removeprefix("=")
    return None


def _is_one_of(text: str, spellings: Sequence[str]) -> bool:
    """Whether an argument is one of these options: ``--trace=x``, ``--trace``, ``-t``, ``-tx``."""
    return any(
        text == name or text.startswith(f"{name}=") if name.startswith("--") else re.match(rf"{name}(?!-)", text)
        for name in spellings
    )


def _read_number(environment: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environment.get(name) or str(default)
    if not re.fullmatch(r"-?\d{1,9}", text) or (int(text) < least and name in environment):
        raise UsageError(f"{name}={text}: expected a whole number, at least {least}")
    return int(text)
