"""Checks of the environment variables that slow a job down, or change what is measured."""

from __future__ import annotations

from distprof.cli.doctor.facts import Facts
from distprof.cli.doctor.finding import MachineFinding, absent, ok, problem, warning

_OFF = ("", "0", "false", "off", "no", "n", "f")


def check_launch_blocking(facts: Facts) -> MachineFinding:
    """Kernels are launched without waiting for them."""
    name, variable = "kernel launches", "CUDA_LAUNCH_BLOCKING"
    if not _is_on(facts, variable):
        return ok(name, f"{variable} not set", "the host runs ahead of the GPU, as it should")
    meaning = "every launch waits for its kernel: nothing overlaps, and every time measured is another program's"
    return problem(name, _show(facts, variable), meaning, f"unset {variable}; it is for finding a failing kernel")


def check_max_connections(facts: Facts) -> MachineFinding:
    """Communication and compute have hardware queues of their own."""
    name, variable = "hardware queues", "CUDA_DEVICE_MAX_CONNECTIONS"
    value = facts.environment.get(variable, "")
    if not value:
        return ok(name, f"{variable} not set", "streams have queues of their own, as CUDA makes them")
    if not value.isdigit() or not 1 <= int(value) <= 32:
        meaning = "CUDA takes 1 to 32 and passes over anything else"
        return warning(name, _show(facts, variable), meaning, f"unset {variable}")
    if int(value) > 1:
        return ok(name, _show(facts, variable), "streams have queues of their own")
    meaning = (
        "all streams share one queue: right for tensor parallelism by Megatron, but with FSDP communication "
        "waits behind compute, and so do events on its stream"
    )
    return warning(name, _show(facts, variable), meaning, f"with DDP or FSDP unset {variable}")


def check_debug_output(facts: Facts) -> MachineFinding:
    """No variable makes collectives write or check on the hot path."""
    loud = {
        "NCCL_DEBUG": facts.environment.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"),
        "TORCH_DISTRIBUTED_DEBUG": facts.environment.get("TORCH_DISTRIBUTED_DEBUG", "").upper() in ("INFO", "DETAIL"),
    }
    name, names = "debug output", [name for name, found in loud.items() if found]
    if not names:
        return ok(name, "off", "neither NCCL_DEBUG nor TORCH_DISTRIBUTED_DEBUG is at work")
    meaning = "collectives are logged, with DETAIL also compared between ranks one by one: steps get slower"
    fix = f"unset {' '.join(names)} for measuring; NCCL_DEBUG=WARN costs nothing"
    return warning(name, ", ".join(_show(facts, each) for each in names), meaning, fix)


def check_collective_timing(facts: Facts) -> MachineFinding:
    """torch neither times nor waits for every NCCL collective."""
    name, names = "NCCL in torch", [
        each for each in ("TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_BLOCKING_WAIT") if _is_on(facts, each)
    ]  # fmt: skip
    if not names:
        return ok(name, "no timing, no blocking", "collectives run as they do in production")
    meaning = "every collective gets events more, or blocks its thread: what is measured is not what runs otherwise"
    return warning(name, ", ".join(_show(facts, each) for each in names), meaning, f"unset {' '.join(names)}")


def check_transports(facts: Facts) -> MachineFinding:
    """NCCL may use every way there is between ranks."""
    name, names = "NCCL transports", [
        each for each in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE") if _is_on(facts, each)
    ]  # fmt: skip
    if facts.torch is None or not facts.torch.cuda_available:
        return absent(name, "no GPU", "NCCL is not used")
    if not names:
        return ok(name, "none is switched off", "NCCL takes the fastest way it finds")
    meaning = "NCCL takes a slower way: without P2P over the host's memory, without IB over TCP"
    return warning(name, ", ".join(_show(facts, each) for each in names), meaning, f"unset {' '.join(names)}")


def check_threads(facts: Facts) -> MachineFinding:
    """The ranks' threads fit the cores."""
    name, variable, cores = "CPU threads", "OMP_NUM_THREADS", facts.cores
    gpus = 0 if facts.torch is None else len(facts.torch.gpus)
    ranks = gpus or 2
    share = max(1, cores // ranks)
    if facts.torch is None:
        return absent(name, f"{cores} core(s); torch does not load", "how many ranks share them is not known")
    if variable not in facts.environment:
        found = f"{variable} not set, {cores} core(s)"
        if gpus or share == 1:
            return ok(name, found, "torchrun gives each rank one thread: enough beside a GPU, and on two cores")
        meaning = f"torchrun gives each rank one thread: {ranks} ranks leave {cores - ranks} of {cores} cores idle"
        return warning(name, found, meaning, f"for {ranks} ranks: export {variable}={share}")
    value, found = facts.environment[variable], f"{_show(facts, variable)}, {cores} core(s)"
    if not value.isdigit() or int(value) < 1:
        return warning(name, found, "no number of threads; it is passed over", f"export {variable}={share}")
    if int(value) * ranks > cores and int(value) > 1:
        meaning = f"{ranks} ranks with {value} threads each fight over {cores} core(s): steps get slow and uneven"
        return warning(name, found, meaning, f"export {variable}={share}")
    return ok(name, found, f"{ranks} ranks fit the cores")


def _is_on(facts: Facts, name: str) -> bool:
    return facts.environment.get(name, "").strip().lower() not in _OFF


def _show(facts: Facts, name: str) -> str:
    return f"{name}={facts.environment[name]}"
