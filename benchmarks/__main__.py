"""`python -m benchmarks SUBJECT`, from a checkout: how often distprof is right, what it costs, and what others say."""

from __future__ import annotations

import importlib
import sys

from distprof.cli.parser import Parser, run_safely

SUBJECTS = {
    "verdicts": ("verdicts.simulated_jobs", "add_simulated", "run_verdicts"),
    "live": ("live.live_command", "add_live", "run_live"),
    "parallel": ("parallel.parallel_command", "add_parallel", "run_parallel"),
    "what-if": ("parallel.what_if_command", "add_what_if", "run_what_if"),
    "compare": ("compare_runs", "add_compare", "run_compare"),
    "links": ("links.links_command", "add_links", "run_links"),
    "after-delay": ("after_delay", "add_after_delay", "run_after_delay"),
    "device": ("device.device_command", "add_device", "run_device"),
    "cost": ("recording.cost_command", "add_cost", "run_cost"),
    "report": ("verdicts.simulated_jobs", "add_simulated", "run_report"),
    "traces": ("traces", "add_traces", "run_traces"),
    "tables": ("nsys_tables", "add_nsys_tables", "run_nsys_tables"),
    "fuzz": ("fuzz.command", "add_fuzz", "run_fuzz"),
    "modules": ("modules", "add_modules", "run_modules"),
    "long": ("long", "add_long", "run_long"),
    "soak": ("soak.command", "add_soak", "run_soak"),
    "attach": ("attach.command", "add_attach", "run_attach"),
    "attach-cost": ("attach_cost", "add_attach_cost", "run_attach_cost"),
    "attach-steps": ("attach_cost_steps", "add_attach_steps", "run_attach_steps"),
    "attach-pipeline": ("attach_pipeline", "add_attach_pipeline", "run_attach_pipeline"),
    "attach-samples": ("attach_samples", "add_attach_samples", "run_attach_samples"),
}
"""Module, the function that adds its options to the command line, and that which runs it. Only what is asked for is
imported: torch, which some need, would be part of the memory that `report` measures."""


def main(arguments: list[str]) -> int:
    """Runs one benchmark; returns its exit code."""
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", required=True)
    asked = [subject for subject in arguments[:1] if subject in SUBJECTS] or list(SUBJECTS)
    for module, add in dict.fromkeys(SUBJECTS[subject][:2] for subject in asked):
        getattr(importlib.import_module(f"benchmarks.{module}"), add)(subjects)
    options = parser.parse_args(arguments)
    module, _, run = SUBJECTS[options.subject]
    runner = getattr(importlib.import_module(f"benchmarks.{module}"), run)
    return run_safely(lambda: runner(options), options.subject, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
