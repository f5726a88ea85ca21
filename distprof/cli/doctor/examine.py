"""All checks, in display order."""

from __future__ import annotations

from distprof.cli.doctor import machine, settings, software
from distprof.cli.doctor.facts import Facts
from distprof.cli.doctor.finding import Check, MachineFinding

CHECKS: tuple[tuple[str, tuple[Check, ...]], ...] = (
    (
        "software",
        (
            software.check_python,
            software.check_torch,
            software.check_distributed,
            software.check_nccl,
            software.check_nsys,
            software.check_nvtx,
            software.check_wandb,
            software.check_accelerate,
        ),
    ),
    ("devices", (software.check_cuda, software.check_driver, machine.check_gpus, machine.check_peak)),
    (
        "settings",
        (
            settings.check_threads,
            settings.check_max_connections,
            settings.check_launch_blocking,
            settings.check_debug_output,
            settings.check_collective_timing,
            settings.check_transports,
        ),
    ),
    (
        "machine",
        (
            machine.check_clock,
            machine.check_time_of_day,
            machine.check_governor,
            machine.check_shared_memory,
            machine.check_open_files,
            machine.check_locked_memory,
            machine.check_core_files,
            machine.check_perf_events,
            machine.check_disk,
            machine.check_hostname,
        ),
    ),
)
"""The checks by subject."""


def examine(facts: Facts) -> dict[str, list[MachineFinding]]:
    """The findings of all checks, by group."""
    return {group: [check(facts) for check in checks] for group, checks in CHECKS}
