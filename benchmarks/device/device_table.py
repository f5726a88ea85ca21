"""Outcomes of the bench ``device`` as a table by strategy, and those past a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from benchmarks.device.device_outcome import MEASURES, DeviceOutcome
from benchmarks.simulate.device_job import STRATEGIES
from distprof.render.units import NOT_MEASURED, format_time

_SHOWN_BROKEN = 20


def tabulate_outcomes(outcomes: Sequence[DeviceOutcome]) -> Table:
    """A column per strategy, and one for all."""
    strategies = [name for name in STRATEGIES if any(one.strategy == name for one in outcomes)]
    table = Table(box=box.HORIZONTALS, header_style="dim")
    table.add_column("")
    chosen = [[one for one in outcomes if one.strategy == strategy] for strategy in strategies]
    if len(strategies) > 1:
        strategies, chosen = [*strategies, "all"], [*chosen, list(outcomes)]
    for strategy in strategies:
        table.add_column(strategy, justify="right", no_wrap=True)
    for cells in zip(*map(_write_column, chosen), strict=True):
        table.add_row(cells[0][0], *(value for _, value in cells))
    return table


def _write_column(outcomes: Sequence[DeviceOutcome]) -> list[tuple[str, str]]:
    blamed = [one for one in outcomes if one.blamed]
    spared = [one for one in outcomes if one.late and not one.blamed]
    return [
        ("jobs", f"{len(outcomes):,}"),
        ("phases less step, at most", format_time(max(one.partition_ns for one in outcomes))),
        *((f"{name}: error / limit", _show_worst(outcomes, name)) for name in MEASURES),
        ("rank and phase right", f"{sum(one.right for one in blamed):,} of {len(blamed):,}"),
        ("... where it costs less", f"{sum(one.right for one in spared):,} of {len(spared):,}"),
        ("falsely named", f"{sum(one.false for one in outcomes):,}"),
        ("falsely listed, without cost", f"{sum(one.idle for one in outcomes):,}"),
        ("synchronises", f"{sum(one.synchronised for one in outcomes):,}"),
        ("recorders stopped", f"{sum(one.stopped for one in outcomes):,}"),
        ("steps lost, counted", f"{sum(one.lost for one in outcomes):,}"),
        ("steps lost, not counted", f"{sum(one.uncounted for one in outcomes):,}"),
        ("collectives not timed, counted", f"{sum(one.untimed for one in outcomes):,}"),
        ("collectives not timed, not counted", f"{sum(one.unnoted for one in outcomes):,}"),
        ("jobs past a limit", f"{sum(bool(one.broken) for one in outcomes):,}"),
    ]


def _show_worst(outcomes: Sequence[DeviceOutcome], name: str) -> str:
    errors = [error for one in outcomes if (error := one.worst[name]) is not None]
    return f"{max(error.of_limit for error in errors):.2f}" if errors else NOT_MEASURED


def list_broken(outcomes: Sequence[DeviceOutcome]) -> Iterator[str]:
    """The jobs that are past a limit, with what is true and what is said."""
    broken = [one for one in outcomes if one.broken]
    for one in broken[:_SHOWN_BROKEN]:
        yield f"job {one.seed} ({one.strategy}): {'; '.join(one.broken)}"
        yield f"  {one.told}"
    if len(broken) > _SHOWN_BROKEN:
        yield f"... and {len(broken) - _SHOWN_BROKEN:,} more"
