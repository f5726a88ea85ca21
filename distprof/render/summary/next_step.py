"""What to do about a verdict, in one sentence: what a person looks at next, and where."""

from __future__ import annotations

import statistics

from distprof.facts.run import Phase, Stretch, name_ranks
from distprof.render.finding_texts import describe_finding
from distprof.render.sections.cause_times import UNNAMED, format_when
from distprof.render.sections.cause_words import (
    find_longest_stall,
    is_everybodys,
    list_larger,
    look_up_verdict_cause,
    may_get_batches,
    measure_data_share,
    name_hosts,
    name_link,
    read_cost,
    show_share,
)
from distprof.render.sections.gpus import advise_allocator, advise_throttle
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.trace_rows import TEXT_LIMIT, is_traced
from distprof.render.units import clean_text, format_time
from distprof.report.hang_report import HangReport
from distprof.report.loader_report import LoaderLimit, SlowLoader
from distprof.report.report import WAITS_BETWEEN, Report
from distprof.report.scheduling_report import OffCpuReason
from distprof.report.wait_report import EVEN_STAGES, TWICE_BATCHES, Cause, Pattern, Verdict, VerdictKind

MANY_THREADS = 3.0
"""Of a process that compute: one is the training thread, and one may be gloo's, which no setting takes away."""
NOTABLE_RATIO = 0.05
"""Share of a step from which a cause is worth an effort."""
_BY_CAUSE = {
    Cause.INPUT: "compare {who}'s input with the others': its storage, its loader's workers, the size of its samples",
    Cause.COMPUTE: "compare {who}'s clock rates, temperature and processes (distprof doctor{suspects})",
    Cause.HOST: "see what else runs on the processor of {who}, and launch less there (torch.compile, CUDA graphs)",
    Cause.GRADIENT_NORM: "compare what {who} clips with the others: parameters per rank, and syncs such as .item()",
    Cause.OPTIMIZER: "compare what {who}'s optimizer updates with the others: parameters per rank, fused or not",
    Cause.OUTSIDE: "look for code that only {who} runs outside the phases: logging, .item(), garbage collection",
    Cause.EVALUATION: "let {who} evaluate less often, or all ranks share the evaluation",
    Cause.FORWARDS: "compare what {who} does in its forwards without gradients with the others: rollouts, samples",
    Cause.CHECKPOINT: "save checkpoints asynchronously or from all ranks; {who} saves while the others wait",
    Cause.LOGGING: "let {who} log less often, or on a thread",
    Cause.SPEED: "see what else runs on {who}'s cores; compare its clock rates and throttling "
    "(distprof doctor{suspects})",
    Cause.BETWEEN: "look at what {who} does between steps: loading, logging, garbage collection",
}  # fmt: skip
_RARE = (Cause.EVALUATION, Cause.CHECKPOINT, Cause.LOGGING)
"""What makes single steps long for a reason that the training loop has named."""
_BY_STRETCH = {
    Stretch.EVALUATION.value: "evaluate less often, or on fewer batches",
    Stretch.CHECKPOINT.value: "save checkpoints less often, or asynchronously",
    Stretch.LOGGING.value: "log less often, or on a thread",
}
"""By what all ranks do now and then."""
_BY_REASON = {
    OffCpuReason.THREADS: "give {who} fewer threads (OMP_NUM_THREADS, torch.set_num_threads) or more cores "
    "(--cpus-per-task, numactl)",
    OffCpuReason.QUOTA: "raise the CPU quota of {who}'s cgroup (docker run --cpus, limits.cpu of its pod)",
    OffCpuReason.STEAL: "move {who} to a host that is not overbooked: its hypervisor gives its cores to other guests",
    OffCpuReason.OTHERS: "take what else runs on {who}'s cores away (top; workers of loaders too), or pin it to others",
    None: "see what else runs on {who}'s cores, and whether it has fewer cores than threads",
}  # fmt: skip
"""By why a training thread was off the CPU."""
_BY_AMOUNT = {
    "tokens": "give ranks equal amounts of data: bucket samples by length, or pack them to a fixed number of tokens",
    "squared_lengths": "sort or pack sequences so that the squares of their lengths add up to the same on every rank: "
    "attention takes time with them",
}
"""By what ranks get unequal amounts of."""
_MARK_DATA = {
    Cause.OUTSIDE: "; if it gets its batches there, a DataLoader shows that, or phase data of distprof.start "
    "(docs/api.md)",
    Cause.BETWEEN: "; if it gets its batches there, a DataLoader shows that, or phase data, inside the step, of "
    "distprof.start (docs/api.md)",
}
"""Where no batch was seen to be taken."""
_BY_STRATEGY = {
    "ddp": "more micro-steps, other bucket sizes, bf16 gradients",
    "fsdp": "parameters gathered earlier (set_modules_to_forward_prefetch), more micro-steps, parameters in bf16",
    "": "fewer and larger collectives, issued earlier (async_op=True), in bf16",
}
"""What makes communication cheaper; "": where the loop issues it by itself."""
_BY_CHANGE = {
    EVEN_STAGES: "move layers between stages until all have equally much to do",
    TWICE_BATCHES: "split the batch into twice as many micro-batches, if half as large a one takes half as long",
}
"""By what may be changed in a pipeline."""
_WHICH_MODULE = "; profile.level=modules shows which module it is"


def describe_next(report: Report) -> str:
    """One sentence; empty where nothing is known that would help."""
    if report.hang is not None:
        return _advise_hang(report.hang)
    verdict = report.verdict
    if _is_worth_it(report) and (named := _advise_named(report, verdict)) is not None:
        return named
    if report.activity is not None and report.activity.findings:
        return clean_text(describe_finding(report.activity.findings[0]).remedy, TEXT_LIMIT)
    if report.coverage.ranks_missing and not is_traced(report):
        return "find out why ranks are missing; their files under ranks/ and the launcher's output say how they ended"
    return _advise_unnamed(report)


def _advise_hang(hang: HangReport) -> str:
    def are_all(state: str) -> bool:
        ranks = {rank for place in hang.states if place.state == state for rank in place.ranks}
        return bool(hang.absent) and ranks.issuperset(hang.absent)

    who = clean_text(name_ranks(hang.absent)) if hang.absent else ""
    if are_all("gone"):
        return f"find out what ended {who}: the launcher names the signal, dmesg what was killed for lack of memory"
    if are_all("failed"):
        return f"look at why {who} failed: the job's own output has the traceback"
    return "look at the line where the absent ranks stand; py-spy dump --pid shows a process that still hangs"


def _is_worth_it(report: Report) -> bool:
    """Whether what has a name comes first: unless it is small, and something else costs more."""
    lost = report.verdict.lost_ratio
    return lost is None or report.verdict.critical or lost.value >= NOTABLE_RATIO or not list_larger(report)


def _advise_named(report: Report, verdict: Verdict) -> str | None:
    match verdict.kind:
        case VerdictKind.SLOW_RANK | VerdictKind.SLOW_HOST:
            who = f"host {name_hosts(verdict.hosts)}" if verdict.hosts else name_rank(report, verdict.rank)
            if verdict.received is not None:
                return f"balance what the experts get: compare the router's loads on {who} with the others'"
            if verdict.throttled is not None:
                return advise_throttle(report)
            if verdict.allocator is not None:
                return advise_allocator(report)
            if verdict.off_cpu is not None:
                return _BY_REASON[verdict.off_cpu.reason].format(who=who)
            if verdict.module is not None:
                return f"profile {clean_text(verdict.module.name)} on {who}, where most of the time is lost"
            if verdict.more_work is not None:
                return _BY_AMOUNT[verdict.more_work.amount]
            text = None if verdict.cause is None else _BY_CAUSE.get(verdict.cause)
            suspects = "" if verdict.hosts else f" --suspects {verdict.rank}"
            text = (text or "compare {who} with the others").format(who=who, suspects=suspects)
            return text + _advise_recording(report, verdict)
        case VerdictKind.SLOW_LINK:
            if not verdict.hosts:
                return "test the link between these stages by itself, and look for other traffic"
            return f"test {name_link(verdict.hosts)} by itself (nccl-tests, iperf), and look for other traffic on it"
        case VerdictKind.UNEQUAL_DATA:
            return _BY_AMOUNT["tokens"]
        case VerdictKind.UNEVEN_STAGE:
            return _advise_stage(report, verdict)
        case VerdictKind.SLOW_REPLICA:
            return "compare the lengths of that replica's sequences, and its hosts, with the others'"
        case VerdictKind.UNEQUAL_SEQUENCES:
            return _BY_AMOUNT["squared_lengths"]
        case VerdictKind.GARBAGE_COLLECTION:
            return (
                "call gc.freeze() after the first steps, or gc.disable() and then gc.collect() on all ranks in the "
                "same step, every few hundred steps"
            )
        case VerdictKind.RECOMPILATION:
            return (
                "mark dimensions that change (torch._dynamo.mark_dynamic, or torch.compile(dynamic=True)), or pad "
                "batches to fewer shapes; TORCH_LOGS=recompiles says why it compiles again"
            )
        case VerdictKind.SLOW_LOADER if verdict.loader is not None:
            return _advise_loader(verdict.loader)
        case VerdictKind.STALLS:
            if verdict.rank is None and verdict.phase in _BY_STRETCH:
                return _BY_STRETCH[verdict.phase]
            who = "all ranks" if verdict.rank is None else name_rank(report, verdict.rank)
            if verdict.rank is not None and verdict.cause in _RARE:
                return _BY_CAUSE[verdict.cause].format(who=who)
            steps = "these steps" if verdict.pipeline_cause is not None else "the steps that --details lists as stalls"
            return f"look at what {who} did in {steps}: checkpoints, logs, the data"
    return None


def _advise_loader(loader: SlowLoader) -> str:
    now = f"now {loader.workers}"
    match loader.limit:
        case LoaderLimit.WORKERS if loader.workers_needed is not None:
            return (
                f"make the loaders with num_workers={loader.workers_needed} ({now}), which would keep up with the step"
            )
        case LoaderLimit.CORES:
            return "make samples cheaper (decode and resize them ahead, fewer transforms), or give the ranks more cores"
        case LoaderLimit.ORDER:
            return f"fetch more ahead (prefetch_factor, now {loader.prefetch}), or take batches out of order (in_order)"
        case LoaderLimit.PINNING:
            return "copy less into pinned memory: fewer and larger tensors in a batch, or no more than the step needs"
    return f"give the loaders more workers (num_workers, {now}), or let them fetch more batches ahead (prefetch_factor)"


def _advise_stage(report: Report, verdict: Verdict) -> str:
    assert report.pipeline is not None and verdict.pipeline_cause is not None
    cause = report.pipeline.causes[verdict.pipeline_cause]
    doubt = "" if not cause.alone else f"; if it has no more layers than they have, compare rank {cause.rank} with them"
    return f"move layers from stage {cause.stage} to the other stages{doubt}"


def _advise_recording(report: Report, verdict: Verdict) -> str:
    """What would have to be recorded, or marked, to know more; empty if nothing."""
    if is_traced(report):
        return ""
    if verdict.cause in _MARK_DATA:
        return _MARK_DATA[verdict.cause] if may_get_batches(report) else ""
    compute = verdict.cause is Cause.COMPUTE and verdict.phase in (Phase.FORWARD, Phase.BACKWARD)
    if not compute or verdict.rank is None or report.modules is not None:
        return ""
    cause = look_up_verdict_cause(report)
    ended = cause is not None and format_when(cause, report).startswith(("until", "from"))
    lasts = verdict.pattern is Pattern.PERSISTENT and not ended  # modules are recorded in a few steps at the end
    return _WHICH_MODULE if lasts else ""


def _describe_core_waits(report: Report) -> str:
    """What to do if the usual rank waits for a core for a notable part of the step, which looks like communication or
    jitter; empty if none does."""
    waits_ns = [rank.scheduling.wait_ns for rank in report.ranks if rank.scheduling is not None]
    wait_ns, step_ns = statistics.median(waits_ns or [0.0]), report.headline.step_mean_ns
    if step_ns is None or wait_ns < NOTABLE_RATIO * step_ns:
        return ""
    known = [rank.scheduling.threads for rank in report.ranks if rank.scheduling is not None]
    threads = [number for number in known if number is not None] or [MANY_THREADS]
    fewer = ", or fewer threads (OMP_NUM_THREADS)" if statistics.median(threads) >= MANY_THREADS else ""
    waits = f"in the usual step a training thread waits {format_time(wait_ns)} for a core"
    return f"give the ranks more cores{fewer}: {waits}"


def _advise_communication(report: Report) -> str:
    """What there is to change: not every job has gradients in buckets."""
    exposed = [each for kind in report.communication for each in (*kind.exposed_host_ns, *kind.exposed_device_ns)]
    parts = () if report.between is None else report.between.parts
    if not any(exposed) and any(part.part == WAITS_BETWEEN for part in parts):
        return "communicate between steps less often, or less at a time (average parameters every few steps more)"
    return f"overlap or shrink communication: {_BY_STRATEGY.get(report.strategy or '', _BY_STRATEGY[''])}"


def _advise_pipeline(report: Report) -> str:
    """Where nothing stands out, the change that would save most of what the stages wait; empty if none is known."""
    for item in report.what_if:
        if item.change in _BY_CHANGE and item.saved_ratio.value >= NOTABLE_RATIO:
            return f"{_BY_CHANGE[item.change]}: steps would be {show_share(item.saved_ratio, 'shorter')}"
    return ""


def _advise_unnamed(report: Report) -> str:
    larger = list_larger(report)
    if larger and read_cost(report, larger[0]).value >= NOTABLE_RATIO:
        if larger[0].kind in UNNAMED and (waits := _describe_core_waits(report)):
            return waits
        match larger[0].kind:
            case VerdictKind.COMMUNICATION:
                return _advise_communication(report)
            case VerdictKind.JITTER:
                return "look for what disturbs all ranks in turn: shared processors, uneven data, garbage collection"
        if is_everybodys(larger[0]) and larger[0].phase in _BY_STRETCH:
            return _BY_STRETCH[larger[0].phase]
        who = "what all ranks did in the steps that --details lists as stalls"
        if (longest := find_longest_stall(report, larger[0])) is not None:
            who = f"what {name_rank(report, longest.rank)} did in step {longest.step:,} (--details lists all stalls)"
        return f"look at {who}: checkpoints, logs, the data"
    if report.pipeline is not None:
        return _describe_core_waits(report) or _advise_pipeline(report)
    phases = [phase for phase in report.phases if phase.clock == report.headline.clock and phase.share_ratio]
    if not phases:
        return ""
    largest = max(phases, key=lambda phase: phase.share_ratio or 0.0)
    inside = 1 - (report.headline.between_ratio or 0.0)
    if measure_data_share(report) >= (largest.share_ratio or 0.0) * inside:
        return "get batches sooner: more workers of the loader, batches fetched ahead, storage closer by"
    if largest.phase == Phase.OTHER:  # of stages that are not judged, the waits are in it
        judged = report.world_size == 1 or report.verdict.lost_ratio is not None
        return 'mark what fills the time outside the phases: profiler.phase("...") (docs/api.md)' if judged else ""
    how = "profile=kernels shows its kernels" if report.device_type == "cuda" else "profile=modules shows its modules"
    return f"make {largest.phase} faster, the largest phase; {how}"
