"""From what was counted and timed by path to one row per module."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from torch import Tensor

from distprof.modules.calls import ModulePass
from distprof.modules.memory import local_part
from distprof.modules.names import NamedModule
from distprof.report.module_report import ModuleFlops, ModuleRow, Taken

PathRows = Sequence[tuple[int, ...]]
ByPath = Mapping[tuple[int, ModulePass], float]


class Found(Struct):
    """What was seen of a module's calls."""

    calls: int
    input_bytes: int
    shapes: tuple[tuple[int, ...], ...]


class Added(Struct, frozen=True):
    """A quantity by row, by stage: outside of submodules, and with them."""

    own: list[dict[ModulePass, float]]
    total: list[dict[ModulePass, float]]


def add_up(modules: Sequence[NamedModule], paths: PathRows, by_path: ByPath) -> Added:
    """Distributes a quantity by path over rows: its own to the innermost module, in total to all that ran, and to what
    holds the outermost of them, which does not run where backward calls a module again."""
    added = Added(own=[defaultdict(float) for _ in modules], total=[defaultdict(float) for _ in modules])
    for (path, stage), amount in by_path.items():
        rows = paths[path]
        if rows:
            added.own[rows[-1]][stage] += amount
        for row in {*rows, *_list_holders(modules, rows)}:
            added.total[row][stage] += amount
    return added


def _list_holders(modules: Sequence[NamedModule], rows: Sequence[int]) -> Iterator[int]:
    """What holds the outermost module of a path, from the inside out."""
    row = modules[rows[0]].parent if rows else None
    while row is not None:
        yield row
        row = modules[row].parent


def measure_work(modules: Sequence[NamedModule], paths: PathRows, by_path: ByPath) -> tuple[Added, ModuleFlops]:
    """FLOPs by row, and those of operations that ran in no module."""
    outside = {stage: amount for (path, stage), amount in by_path.items() if not paths[path]}
    return add_up(modules, paths, by_path), _make_work(outside)


def make_rows(
    modules: Sequence[NamedModule],
    paths: PathRows,
    *,
    first: Mapping[int, Found],
    work: Added,
    times: Sequence[ByPath],
    alive_bytes: Mapping[int, int] | None,
) -> tuple[ModuleRow, ...]:
    """The rows, in the order of the modules.

    Args:
        modules: The modules.
        paths: Rows of the modules on each path.
        first: What was seen of the calls, by row.
        work: FLOPs.
        times: Own time of each pass by path, ns.
        alive_bytes: Activations by path. None: not counted.
    """
    timed = [add_up(modules, paths, each) for each in times]
    alive = add_up(modules, paths, {(path, ModulePass.FORWARD): size for path, size in (alive_bytes or {}).items()})
    own = _list_own_parameters(modules)
    within = [set(range(row, _locate_end(modules, row))) for row in range(len(modules))]
    rows = []
    for row, item in enumerate(modules):
        parameters = {id(each): each for inner in within[row] for each in _list_parameters(modules[inner])}.values()
        seen = first.get(row)
        rows.append(
            ModuleRow(
                name=item.name, kind=type(item.module).__name__, parent=item.parent, depth=item.depth,
                aliases=tuple(item.aliases), calls=0 if seen is None else seen.calls,
                input_bytes=None if seen is None else seen.input_bytes,
                output_shapes=None if seen is None else seen.shapes,
                own_parameters=sum(each.numel() for each in own[row]),
                parameters=sum(each.numel() for each in parameters),
                held_parameters=sum(local_part(each).numel() for each in parameters),
                parameter_bytes=sum(each.numel() * each.element_size() for each in parameters),
                buffer_bytes=sum(each.nbytes for each in item.module.buffers()),
                self_flops=_make_work(work.own[row]), total_flops=_make_work(work.total[row]),
                self_activation_bytes=None if alive_bytes is None else int(alive.own[row][ModulePass.FORWARD]),
                activation_bytes=None if alive_bytes is None else int(alive.total[row][ModulePass.FORWARD]),
                self_time=_make_taken([each.own[row] for each in timed]),
                total_time=_make_taken([each.total[row] for each in timed]),
            )
        )  # fmt: skip
    return tuple(rows)


def _make_work(found: Mapping[ModulePass, float]) -> ModuleFlops:
    return ModuleFlops(
        forward=int(found.get(ModulePass.FORWARD, 0)), backward=int(found.get(ModulePass.BACKWARD, 0)),
        recomputed=int(found.get(ModulePass.RECOMPUTED, 0)),
    )  # fmt: skip


def _make_taken(passes: Sequence[Mapping[ModulePass, float]]) -> Taken:
    def find(stage: ModulePass) -> float | None:
        found = [each[stage] for each in passes if stage in each]
        return statistics.median(found) if found else None

    return Taken(
        forward_ns=find(ModulePass.FORWARD),
        backward_ns=find(ModulePass.BACKWARD),
        recomputed_ns=find(ModulePass.RECOMPUTED),
    )


def _locate_end(modules: Sequence[NamedModule], row: int) -> int:
    """The row after a module's last submodule."""
    end = row + 1
    while end < len(modules) and modules[end].depth > modules[row].depth:
        end += 1
    return end


def _list_parameters(item: NamedModule) -> list[Tensor]:
    return [each for each in item.module._parameters.values() if each is not None]


def _list_own_parameters(modules: Sequence[NamedModule]) -> list[list[Tensor]]:
    """By row; a parameter that several modules share is listed in the first."""
    seen: set[int] = set()
    own = []
    for item in modules:
        own.append([each for each in _list_parameters(item) if id(each) not in seen])
        seen |= {id(each) for each in own[-1]}
    return own
