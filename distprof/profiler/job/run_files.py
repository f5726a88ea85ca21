"""Where the ranks of a job write: one run folder, with the facts of the job, and a stream for every rank.

What concerns the folder is collective: the ranks agree on one, or all leave with the same message.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import platform
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist
from msgspec import Struct, field
from msgspec.structs import replace

from distprof import __version__
from distprof.config.decode import decode
from distprof.config.schema import HardwareConfig
from distprof.errors import DistprofError, UsageError
from distprof.facts.mesh import RankGroup, build_mesh, list_dimensions
from distprof.facts.plain import make_plain
from distprof.facts.run import Launch, RankInfo, RunMeta, Work
from distprof.storage.generations import open_run_folder
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import rank_path, read_meta, write_meta
from distprof.storage.safe_open import keep_in_mind
from distprof.world import World, collect_texts, list_groups, share_text, wait_for_ranks

PACKAGES = ("torch", "accelerate", "nvtx", "hydra-core", "wandb", "numpy")
"""Those whose versions a run keeps."""


class JobPlan(Struct, frozen=True, kw_only=True):
    """What is known of a job before its ranks meet."""

    name: str
    """Names the run folder."""
    config: Mapping[str, object]
    """Settings of the job, kept in the run folder."""
    runs_dir: str = "runs"
    """Where run folders are made."""
    run_dir: str | None = None
    """One exact folder instead."""
    strategy: str | None = None
    """How the model is parallelised, for the report. None: not known."""
    precision: str | None = None
    """Number format of the matrix products, for the peak and the report. None: not known."""
    work: Work | None = None
    """Arithmetic of a micro-step. None: no FLOP/s and no MFU."""
    notes: Sequence[str] = ()
    """Further notes for the report."""
    hardware: HardwareConfig = field(default_factory=lambda: HardwareConfig(peak="none"))
    """Where the peak FLOP/s come from."""

    number: int = field(default_factory=itertools.count().__next__)
    """Which job of this process it is."""

    def make_folder(self, launch: Launch | None) -> Path:
        """Makes the run folder; of ranks that were started again, inside that of their first start.

        Raises:
            UsageError: It cannot be made.
        """
        return open_run_folder(
            runs_dir=self.runs_dir, run_dir=self.run_dir, name=self.name, now=datetime.now(), launch=launch
        )

    def describe_launch(self, starts: Sequence[str], world: World, *, is_early: bool = False) -> Launch | None:
        """Which start of the job this is; None: no agent of torchrun is known to have started rank 0.

        Args:
            starts: What `name_start` says on all ranks, in order, as far as it is known.
            world: This process.
            is_early: As in `Launch`.
        """
        counts = dict(start.split() for start in starts if start)
        if not starts[0]:
            return None
        restarts = tuple(map(int, counts.values()))
        return Launch(
            agents=tuple(counts), job=self.number, restarts=restarts, restarts_left=world.identity.restarts_left,
            is_early=is_early,
        )  # fmt: skip


def name_start(world: World) -> str:
    """Who started this process, and how often it did before; empty: not known."""
    agent = world.identity.agent
    return "" if agent is None else f"{agent} {world.identity.restarts}"


class Streams(Struct, frozen=True, kw_only=True):
    """The open files of a rank."""

    own: StreamWriter
    ranks: tuple[RankInfo, ...]
    """Every rank of the job, in order."""
    apart: dict[int, StreamWriter]
    """On rank 0: files that it writes for the ranks that cannot see its folder. Empty elsewhere."""
    groups: tuple[RankGroup, ...]
    """The script's process groups of some of the ranks."""


def agree_on_folder(world: World, plan: JobPlan, group: dist.ProcessGroup | None) -> tuple[Path, str, Launch | None]:
    """Has rank 0 make the run folder, and gives every rank the folder, the run's id, and which start of the job it is.
    Collective.

    ``group`` is distprof's own. None: there is one rank.

    Raises:
        UsageError: The folder cannot be made; raised on every rank.
    """
    launch = plan.describe_launch(collect_texts(name_start(world), group=group), world)
    said: dict[str, str] = {}
    if world.rank == 0:
        try:
            said = {"folder": str(plan.make_folder(launch).absolute()), "run_id": uuid.uuid4().hex}
        except UsageError as error:
            said = {"error": str(error)}
    said = json.loads(share_text(json.dumps(said), group=group))
    if "error" in said:
        raise UsageError(said["error"])
    return Path(said["folder"]), said["run_id"], launch


def open_streams(
    world: World,
    folder: Path,
    meta: RunMeta,
    info: RankInfo,
    group: dist.ProcessGroup | None,
    keep_steps: int | None = None,
) -> Streams:
    """Opens every rank's file, and on rank 0 one more for each rank that cannot see its folder. Collective.

    Args:
        world: This process among the ranks.
        folder: The run folder.
        meta: The job.
        info: This rank.
        group: distprof's own group. None: there is one rank.
        keep_steps: How many of the latest steps stay on disk. None: all.

    Raises:
        UsageError: Some rank cannot write; raised on every rank.
    """
    problem = _write_run_json(world, folder, meta) if world.rank == 0 else None
    make = partial(StreamWriter, run_id=meta.run_id, world_size=world.size, keep_steps=keep_steps)
    wait_for_ranks(group)  # rank 0 has written run.json before any rank looks for it
    shared = _sees(folder, meta.run_id)
    own, refusal = _open_own(world, folder, info, make)
    facts = json.dumps([make_plain(info), shared, problem or refusal, list_groups()])
    said = [json.loads(text) for text in collect_texts(facts, group=group)]
    for _, _, failure, _ in said:
        if failure is not None:
            raise UsageError(failure)
    assert own is not None
    ranks = tuple(decode(RankInfo, facts, error=DistprofError) for facts, *_ in said)
    unseen = [other for other, (_, visible, *_) in zip(ranks, said, strict=True) if not visible]
    listed = dict.fromkeys((name, tuple(members)) for *_, groups in said for name, members in groups)
    return Streams(
        own=own, ranks=ranks, apart=_open_for_others(world, folder, unseen, group, make),
        groups=tuple(RankGroup(name=name, ranks=members) for name, members in listed),
    )  # fmt: skip


def publish_groups(world: World, folder: Path, meta: RunMeta, groups: tuple[RankGroup, ...]) -> RunMeta:
    """The facts of the job with its process groups, and on rank 0 ``run.json`` with them."""
    if not groups:
        return meta
    meta = replace(meta, groups=groups, mesh=build_mesh(list_dimensions(groups, meta.world_size)))
    if world.rank == 0:
        with contextlib.suppress(OSError):  # a full disk is reported with the steps
            write_meta(folder, meta)
    return meta


def _write_run_json(world: World, folder: Path, meta: RunMeta) -> str | None:
    try:
        write_meta(folder, meta)
    except OSError as error:
        return _describe_refusal(world, folder, error)
    return None


def _open_own(
    world: World, folder: Path, info: RankInfo, make: Callable[..., StreamWriter]
) -> tuple[StreamWriter | None, str | None]:
    """This rank's file, or why it cannot be opened."""
    try:
        (folder / "ranks").mkdir(parents=True, exist_ok=True)
        keep_in_mind(folder)
        return make(rank_path(folder, world.rank), info=info), None
    except OSError as error:
        return None, _describe_refusal(world, folder, error)


def _open_for_others(
    world: World,
    folder: Path,
    unseen: Sequence[RankInfo],
    group: dist.ProcessGroup | None,
    make: Callable[..., StreamWriter],
) -> dict[int, StreamWriter]:
    """On rank 0, files for the ranks that do not see the folder. Collective."""
    apart: dict[int, StreamWriter] = {}
    problem = None
    if world.rank == 0:
        try:
            for info in unseen:
                apart[info.rank] = make(rank_path(folder, info.rank), info=info)
        except OSError as error:
            problem = _describe_refusal(world, folder, error)
    if failure := share_text(problem, group=group):
        raise UsageError(failure)
    return apart


def _describe_refusal(world: World, folder: Path, error: OSError) -> str:
    return f"{folder}: rank {world.rank} on {world.host} cannot write there ({error.strerror}): set runs_dir=..."


def _sees(folder: Path, run_id: str) -> bool:
    try:
        return read_meta(folder).run_id == run_id
    except DistprofError:
        return False


def read_versions(cuda: str | None) -> dict[str, str]:
    """Versions by name; "none" for what is not installed.

    Args:
        cuda: The CUDA version torch was built for.
    """
    found = {"distprof": __version__, "python": platform.python_version(), "os": describe_system()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "none"
    return {**found, "cuda": cuda or "none"}


def describe_system() -> str:
    """Kernel, machine and C library, as `platform.platform` writes them. That asks a program too, by its name: see
    `read_commit`."""
    library = "".join(platform.libc_ver())
    parts = [platform.system(), platform.release(), platform.machine(), *(["with", library] if library else [])]
    return "-".join(parts)


def read_commit() -> str | None:
    """The commit of the working tree, followed by "+" if there are uncommitted changes. None: no checkout, or no git.

    Git is called by its path: to find a program by its name, `subprocess` changes Python's filters of warnings for a
    moment, and the script's warnings that are shown once are then shown again.
    """
    program = shutil.which("git")
    if program is None:
        return None
    try:
        run = [[program, "rev-parse", "HEAD"], [program, "status", "--porcelain", "--untracked-files=no"]]
        commit, changes = (
            subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout for command in run
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.strip() + ("+" if changes.strip() else "")


def describe_run(world: World, plan: JobPlan, run_id: str, launch: Launch | None = None) -> RunMeta:
    """What is known of a job when it starts."""
    return RunMeta(
        run_id=run_id, name=plan.name, started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        world_size=world.size, backend=world.backend or None, device_type=world.device.type, strategy=plan.strategy,
        precision=plan.precision, work=plan.work, versions=read_versions(torch.version.cuda), git=read_commit(),
        config=dict(plan.config), notes=(*world.notes, *plan.notes), launch=launch,
    )  # fmt: skip
