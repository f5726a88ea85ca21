"""Builds one rank's part of a job: it records at once, and joins the other ranks' parts beside the training.

What a rank needs for recording is made on its training thread, without the other ranks. What the ranks agree on (a
process group, a folder, clocks) comes later, on the thread that then gathers their rows; steps wait in memory until
then. Only a program that calls this on all ranks together, as distprof's own trainer does, waits for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from msgspec import Struct, structs
from msgspec.structs import replace

from distprof.config.check import read_schedule
from distprof.config.redact import mask, redact, secret_values
from distprof.config.schema import ProfileConfig
from distprof.error_boundary import ErrorBoundary
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Peak, RankInfo, RunMeta
from distprof.profiler.job.agreement import Rendezvous
from distprof.profiler.job.host_readings import HostReadings
from distprof.profiler.job.rank_context import OpenRankContext, RankContext, WarnOnce
from distprof.profiler.job.run_files import JobPlan, agree_on_folder, describe_run, open_streams, publish_groups
from distprof.profiler.rank.pace import Pace
from distprof.profiler.rank.profiler import Profiler
from distprof.profiler.rank.recorded_steps import RecordingSwitch, ShadowPlan, wants_pause
from distprof.profiler.rank.suspected_hang import open_suspicion
from distprof.profiler.windows.rank_windows import LevelWindow, plan_level_window, plan_on_demand
from distprof.profiler.windows.window_coordinator import open_coordinator
from distprof.record.device.gpu_sampler import GpuSampler
from distprof.record.device.memory import read_allocations
from distprof.record.device.rank_info import describe_rank, measure_beside_others
from distprof.record.device.torch_device import TorchDevice
from distprof.record.gather.end_on_signal import end_on_signal
from distprof.record.gather.gather import Exchange, GatherThread
from distprof.record.gather.step_window import StepWindow
from distprof.record.gather.step_writer import StepWriter
from distprof.record.gather.thinning import Thinner
from distprof.record.gather.window_agreement import WindowTalk
from distprof.record.hosts.clock_sync import name_host
from distprof.record.hosts.scheduling import SchedulingWatch
from distprof.record.stalls.signals import SignalWatch
from distprof.record.stalls.stacks import watch_gil
from distprof.record.stalls.stall_watch import STALL_RATIO, Peers, StallWatch, plan_looks, read_timeout_s
from distprof.record.step.collector_watch import CollectorWatch
from distprof.record.step.compile_watch import CompileWatch
from distprof.record.step.core_wait_watch import CoreWaitWatch
from distprof.record.step.loader_watch import LoaderWatch
from distprof.record.step.recorder import Recorder
from distprof.record.step.step_record import STEPS_AT_ONCE
from distprof.record.windows.capture_range import plan_capture, tool_captures
from distprof.record.windows.nvtx_ranges import NvtxRanges, tool_listens
from distprof.storage.generations import find_root
from distprof.storage.last_state import open_place
from distprof.storage.run_folder import rank_path
from distprof.world import World, all_reduce_max, wait_for_ranks

if TYPE_CHECKING:
    from distprof.profiler.rank.rank_zero import RankZero
    from distprof.profiler.windows.module_window import PredictMemory

OnStart = Callable[[RunMeta, tuple[RankInfo, ...], Path], Callable[[FloatArray], None] | None]


class HostOptions(Struct, frozen=True, kw_only=True):
    """Options of a program that runs the training loop for others; a training script needs none of them."""

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
    live: bool = False
    """Whether rank 0 shows the job on its standard error while it runs."""


WINDOW_WAIT_S = 60.0
"""How long training waits for the job's folder where the window of its level begins."""
MOST_WINDOWS_APART = 4.0
"""So many of a profile's windows pass between two rounds at most, where as many ranks or more share a core."""
UNREAD_CORES = "how this rank gets a core is no longer read"
FEW_CONNECTIONS = (
    "single collectives are not timed on the device: with CUDA_DEVICE_MAX_CONNECTIONS=1 an event may hold up what "
    "another stream does (profile.collectives=8 times those of every eighth step all the same)"
)


def start_profiler(
    world: World,
    plan: JobPlan,
    profile: ProfileConfig,
    *,
    timeout_s: float = 600.0,
    print_line: Callable[[str], None] = print,
    host: HostOptions | None = None,
    rendezvous: Rendezvous | None = None,
    failed: Callable[[Exception], None] | None = None,
    bystander: tuple[int, int] | None = None,
) -> Job:
    """Makes this rank's profiler, and the run folder. May synchronise.

    Args:
        world: This process among the ranks.
        plan: Of the job; its secrets are redacted here.
        profile: What to record.
        timeout_s: How long the end of the job waits for the slowest rank.
        print_line: Says a line to the user.
        host: Options of a program around the training loop.
        rendezvous: How the ranks find each other. None: over the default process group, within ``timeout_s``.
        failed: Called on another thread if the ranks do not find each other, or have no folder; they meet beside the
            training then. None: the call is collective, and returns, or raises, when they have met.
        bystander: Python's and the kernel's identifier of the training thread of a rank that takes part without steps,
            for the others. None: it has steps, and this is its training thread.

    Raises:
        DistprofError: The ranks cannot connect; raised on every rank.
        UsageError: The folder cannot be made or written; raised on every rank.
    """
    host = host or HostOptions()
    secrets = secret_values(host.arguments)
    clean = partial(mask, secrets=secrets)
    config: Any = redact(plan.config, secrets)
    plan = replace(plan, name=clean(plan.name), config=config, notes=[*map(clean, plan.notes)])
    context = RankContext(
        world=world, profile=profile, timeout_s=timeout_s, print_line=print_line,
        warn=WarnOnce(lambda text: print_line(f"distprof: rank {world.rank}: {text}")),
    )  # fmt: skip
    job = Job(context, plan, host, clean, rendezvous or Rendezvous(limit_s=timeout_s), failed, bystander)
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
        context: RankContext,
        plan: JobPlan,
        host: HostOptions,
        clean: Callable[[str], str],
        rendezvous: Rendezvous,
        failed: Callable[[Exception], None] | None,
        bystander: tuple[int, int] | None,
    ) -> None:
        """Makes what needs no other rank; the arguments are those of `start_profiler`."""
        self._context, self._plan, self._host, self._clean = context, plan, host, clean
        self._rendezvous, self._failed = rendezvous, failed
        self._bystander = bystander is not None
        thread, self._thread = bystander or (threading.get_ident(), threading.get_native_id())
        self._ranks_per_core = 1.0
        if context.profile.record == "auto":
            self._ranks_per_core = SchedulingWatch().count_ranks_per_core(context.world.identity.local_world_size)
        self._opened: OpenRankContext | None = None
        self._run_id = ""
        self._peak: Peak | None = None
        self._rank_zero: RankZero | None = None
        self._lefts: list[Callable[[], None]] = []
        self._captures = False  # whether a tool does, here or on any rank that this one waits for
        self._ranges = _make_ranges(context)
        device = TorchDevice(context.world.device) if context.on_device else None
        self._recorder = Recorder(phases=context.phases, device=device, every=context.every, ranges=self._ranges)
        self._step_writer = StepWriter(
            recorder=self._recorder, writer=None, device=context.world.device, warn=context.warn, thread=thread,
            clean=clean,
        )  # fmt: skip
        if device is not None and context.phases and context.every == 0 and context.few_connections:
            self._step_writer.note(FEW_CONNECTIONS)
        self._shadows, self._talk = ShadowPlan(0), WindowTalk(limit_s=context.timeout_s)
        self._exchange = Exchange(None, Thinner(self._shadows.thin))
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
        return self._open_context.folder

    @property
    def ranks(self) -> tuple[RankInfo, ...]:
        """Every rank, in order, once `joined`."""
        return self._open_context.streams.ranks

    @property
    def _open_context(self) -> OpenRankContext:
        assert self._opened is not None
        return self._opened

    def start(self) -> None:
        """Joins the others, now or on the gather thread, and makes the profiler; see `start_profiler`."""
        if not self._bystander:
            self._lefts.append(self._end_on_signal())
            if self._context.phases:
                recorder, note = self._recorder, self._step_writer.note
                for watch in (
                    CollectorWatch(recorder), CompileWatch(recorder, note), LoaderWatch(recorder, note),
                    CoreWaitWatch(recorder),
                ):  # fmt: skip
                    watch.open()
                    self._lefts.append(watch.close)
                cores = SchedulingWatch(allocations=partial(read_allocations, self._context.world.device))
                boundary = ErrorBoundary(UNREAD_CORES, self._step_writer.note)
                self._step_writer.read_scheduling = lambda thread: boundary.run(cores.read, thread)
        if self._failed is None or self._context.world.size == 1:
            self._join()
        else:
            self._peak = measure_beside_others(self._context.world, self._plan.precision, self._plan.hardware)
            self._captures = tool_captures(self._ranges, self._context.world.device)
        if not self._bystander:
            self._profiler = self._make_profiler()
        self._gather_thread.start()

    def wait(self, limit_s: float) -> None:
        """Returns when the ranks have met, or could not, and after so many seconds at the latest."""
        self._gather_thread.begun.wait(limit_s)

    def end(self, ended: str, error: str, raised: BaseException | None, *, wait_s: float, forwards: int) -> None:
        """Ends a bystander's part, in which there were so many forwards; waits so long, s, for other ranks that end as
        well."""
        self._step_writer.forwards = forwards
        self._gather_thread.begun.wait(wait_s)
        self._step_writer.end(ended, error=error or None, raised=raised)
        self._gather_thread.finish(alone=raised is not None, timeout_s=wait_s)
        self.leave()

    def leave(self) -> None:
        """Undoes what was changed in this process."""
        if self._profiler is not None:
            self._profiler.abandon()
        while self._lefts:
            self._lefts.pop(0)()

    def _make_profiler(self) -> Profiler:
        context, profile = self._context, self._context.profile
        capture = plan_capture(
            self._ranges, context.world.device, self._meet if self._failed is None else lambda: None,
            listens=self._captures,
        )  # fmt: skip
        if context.phases and capture is None:  # a tool wants every step
            self._shadows.plan(profile.shadow_every, read_schedule(profile.record))
            if profile.record == "auto":
                pace = Pace(self._exchange.thinner, self._step_writer.note, self._ranks_per_core)
                self._step_writer.watch_steps = pace.add
        level_window = None
        if profile.level in ("kernels", "modules"):
            first_step = profile.kernel_from if profile.level == "kernels" else profile.module_from
            level_window = LevelWindow(self._plan_window, first_step)
        on_demand = plan_on_demand(
            lambda: (self._open_context, self._run_id), self._talk, self._recorder, self._step_writer
        )
        return Profiler(
            recorder=self._recorder, plan=self._shadows, step_writer=self._step_writer,
            gather_thread=self._gather_thread, ranges=self._ranges, capture=capture,
            module_depth=profile.nvtx_module_depth, on_device=context.on_device, phases=context.phases,
            timeout_s=context.timeout_s, clean=self._clean, level_window=level_window, on_demand=on_demand,
            left=self._lefts, done=self._finish,
        )  # fmt: skip

    def _meet(self) -> None:
        self._open_context.meet()

    def _finish(self) -> None:
        if self._rank_zero is not None:
            self._rank_zero.finish()

    def _plan_window(self) -> StepWindow | None:
        """The window of the level. Waits for the job's folder."""
        self._gather_thread.begun.wait(WINDOW_WAIT_S)
        if self._opened is None:
            return None
        return plan_level_window(
            self._opened, self._run_id, self._recorder, self._step_writer, self._host.predict_memory
        )

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
        context, plan, world = self._context, self._plan, self._context.world
        own, meeting = self._connect()
        folder, self._run_id, launch = agree_on_folder(world, plan, own)
        named = replace(world, host=name_host(world.host, group=own))
        info = describe_rank(named, plan.precision, plan.hardware, own, self._peak)
        meta = describe_run(world, plan, self._run_id, launch)
        streams = open_streams(world, folder, meta, info, own, context.profile.keep_steps)
        meta = publish_groups(world, folder, meta, streams.groups)
        opened = OpenRankContext(
            **structs.asdict(context), folder=folder, streams=streams, group=own, meet=partial(wait_for_ranks, meeting),
        )  # fmt: skip
        self._step_writer.connect(streams.own)
        if (place := open_place(streams.own.path)) is not None:
            self._recorder.timeline.move_place(place)
        captures = int(tool_captures(self._ranges, world.device))
        self._opened = opened
        if context.phases and not self._bystander and info.device_uuid is not None:
            self._sample_gpu(info.device_uuid)
        if own is not None:  # a rank may hang from now on, also in what follows here
            self._watch_stalls(opened)
            if context.phases:  # at level off there is nothing to compare
                readings = HostReadings(opened, own, meta, self._step_writer, training_waits=self._failed is None)
                meta = readings.read_first()
                self._gather_thread.together = readings.read_last
            if self._failed is None:  # a script's ranks have told their profilers already
                captures = all_reduce_max(captures, group=own)
        if self._failed is None or own is None:
            self._captures = bool(captures)
        if world.rank == 0:
            self._open_rank_zero(opened, meta)
        self._exchange.group = own

    def _connect(self) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
        """A group for gathering rows, and one that training waits in. None: there is one rank."""
        world = self._context.world
        if not self._rendezvous.open(rank=world.rank, size=world.size):
            return None, None
        self._rendezvous.meet()
        own, meeting = self._rendezvous.connect("rows", "meeting")
        return own, meeting

    def _sample_gpu(self, uuid: str) -> None:
        sampler = GpuSampler(uuid, window_s=self._context.profile.window_s, note=self._step_writer.note)
        self._step_writer.gpu, self._exchange.read_gpu = sampler, sampler.read_latest
        self._lefts.append(sampler.close)
        sampler.start()

    def _watch_stalls(self, opened: OpenRankContext) -> None:
        """Has this rank write where it stands if it waits for others for too long, or for one that has died."""
        rank, recorder, step_writer, streams = opened.world.rank, self._recorder, self._step_writer, opened.streams
        here = streams.ranks[rank].host
        others = [each.rank for each in streams.ranks if each.host == here and each.rank != rank]
        peers = Peers({other: rank_path(opened.folder, other) for other in others if other not in streams.apart})
        lock_watch = watch_gil(streams.own.path, self._thread)
        timeout_s = read_timeout_s() or opened.timeout_s
        longest_s = timeout_s * STALL_RATIO
        suspicion = open_suspicion(
            recorder, step_writer, peers, folder=opened.folder, look_s=plan_looks(longest_s)[1], longest_s=longest_s,
            print_line=opened.print_line if rank == 0 else None,
        )  # fmt: skip
        watch = StallWatch(
            position=lambda: (recorder.step, recorder.open), lost=opened.warn, died=peers.have_died,
            stalled=lambda stalled_s: step_writer.save_state(stalled_s, stopped=peers.list_stopped()),
            looked=lambda limit_s: None if lock_watch is None else lock_watch.wind(suspicion.shorten(limit_s)),
            timeout_s=timeout_s, suspect=suspicion.look,
        )  # fmt: skip
        watch.start()
        self._lefts += [watch.close, suspicion.close, *([] if lock_watch is None else [lock_watch.close])]

    def _open_rank_zero(self, opened: OpenRankContext, meta: RunMeta) -> None:
        from distprof.profiler.rank.rank_zero import RankZero  # no other rank needs it

        coordinator = self._talk.desk = open_coordinator(
            opened, lambda: self._profiler is not None and self._profiler.level_is_to_come
        )
        on_start = self._host.on_start
        begin = None if on_start is None else partial(on_start, meta, opened.streams.ranks, opened.folder)
        self._rank_zero = RankZero(
            opened, self._step_writer, meta=meta, on_start=begin, stop_recording=self._exchange.ask_to_stop,
            coordinator=coordinator, lose=self._lose, read_gpus=lambda: self._exchange.gpus, live=self._host.live,
        )  # fmt: skip
        self._lefts.append(self._rank_zero.leave)
        self._gather_thread.deliver = self._rank_zero.deliver
        self._gather_thread.wants_pause = partial(wants_pause, find_root(opened.folder))

    def _end_on_signal(self) -> Callable[[], None]:
        """Has a signal end this rank's file. Returns what takes that back."""

        def on_end() -> None:
            if self._opened is not None and self._context.world.rank == 0:
                self._context.print_line(
                    f"distprof: stopped early; what was recorded: distprof report {find_root(self._opened.folder)}"
                )

        return end_on_signal(self._host.signals, self._step_writer, on_end=on_end)

    def _make_gather_thread(self) -> GatherThread:
        context, step_writer = self._context, self._step_writer
        # A round holds up all ranks that share a core, one after the other, so there are fewer.
        apart = min(self._ranks_per_core, MOST_WINDOWS_APART)
        switch = RecordingSwitch(self._shadows, self._recorder, step_writer.note)
        return GatherThread(
            take=partial(step_writer.take, most=STEPS_AT_ONCE), end=partial(step_writer.end, "completed"),
            exchange=self._exchange, lost=self._lose, window_s=apart * context.profile.window_s, begin=self._join_aside,
            bystander=self._bystander,
            pause=switch.pause, stop_recording=partial(switch.stop, context.limit_ratio), talk=self._talk,
        )  # fmt: skip

    def _lose(self, text: str) -> None:
        """Says what is lost, here and in the report."""
        self._step_writer.note(text)
        self._context.warn(text)


def _make_ranges(context: RankContext) -> NvtxRanges | None:
    world, wanted = context.world, context.profile.nvtx
    if wanted is False or (wanted == "auto" and not tool_listens()):
        return None
    return NvtxRanges(rank=world.rank, world_size=world.size, host=world.host, pid=os.getpid())
