"""`distprof.start`: a session for any training, which finds out by itself what it needs to know."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import torch.distributed as dist
from msgspec import structs
from torch import nn

from distprof.config.check import check_profile
from distprof.config.choice import read_choice
from distprof.config.redact import mask, redact, secret_values
from distprof.config.schema import HardwareConfig, ProfileConfig, decode
from distprof.config.suggest import suggest
from distprof.error_boundary import ErrorBoundary
from distprof.errors import DistprofError, UsageError, describe_error
from distprof.facts.plain import make_plain
from distprof.facts.run import Work
from distprof.profiler.job import exit_guard
from distprof.profiler.job.agreement import STAND_BY_S, NotAllHere, Rendezvous
from distprof.profiler.job.early_watch import EarlyWatch
from distprof.profiler.job.model_inspection import (
    PrecisionWatch,
    describe_strategy,
    describe_wrapping,
    infer_device,
    name_strategies,
)
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.rank.build_profiler import HostOptions, Job, start_profiler
from distprof.profiler.rank.profiler import name_exit
from distprof.profiler.session.guarded_calls import print_to_stderr
from distprof.profiler.session.session import Session
from distprof.record.device.peak import DTYPES
from distprof.record.gather.end_on_signal import delay_signals
from distprof.record.gather.step_window import EARLIEST_STEP
from distprof.record.step.loader_watch import WorkerWatch
from distprof.storage.generations import find_root
from distprof.storage.rank_stream import append_end
from distprof.storage.run_folder import rank_path
from distprof.world import World, is_launched, read_identity, read_world

CLOSE_WAIT_S = 60.0
"""How long a script's session waits for the other ranks to close theirs. What it knows is in its file by then."""
JOIN_WAIT_S = 2.0
"""How long a script that leaves its process groups, or ends without a step, waits for the ranks to find each other."""
_open: list[OwnSession] = []
os.register_at_fork(after_in_child=_open.clear)  # a child has none of its parent's


def start(
    name: str = "training",
    *,
    runs_dir: str = "runs",
    run_dir: str | None = None,
    warmup_steps: int = EARLIEST_STEP,
    find: bool = True,
    strategy: str | None = None,
    precision: str | None = None,
    work: Work | None = None,
    config: object = None,
    live: bool = False,
    **profile: Any,
) -> Session:
    """Records the steps of this process, and of the other ranks of its job: the one call before a training loop.

    Each rank records from its own first step on. The ranks find each other beside the training, over the process group
    that exists then. The session ends with its ``with`` block, `Session.close`, or the end of the process; rank 0 then
    writes the report and says where it lies.

    Args:
        name: Names the run folder.
        runs_dir: Where run folders are made.
        run_dir: One exact folder instead.
        warmup_steps: The first steps are left out of statistics: they create buffers, streams and DDP's buckets.
        find: Whether phases are found that are not marked.
        strategy: How the model is parallelised. None: as the watched models tell.
        precision: Number format of the matrix products: fp32, tf32, bf16 or fp16. None: as the watched models tell.
        work: Arithmetic of a micro-step. None: no FLOP/s and no MFU.
        config: Settings of the job, such as argparse's, kept in the run folder, secrets redacted.
        live: Whether rank 0 shows the job on its standard error while it runs, as ``distprof watch`` does.
        **profile: The keys of ``conf/profile/*.yaml``, with the values there as defaults: ``level="off"`` takes those
            of ``off.yaml``. And ``peak``, as in ``conf/hardware/auto.yaml``.

    Raises:
        UsageError: An option is unknown, or cannot have this value.
    """
    hardware = _read_hardware(profile.pop("peak", None), work)
    profile_config = _read_profile(profile)
    if not str(name).strip():
        raise UsageError("name: empty; give the run a name")
    if precision is not None and precision not in DTYPES:
        raise UsageError(f"precision={precision!r}: expected one of {', '.join(DTYPES)}, or None")
    if type(warmup_steps) is not int or warmup_steps < 0:
        raise UsageError(f"warmup_steps={warmup_steps!r}: must be a whole number, 0 or more")
    for key, value, kinds, expected in (
        ("runs_dir", runs_dir, (str, os.PathLike), "a path"),
        ("run_dir", run_dir, (str, os.PathLike, NoneType), "a path, or None"),
        ("find", find, (bool,), "True or False"),
        ("live", live, (bool,), "True or False"),
        ("strategy", strategy, (str, NoneType), "a name, or None"),
        ("work", work, (Work, NoneType), "a distprof.facts.run.Work, or None"),
    ):
        if not isinstance(value, kinds):
            raise UsageError(f"{key}={value!r}: expected {expected}")
    for other in tuple(_open):
        if not other.in_doubt:
            other.warn_once(f"distprof.start({name!r}): {other.name!r} is still open, and ends here")
        other.close()
    plan = JobPlan(
        name=str(name), strategy=strategy, precision=precision, work=work, hardware=hardware,
        runs_dir=str(Path(runs_dir).absolute()),  # the script may go to another folder
        run_dir=None if run_dir is None else str(Path(run_dir).absolute()),
        config={**_list_settings(config), "profile": make_plain(profile_config), "script": sys.argv[0]},
    )  # fmt: skip
    session = OwnSession(plan, profile_config, warmup_steps=warmup_steps, find=find, live=live)
    _open.append(session)
    return session


def _read_profile(given: Mapping[str, object]) -> ProfileConfig:
    own = [name for name, item in inspect.signature(start).parameters.items() if item.kind is not item.VAR_KEYWORD]
    known = [*own, "peak", *ProfileConfig.__struct_fields__]
    for key in given:
        if key not in known:
            raise UsageError(f"{key}: unknown key{suggest(key, known) or '; known keys: ' + ', '.join(known)}")
    level = given.get("level")
    defaults = read_choice("profile", level if level in ("off", "kernels", "modules") else "phases")
    plan = decode(ProfileConfig, {**defaults, **given})
    check_profile(plan, where="")
    return plan


def _list_settings(config: object) -> dict[str, object]:
    """Settings as the run folder can hold them: anything but numbers, texts, lists and groups becomes a text."""
    given = config if config is None or isinstance(config, Mapping) else getattr(config, "__dict__", None)
    if config is not None and given is None:
        raise UsageError(f"config={type(config).__name__}: expected a group of keys")
    plain = json.loads(json.dumps(dict(given or {}), default=str, skipkeys=True), parse_constant=str)
    assert isinstance(plain, dict)
    return plain


def _read_hardware(peak: object, work: Work | None) -> HardwareConfig:
    """A peak is measured only where something is compared with it."""
    if peak is None and work is None:
        return HardwareConfig(peak="none")
    return decode(HardwareConfig, read_choice("hardware", "auto") | ({} if peak is None else {"peak": peak}))


class OwnSession(Session):
    """A session that finds its job by itself, and reports it at the end."""

    def __init__(self, plan: JobPlan, profile: ProfileConfig, *, warmup_steps: int, find: bool, live: bool) -> None:
        """``plan`` has the strategy and the precision that the user has given, if any."""
        self.name, self._plan, self._profile = plan.name, plan, profile
        self._host = HostOptions(arguments=sys.argv[1:], live=live)
        self._precisions = PrecisionWatch()
        self._parallel: dict[str, None] = {}  # the names of the models' strategies
        self._world: World | None = None
        self.lost = False  # whether the ranks could not start the job; another thread sets it
        self._rendezvous, self._starting = Rendezvous(), threading.Lock()
        self._bystander: Job | None = None  # this process' part while it has had no step
        self._threads = threading.get_ident(), threading.get_native_id()
        self._process_ends = False
        self._speaks = False  # whether this process tells the user how the job ended
        super().__init__(
            self._start_job, end=self._end_job, print_line=print_to_stderr, warmup_steps=warmup_steps, find=find
        )
        self._workers = WorkerWatch(self.note)  # a script may make its loader's iterator before its first step
        if profile.level != "off":
            self._workers.open()
        self._exit_guard = exit_guard.ExitGuard(self.end_process, self._leave_groups)
        secrets = secret_values(sys.argv[1:])
        config: Any = redact(plan.config, secrets)
        early_plan = JobPlan(
            name=mask(plan.name, secrets), config=config, runs_dir=plan.runs_dir, run_dir=plan.run_dir,
            number=plan.number,
        )  # fmt: skip
        self._early = EarlyWatch(
            plan=early_plan, print_line=print_to_stderr, rendezvous=self._rendezvous, stand_by=self._stand_by,
            find_recorder=lambda: None if self.job is None else self.job.recorder,
            is_over=lambda: any(job is not None and job.joined for job in (self.job, self._bystander)),
        )  # fmt: skip
        self._launched = is_launched()
        if self._launched:
            self._early.start()

    def watch(self, model: object) -> None:
        """As `Recording.watch`."""
        known = self.models
        super().watch(model)
        if any(model is one for one in known) or not any(model is one for one in self.models):
            return
        self._guard("what the models are", self._look_at_models)
        if self._plan.precision is None and not self.finds_steps:
            self._guard("the precision", self._precisions.watch, model)

    def _look_at_models(self) -> None:
        """What they are, as long as the script holds them."""
        self._parallel.update(name_strategies(self.models))
        self._precisions.learn(self.models)

    def see_call(self, model: nn.Module) -> None:
        """As `Session.see_call`; a hook in a model may be copied or compiled with it."""
        if self.finds_steps:
            self._precisions.look(infer_device([model]).type)

    def close_quietly(self, error: BaseException | None = None, *, wait_s: float | None = None) -> None:
        """As `Session.close_quietly`; the other ranks may wait for this one before they close theirs."""
        super().close_quietly(error, wait_s=CLOSE_WAIT_S if wait_s is None else wait_s)

    def _leave_groups(self) -> None:
        """The script leaves its process groups; whether it makes the same ones again shows at the next step.

        Ranks that make their groups again under the same names must do so within milliseconds of each other: one that
        is late reads where the others were before. So nobody waits here, unless the store goes with the groups.
        """
        wait_s = 0.0 if self._rendezvous.outlives_groups else JOIN_WAIT_S
        self._join_others(wait_s)
        if self.job is not None:
            self.job.wait(wait_s)
            self.job.rest(True)
            self.in_doubt = True
        self._early.close()
        if self.job is None or self.job.joined:
            self._rendezvous.close()

    def _look_again(self) -> None:
        if self.lost or self.job is None or self._world is None:
            super()._look_again()
        elif self.job.over:
            self.warn_once("another rank has ended the job: nothing more is recorded")
            self.close_quietly()
        elif dist.is_initialized():
            self.in_doubt = False
            self.job.rest(False)
            if (dist.get_rank(), dist.get_world_size()) == (self._world.rank, self._world.size):
                self.restart_warmup()
                self.job.profiler.recorder.between.forget()
            else:
                self.warn_once("the script has made process groups of other ranks: nothing more is recorded")
                self.close_quietly()

    def _start_job(self) -> Job | None:
        world = read_world(infer_device(self.models))
        self._early.drop()
        with self._starting:
            if self._bystander is not None:
                self.warn_once(
                    f"the first step of rank {world.rank} came too late to be recorded: the other ranks had theirs "
                    f"{STAND_BY_S:g} s or more before", everywhere=True,
                )  # fmt: skip
                return None
            return self._begin_job(world)

    def _begin_job(self, world: World) -> Job:
        plan = self._plan
        if (alone := _read_lonely_rank(world)) is not None:
            own_dir = plan.run_dir and f"{plan.run_dir}-rank{alone}"
            plan = structs.replace(plan, name=f"{plan.name}-rank{alone}", run_dir=own_dir)
            self.warn_once(
                "torch.distributed is not initialised at the first step: each process is reported alone, in a run "
                "folder of its own"
            )
        self._world, self._speaks = world, world.rank == 0 and not alone
        strategy, precision = self._describe(world.size)
        config = describe_wrapping(self.models) | {**plan.config}
        return start_profiler(
            world, structs.replace(plan, strategy=strategy, precision=precision, config=config), self._profile,
            print_line=print_to_stderr, host=self._host, rendezvous=self._rendezvous,
            failed=self._hear_failure,
        )  # fmt: skip

    def _hear_failure(self, error: Exception) -> None:
        """The ranks could not start the job; called on another thread."""
        said = str(error) if isinstance(error, DistprofError) else describe_error(error)  # the former on every rank
        if isinstance(error, NotAllHere):
            said += "; " + ("waited for them in vain" if self.finds_steps else "call distprof.start() on every rank")
            if self.finds_steps and not self._launched:
                said += "; no launcher started this process, and ranks that it starts are not watched: use torchrun"
        everywhere = isinstance(error, NotAllHere) or not isinstance(error, DistprofError)
        self.warn_once(f"nothing is recorded: {said}", everywhere=everywhere)
        self.lost = self.in_doubt = True

    def _join_others(self, wait_s: float) -> None:
        """Has the ranks that have had a step find this one, which has had none, before it is gone."""
        if self.job is None and self._early.world is not None and self._rendezvous.has_begun():
            self._stand_by(self._early.world)
            if self._bystander is not None:
                self._bystander.wait(wait_s)

    def _stand_by(self, world: World) -> None:
        """Takes part without a step for the sake of the ranks that have steps; called on another thread."""
        with self._starting:
            if self._tried or self._bystander is not None:
                return
            plan = self._plan
            bare = JobPlan(
                name=plan.name, config=plan.config, runs_dir=plan.runs_dir, run_dir=plan.run_dir, number=plan.number
            )
            self._world = world
            self._bystander = start_profiler(
                world, bare, self._profile, print_line=print_to_stderr, host=self._host,
                rendezvous=self._rendezvous, failed=lambda error: None, bystander=self._threads,
            )  # fmt: skip

    def end_process(self, error: BaseException | None) -> None:
        """As `Session.end_process`; if the session is closed already, its record gets how the process ended."""
        if not self.closed:
            self._process_ends = True
            self.close_quietly(error, wait_s=exit_guard.EXIT_WAIT_S)
            return
        if self.job is None or not self.job.joined or self._world is None or error is None:
            return
        ended, said = name_exit(error)
        if ended == "failed":
            append_end(rank_path(self.job.folder, self._world.rank), ended, error=self._clean(said)[:500])

    def _clean(self, text: str) -> str:
        return mask(text, secrets=secret_values(sys.argv[1:]))

    def _describe(self, num_ranks: int) -> tuple[str | None, str | None]:
        self._look_at_models()
        strategy = self._plan.strategy or describe_strategy(self._parallel, num_ranks=num_ranks)
        return strategy, self._plan.precision or self._precisions.describe()

    def _end_job(self, error: BaseException | None) -> None:
        self._exit_guard.remove()
        self._precisions.close()
        self._workers.close()
        if self in _open:
            _open.remove(self)
        if not self._tried or (self.job is not None and not self._number):
            advice = "use profiler.steps(loader) or profiler.step() in the training loop"
            if error is not None and name_exit(error)[0] == "failed":
                advice = "the script failed before its first one"
            elif self.finds_steps:
                advice = "; ".join(["none was found in the script", *self.sentences])
            self.warn_once(f"no step was recorded: {advice}")
        if self.job is None or not self.job.joined:
            if self.job is not None and not self.lost:
                self.warn_once("nothing is recorded: the job ended before its ranks had found each other")
            self._end_early(error)
            return
        if self._world is None or self._world.rank != 0:
            return
        if 0 < self._number <= self._warmup_until:
            option = "warmup_steps=0" if self.finds_steps else "distprof.start(warmup_steps=0)"
            self.warn_once(f"all {self._number} step(s) were warm-up: {option} measures them")
        strategy, precision = self._describe(self._world.size)
        self._report(self.job.folder, error, strategy=strategy, precision=precision)

    def _end_early(self, error: BaseException | None) -> None:
        """The end of a process that has recorded no step: only a wait before it, if there was one."""
        ended, said = ("completed", "") if error is None else name_exit(error)
        self._join_others(JOIN_WAIT_S)
        folder = self._early.end(ended, self._clean(said), error)
        if self._bystander is not None:
            self._bystander.end(ended, self._clean(said)[:500], error, wait_s=JOIN_WAIT_S, forwards=self.forwards)
            if self._bystander.joined and self._world is not None and self._world.rank == 0:
                folder = self._bystander.folder
        if folder is not None:
            self._speaks = True
            self._report(folder, error)

    def _report(
        self, folder: Path, error: BaseException | None, *, strategy: str | None = None, precision: str | None = None
    ) -> None:
        ends = self._process_ends
        held = delay_signals(process_ends=ends) if ends or error is not None else contextlib.nullcontext()
        boundary = ErrorBoundary(
            "distprof: the report was not written",
            lambda line: print_to_stderr(f"{line}; try: distprof report {find_root(folder)}"),
        )
        with boundary, held:
            from distprof.profiler.end_report import report_job  # a third of what a job would load at its start

            lines = report_job(
                folder, self.completed_rows, strategy=strategy, precision=precision, early=error is not None
            )
            for line in lines if self._speaks else []:
                print_to_stderr(f"distprof: {line}")


def _read_lonely_rank(world: World) -> int | None:
    """The rank that a launcher has given to a process whose script has no process group. None: it is not alone so."""
    if world.size > 1 or dist.is_initialized():
        return None
    try:
        identity = read_identity()
    except UsageError:
        return None
    return identity.rank if identity.world_size > 1 else None
