"""Checks of environment variables that slow a job down, or change what is measured."""

from __future__ import annotations

from distprof.cli.doctor.check_result import MachineResult, absent, ok, problem, warning
from distprof.cli.doctor.probe import Facts

_OFF = ("", "0", "false", "off", "no", "n", "f")


def check_launch_blocking(facts: Facts) -> MachineResult:
    """Whether kernels are launched asynchronously."""
    name, variable = "kernel launches", "CUDA_LAUNCH_BLOCKING"
    if not _is_on(facts, variable):
        return ok(name, f"{variable} not set", "the host runs ahead of the GPU, as it should")
    meaning = "every launch waits for its kernel: nothing overlaps, and the times are not those of normal runs"
    return problem(name, _show(facts, variable), meaning, f"unset {variable}; it is for finding a failing kernel")


def check_max_connections(facts: Facts) -> MachineResult:
    """Whether communication and compute have separate hardware queues."""
    name, variable = "hardware queues", "CUDA_DEVICE_MAX_CONNECTIONS"
    value = facts.environment.get(variable, "")
    if not value:
        return ok(name, f"{variable} not set", "streams have separate queues, CUDA's default")
    if not value.isdigit() or not 1 <= int(value) <= 32:
        meaning = "CUDA accepts 1 to 32 and ignores anything else"
        return warning(name, _show(facts, variable), meaning, f"unset {variable}")
    if int(value) > 1:
        return ok(name, _show(facts, variable), "streams have separate queues")
    meaning = (
        "all streams share one queue: right for Megatron's tensor parallelism, but with FSDP, communication "
        "waits behind compute, and so do events on its stream"
    )
    return warning(name, _show(facts, variable), meaning, f"with DDP or FSDP unset {variable}")


def check_debug_output(facts: Facts) -> MachineResult:
    """Whether a variable makes collectives log or check on the hot path."""
    loud = {
        "NCCL_DEBUG": facts.environment.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"),
        "TORCH_DISTRIBUTED_DEBUG": facts.environment.get("TORCH_DISTRIBUTED_DEBUG", "").upper() in ("INFO", "DETAIL"),
    }
    name, names = "debug output", [name for name, found in loud.items() if found]
    if not names:
        return ok(name, "off", "neither NCCL_DEBUG nor TORCH_DISTRIBUTED_DEBUG is active")
    meaning = "collectives are logged and, with DETAIL, also compared between ranks one by one: steps get slower"
    fix = f"unset {' '.join(names)} for measuring; NCCL_DEBUG=WARN costs nothing"
    return warning(name, ", ".join(_show(facts, each) for each in names), meaning, fix)


def check_collective_timing(facts: Facts) -> MachineResult:
    """Whether torch times every NCCL collective, or waits for it."""
    name, names = "NCCL in torch", [
        each for each in ("TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_BLOCKING_WAIT") if _is_on(facts, each)
    ]  # fmt: skip
    if not names:
        return ok(name, "no timing, no blocking", "collectives run as they do in production")
    meaning = "every collective gets extra events, or blocks its thread: measurements differ from normal runs"
    return warning(name, ", ".join(_show(facts, each) for each in names), meaning, f"unset {' '.join(names)}")


def check_transports(facts: Facts) -> MachineResult:
    """Whether NCCL may use every transport between ranks."""
    name, names = "NCCL transports", [
        each for each in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE") if _is_on(facts, each)
    ]  # fmt: skip
    if facts.torch is None or not facts.torch.cuda_available:
        return absent(name, "no GPU", "NCCL is not used")
    if not names:
        return ok(name, "none is switched off", "NCCL chooses the fastest transport available")
    meaning = "NCCL uses a slower transport: without P2P the host's memory, without IB TCP"
    return warning(name, ", ".join(_show(facts, each) for each in names), meaning, f"unset {' '.join(names)}")


def check_threads(facts: Facts) -> MachineResult:
    """Whether the ranks' threads fit the cores."""
    name, variable, cores = "CPU threads", "OMP_NUM_THREADS", facts.cores
    gpus = 0 if facts.torch is None else len(facts.torch.gpus)
    ranks = gpus or 2
    share = max(1, cores // ranks)
    if facts.torch is None:
        return absent(name, f"{cores} core(s); torch does not load", "the number of ranks sharing them is unknown")
    if variable not in facts.environment:
        found = f"{variable} not set, {cores} core(s)"
        if gpus or share == 1:
            return ok(name, found, "torchrun gives each rank one thread: enough with a GPU, and on two cores")
        meaning = f"torchrun gives each rank one thread: {ranks} ranks leave {cores - ranks} of {cores} cores idle"
        return warning(name, found, meaning, f"for {ranks} ranks: export {variable}={share}")
    value, found = facts.environment[variable], f"{_show(facts, variable)}, {cores} core(s)"
    if not value.isdigit() or int(value) < 1:
        return warning(name, found, "not a number of threads; it is ignored", f"export {variable}={share}")
    if int(value) * ranks > cores and int(value) > 1:
        meaning = f"{ranks} ranks with {value} threads each compete for {cores} core(s): steps get slow and uneven"
        return warning(name, found, meaning, f"export {variable}={share}")
    return ok(name, found, f"{ranks} ranks fit the cores")


def _is_on(facts: Facts, name: str) -> bool:
    return facts.environment.get(name, "").strip().lower() not in _OFF


def _show(facts: Facts, name: str) -> str:
    return f"{name}={facts.environment[name]}"
