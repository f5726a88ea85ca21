"""One training job, from its configuration to its report."""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from msgspec import structs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from distprof.analyze.live.live_metric_means import ElapsedSteps
from distprof.config.compose import to_yaml
from distprof.config.schema import Config, ProfileConfig, WandbConfig
from distprof.errors import EXIT_OK, EXIT_PARTIAL, DistprofError, UsageError
from distprof.facts.arrays import FloatArray
from distprof.facts.run import COLUMN, Clock, RankInfo, RunMeta
from distprof.modules.names import list_modules
from distprof.profiler.end_report import write_report
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.rank.build_profiler import HostOptions, start_profiler
from distprof.profiler.session.session import Session
from distprof.record.stalls.signals import SignalWatch
from distprof.record.step.loader_watch import WorkerWatch
from distprof.render.terminal.screen import name_command, name_folder, render_screen
from distprof.render.units import format_time
from distprof.render.wandb.wandb_thread import WandbThread
from distprof.storage.generations import find_root
from distprof.storage.run_folder import add_note
from distprof.storage.whole_file import write_whole
from distprof.train.data import Batch, make_batches
from distprof.train.estimate import count_work, predict_job, require_memory
from distprof.train.inject import make_injection
from distprof.train.loop import train
from distprof.train.model import Transformer
from distprof.train.strategy import Strategy, build_strategy, make_mesh, require_torch, wait_for_everyone
from distprof.world import World

LINE_EVERY_S = 10.0


class StepProgress:
    """A progress bar on a terminal; elsewhere an occasional line."""

    def __init__(self, console: Console, total: int, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Shows progress towards ``total`` steps, warm-up included."""
        self._console, self._total, self._now_s = console, total, now_s
        self._done, self._said_s = 0, now_s()
        self._elapsed = ElapsedSteps()
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}")
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            self._task = self._bar.add_task("training", total=total, facts="")
            self._bar.start()

    def show(self, rows: FloatArray) -> None:
        """Adds completed steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        self._done += rows.shape[1]
        step_ns = float(np.mean(self._elapsed.add(rows)[Clock.HOST]))
        tokens_per_s = float(np.sum(rows[:, :, COLUMN["tokens"]])) / rows.shape[1] / step_ns * 1e9
        facts = f"{format_time(step_ns)}/step  {tokens_per_s:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, facts=facts)
        elif self._now_s() - self._said_s >= LINE_EVERY_S:
            self._said_s = self._now_s()
            self._console.print(f"step {self._done}/{self._total}  {facts}", highlight=False)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class JobReporter:
    """Shows the job on rank 0, on the terminal and in W&B, and closes both at the end."""

    def __init__(self, config: Config, console: Console) -> None:
        self._config, self._console = config, console
        self._progress: StepProgress | None = None
        self._wandb: WandbThread | None = None

    def start(self, meta: RunMeta, ranks: tuple[RankInfo, ...], folder: Path) -> Callable[[FloatArray], None]:
        """Opens W&B and the progress display; returns the function that receives whole steps."""
        try:
            write_whole(folder / "config.yaml", to_yaml(meta.config))
        except OSError as error:
            self.print_line(f"distprof: config.yaml could not be written ({error.strerror}); run.json holds the same")
        self.print_line(f"distprof: {meta.world_size} rank(s), {meta.strategy}, {meta.backend}: {folder}")
        if isinstance(self._config.logger, WandbConfig):
            logger = self._config.logger
            self._wandb = WandbThread(meta=meta, config=logger, folder=folder, print_line=self.print_line, ranks=ranks)
            self._wandb.start()
        total = self._config.train.warmup_steps + self._config.train.steps + self._config.profile.window_steps
        self._progress = StepProgress(self._console, total)
        return self.show

    def show(self, rows: FloatArray) -> None:
        """Takes new whole steps, ``[num_ranks, num_new_steps, ROW_WIDTH]``."""
        if self._wandb is not None:
            self._wandb.enqueue(rows)
        if self._progress is not None:
            self._progress.show(rows)

    def print_line(self, text: str) -> None:
        """One line for the user."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """Removes the progress display."""
        if self._progress is not None:
            self._progress.close()

    def report(self, folder: Path, completed_rows: Mapping[int, int] | None = None) -> int:
        """Reads the run back, reports it and closes W&B, after training has succeeded. Returns the exit code.

        Args:
            folder: The run folder.
            completed_rows: Steps by rank, if all ranks completed: see `distprof.storage.run_folder.complete_ends`.

        Raises:
            DataError: The run folder is gone or damaged.
        """
        run, report, written = write_report(folder, completed_rows)
        missed = self._wandb.finish(report, run) if self._wandb is not None else None
        if missed is not None:
            with contextlib.suppress(OSError, DistprofError):  # the user has been told; the folder may be full or gone
                add_note(folder, missed)
                run, report, written = write_report(folder, completed_rows)
        if written.problem is not None:
            self.print_line(f"distprof: {written.problem}")
        root = find_root(folder)
        place = name_folder(root) if written.names else None
        render_screen(report, self._console, names=written.names, folder=place, again=name_command(root))
        return EXIT_OK if report.coverage.complete and written.problem is None else EXIT_PARTIAL


def run_job(
    config: Config,
    world: World,
    *,
    raw: Mapping[str, object],
    notes: Sequence[str],
    arguments: Sequence[str],
    console: Console,
    signals: SignalWatch | None = None,
) -> int:
    """Trains, and reports on rank 0. Collective. Returns the exit code of a completed job.

    Args:
        config: What to run.
        world: This process among the ranks.
        raw: The configuration as composed, for the run folder.
        notes: Further notes for the report.
        arguments: The command line, searched for secrets to mask.
        console: Where rank 0 prints.
        signals: What watches for signals.

    Raises:
        UsageError: The run folder cannot be made, this torch cannot shard on a CPU, or the model has no module of that
            name, on every rank; or the model does not fit, on rank 0.
        DataError: Rank 0 can no longer read the run folder.
    """
    require_torch(config, world.device)
    _require_module(config)
    reporter = JobReporter(config, console)
    if signals is not None:
        signals.add(lambda name: reporter.stop())
    cut = config.parallel.model_ranks > 1
    # All ranks of a replica read the same batches.
    own, pinned = world.rank // config.parallel.model_ranks, world.device.type == "cuda"
    with contextlib.closing(WorkerWatch(reporter.print_line)) as workers:  # they are forked before the profiler begins
        workers.open()
        batches = make_batches(config, rank=own, pinned=pinned)
    work = count_work(config.train) if world.rank == 0 else None
    if work is not None and world.device.type == "cpu":
        require_memory(config, work.parameters, num_ranks=world.identity.local_world_size)
    start = partial(
        start_profiler, world, JobPlan(
            name=config.name, strategy=_describe_strategy(config, world.size), precision=config.train.precision,
            config=raw, hardware=config.hardware, runs_dir=config.runs_dir, run_dir=config.run_dir,
            work=None if cut else work, notes=[*notes, *_list_unknown(config)],
        ),
        _place_window(config), timeout_s=config.group_timeout_s, print_line=reporter.print_line, host=HostOptions(
            arguments=arguments, on_start=reporter.start, signals=signals, live=config.live,
            predict_memory=None if cut else partial(predict_job, config, num_ranks=world.size, rank=world.rank),
        ),
    )  # fmt: skip
    mesh = make_mesh(config, world)  # before the profiler begins, which asks torch who is who
    session = Session(start, print_line=reporter.print_line)
    session.begin()
    folder = session.folder
    assert folder is not None
    try:
        _train(config, world, mesh, session, batches)
        session.close()
    except BaseException as error:
        session.close(error)
        if signals is not None:
            signals.wait_if_ending()
        if world.rank == 0:
            reporter.stop()
            reporter.print_line(f"distprof: stopped early; what was recorded: distprof report {find_root(folder)}")
        raise
    reporter.stop()
    return reporter.report(folder, session.completed_rows) if world.rank == 0 else EXIT_OK


def _train(
    config: Config, world: World, mesh: DeviceMesh | None, session: Session, batches: Iterator[Batch]
) -> None:  # fmt: skip
    strategy = _build(config, world, mesh)
    session.watch(strategy.model)
    wait_for_everyone()
    train(
        config.train, strategy=strategy, batches=batches, profiler=session,
        inject=make_injection(
            config.inject, world.rank, _look_up_module(config, strategy.model), device=world.device
        ),
        device=world.device, window_steps=config.profile.window_steps,
    )  # fmt: skip


def _build(config: Config, world: World, mesh: DeviceMesh | None) -> Strategy:
    if mesh is None or config.parallel.model_ranks == 1:
        return build_strategy(config, world, mesh)
    from distprof.train.parallel import build_parallel  # imports what no other job needs

    return build_parallel(config, world, mesh)


def _require_module(config: Config) -> None:
    wanted = config.inject.module
    if wanted is None:
        return
    with torch.device("meta"):
        model = Transformer(config.train.model)
    if _look_up_module(config, model) is None or not wanted:
        names = [item.name for item in list_modules(model)]
        close = difflib.get_close_matches(wanted, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names[1:4])}, ..."
        raise UsageError(f"inject.module={wanted}: the model has no module of this name; {hint}")


def _look_up_module(config: Config, model: nn.Module) -> nn.Module | None:
    return next((item.module for item in list_modules(model) if item.name == config.inject.module), None)


def _place_window(config: Config) -> ProfileConfig:
    """Puts the level's window after the measured steps, unless configured otherwise."""
    after, profile = config.train.warmup_steps + config.train.steps, config.profile
    return structs.replace(
        profile, kernel_from=after if profile.kernel_from is None else profile.kernel_from,
        module_from=after if profile.module_from is None else profile.module_from,
    )  # fmt: skip


def _list_unknown(config: Config) -> list[str]:
    """What is not known of a model that is cut."""
    parallel = config.parallel
    unknown = ["FLOPs per rank and MFU are n/a: ranks share the model (parallel)"] if parallel.model_ranks > 1 else []
    if parallel.pp > 1:
        unknown.append("parallel.pp: waits for other stages count as other; only the last stage knows the loss")
    return unknown


def _describe_strategy(config: Config, num_ranks: int) -> str:
    parallel = config.parallel
    if parallel.model_ranks > 1:
        sizes = {"dp": num_ranks // parallel.model_ranks, "pp": parallel.pp, "tp": parallel.tp}
        product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        return f"{config.strategy.name}({product})" if sizes["dp"] > 1 else product
    wrap = getattr(config.strategy, "wrap", None)
    replicas = getattr(config.strategy, "replicas", 1)
    if replicas > 1:
        return f"{config.strategy.name}({replicas} replicas)"
    return f"{config.strategy.name}({wrap})" if wrap else config.strategy.name
