"""Puts the answers together into one report."""

from __future__ import annotations

import numpy as np

from distprof import __version__
from distprof.analyze.clock_report import report_clocks
from distprof.analyze.communication import report_communication
from distprof.analyze.coverage import report_coverage
from distprof.analyze.efficiency import measure_efficiency, report_flops
from distprof.analyze.headline import report_headline
from distprof.analyze.measured_steps import Timing, choose_headline, find_basis, read_timing
from distprof.analyze.merge_traces import report_activity
from distprof.analyze.overhead import measure_overhead
from distprof.analyze.phases import report_phases, report_step
from distprof.analyze.ranks import report_ranks
from distprof.analyze.slow_host import find_slow_host
from distprof.analyze.slow_link import find_slow_link
from distprof.analyze.slow_rank import find_culprit
from distprof.analyze.stalls import list_stalls
from distprof.analyze.sync_cycles import find_cycles
from distprof.analyze.verdict import find_shortage, find_verdict
from distprof.analyze.waits import report_waits
from distprof.analyze.what_if import list_what_ifs
from distprof.facts.run import Clock, Run
from distprof.report.report import SCHEMA, Report


def analyze(run: Run) -> Report:
    """What can be concluded about a run; never fails for want of facts, which are None in the report.

    Statistics use the steps that every rank with a row reported, warm-up and failed ones left out. The device clock
    stands before the host clock, and no number mixes the two.
    """
    basis = find_basis(run)
    host, device = read_timing(basis, Clock.HOST), read_timing(basis, Clock.DEVICE)
    timings = [timing for timing in (device, host) if timing is not None]
    headline = choose_headline(basis, host, device)
    reached = measure_efficiency(basis, headline)
    cycles = find_cycles(basis, headline)
    culprit = find_culprit(cycles)
    verdict = find_verdict(
        basis, cycles, culprit, find_slow_host(basis, cycles), find_slow_link(basis, cycles)
    )  # fmt: skip
    if verdict.rank is None:
        culprit = None
    summary = report_headline(basis, headline, reached)
    told = None if find_shortage(basis, cycles) else cycles
    replayed = None if basis.num_missing else told
    meta = run.meta
    return Report(
        schema=SCHEMA,
        distprof_version=__version__,
        run_id=meta.run_id,
        name=meta.name,
        started_utc=meta.started_utc,
        world_size=meta.world_size,
        backend=meta.backend,
        device_type=meta.device_type,
        strategy=meta.strategy,
        precision=meta.precision,
        verdict=verdict,
        headline=summary,
        steps=tuple(report_step(basis, timing) for timing in timings),
        phases=tuple(phase for timing in timings for phase in report_phases(basis, timing)),
        communication=tuple(report_communication(basis)),
        activity=report_activity(run),
        waits=tuple(report_waits(basis)),
        what_if=tuple(list_what_ifs(replayed, culprit, rank=verdict.rank, tokens_per_s=summary.tokens_per_s)),
        stalls=tuple(list_stalls(basis, cycles)),
        clocks=tuple(report_clocks(basis)),
        flops=report_flops(basis),
        ranks=tuple(report_ranks(basis, reached, headline)),
        overhead=measure_overhead(run),
        step_times_ns=_list_step_times(run, headline),
        coverage=report_coverage(basis, timings, headline, told),
        config=meta.config,
    )


def _list_step_times(run: Run, headline: Timing | None) -> tuple[tuple[float | None, ...], ...]:
    """Every step recorded, warm-up too, on the headline clock; None: not measured."""
    step_ns = run.step_ns(Clock.HOST if headline is None else headline.clock)
    plain = step_ns.astype(object)
    plain[~np.isfinite(step_ns)] = None
    return tuple(map(tuple, plain.tolist()))
