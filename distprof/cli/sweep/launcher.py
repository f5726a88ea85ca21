"""Hydra's launcher for sweeps: each job under a torchrun of its own, one after the other, also after one has failed.

distprof composes the jobs and makes this launcher itself: Hydra would instantiate only launchers of a package named
hydra_plugins, and import whatever else bears that name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from msgspec import structs
from omegaconf import DictConfig

from distprof.cli.sweep.process import JobProcess, judge
from distprof.config.compose import quote_text
from distprof.errors import DistprofError
from distprof.facts.sweep import Sweep, SweepJob
from distprof.storage.sweep_folder import choose_job_folder, write_sweep

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
CAPTURE = (sys.executable, "-m", "distprof.cli.capture", "--no-report", "--")
"""What `launch/nsys.sh` runs: torchrun under Nsight Systems."""
SIGNAL_GRACE_S = 3.0
"""Less than a process that got a signal has before it exits, see `distprof.record.stalls.signals`."""


class TorchrunLauncher(Launcher):
    """Runs the jobs of a sweep, and keeps its ``sweep.json`` up to date."""

    def __init__(
        self,
        *,
        sweep: Sweep,
        folder: Path,
        timeouts_s: Sequence[float | None],
        under_nsys: Sequence[bool],
        flags: Sequence[str],
        secrets: Sequence[str],
        print_line: Callable[[str], None],
        torchrun: Sequence[str] = TORCHRUN,
        capture: Sequence[str] = CAPTURE,
    ) -> None:
        """Takes a sweep whose jobs `launch` will run.

        Args:
            sweep: Every job; those that have completed or are refused are left as they are.
            folder: The sweep's folder.
            timeouts_s: The time limit of each job. None: there is none.
            under_nsys: Whether each job is captured.
            flags: Flags that say where configuration files are, for every job.
            secrets: Values to mask in what is written.
            print_line: Shows a line.
            torchrun: The command that starts ranks.
            capture: The command that does so under Nsight Systems.
        """
        self.sweep = sweep
        self._folder, self._timeouts_s, self._flags = folder, timeouts_s, tuple(flags)
        self._secrets, self._print_line, self._torchrun = secrets, print_line, tuple(torchrun)
        self._under_nsys, self._capture = tuple(under_nsys), tuple(capture)
        self._process, self._running = JobProcess(), 0
        self.interrupted = False
        """Whether a signal has ended the sweep."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's interface; jobs are composed and started as commands, which need none of these."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        """Runs jobs in order; those that fail do not end the sweep.

        Args:
            job_overrides: Each job's overrides, secrets included.
            initial_job_idx: The position of the first in the sweep.
        """
        returns = []
        for index, overrides in enumerate(job_overrides, start=initial_job_idx):
            job = self.sweep.jobs[index]
            if self.interrupted:
                break
            if job.status not in ("completed", "refused"):
                job = self._run(job, overrides, self._timeouts_s[index])
            status = JobStatus.COMPLETED if job.status == "completed" else JobStatus.FAILED
            result = JobReturn(overrides=list(overrides), working_dir=job.folder, task_name="distprof", status=status)
            result.return_value = job if status == JobStatus.COMPLETED else DistprofError(job.reason or job.status)
            returns.append(result)
        return returns

    def interrupt(self, name: str) -> None:
        """Ends the job that is running, and says so in ``sweep.json``. May run on another thread.

        Args:
            name: The name of the signal.
        """
        self.interrupted = True
        self._process.stop(SIGNAL_GRACE_S)
        if self._running:
            job = self.sweep.jobs[self._running - 1]
            self._keep(structs.replace(job, status="interrupted", reason=f"{name} ended the sweep"))
        self._print_line(f"interrupted; the rest: the same command with sweep.resume={self._folder}")

    def _run(self, job: SweepJob, overrides: Sequence[str], timeout_s: float | None) -> SweepJob:
        name = choose_job_folder(self._folder, job.number)
        job = structs.replace(
            job, status="running", reason=None, exit_code=None, duration_s=None, folder=name
        )  # fmt: skip
        where = f"job {job.number} of {len(self.sweep.jobs)}"
        self._print_line(f"{where}: {describe_settings(job)}")
        self._running = job.number
        self._keep(job)
        log = self._folder / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        command = self._make_command(job, overrides, self._folder / name)
        ended = self._process.run(command, log=log, environment=self._make_environment(job), timeout_s=timeout_s)
        if self.interrupted:
            return self.sweep.jobs[job.number - 1]
        status, reason = judge(ended, log, timeout_s, self._secrets)
        job = structs.replace(
            job, status=status, reason=reason, exit_code=ended.exit_code, duration_s=round(ended.duration_s, 3)
        )
        self._running = 0
        self._keep(job)
        self._print_line(
            f"{where}: {status} after {ended.duration_s:.0f} s" + (f": {reason}; see {log}" if reason else "")
        )
        return job

    def _make_command(self, job: SweepJob, overrides: Sequence[str], run_dir: Path) -> list[str]:
        """A new process group meets at a port of its own, which the system chooses."""
        given = [*self._flags, *overrides, f"run_dir={quote_text(str(run_dir))}"]
        if self._under_nsys[job.number - 1]:
            return [*self._capture, *given, f"runs_dir={quote_text(f'{run_dir}-nsys')}"]
        start = [*self._torchrun, "--standalone", f"--nproc-per-node={job.ranks}", "-m", "distprof"]
        return [*start, *given]

    def _make_environment(self, job: SweepJob) -> dict[str, str]:
        """One thread per rank, which is torchrun's choice for several ranks, or one rank would have an advantage; and
        W&B shows the jobs as a group, each under its own name. A capture reads the number of ranks here."""
        usual = {"OMP_NUM_THREADS": "1", "WANDB_RUN_GROUP": self.sweep.name, **os.environ}
        called = (os.environ.get("WANDB_NAME", ""), f"{job.number:03d}", describe_settings(job))
        usual["WANDB_NAME"] = " ".join(filter(None, called))
        return usual | ({"NPROC": f"{job.ranks}", "NNODES": "1"} if self._under_nsys[job.number - 1] else {})

    def _keep(self, job: SweepJob) -> None:
        jobs = list(self.sweep.jobs)
        jobs[job.number - 1] = job
        self.sweep = structs.replace(self.sweep, jobs=tuple(jobs))
        write_sweep(self._folder, self.sweep)


def describe_settings(job: SweepJob) -> str:
    """What is particular to a job: ``train.mode=forward train.precision=bf16, 2 ranks``."""
    settings = [f"{key}={value}" for key, value in job.settings.items() if key != "sweep.ranks"]
    ranks = "1 rank" if job.ranks == 1 else f"{job.ranks} ranks"
    return ", ".join(filter(None, [" ".join(settings), ranks]))
