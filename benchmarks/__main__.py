"""`python -m benchmarks SUBJECT`, from a checkout: how often distprof is right, what it costs, and what others say."""

from __future__ import annotations

import sys

from benchmarks.after_delay import add_after_delay, run_after_delay
from benchmarks.attach.command import add_attach, run_attach
from benchmarks.attach_cost import add_attach_cost, run_attach_cost
from benchmarks.attach_cost_steps import add_attach_steps, run_attach_steps
from benchmarks.attach_pipeline import add_attach_pipeline, run_attach_pipeline
from benchmarks.attach_samples import add_attach_samples, run_attach_samples
from benchmarks.compare_runs import add_compare, run_compare
from benchmarks.device.device_command import add_device, run_device
from benchmarks.fuzz.command import add_fuzz, run_fuzz
from benchmarks.links.links_command import add_links, run_links
from benchmarks.live.live_command import add_live, run_live
from benchmarks.long import add_long, run_long
from benchmarks.modules import add_modules, run_modules
from benchmarks.nsys_tables import add_nsys_tables, run_nsys_tables
from benchmarks.parallel.parallel_command import add_parallel, run_parallel
from benchmarks.parallel.what_if_command import add_what_if, run_what_if
from benchmarks.recording.cost_command import add_cost, run_cost
from benchmarks.soak.command import add_soak, run_soak
from benchmarks.traces import add_traces, run_traces
from benchmarks.verdicts.simulated_jobs import add_simulated, run_report, run_verdicts
from distprof.cli.parser import Parser, run_safely

RUNNERS = {
    "verdicts": run_verdicts,
    "live": run_live,
    "parallel": run_parallel,
    "what-if": run_what_if,
    "compare": run_compare,
    "links": run_links,
    "after-delay": run_after_delay,
    "device": run_device,
    "cost": run_cost,
    "report": run_report,
    "traces": run_traces,
    "tables": run_nsys_tables,
    "fuzz": run_fuzz,
    "modules": run_modules,
    "long": run_long,
    "soak": run_soak,
    "attach": run_attach,
    "attach-cost": run_attach_cost,
    "attach-steps": run_attach_steps,
    "attach-pipeline": run_attach_pipeline,
    "attach-samples": run_attach_samples,
}


def main(arguments: list[str]) -> int:
    """Runs one benchmark; returns its exit code."""
    parser = Parser(prog="python -m benchmarks", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", required=True)
    add_simulated(subjects)
    add_live(subjects)
    add_parallel(subjects)
    add_what_if(subjects)
    add_compare(subjects)
    add_links(subjects)
    add_after_delay(subjects)
    add_device(subjects)
    add_cost(subjects)
    add_traces(subjects)
    add_nsys_tables(subjects)
    add_fuzz(subjects)
    add_modules(subjects)
    add_long(subjects)
    add_soak(subjects)
    add_attach(subjects)
    add_attach_cost(subjects)
    add_attach_steps(subjects)
    add_attach_pipeline(subjects)
    add_attach_samples(subjects)
    options = parser.parse_args(arguments)
    return run_safely(lambda: RUNNERS[options.subject](options), options.subject, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
