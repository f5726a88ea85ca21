"""``distprof doctor --all-ranks``: what differs between the hosts of a job, as one table with the odd ones out.

One process per host inspects it as `distprof doctor` does, and what it finds goes to rank 0 as text. Most facts should
be the same on every host: the value that most of them have is the usual one, and the hosts that have another are named.
Wall clocks and links are measured between rank 0's host and each other one.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from distprof import __version__
from distprof.cli.doctor.check_result import MachineResult, State
from distprof.cli.doctor.probe import Facts, gather_facts
from distprof.cli.doctor.suspects import GRACE_S, join_ranks
from distprof.cli.options import put_json, require_folder
from distprof.config.redact import mask, secret_values
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError, UsageError, read_first_line
from distprof.facts.gpu import LIMIT_BITS
from distprof.facts.plain import make_plain
from distprof.render.units import clean_text, format_bytes

if TYPE_CHECKING:  # brings torch with it
    from distprof.record.device.gpu_sampler import NvmlCard

SCHEMA = "distprof.hosts/1.0"
PREFIXES = (
    "CUDA_", "FI_", "GLOO_", "HSA_", "MKL_", "NCCL_", "NVTE_", "OMP_", "PYTORCH_", "RCCL_", "TORCH_", "TORCHINDUCTOR_",
    "UCX_",
)  # fmt: skip
"""Variables that change how fast a job computes or communicates, or how it is measured."""
WALL_CLOCK_S = 0.1
"""Wall clocks that are further apart than this make logs of two hosts hard to read together."""
SLOW_LINK_RATIO = 0.5
"""A link that is so much slower than the median one is an odd one."""
LONGEST_VALUE = 120
Results = Sequence[MachineResult]


class HostFact(Struct, frozen=True, kw_only=True):
    """One fact on all hosts."""

    name: str
    usual: str
    """What most hosts have; of a measured quantity, the median."""
    others: Mapping[str, str]
    """What the odd ones have, by host."""


def compare_hosts(options: argparse.Namespace, run_checks: Callable[[Facts], Mapping[str, Results]]) -> int:
    """Joins the other ranks, inspects every host, and shows what differs on rank 0; returns the exit code.

    Args:
        options: Of the verb.
        run_checks: All checks of a single host, by subject, without secrets.

    Raises:
        DistprofError: A rank has gone or does not answer, or it was not started with torchrun.
    """
    from distprof.record.hosts.host_comparison import exchange_facts
    from distprof.world import read_identity

    identity = read_identity()
    if not identity.launched:
        raise UsageError("--all-ranks: start it with torchrun, one process per host: --nnodes 2 --nproc-per-node 1")
    if identity.rank == 0:
        require_folder(options.json)
    own = _describe(gather_facts(options.runs_dir), run_checks) if identity.local_rank == 0 else None
    late = "the hosts were not compared in time"
    with join_ranks(identity, device="cpu", backend="gloo", limit_s=GRACE_S, late=late) as world:
        try:
            told = exchange_facts(world, own)
        except RuntimeError as error:
            raise DistprofError(f"the hosts were not compared: {read_first_line(error)}") from error
    if world.rank:
        return EXIT_OK
    hosts = {host: found for host, found in zip(told.hosts, told.facts, strict=True) if found is not None}
    comparisons = compare_facts({host: found["facts"] for host, found in hosts.items()})
    comparisons += compare_clocks({told.hosts[each.rank]: (each.offset_ns, each.bound_ns) for each in told.wall_clocks})
    comparisons += compare_links({told.hosts[each.rank]: each.bytes_per_s for each in told.links})
    checks = {host: [MachineResult(**each) for each in found["checks"]] for host, found in hosts.items()}
    document = {
        "schema": SCHEMA, "distprof_version": __version__, "hosts": list(hosts),
        "facts": [make_plain(each) for each in comparisons],
        "checks": {host: [make_plain(each) for each in found] for host, found in checks.items()},
    }  # fmt: skip
    if not put_json(options.json, document):
        show(comparisons, checks, Console(width=options.width, highlight=False))
    return EXIT_FAILED if any(each.state == State.PROBLEM for found in checks.values() for each in found) else EXIT_OK


def _describe(facts: Facts, run_checks: Callable[[Facts], Mapping[str, Results]]) -> dict[str, Any]:
    """What one host says: its facts by name, and the checks that found something; without secrets."""
    secrets = secret_values()
    known = {name: clean_text(mask(value, secrets), LONGEST_VALUE) for name, value in list_facts(facts).items()}
    found = [each for results in run_checks(facts).values() for each in results]
    serious = [make_plain(each) for each in found if each.state in (State.WARNING, State.PROBLEM)]
    return {"facts": known, "checks": serious}


def list_facts(facts: Facts, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What should be the same on every host, by name."""
    torch = facts.torch
    packages = {f"package {name}": version for name, version in facts.packages.items() if name != "torch"}
    known = {
        "distprof": __version__, "Python": ".".join(map(str, facts.python)),
        "torch": f"does not load: {facts.torch_problem}" if torch is None else torch.version,
        "NCCL": torch and torch.nccl, "CUDA of torch": torch and torch.cuda, "HIP of torch": torch and torch.hip,
        "CUDA of the driver": torch and torch.driver_cuda, "driver": facts.driver,
        "kernel": platform.release(), "processor": _read_processor(), "cores": str(facts.cores),
        "memory": format_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "CPU governor": ", ".join(sorted(facts.governors)), "clock": facts.clock.source,
        "time of day": {True: "synchronised", False: "not synchronised", None: None}[facts.clock.synchronised],
        "/dev/shm": None if facts.shm_bytes is None else format_bytes(facts.shm_bytes),
        "open files": str(facts.open_files.soft), "locked memory": str(facts.locked_memory.soft),
        "InfiniBand": _list_infiniband(), "GPUs": _list_gpus(facts), **_read_cards(), **packages,
        **{
            name: value for name, value in sorted(environment.items()) if name.startswith(PREFIXES)
        },
    }  # fmt: skip
    return {name: value for name, value in known.items() if value}


def compare_facts(hosts: Mapping[str, Mapping[str, str]]) -> list[HostFact]:
    """Each fact of any host: what most have, and who has another; of equally many, the first host's counts as usual."""
    names = list(dict.fromkeys(name for found in hosts.values() for name in found))
    comparisons = []
    for name in names:
        values = {host: found.get(name, "none") for host, found in hosts.items()}
        usual = Counter(values.values()).most_common(1)[0][0]
        others = {host: value for host, value in values.items() if value != usual}
        comparisons.append(HostFact(name=name, usual=usual, others=others))
    return comparisons


def compare_clocks(offsets: Mapping[str, tuple[int, int]]) -> list[HostFact]:
    """Wall clocks against rank 0's, from their offsets and the offsets' bounds, ns. Empty: there is one host."""
    if len(offsets) < 2:
        return []
    shown = {
        host: f"{offset_ns / 1e9:+,.3f} s (± {bound_ns / 1e6:,.1f} ms)"
        for host, (offset_ns, bound_ns) in offsets.items()
        if abs(offset_ns) - bound_ns > WALL_CLOCK_S * 1e9
    }  # fmt: skip
    return [HostFact(name="wall clock", usual=f"within {WALL_CLOCK_S:g} s of rank 0's", others=shown)]


def compare_links(speeds: Mapping[str, float]) -> list[HostFact]:
    """Links to rank 0's host over gloo, bytes/s. Empty: there is one host."""
    if not speeds:
        return []
    median = statistics.median(speeds.values())
    slow = {
        host: f"{format_bytes(speed)}/s" for host, speed in speeds.items() if speed < SLOW_LINK_RATIO * median
    }  # fmt: skip
    return [HostFact(name="link to rank 0's host, gloo", usual=f"{format_bytes(median)}/s", others=slow)]


def show(comparisons: Sequence[HostFact], checks: Mapping[str, Sequence[MachineResult]], console: Console) -> None:
    """Prints what differs, then what single hosts should mend."""
    odd = [each for each in comparisons if each.others]
    if odd:
        table = Table(
            title="what differs between hosts", title_justify="left", box=box.HORIZONTALS, header_style="dim",
        )  # fmt: skip
        for title in ("fact", "most hosts", "odd ones out"):
            table.add_column(title, overflow="fold")
        for each in odd:
            table.add_row(each.name, each.usual, "\n".join(f"{host}: {value}" for host, value in each.others.items()))
        console.print(table, markup=False)
    serious: dict[tuple[str, str, str, str], list[str]] = {}
    for host, found in checks.items():
        for result in found:
            serious.setdefault((result.state, result.name, result.found, result.fix), []).append(host)
    for (state, name, said, fix), concerned in serious.items():
        where = "every host" if len(concerned) == len(checks) > 1 else ", ".join(concerned)
        console.print(f"{state} on {where}: {name}: {said}{f'; do: {fix}' if fix else ''}", markup=False)
    same = len(comparisons) - len(odd)
    hosts = f"{len(checks)} hosts" if len(checks) > 1 else "one host, so there is nothing to compare it with"
    console.print(f"{hosts}: {same} of {len(comparisons)} facts are the same", markup=False)


def _read_processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _list_infiniband() -> str:
    """The state and rate of each port, in order of their names."""
    found = []
    for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*")):
        try:
            said = [(port / name).read_text(errors="replace").strip() for name in ("state", "rate")]
        except OSError:
            said = ["unreadable"]
        found.append(f"{port.parents[1].name}/{port.name}: {', '.join(said)}")
    return "; ".join(found)


def _list_gpus(facts: Facts) -> str:
    counted = Counter(gpu.name for gpu in facts.torch.gpus) if facts.torch is not None else Counter[str]()
    return ", ".join(f"{count} x {name}" for name, count in counted.items())


def _read_cards() -> dict[str, str]:
    """What NVML says of all cards of the host: PCIe, highest clock, power limit, and what holds the clock down.

    An idle card lowers its clock and its PCIe generation, so that those of the moment are not compared.
    """
    from distprof.record.device.gpu_sampler import NvmlCard

    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        found = [_describe_card(NvmlCard(pynvml, card)) for card in cards]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:  # no driver, or a card that has fallen off the bus: then CUDA's own check says so
        return {}
    return {name: _count(each[name] for each in found) for name in (found[0] if found else {})}


def _describe_card(card: NvmlCard) -> dict[str, str]:
    sample, caps = card.sample(), card.caps
    limits = [str(limit) for limit, bits in LIMIT_BITS.items() if (sample.limits or 0) & bits]
    return {
        "PCIe of GPUs": f"x{sample.pcie_lanes} of x{caps.pcie_lanes}, up to generation {caps.pcie_generation}",
        "highest clock of GPUs": f"{caps.sm_clock_mhz} MHz",
        "power limit of GPUs": "unknown" if caps.power_mw is None else f"{caps.power_mw / 1e3:,.0f} W",
        "clocks of GPUs limited by": ", ".join(limits) or "nothing",
    }


def _count(values: Iterable[str]) -> str:
    """Equal values together: "8 x 700 W", "7 x 700 W, 1 x 400 W"."""
    return ", ".join(f"{count} x {value}" for value, count in Counter(values).most_common())
