"""Puts the answers together into one report."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from msgspec import structs

from distprof import __version__
from distprof.analyze.causes.cause_report import report_causes
from distprof.analyze.causes.more_work import find_more_work
from distprof.analyze.causes.pipeline_verdict import choose_pipeline_verdict, report_pipeline_causes
from distprof.analyze.causes.slow_allocator import find_slow_allocator
from distprof.analyze.causes.stalls import list_stalls
from distprof.analyze.causes.unequal_experts import find_unequal_experts
from distprof.analyze.causes.unmarked_time import find_unmarked_place
from distprof.analyze.causes.verdict import choose_verdict
from distprof.analyze.clocks.clocks import report_clocks
from distprof.analyze.clocks.device_clock import note_device_clocks, report_device_clocks
from distprof.analyze.cycles.pipeline_operations import list_operations
from distprof.analyze.cycles.sync_cycles import build_cycles, explain_shortage, take_sample
from distprof.analyze.judge_probes import judge_probes
from distprof.analyze.pipeline.judge_pipeline import judge_pipeline
from distprof.analyze.predict.forecasts import report_forecasts
from distprof.analyze.predict.pipeline_what_if import list_pipeline_what_ifs
from distprof.analyze.predict.what_if import list_what_ifs
from distprof.analyze.replay.replay import measure_replay_error
from distprof.analyze.stats.measured_steps import Timing, choose_headline, choose_measured_steps, read_timing
from distprof.analyze.stats.overhead import measure_overhead
from distprof.analyze.summary.communication import report_bandwidths, report_communication
from distprof.analyze.summary.coverage import report_coverage
from distprof.analyze.summary.generations import report_generations
from distprof.analyze.summary.gpus import report_gpus
from distprof.analyze.summary.hang import report_hang
from distprof.analyze.summary.headline import report_headline
from distprof.analyze.summary.mesh import name_groups
from distprof.analyze.summary.modules import report_modules
from distprof.analyze.summary.phases import report_between, report_phases, report_step
from distprof.analyze.summary.pipeline import report_pipeline
from distprof.analyze.summary.ranks import measure_efficiency, report_flops, report_ranks
from distprof.analyze.summary.waits import report_waits
from distprof.analyze.timeline.longest_steps import list_longest_steps
from distprof.analyze.timeline.step_timelines import report_timelines
from distprof.analyze.traces.merge_traces import report_activity
from distprof.facts.run import FORWARDS_NOTE, FORWARDS_ONLY, Clock, Run, Stretch
from distprof.report.report import SCHEMA, BetweenReport, Report
from distprof.report.wait_report import Cause, CauseReport, Causes, Stall, Verdict, VerdictKind

NO_MICRO_BATCHES = "no micro-batches were recorded"
_Placed = TypeVar("_Placed", Verdict, CauseReport, Stall)


def analyze(run: Run) -> Report:
    """Draws the conclusions about a run; never fails for lack of facts, whose conclusions are None in the report.

    Statistics use the steps that every rank with a row reported, without warm-up and failed ones. The device clock is
    preferred to the host clock, and no number mixes the two.
    """
    run, mesh = name_groups(run)
    measured_steps = choose_measured_steps(run)
    on_host, on_device = (read_timing(measured_steps, clock) for clock in (Clock.HOST, Clock.DEVICE))
    timings = [timing for timing in (on_device, on_host) if timing is not None]
    headline = choose_headline(measured_steps, on_host, on_device)
    reached = measure_efficiency(measured_steps, headline)
    cycles = build_cycles(measured_steps, headline)
    short = explain_shortage(measured_steps, cycles)
    operations = list_operations(measured_steps)
    if operations is not None:
        short = "the stages of a pipeline wait for each other by design"
    cause_costs = None
    if not short:
        from distprof.analyze.causes.find_causes import find_causes  # the finders: not for a trace of a few steps

        cause_costs = find_causes(measured_steps, cycles)
    judged = NO_MICRO_BATCHES if operations is None else judge_pipeline(measured_steps, operations)
    if operations is None:
        replay = None if cycles is None else measure_replay_error(cycles)
    else:
        replay = None if isinstance(judged, str) else judged.error
    unlike = replay is not None and replay.is_unlike
    verdict = choose_verdict(measured_steps, cycles, cause_costs, short, unlike=unlike)
    if operations is not None:
        verdict = choose_pipeline_verdict(judged)
    if run.modules:
        from distprof.analyze.causes.slow_module import find_slow_module

        verdict = structs.replace(verdict, module=find_slow_module(run.modules, verdict))
    verdict = structs.replace(verdict, received=find_unequal_experts(measured_steps, verdict))
    timed = on_device if verdict.clock == Clock.DEVICE else on_host
    verdict = structs.replace(verdict, more_work=find_more_work(measured_steps, timed, verdict))
    verdict = structs.replace(verdict, unmarked=find_unmarked_place(measured_steps, verdict))
    summary = report_headline(measured_steps, headline, reached)
    step_ns, tokens_per_s = summary.step_mean_ns, summary.tokens_per_s
    enough = None if short or unlike else cycles
    replayed = None if measured_steps.num_missing else enough
    causes = None
    if replayed is not None and cause_costs is not None:
        causes = report_causes(measured_steps, replayed, cause_costs, step_ns=step_ns)
    elif not isinstance(judged, str) and not unlike:
        causes = report_pipeline_causes(judged, step_ns)
    if verdict.kind in (VerdictKind.SLOW_RANK, VerdictKind.STALLS):
        verdict = structs.replace(verdict, allocator=find_slow_allocator(measured_steps, verdict))
    if any(run.gpus):
        from distprof.analyze.causes.throttled_gpu import find_throttled_gpu

        verdict = structs.replace(verdict, throttled=find_throttled_gpu(measured_steps, verdict, causes))
    between, stalls = report_between(measured_steps, on_host), tuple(list_stalls(measured_steps, enough))
    if _has_forwards_only(run):
        verdict, stalls = _rename(verdict), tuple(map(_rename, stalls))
        causes = causes and structs.replace(causes, causes=tuple(map(_rename, causes.causes)))
        between = between and _rename_part(between)
    sample = None if replayed is None else take_sample(replayed)
    what_ifs = (
        *list_what_ifs(measured_steps, sample, cause_costs, step_ns=step_ns, tokens_per_s=tokens_per_s),
        *list_pipeline_what_ifs(judged, step_ns=step_ns, tokens_per_s=tokens_per_s),
    )
    forecasts = report_forecasts(measured_steps, sample, step_ns=step_ns, tokens_per_s=tokens_per_s)
    meta, device_clocks = run.meta, tuple(report_device_clocks(run))
    coverage = report_coverage(measured_steps, timings, headline, enough, notes=note_device_clocks(device_clocks))
    del cycles, enough, replayed, sample, cause_costs  # half as large as the facts of a large job, and used no more
    return Report(
        schema=SCHEMA,
        distprof_version=__version__,
        run_id=meta.run_id,
        generation=run.generation,
        generations=report_generations(run),
        name=meta.name,
        started_utc=meta.started_utc,
        world_size=meta.world_size,
        backend=meta.backend,
        device_type=meta.device_type,
        strategy=meta.strategy,
        precision=meta.precision,
        hang=report_hang(run),
        verdict=verdict,
        probes=None if run.probes is None else judge_probes(run.probes),
        replay=replay,
        causes=causes,
        headline=summary,
        steps=tuple(report_step(measured_steps, timing) for timing in timings),
        phases=tuple(phase for timing in timings for phase in report_phases(measured_steps, timing)),
        between=between,
        communication=tuple(report_communication(measured_steps)),
        pipeline=report_pipeline(measured_steps, operations, judged),
        activity=report_activity(run, summary.step_mean_ns),
        modules=report_modules(run, headline),
        gpus=report_gpus(measured_steps),
        waits=tuple(report_waits(measured_steps)),
        bandwidths=tuple(report_bandwidths(measured_steps)),
        what_if=what_ifs,
        forecasts=forecasts,
        stalls=stalls,
        clocks=tuple(report_clocks(run)),
        device_clocks=device_clocks,
        flops=report_flops(measured_steps),
        ranks=tuple(report_ranks(measured_steps, reached, headline)),
        mesh=mesh,
        overhead=measure_overhead(run),
        step_times_ns=_list_step_times(run, headline),
        timelines=report_timelines(measured_steps, headline, mesh, _list_named(verdict, causes)),
        longest_steps=list_longest_steps(measured_steps, headline),
        coverage=coverage,
        config=meta.config,
    )


def _list_named(verdict: Verdict, causes: Causes | None) -> list[int]:
    """Global ranks that the report names."""
    found = [verdict.rank, *([] if causes is None else [cause.rank for cause in causes.causes])]
    return [rank for rank in found if rank is not None]


def _list_step_times(run: Run, headline: Timing | None) -> tuple[tuple[float | None, ...], ...]:
    """Every recorded step, warm-up included, on the headline clock; None: not measured."""
    step_ns = run.step_ns(Clock.HOST if headline is None else headline.clock)
    return tuple(tuple(value if math.isfinite(value) else None for value in row.tolist()) for row in step_ns)


def _has_forwards_only(run: Run) -> bool:
    """Whether what is recorded as evaluation is, on all ranks that have any, of modules in training mode."""
    evaluated_ns = np.nansum(run.column(f"{Stretch.EVALUATION}_host_ns"), axis=1)
    noted = [FORWARDS_NOTE in info.notes for info, spent_ns in zip(run.ranks, evaluated_ns, strict=True) if spent_ns]
    return bool(noted) and all(noted)


def _rename(item: _Placed) -> _Placed:
    """The same, called what was seen."""
    if item.phase != Stretch.EVALUATION:
        return item
    if isinstance(item, Stall):
        return structs.replace(item, phase=FORWARDS_ONLY)
    return structs.replace(item, phase=FORWARDS_ONLY, cause=Cause.FORWARDS)


def _rename_part(between: BetweenReport) -> BetweenReport:
    parts = [
        structs.replace(part, part=FORWARDS_ONLY) if part.part == Stretch.EVALUATION else part for part in between.parts
    ]
    return structs.replace(between, parts=tuple(parts))
