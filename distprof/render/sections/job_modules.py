"""The modules of a job's model with the ranks side by side: a table of the largest, and a tree for the page."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.render.sections.module_tree import (
    Branch,
    add_up,
    choose_largest,
    draw_tree,
    grow_tree,
    name_branch,
    show_times,
)
from distprof.render.sections.rank_names import name_rank
from distprof.render.sections.section_types import Fact, Section, make_columns
from distprof.render.units import clean_text, format_bytes, format_count, format_factor, format_macs, format_time
from distprof.report.job_modules import JobModule, JobModules
from distprof.report.module_report import ModuleFlops
from distprof.report.report import Report
from distprof.report.wait_report import Spread

NOTE_LIMIT = 300
"""Characters."""
HEADS = ("module", "class", "parameters", "held", "forward", "backward", "recomputed", "forward time", "forward least",
         "forward most", "backward time", "backward least", "backward most")  # fmt: skip
NOTE = (
    "multiply-adds and times of a step, submodules included; times: median of the ranks, and the least and the most of "
    "one rank; a row of several identical modules adds them up, but least and most are of one of them"
)


def show_modules(report: Report) -> Section:
    """What the modules cost, the one that is slow on the late rank, and the modules that take most."""
    modules = report.modules
    if modules is None:
        return Section(key="job_modules", title="modules")
    chosen, more = choose_largest(modules.rows, _weigh)
    rows = [(name_branch(branch, level=level), *_describe(modules, branch)) for level, branch in chosen]
    notes = [NOTE, *(clean_text(note, NOTE_LIMIT) for note in modules.notes), *more]
    title = f"modules of {clean_text(modules.model)}: work and time of a step, {modules.clock} clock"
    return Section(
        key="job_modules", title=title,
        facts=tuple(_list_facts(report, modules)), columns=make_columns(HEADS, rows, ("class",), non_empty_only=True),
        notes=tuple(notes),
    )  # fmt: skip


def _list_facts(report: Report, modules: JobModules) -> Iterator[Fact]:
    slow, rank = report.verdict.module, report.verdict.rank
    if slow is not None:
        text = f"{clean_text(slow.name)} takes {format_time(slow.rank_ns)} of {report.verdict.phase} on "
        others = f"{format_time(slow.others_ns)} on the others"
        yield Fact(label="slow module", text=f"{text}{name_rank(report, rank)}, and {others}")
    yield Fact(label="cost", text=_format_cost(modules))
    if len(modules.ranks) < report.world_size:
        yield Fact(label="ranks", text=f"{len(modules.ranks):,} of {report.world_size:,} have a profile")


def _format_cost(modules: JobModules) -> str:
    """What looking at modules takes, and that no other number contains it."""
    timed = f"{modules.timed_steps} steps in which modules were timed"
    if modules.step_ns is not None:
        timed += f" take {format_time(modules.step_ns)} each"
        if modules.usual_step_ns:
            timed += f" ({format_factor(modules.step_ns / modules.usual_step_ns)} a measured step's median)"
    counted = modules.counted_step_ns
    more = "" if counted is None else f", the one in which operations were counted {format_time(counted)}"
    return f"{timed}{more}; they count in no other number"


def _describe(modules: JobModules, branch: Branch[JobModule]) -> list[str]:
    work = [row.flops for row in branch.rows if row.flops is not None]
    flops = sum(work, ModuleFlops()) if work else None
    held = add_up([row.held_parameters.max for row in branch.rows])
    parameters = sum(row.parameters for row in branch.rows)
    sharded = any(row.held_parameters.max != row.parameters for row in modules.rows)
    return [
        clean_text(branch.first.kind, 40), format_count(parameters), format_count(held) if sharded else "",
        *(["", ""] if flops is None else [format_macs(flops.forward), format_macs(flops.backward)]),
        format_macs(flops.recomputed) if flops is not None and flops.recomputed else "",
        *show_times(branch, lambda row: row.forward_ns, len(modules.ranks)),
        *show_times(branch, lambda row: row.backward_ns, len(modules.ranks)),
    ]  # fmt: skip


def _weigh(branch: Branch[JobModule]) -> float:
    """What a row takes on its slowest rank, ns; without times, its multiply-adds."""
    took = [spread.max or 0.0 for row in branch.rows for spread in (row.forward_ns, row.backward_ns, row.recomputed_ns)]
    return sum(took) or sum(row.flops.total for row in branch.rows if row.flops is not None) / 1e6


def draw_modules(report: Report) -> str:
    """The tree for the page, which opens and closes. Escaped."""
    modules = report.modules
    if modules is None:
        return ""
    tree = grow_tree(modules.rows, fold=True)
    return draw_tree(tree, HEADS, lambda branch: [name_branch(branch), *_describe(modules, branch)])


MEMORY_WORDS = {
    "optimizer": "optimizer state", "communication": "communication buffers", "rest": "the rest",
    "peak": "the allocator's peak",
}  # fmt: skip
ONLY_MEASURED = ("rest", "peak")
"""Of an allocator; without one they have no row."""
MEMORY_HEADS = ("kind", "predicted", "measured", "least", "most")
MEMORY_NOTE = (
    "predicted: the most of a rank, according to the configuration; measured: median of the ranks, and the least and "
    "the most of one rank where they differ; gradients when the optimizer begins, activations and gathered parameters "
    "when forward ends, so that not all are there at once"
)


def show_memory(report: Report) -> Section:
    """A row for each kind."""
    kinds = () if report.modules is None else report.modules.memory
    rows = [
        (
            MEMORY_WORDS.get(each.kind, each.kind), format_bytes(each.predicted_bytes.max),
            format_bytes(each.measured_bytes.median), *_show_ends(each.measured_bytes),
        )
        for each in kinds
        if each.kind not in ONLY_MEASURED or each.measured_bytes.max is not None
    ]  # fmt: skip
    return Section(
        key="job_memory", title="memory of a rank by kind: tensors of a training step",
        columns=make_columns(MEMORY_HEADS, rows, non_empty_only=True), notes=(MEMORY_NOTE,) if rows else (),
    )  # fmt: skip


def _show_ends(spread: Spread) -> tuple[str, str]:
    if spread.min is None or spread.min == spread.max:
        return "", ""
    return f"{format_bytes(spread.min)}, rank {spread.min_rank}", f"{format_bytes(spread.max)}, rank {spread.max_rank}"
