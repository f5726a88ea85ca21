"""What happens once per job, before its first step: the run folder, who the ranks are, and the profiler.

Everything here is collective: the ranks agree on one folder, or leave together with one message.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distprof.config.decode import decode
from distprof.config.redact import mask, redact, secret_values
from distprof.config.schema import HardwareConfig, ProfileConfig
from distprof.errors import DistprofError, UsageError
from distprof.facts.run import FloatArray, RankInfo, RunMeta, Work
from distprof.profiler.overhead_budget import describe_stop, keep_budget
from distprof.profiler.profiler import KernelProfiler, Profiler, WarnOnce
from distprof.profiler.provenance import read_commit, read_versions
from distprof.profiler.shadow import ShadowPlan
from distprof.record.capture_range import agree_on_capture
from distprof.record.clock_sync import probe_links, read_clocks
from distprof.record.cuda_clock import CudaClock
from distprof.record.gather import Exchange, GatherThread
from distprof.record.kernel_window import plan_window
from distprof.record.live import Listener, LiveSteps
from distprof.record.nvtx_ranges import NvtxRanges, tool_listens
from distprof.record.on_signal import end_on_signal
from distprof.record.rank_info import describe_rank
from distprof.record.recorder import Recorder
from distprof.record.remote import RemoteStreams
from distprof.record.signals import SignalWatch
from distprof.record.step_writer import StepWriter
from distprof.storage.rank_stream import StreamWriter
from distprof.storage.run_folder import add_note, create_run_folder, rank_path, read_meta, write_meta
from distprof.world import World, collect_texts, share_text

OnStart = Callable[[RunMeta, tuple[RankInfo, ...], Path], Callable[[FloatArray], None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A started job: where it writes, who takes part, and this rank's profiler."""

    folder: Path
    meta: RunMeta
    ranks: tuple[RankInfo, ...]
    """Every rank, in order."""
    profiler: Profiler


def start_profiler(
    world: World,
    *,
    name: str,
    strategy: str,
    precision: str,
    config: Mapping[str, object],
    profile: ProfileConfig,
    hardware: HardwareConfig,
    runs_dir: str = "runs",
    run_dir: str | None = None,
    work: Work | None = None,
    notes: Sequence[str] = (),
    timeout_s: float = 600.0,
    arguments: Sequence[str] = (),
    say: Callable[[str], None] = print,
    on_start: OnStart | None = None,
    signals: SignalWatch | None = None,
) -> Job:
    """Makes the run folder and the profiler. Collective; may synchronise.

    Args:
        world: This process among the ranks.
        name: Names the run folder.
        strategy: How the model is parallelised, for the report.
        precision: Number format of the matrix products, for the peak and the report.
        config: Kept in the run folder, secrets redacted.
        profile: What to record.
        hardware: Where the peak FLOP/s come from.
        runs_dir: Where run folders are made.
        run_dir: One exact folder instead.
        work: Arithmetic of a micro-step. None: no FLOP/s and no MFU.
        notes: What the report should say besides.
        timeout_s: How long the end of the job waits for the slowest rank.
        arguments: The command line, searched for secrets to mask.
        say: Says a line to the user.
        on_start: On rank 0: called once with who takes part; returns what gets the whole steps while the job runs,
            ``[num_ranks, num_new_steps, ROW_WIDTH]``. Both are called on a thread that nothing waits for.
        signals: Who watches for signals in this process. None: SIGTERM and SIGHUP are watched for until the profiler
            is closed, where the program does not handle them itself and this is its main thread.

    Raises:
        UsageError: The folder cannot be made; raised on every rank.
    """
    secrets = secret_values(arguments)
    warn = WarnOnce(lambda text: say(f"distprof: rank {world.rank}: {text}"))
    group: Any = dist.new_group(backend="gloo") if world.size > 1 else None
    name = mask(name, secrets)
    folder, run_id = _agree_on_folder(world, name=name, runs_dir=runs_dir, run_dir=run_dir)
    info = describe_rank(world, precision, hardware)
    clean_config = redact(config, secrets)
    assert isinstance(clean_config, dict)
    meta = RunMeta(
        run_id=run_id, name=name, started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        world_size=world.size, backend=world.backend, device_type=world.device.type, strategy=strategy,
        precision=precision, work=work, versions=read_versions(torch.version.cuda), git=read_commit(),
        config=clean_config, notes=(*world.notes, *notes),
    )  # fmt: skip
    phases = profile.level != "off"
    compared = group is not None and phases  # at level off there is nothing to compare
    writer, ranks, apart = _open_streams(world, folder, meta, info)
    ranges = _make_ranges(profile, world)
    on_device = world.device.type == "cuda"
    clock = CudaClock(world.device) if on_device and phases else None
    recorder = Recorder(phases=phases, device_clock=clock, ranges=ranges)
    step_writer = StepWriter(recorder=recorder, writer=writer, device=world.device, warn=warn)
    remote = RemoteStreams(apart, step_writer.refuse)
    stopped = f"distprof: stopped early; what was recorded: distprof report {folder}"
    unwatch = end_on_signal(signals, step_writer, tell=partial(say, stopped) if world.rank == 0 else None)
    if compared:
        meta = _read_clocks(world, group, folder, meta, step_writer, links=True)
    listener: Listener | None = None
    if on_start is not None and world.rank == 0:
        listener = Listener(partial(on_start, meta, ranks, folder), what="the display of steps", failed=warn)
        listener.start()
    tell = listener.tell if listener is not None else None
    capture = agree_on_capture(ranges, world.device)
    exchange, limit = Exchange(group), profile.max_overhead_ratio if phases else None
    plan = ShadowPlan(profile.shadow_every if phases and capture is None else 0)  # a tool wants to see every step
    on_steps = keep_budget(limit, every=profile.shadow_every, stop=exchange.ask_to_stop, say=say, on_steps=tell)
    deliver = _make_delivery(world, remote, on_steps) if world.rank == 0 else None
    gather_thread = GatherThread(
        take=step_writer.take, end=lambda: step_writer.end("completed"), deliver=deliver, exchange=exchange,
        window_s=profile.window_s, lost=lambda text: _keep(step_writer, warn, text),
        together=(lambda: _read_clocks(world, group, folder, meta, step_writer)) if compared else None,
        stop_recording=lambda: _stop_recording(plan, step_writer, limit),
    )  # fmt: skip
    window = plan_window(
        profile, world=world, folder=folder, run_id=run_id, apart=list(apart), recorder=recorder,
        step_writer=step_writer,
        timeout_s=timeout_s,
    )  # fmt: skip
    gather_thread.start()
    make = Profiler if window is None else partial(KernelProfiler, window)
    profiler = make(
        recorder=recorder, plan=plan, step_writer=step_writer, gather_thread=gather_thread, ranges=ranges,
        capture=capture, module_depth=profile.nvtx_module_depth, on_device=on_device, phases=phases,
        timeout_s=timeout_s, clean=lambda text: mask(text, secrets),
        done=lambda: _finish_others(remote, listener, folder, warn), left=unwatch,
    )  # fmt: skip
    return Job(folder=folder, meta=meta, ranks=ranks, profiler=profiler)


def _keep(step_writer: StepWriter, warn: Callable[[str], None], text: str) -> None:
    step_writer.note(text)
    warn(text)


def _stop_recording(plan: ShadowPlan, step_writer: StepWriter, limit_ratio: float | None) -> None:
    plan.always = True
    step_writer.note(f"recording cost {describe_stop(limit_ratio)}")


def _agree_on_folder(world: World, *, name: str, runs_dir: str, run_dir: str | None) -> tuple[Path, str]:
    """Rank 0 makes the folder; every rank learns of it, or of why there is none."""
    said: dict[str, str] = {}
    if world.rank == 0:
        try:
            folder = create_run_folder(runs_dir=runs_dir, run_dir=run_dir, name=name, now=datetime.now())
            said = {"folder": str(folder.absolute()), "run_id": uuid.uuid4().hex}
        except UsageError as error:
            said = {"error": str(error)}
    said = json.loads(share_text(json.dumps(said)))
    if "error" in said:
        raise UsageError(said["error"])
    return Path(said["folder"]), said["run_id"]


def _read_hosts(group: dist.ProcessGroup, meta: RunMeta, *, links: bool) -> RunMeta:
    """Adds a reading of every rank's clock, and of the links between hosts. Collective; what fails costs a note."""
    try:
        clocks = (*meta.clock_readings, *read_clocks(group))
        return replace(meta, clock_readings=clocks, link_readings=probe_links(group) if links else meta.link_readings)
    except RuntimeError as error:
        when, why = "start" if links else "end", str(error).splitlines()[0][:200]
        return replace(meta, notes=(*meta.notes, f"host clocks were not read at the {when} of the job: {why}"))


def _read_clocks(
    world: World, group: dist.ProcessGroup, folder: Path, meta: RunMeta, step_writer: StepWriter, *, links: bool = False
) -> RunMeta:
    """Reads the hosts, also once more at the end so that drift is known, and keeps it in ``run.json``. Collective."""
    meta = _read_hosts(group, meta, links=links)
    if world.rank == 0:
        try:
            write_meta(folder, meta)
        except OSError as error:
            step_writer.refuse("run.json was not brought up to date", error)
    return meta


def _open_streams(
    world: World, folder: Path, meta: RunMeta, info: RankInfo
) -> tuple[StreamWriter, tuple[RankInfo, ...], dict[int, StreamWriter]]:
    """Every rank opens its file; rank 0 also opens one for each rank that cannot see its folder.

    Returns:
        This rank's file, who takes part, and on rank 0 the files it writes for others.
    """
    problem = writer = None
    if world.rank == 0:
        try:
            write_meta(folder, meta)
        except OSError as error:
            problem = _describe_refusal(world, folder, error)
    dist.all_reduce(torch.zeros(1))
    shared = _sees(folder, meta.run_id)
    try:
        (folder / "ranks").mkdir(parents=True, exist_ok=True)
        path = rank_path(folder, world.rank)
        writer = StreamWriter(path, run_id=meta.run_id, world_size=world.size, info=info)
    except OSError as error:
        problem = problem or _describe_refusal(world, folder, error)
    said = [json.loads(text) for text in collect_texts(json.dumps([asdict(info), shared, problem]))]
    for _, _, failure in said:
        if failure is not None:
            raise UsageError(failure)
    assert writer is not None
    ranks = tuple(decode(RankInfo, item[0], error=DistprofError) for item in said)
    apart: dict[int, StreamWriter] = {}
    if world.rank == 0:
        try:
            for other, (_, visible, _) in zip(ranks, said, strict=True):
                if not visible:
                    path = rank_path(folder, other.rank)
                    apart[other.rank] = StreamWriter(path, run_id=meta.run_id, world_size=world.size, info=other)
        except OSError as error:
            problem = _describe_refusal(world, folder, error)
    if failure := share_text(problem):
        raise UsageError(failure)
    return writer, ranks, apart


def _describe_refusal(world: World, folder: Path, error: OSError) -> str:
    return f"{folder}: rank {world.rank} on {world.host} cannot write there ({error.strerror}): set runs_dir=..."


def _sees(folder: Path, run_id: str) -> bool:
    try:
        return read_meta(folder).run_id == run_id
    except DistprofError:
        return False


def _make_ranges(profile: ProfileConfig, world: World) -> NvtxRanges | None:
    if profile.nvtx is False or (profile.nvtx == "auto" and not tool_listens()):
        return None
    return NvtxRanges(rank=world.rank, world_size=world.size, host=world.host, pid=os.getpid())


def _make_delivery(
    world: World,
    remote: RemoteStreams,
    on_steps: Callable[[FloatArray], None] | None,
) -> Callable[[list[FloatArray]], None]:
    live = LiveSteps(world.size, on_steps) if on_steps is not None else None

    def deliver(tables: list[FloatArray]) -> None:
        remote.write(tables)
        if live is not None:
            live.add(tables)

    return deliver


def _finish_others(remote: RemoteStreams, listener: Listener | None, folder: Path, warn: Callable[[str], None]) -> None:
    """On rank 0, after every rank's last row: ends the files written for others, and lets whoever listens go."""
    remote.end()
    if listener is not None:
        listener.finish()
    if listener is not None and (missed := listener.missed_steps):
        note = f"{missed} step(s) were not shown while the job ran: what on_start gave was too slow, or failed"
        warn(note)
        with contextlib.suppress(OSError, DistprofError):  # it is said, and the folder may be full or gone
            add_note(folder, note)
