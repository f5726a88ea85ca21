"""Starts a profiler before the first step of a job. Everything here is collective: every rank takes the same steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch.distributed as dist

from distprof.config.check import read_schedule
from distprof.config.redact import mask, redact, secret_values
from distprof.config.schema import HardwareConfig, ProfileConfig
from distprof.facts.run import FloatArray, RankInfo, RunMeta, Work
from distprof.profiler.called_windows import plan_calls
from distprof.profiler.host_readings import HostReadings
from distprof.profiler.module_window import PredictMemory
from distprof.profiler.overhead_budget import ShadowPlan
from distprof.profiler.profiler import Profiler
from distprof.profiler.provenance import describe_run
from distprof.profiler.rank_zero import RankZero
from distprof.profiler.recording_switch import RecordingSwitch, wants_pause
from distprof.profiler.run_files import agree_on_folder, open_streams
from distprof.profiler.setting import Setting, WarnOnce
from distprof.profiler.signal_count import SignalCount
from distprof.profiler.watch_stalls import watch_stalls
from distprof.profiler.window_desk import WindowDesk
from distprof.profiler.window_plans import open_desk, plan_level
from distprof.profiler.window_profiler import WindowProfiler
from distprof.record.capture_range import agree_on_capture
from distprof.record.gather import Exchange, GatherThread
from distprof.record.nvtx_ranges import NvtxRanges, tool_listens
from distprof.record.on_signal import end_on_signal
from distprof.record.own_group import make_own_group
from distprof.record.rank_info import describe_rank
from distprof.record.recorder import Recorder
from distprof.record.signals import SignalWatch
from distprof.record.step_record import STEPS_AT_ONCE
from distprof.record.step_window import plan_meeting
from distprof.record.step_writer import StepWriter
from distprof.record.torch_device import TorchDevice
from distprof.record.window_talk import WindowTalk
from distprof.storage.last_position import open_place
from distprof.world import World, let_go

OnStart = Callable[[RunMeta, tuple[RankInfo, ...], Path], Callable[[FloatArray], None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a program that runs the training loop for others adds; a training script needs none of it."""

    arguments: Sequence[str] = ()
    """The command line, searched for secrets to mask."""
    on_start: OnStart | None = None
    """On rank 0: called once with the job's facts, its ranks and the run folder; returns what gets the whole steps
    while the job runs, ``[num_ranks, num_new_steps, ROW_WIDTH]``. Both are called on a thread that nothing waits for.
    """
    signals: SignalWatch | None = None
    """What watches for signals in this process. None: SIGTERM and SIGHUP are watched for until the profiler is closed,
    if the program does not handle them itself and this is its main thread."""
    predict_memory: PredictMemory | None = None
    """What this rank's tensors should take, by kind. Called once, outside steps, after the profile of modules."""


NO_HOOKS = Hooks()
FEW_CONNECTIONS = (
    "single collectives are not timed on the device: with CUDA_DEVICE_MAX_CONNECTIONS=1 an event may hold up what "
    "another stream does (profile.collectives=8 times those of every eighth step all the same)"
)


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
    strategy: str | None,
    precision: str | None,
    config: Mapping[str, object],
    profile: ProfileConfig,
    hardware: HardwareConfig,
    runs_dir: str = "runs",
    run_dir: str | None = None,
    work: Work | None = None,
    notes: Sequence[str] = (),
    timeout_s: float = 600.0,
    say: Callable[[str], None] = print,
    hooks: Hooks = NO_HOOKS,
) -> Job:
    """Makes the run folder and the profiler. Collective; may synchronise.

    Args:
        world: This process among the ranks.
        name: Names the run folder.
        strategy: How the model is parallelised, for the report. None: not known.
        precision: Number format of the matrix products, for the peak and the report. None: not known.
        config: Kept in the run folder, secrets redacted.
        profile: What to record.
        hardware: Where the peak FLOP/s come from.
        runs_dir: Where run folders are made.
        run_dir: One exact folder instead.
        work: Arithmetic of a micro-step. None: no FLOP/s and no MFU.
        notes: Further notes for the report.
        timeout_s: How long the end of the job waits for the slowest rank.
        say: Says a line to the user.
        hooks: What a program around the training loop adds.

    Raises:
        UsageError: The folder cannot be made or written; raised on every rank.
    """
    secrets = secret_values(hooks.arguments)
    clean = partial(mask, secrets=secrets)
    group = make_own_group() if world.size > 1 else None
    try:
        folder, run_id = agree_on_folder(world, name=clean(name), runs_dir=runs_dir, run_dir=run_dir, group=group)
        info = describe_rank(world, precision, hardware, group)
        meta = describe_run(
            world, run_id=run_id, name=clean(name), strategy=strategy, precision=precision, work=work,
            notes=[*map(clean, notes)],
            config=redact(config, secrets),
        )  # fmt: skip
        streams = open_streams(world, folder, meta, info, group, profile.keep_steps)
        setting = Setting(
            world=world, profile=profile, folder=folder, streams=streams, group=group, timeout_s=timeout_s, say=say,
            warn=WarnOnce(lambda text: say(f"distprof: rank {world.rank}: {text}")),
        )  # fmt: skip
        profiler, meta = _make_profiler(setting, meta, hooks, clean)
        return Job(folder=folder, meta=meta, ranks=streams.ranks, profiler=profiler)
    except BaseException:
        if group is not None:
            dist.destroy_process_group(group)  # ends what the others may wait for: they train on without recording
            let_go()
        raise


def _make_profiler(
    setting: Setting, meta: RunMeta, hooks: Hooks, clean: Callable[[str], str]
) -> tuple[Profiler, RunMeta]:
    """Puts this rank's profiler together and starts its threads.

    Returns:
        The profiler, and the job's facts with the first readings of the hosts' clocks.
    """
    world = setting.world
    ranges = _make_ranges(setting)
    device = TorchDevice(world.device) if setting.on_device else None
    recorder = Recorder(phases=setting.phases, device=device, every=setting.every, ranges=ranges)
    step_writer = StepWriter(
        recorder=recorder, writer=setting.streams.own, device=world.device, warn=setting.warn, clean=clean
    )
    if setting.streams.own is not None and (place := open_place(setting.streams.own.path)) is not None:
        recorder.timeline.place = place
    if device is not None and setting.phases and setting.every == 0 and setting.few_connections:
        step_writer.note(FEW_CONNECTIONS)
    lefts = [_end_on_signal(setting, hooks.signals, step_writer)]
    try:
        return _put_together(
            setting, meta, hooks, clean, ranges=ranges, recorder=recorder, step_writer=step_writer, lefts=lefts
        )
    except BaseException:
        for leave in lefts:
            leave()
        raise


def _put_together(
    setting: Setting,
    meta: RunMeta,
    hooks: Hooks,
    clean: Callable[[str], str],
    *,
    ranges: NvtxRanges | None,
    recorder: Recorder,
    step_writer: StepWriter,
    lefts: list[Callable[[], None]],
) -> tuple[Profiler, RunMeta]:
    """The parts in the order in which they need each other; what is to be taken back joins ``lefts``."""
    world, profile = setting.world, setting.profile
    readings = None
    if setting.group is not None and setting.phases:  # at level off there is nothing to compare
        readings = HostReadings(setting, setting.group, meta, step_writer)
        meta = readings.read_first()
    exchange = Exchange(setting.group, paused=profile.record == "none")
    lefts += _count_signals(setting, exchange, step_writer)
    window = plan_level(setting, meta, recorder, step_writer, hooks.predict_memory)
    desk = open_desk(setting, window) if world.rank == 0 else None
    talk = WindowTalk(limit_s=setting.timeout_s, desk=desk)
    rank_zero = None
    if desk is not None:
        rank_zero = _start_rank_zero(setting, meta, hooks.on_start, step_writer, exchange, desk)
    meeting = partial(plan_meeting, world, setting.timeout_s)
    capture = agree_on_capture(ranges, world.device, setting.group, meeting)
    plan = _plan_steps(setting, capture is not None)
    switch = RecordingSwitch(plan, recorder, step_writer.note, signal=profile.signal)
    switch.pause(exchange.paused)
    gather_thread = _make_gather_thread(setting, step_writer, exchange, rank_zero, readings, switch, talk)
    gather_thread.start()
    stall_watch = watch_stalls(setting, recorder, step_writer, lefts) if world.size > 1 else None
    if rank_zero is not None:
        lefts.append(rank_zero.leave)
    make = Profiler if window is None else partial(WindowProfiler, window)
    profiler = make(
        recorder=recorder, plan=plan, step_writer=step_writer, gather_thread=gather_thread, ranges=ranges,
        capture=capture, module_depth=profile.nvtx_module_depth, on_device=setting.on_device, phases=setting.phases,
        timeout_s=setting.timeout_s, clean=clean, stall_watch=stall_watch,
        calls=plan_calls(setting, talk, run_id=meta.run_id, recorder=recorder, step_writer=step_writer),
        left=lefts,
        done=(lambda: None) if rank_zero is None else rank_zero.finish,
    )  # fmt: skip
    return profiler, meta


def _plan_steps(setting: Setting, captured: bool) -> ShadowPlan:
    if not setting.phases or captured:  # a tool wants every step
        return ShadowPlan(0)
    return ShadowPlan(setting.profile.shadow_every, read_schedule(setting.profile.record))


def _make_ranges(setting: Setting) -> NvtxRanges | None:
    world, wanted = setting.world, setting.profile.nvtx
    if wanted is False or (wanted == "auto" and not tool_listens()):
        return None
    return NvtxRanges(rank=world.rank, world_size=world.size, host=world.host, pid=os.getpid())


def _end_on_signal(setting: Setting, signals: SignalWatch | None, step_writer: StepWriter) -> Callable[[], None]:
    """Has a signal end this rank's file. Returns what takes that back."""
    stopped = f"distprof: stopped early; what was recorded: distprof report {setting.folder}"
    tell = partial(setting.say, stopped) if setting.world.rank == 0 else None
    return end_on_signal(signals, step_writer, tell=tell)


def _count_signals(setting: Setting, exchange: Exchange, step_writer: StepWriter) -> list[Callable[[], None]]:
    """Has a signal turn recording off and on, if it is wanted. Returns what takes that back."""
    if setting.profile.signal == "none":
        return []
    signals = SignalCount()
    if (why := signals.install(setting.profile.signal)) is not None:
        text = f"{setting.profile.signal} does not turn recording off and on: {why}"
        setting.warn(text)
        step_writer.note(text)
    exchange.count_signals = lambda: signals.count
    return [signals.close]


def _start_rank_zero(
    setting: Setting,
    meta: RunMeta,
    on_start: OnStart | None,
    step_writer: StepWriter,
    exchange: Exchange,
    desk: WindowDesk,
) -> RankZero:
    begin = None if on_start is None else partial(on_start, meta, setting.streams.ranks, setting.folder)
    return RankZero(setting, step_writer, meta=meta, on_start=begin, stop_recording=exchange.ask_to_stop, desk=desk)


def _make_gather_thread(
    setting: Setting,
    step_writer: StepWriter,
    exchange: Exchange,
    rank_zero: RankZero | None,
    readings: HostReadings | None,
    switch: RecordingSwitch,
    talk: WindowTalk,
) -> GatherThread:
    def lose(text: str) -> None:
        step_writer.note(text)
        setting.warn(text)

    return GatherThread(
        take=partial(step_writer.take, most=STEPS_AT_ONCE), end=partial(step_writer.end, "completed"),
        exchange=exchange, lost=lose, window_s=setting.profile.window_s,
        deliver=None if rank_zero is None else rank_zero.deliver,
        together=None if readings is None else readings.read_last, pause=switch.pause,
        stop_recording=partial(switch.stop, setting.limit_ratio),
        wants_pause=None if rank_zero is None else partial(wants_pause, setting.folder), talk=talk,
    )  # fmt: skip
