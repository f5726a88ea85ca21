"""Checks of what is installed and of how it is set: Python, torch, related tools, and environment variables."""

from __future__ import annotations

from distprof.cli.doctor.check_result import MachineResult, absent, ok, problem, warning
from distprof.cli.doctor.probe import Facts, TorchFacts
from distprof.traces.nsys.nsys_tool import read_numbers

PYTHONS = ((3, 11), (3, 13))
"""The oldest and the newest that distprof supports; Hydra 1.3 does not start on Python 3.14."""
OLDEST_TORCH = (2, 6)
SLOW_IMPORT_S = 10.0
WANTS_TORCH = "without torch, distprof can report on runs and compare them, but not train"


def check_python(facts: Facts) -> MachineResult:
    """Whether distprof supports this Python."""
    found = ".".join(map(str, facts.python))
    if PYTHONS[0] <= facts.python[:2] <= PYTHONS[1]:
        return ok("Python", found, "supported")
    low, high = (".".join(map(str, version)) for version in PYTHONS)
    meaning = f"distprof supports Python {low} to {high}"
    return problem("Python", found, meaning, f"create a virtual environment with Python {low} to {high}")


def check_torch(facts: Facts) -> MachineResult:
    """Whether torch is installed, loads, and is new enough."""
    fix = "pip install 'torch>=2.6' (the build for this machine's CUDA), or repair the installation"
    installed = facts.packages.get("torch")
    if facts.torch is None:
        found = "not installed" if installed is None else f"{installed}, but it does not load: {facts.torch_problem}"
        return problem("torch", found, WANTS_TORCH, fix)
    build = f"CUDA {facts.torch.cuda}" if facts.torch.cuda else f"HIP {facts.torch.hip}" if facts.torch.hip else "CPU"
    found = f"{facts.torch.version}, built for {build}"
    if read_numbers(facts.torch.version)[:2] < OLDEST_TORCH:
        return problem("torch", found, "distprof needs torch 2.6 or newer", fix)
    if facts.torch.seconds_to_import > SLOW_IMPORT_S:
        return _judge_slow_import(facts.torch, found)
    return ok("torch", found, "loads and is new enough")


def _judge_slow_import(torch: TorchFacts, found: str) -> MachineResult:
    """Whether files were waited for, which a job does as well, or cores, which depends on what else runs just now."""
    seconds, busy_s = torch.seconds_to_import, torch.seconds_without_core
    found = f"{found}; importing it took {seconds:.0f} s"
    if seconds - torch.seconds_computing - (busy_s or 0.0) > SLOW_IMPORT_S:
        meaning = "most of that was waiting for files: every rank of every job does so before it starts"
        return warning("torch", found, meaning, "put the environment on a local disk")
    if busy_s is not None and busy_s > seconds / 4:
        found = f"{found}, {busy_s:.0f} s of it without a core: the machine is busy"
        meaning = "others use the cores, and jobs here would wait for them as well"
        return warning("torch", found, meaning, "end what else runs, or ask again when it has ended")
    return ok("torch", found, "loads and is new enough; that time was spent computing, as on a slow core")


def check_distributed(facts: Facts) -> MachineResult:
    """Whether torch can form process groups with gloo."""
    if facts.torch is None:
        return absent("distributed", "torch does not load", WANTS_TORCH)
    if not facts.torch.distributed or not facts.torch.gloo:
        missing = "without gloo" if facts.torch.distributed else "without torch.distributed"
        meaning = "ranks cannot communicate; distprof gathers over gloo even if NCCL is used for training"
        return problem("distributed", f"torch is built {missing}", meaning, "install an official build of torch")
    return ok("distributed", f"gloo{', NCCL' if facts.torch.nccl else ''}", "distprof can gather over gloo")


def check_cuda(facts: Facts) -> MachineResult:
    """Whether torch can use the GPU, if there is one."""
    if facts.torch is not None and facts.torch.cuda_available:
        return ok("CUDA", f"available, torch sees {len(facts.torch.gpus)} GPU(s)", "jobs run on the GPUs by default")
    meaning = "jobs run on the CPU, over gloo"
    if facts.driver is None:
        return absent("CUDA", "no NVIDIA driver is loaded", meaning)
    found = f"driver {facts.driver} is loaded, but torch sees no GPU"
    if facts.torch is None:
        return absent("CUDA", "torch does not load", WANTS_TORCH)
    if facts.torch.cuda is None:
        return problem("CUDA", f"{found}: it is built without CUDA", meaning, "install a CUDA build of torch")
    hidden = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and (not hidden.strip() or hidden.strip() == "-1"):
        return warning("CUDA", f"{found}: CUDA_VISIBLE_DEVICES={hidden!r}", meaning, "unset CUDA_VISIBLE_DEVICES")
    said = f": {facts.torch.cuda_problem}" if facts.torch.cuda_problem else ""
    return problem("CUDA", f"{found}{said}", meaning, "run nvidia-smi: if that fails too, repair the driver")


def check_driver(facts: Facts) -> MachineResult:
    """Whether the driver supports torch's CUDA: it needs the same major version or a newer one."""
    torch = facts.torch
    built, able = ((), ()) if torch is None else (read_numbers(torch.cuda), read_numbers(torch.driver_cuda))
    if facts.driver is None or torch is None or not built or not able:
        return absent("driver", facts.driver or "none", "nothing to compare with the CUDA that torch is built for")
    newest = torch.driver_cuda
    found = f"{facts.driver}, up to CUDA {newest}; torch is built for {torch.cuda}"
    if able[0] < built[0]:
        meaning = "the driver is too old for this torch: kernels cannot start"
        return problem("driver", found, meaning, f"install a driver for CUDA {built[0]}, or torch for CUDA {newest}")
    return ok("driver", found, "the driver supports this torch")


def check_nccl(facts: Facts) -> MachineResult:
    """Whether NCCL is there, if there are GPUs."""
    if facts.torch is None or not facts.torch.cuda_available:
        return absent("NCCL", "no GPU that would use it", "ranks on CPUs communicate over gloo")
    if facts.torch.nccl is None:
        meaning = "ranks on GPUs fall back to gloo through host memory: many times slower"
        return problem("NCCL", "torch is built without it", meaning, "install a CUDA build of torch for Linux")
    return ok("NCCL", facts.torch.nccl, "ranks on GPUs communicate over NCCL")


def check_nsys(facts: Facts) -> MachineResult:
    """Whether nsys is there; only captures need it."""
    if facts.nsys is None:
        meaning = "launch/nsys.sh cannot capture; SQLite exports can be read without it"
        return absent("nsys", "neither on PATH nor named by NSYS", meaning, "install Nsight Systems")
    if facts.nsys.version is None:
        meaning = "a capture with it may fail"
        return warning("nsys", f"{facts.nsys.path}: prints no version", meaning, "run it by hand: nsys --version")
    return ok("nsys", f"{facts.nsys.version} ({facts.nsys.path})", "launch/nsys.sh can capture")


def check_nvtx(facts: Facts) -> MachineResult:
    """Whether this nsys records ranges made from Python."""
    version = facts.packages.get("nvtx")
    fix = "pip install 'nvtx<0.2.12'"
    if version is None:
        return warning("nvtx", "not installed", "captures show no steps and no phases", fix)
    if facts.nsys is None:
        return ok("nvtx", version, "no nsys here that might drop its ranges")
    if facts.nsys.drops_ranges_of(version):
        meaning = f"nsys {facts.nsys.version} silently records none of its ranges"
        return problem("nvtx", version, meaning, f"{fix}, or use an nsys newer than 2024.2")
    return ok("nvtx", version, "this nsys records its ranges")


def check_wandb(facts: Facts) -> MachineResult:
    """Whether W&B is installed and logged in."""
    version = facts.packages.get("wandb")
    if version is None:
        return warning("wandb", "not installed", "logger=wandb, the default, is refused", "pip install wandb")
    if facts.wandb_login:
        return ok("wandb", f"{version}, logged in", "runs go online")
    meaning = "runs are logged offline, in the run folder; wandb sync uploads them later"
    return ok("wandb", f"{version}, not logged in (wandb login)", meaning)


def check_accelerate(facts: Facts) -> MachineResult:
    """Whether Accelerate would silently fall back from FSDP to DDP."""
    version = facts.packages.get("accelerate")
    if version is None:
        return absent("accelerate", "not installed", "strategy=accelerate is unavailable", "pip install accelerate")
    if facts.torch is None:
        return absent("accelerate", f"{version}; torch does not load", WANTS_TORCH)
    if facts.torch.cuda_available:
        return ok("accelerate", version, "on these GPUs, FSDP is really FSDP")
    meaning = "on a CPU, Accelerate silently falls back from FSDP to DDP; distprof refuses that, other scripts do not"
    return warning("accelerate", f"{version}, and no GPU", meaning, "on a CPU use strategy=fsdp, not Accelerate's")


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
