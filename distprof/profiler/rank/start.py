"""Starts one rank's part of a job: it records at once, and joins the other ranks' parts beside the training.

What a rank needs for recording is made on its training thread, without the other ranks. What the ranks agree on (a
process group, a folder, clocks) comes later, on the thread that then gathers their rows; steps wait in memory until
then. Only a program that calls this on all ranks together, as distprof's own trainer does, waits for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from distprof.config.check import read_schedule
from distprof.config.redact import mask, redact, secret_values
from distprof.config.schema import HardwareConfig, ProfileConfig
from distprof.facts.run import FloatArray, Peak, RankInfo, RunMeta, Work
from distprof.profiler.budget.overhead_budget import ShadowPlan
from distprof.profiler.budget.recording_switch import RecordingSwitch, wants_pause
from distprof.profiler.budget.signal_count import SignalCount
from distprof.profiler.job.agreement import Rendezvous
from distprof.profiler.job.host_readings import HostReadings
from distprof.profiler.job.provenance import describe_run
from distprof.profiler.job.run_files import agree_on_folder, open_streams
from distprof.profiler.job.setting import OpenSetting, Setting, WarnOnce
from distprof.profiler.job.watch_stalls import watch_stalls
from distprof.profiler.rank.profiler import Profiler
from distprof.profiler.rank.window_profiler import WindowProfiler
from distprof.profiler.windows.called_windows import plan_calls
from distprof.profiler.windows.window_plans import open_desk, plan_level
from distprof.record.device.rank_info import describe_rank, measure_beside_others
from distprof.record.device.torch_device import TorchDevice
from distprof.record.gather.end_on_signal import end_on_signal
from distprof.record.gather.gather import Exchange, GatherThread
from distprof.record.gather.step_window import StepWindow
from distprof.record.gather.step_writer import StepWriter
from distprof.record.gather.window_agreement import WindowTalk
from distprof.record.stalls.signals import SignalWatch
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import STEPS_AT_ONCE
from distprof.record.windows.capture_range import plan_capture, tool_captures
from distprof.record.windows.nvtx_ranges import NvtxRanges, tool_listens
from distprof.storage.last_position import open_place
from distprof.world import World, find_largest, wait_for_ranks

if TYPE_CHECKING:
    from distprof.profiler.rank.rank_zero import RankZero
    from distprof.profiler.windows.module_window import PredictMemory

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
WINDOW_WAIT_S = 60.0
"""How long training waits for the job's folder where the window of its level begins."""
FEW_CONNECTIONS = (
    "single collectives are not timed on the device: with CUDA_DEVICE_MAX_CONNECTIONS=1 an event may hold up what "
    "another stream does (profile.collectives=8 times those of every eighth step all the same)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What is said of the job; see `start_profiler`."""

    name: str
    strategy: str | None
    precision: str | None
    config: object
    hardware: HardwareConfig
    runs_dir: str
    run_dir: str | None
    work: Work | None
    notes: Sequence[str]


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
    rendezvous: Rendezvous | None = None,
    failed: Callable[[Exception], None] | None = None,
    bystander: tuple[int, int] | None = None,
) -> Job:
    """Makes this rank's profiler, and the run folder. May synchronise.

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
        rendezvous: How the ranks find each other. None: over the default process group, within ``timeout_s``.
        failed: Called on another thread if the ranks do not find each other, or have no folder; they meet beside the
            training then. None: the call is collective, and returns, or raises, when they have met.
        bystander: Python's and the kernel's identifier of the training thread of a rank that takes part without steps,
            for the others. None: it has steps, and this is its training thread.

    Raises:
        DistprofError: The ranks cannot connect; raised on every rank.
        UsageError: The folder cannot be made or written; raised on every rank.
    """
    secrets = secret_values(hooks.arguments)
    clean = partial(mask, secrets=secrets)
    plan = JobPlan(
        name=clean(name), strategy=strategy, precision=precision, config=redact(config, secrets), hardware=hardware,
        runs_dir=runs_dir, run_dir=run_dir, work=work, notes=[*map(clean, notes)],
    )  # fmt: skip
    setting = Setting(
        world=world, profile=profile, timeout_s=timeout_s, say=say,
        warn=WarnOnce(lambda text: say(f"distprof: rank {world.rank}: {text}")),
    )  # fmt: skip
    job = Job(setting, plan, hooks, clean, rendezvous or Rendezvous(limit_s=timeout_s), failed, bystander)
    try:
        job.start()
    except BaseException:
        job.leave()
        raise
    return job


class Job:
    """One rank's part of a job."""

    def __init__(
        self,
        setting: Setting,
        plan: JobPlan,
        hooks: Hooks,
        clean: Callable[[str], str],
        rendezvous: Rendezvous,
        failed: Callable[[Exception], None] | None,
        bystander: tuple[int, int] | None,
    ) -> None:
        """Takes what `start_profiler` was given, and makes what needs no other rank."""
        self._setting, self._plan, self._hooks, self._clean = setting, plan, hooks, clean
        self._rendezvous, self._failed = rendezvous, failed
        self._bystander = bystander is not None
        thread, self._thread = bystander or (threading.get_ident(), threading.get_native_id())
        self._opened: OpenSetting | None = None
        self._run_id = ""
        self._peak: Peak | None = None
        self._rank_zero: RankZero | None = None
        self._lefts: list[Callable[[], None]] = []
        self._captures = False  # whether a tool does, here or on any rank that this one waits for
        self._ranges = _make_ranges(setting)
        device = TorchDevice(setting.world.device) if setting.on_device else None
        self._recorder = Recorder(phases=setting.phases, device=device, every=setting.every, ranges=self._ranges)
        self._step_writer = StepWriter(
            recorder=self._recorder, writer=None, device=setting.world.device, warn=setting.warn, thread=thread,
            clean=clean,
        )  # fmt: skip
        if device is not None and setting.phases and setting.every == 0 and setting.few_connections:
            self._step_writer.note(FEW_CONNECTIONS)
        self._exchange = Exchange(None, paused=setting.profile.record == "none")
        self._shadows, self._talk = ShadowPlan(0), WindowTalk(limit_s=setting.timeout_s)
        self._gather_thread = self._make_gather_thread()
        rendezvous.ending = lambda: self._gather_thread.finishing
        rendezvous.given_up = lambda: self._exchange.given_up
        self._profiler: Profiler | None = None

    @property
    def profiler(self) -> Profiler:
        """Records this rank's steps."""
        assert self._profiler is not None
        return self._profiler

    @property
    def recorder(self) -> Recorder:
        """Of this rank's steps."""
        return self._recorder

    def rest(self, resting: bool) -> None:
        """Whether this rank's part ends, too, once another rank's does: the script has left its process groups."""
        self._exchange.resting = resting

    @property
    def over(self) -> bool:
        """Whether every rank's part has ended."""
        return self._gather_thread.complete

    @property
    def joined(self) -> bool:
        """Whether the ranks have met, and the job has a folder."""
        return self._opened is not None

    @property
    def folder(self) -> Path:
        """The run folder, once `joined`."""
        return self._open_setting.folder

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """Every rank, in order, once `joined`."""
        return self._open_setting.streams.ranks

    @property
    def _open_setting(self) -> OpenSetting:
        assert self._opened is not None
        return self._opened

    def start(self) -> None:
        """Joins the others, now or on the gather thread, and makes the profiler; see `start_profiler`."""
        if not self._bystander:
            self._lefts += [self._end_on_signal(), *self._count_signals()]
        if self._failed is None or self._setting.world.size == 1:
            self._join()
        else:
            self._peak = measure_beside_others(self._setting.world, self._plan.precision, self._plan.hardware)
            self._captures = tool_captures(self._ranges, self._setting.world.device)
        if not self._bystander:
            self._profiler = self._make_profiler()
        self._gather_thread.start()

    def wait(self, limit_s: float) -> None:
        """Returns when the ranks have met, or could not, and after so many seconds at the latest."""
        self._gather_thread.begun.wait(limit_s)

    def end(self, ended: str, error: str, raised: BaseException | None, *, wait_s: float) -> None:
        """Ends a bystander's part; waits so long, s, for other ranks that end as well."""
        self._gather_thread.begun.wait(wait_s)
        self._step_writer.end(ended, error=error or None, raised=raised)
        self._gather_thread.finish(alone=raised is not None, timeout_s=wait_s)
        self.leave()

    def leave(self) -> None:
        """Takes back what was changed in this process."""
        if self._profiler is not None:
            self._profiler.abandon()
        while self._lefts:
            self._lefts.pop(0)()

    def _make_profiler(self) -> Profiler:
        setting, profile = self._setting, self._setting.profile
        capture = plan_capture(
            self._ranges, setting.world.device, self._meet if self._failed is None else lambda: None,
            listens=self._captures,
        )  # fmt: skip
        if setting.phases and capture is None:  # a tool wants every step
            self._shadows.plan(profile.shadow_every, read_schedule(profile.record))
        make: Callable[..., Profiler] = Profiler
        if profile.level in ("kernels", "modules"):
            first_step = profile.kernel_from if profile.level == "kernels" else profile.module_from
            make = partial(WindowProfiler, self._plan_window, first_step)
        calls = plan_calls(
            lambda: (self._open_setting, self._run_id), self._talk, recorder=self._recorder,
            step_writer=self._step_writer,
        )  # fmt: skip
        return make(
            recorder=self._recorder, plan=self._shadows, step_writer=self._step_writer,
            gather_thread=self._gather_thread, ranges=self._ranges, capture=capture,
            module_depth=profile.nvtx_module_depth, on_device=setting.on_device, phases=setting.phases,
            timeout_s=setting.timeout_s, clean=self._clean, calls=calls, left=self._lefts, done=self._finish,
        )  # fmt: skip

    def _meet(self) -> None:
        self._open_setting.meet()

    def _finish(self) -> None:
        if self._rank_zero is not None:
            self._rank_zero.finish()

    def _plan_window(self) -> StepWindow | None:
        """The window of the level. Waits for the job's folder."""
        self._gather_thread.begun.wait(WINDOW_WAIT_S)
        if self._opened is None:
            return None
        return plan_level(
            self._opened, self._run_id, self._recorder, self._step_writer, self._hooks.predict_memory
        )  # fmt: skip

    def _is_window_planned(self) -> bool:
        return isinstance(self._profiler, WindowProfiler) and self._profiler.is_planned()

    def _join_aside(self) -> bool:
        """Joins the others, on the gather thread; returns whether there is a job."""
        if self._opened is not None:
            return True
        try:
            self._join()
        except Exception as error:  # it goes on to the session
            self._opened = None
            if self._failed is not None and not self._exchange.given_up:
                self._failed(error)
            return False
        return True

    def _join(self) -> None:
        """The ranks meet, agree on a folder, open their files and read their clocks. Collective."""
        setting, plan, world = self._setting, self._plan, self._setting.world
        own, meeting = self._connect()
        folder, self._run_id = agree_on_folder(
            world, name=plan.name, runs_dir=plan.runs_dir, run_dir=plan.run_dir, group=own
        )
        info = describe_rank(world, plan.precision, plan.hardware, own, self._peak)
        meta = describe_run(
            world, run_id=self._run_id, name=plan.name, strategy=plan.strategy, precision=plan.precision,
            work=plan.work, notes=plan.notes, config=plan.config,
        )  # fmt: skip
        streams = open_streams(world, folder, meta, info, own, setting.profile.keep_steps)
        opened = OpenSetting(
            **{field.name: getattr(setting, field.name) for field in fields(setting)},
            folder=folder, streams=streams, group=own, meet=partial(wait_for_ranks, meeting),
        )  # fmt: skip
        self._step_writer.connect(streams.own)
        if (place := open_place(streams.own.path)) is not None:
            self._recorder.timeline.move_place(place)
        captures = int(tool_captures(self._ranges, world.device))
        self._opened = opened
        if own is not None:  # a rank may hang from now on, also in what follows here
            self._lefts += watch_stalls(opened, self._recorder, self._step_writer, self._thread)
            if setting.phases:  # at level off there is nothing to compare
                readings = HostReadings(opened, own, meta, self._step_writer, training_waits=self._failed is None)
                meta = readings.read_first()
                self._gather_thread.together = readings.read_last
            if self._failed is None:  # a script's ranks have told their profilers already
                captures = find_largest(captures, group=own)
        if self._failed is None or own is None:
            self._captures = bool(captures)
        if world.rank == 0:
            self._open_rank_zero(opened, meta)
        self._exchange.group = own

    def _connect(self) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
        """A group for what is gathered, and one for what training waits for. None: there is one rank."""
        world = self._setting.world
        if not self._rendezvous.open(rank=world.rank, size=world.size):
            return None, None
        self._rendezvous.meet()
        own, meeting = self._rendezvous.connect("rows", "meeting")
        return own, meeting

    def _open_rank_zero(self, opened: OpenSetting, meta: RunMeta) -> None:
        from distprof.profiler.rank.rank_zero import RankZero  # no other rank needs it

        desk = self._talk.desk = open_desk(opened, self._is_window_planned)
        on_start = self._hooks.on_start
        begin = None if on_start is None else partial(on_start, meta, opened.streams.ranks, opened.folder)
        self._rank_zero = RankZero(
            opened, self._step_writer, meta=meta, on_start=begin, stop_recording=self._exchange.ask_to_stop, desk=desk
        )
        self._lefts.append(self._rank_zero.leave)
        self._gather_thread.deliver = self._rank_zero.deliver
        self._gather_thread.wants_pause = partial(wants_pause, opened.folder)

    def _end_on_signal(self) -> Callable[[], None]:
        """Has a signal end this rank's file. Returns what takes that back."""

        def tell() -> None:
            if self._opened is not None and self._setting.world.rank == 0:
                self._setting.say(f"distprof: stopped early; what was recorded: distprof report {self._opened.folder}")

        return end_on_signal(self._hooks.signals, self._step_writer, tell=tell)

    def _count_signals(self) -> list[Callable[[], None]]:
        """Has a signal turn recording off and on, if it is wanted. Returns what takes that back."""
        wanted = self._setting.profile.signal
        if wanted == "none":
            return []
        signals = SignalCount()
        if (why := signals.install(wanted)) is not None:
            text = f"{wanted} does not turn recording off and on: {why}"
            self._setting.warn(text)
            self._step_writer.note(text)
        self._exchange.count_signals = lambda: signals.count
        return [signals.close]

    def _make_gather_thread(self) -> GatherThread:
        setting, step_writer = self._setting, self._step_writer
        switch = RecordingSwitch(self._shadows, self._recorder, step_writer.note, signal=setting.profile.signal)
        switch.pause(self._exchange.paused)

        def lose(text: str) -> None:
            step_writer.note(text)
            setting.warn(text)

        return GatherThread(
            take=partial(step_writer.take, most=STEPS_AT_ONCE), end=partial(step_writer.end, "completed"),
            exchange=self._exchange, lost=lose, window_s=setting.profile.window_s, begin=self._join_aside,
            bystander=self._bystander,
            pause=switch.pause, stop_recording=partial(switch.stop, setting.limit_ratio), talk=self._talk,
        )  # fmt: skip


def _make_ranges(setting: Setting) -> NvtxRanges | None:
    world, wanted = setting.world, setting.profile.nvtx
    if wanted is False or (wanted == "auto" and not tool_listens()):
        return None
    return NvtxRanges(rank=world.rank, world_size=world.size, host=world.host, pid=os.getpid())
