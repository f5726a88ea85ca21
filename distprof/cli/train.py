"""The training command: composes, checks and runs jobs, and exits with a documented code."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import io
import json
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from typing import TYPE_CHECKING

from rich.console import Console

from distprof.cli.parser import LONGEST_MESSAGE, list_verbs
from distprof.config.check import check
from distprof.config.compose import JobRequest, compose, read_request
from distprof.config.redact import mask, secret_values
from distprof.config.schema import Config, WandbConfig, decode
from distprof.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, DistprofError, UsageError
from distprof.record.stalls.signals import SignalWatch
from distprof.render.units import clean_text, strip_controls

if TYPE_CHECKING:
    from distprof.world import Identity

REFUSAL_GRACE_S = 10.0
"""How long the other ranks give rank 0 to print its message; the launcher ends them earlier."""
TOOL_EXIT_S = 10.0
"""How long a tool that listens may take to write what it holds."""
PEER_GRACE_S = 1.0
"""How long a rank waits that failed because a peer left, so that the launcher sees the peer, the cause, first; and how
long one other than rank 0 waits, so that all do not say the same."""
_A_PEER_LEFT = re.compile(r"connection (was )?(closed|reset|refused)|broken pipe|remote process exited", re.I)


def run_training(arguments: list[str], signals: SignalWatch | None = None) -> None:
    """Runs the jobs of a command line; exits the process if one cannot be run.

    Args:
        arguments: Hydra overrides and flags, as in ``sys.argv[1:]``.
        signals: The watch for signals. None: none are watched before the job has its run folder.
    """
    if signals is not None:
        signals.leave = leave_now
    try:
        _train(arguments, signals)
    except DistprofError as error:
        _refuse(str(error), arguments, error.exit_code)
    except SystemExit as leaving:
        if leaving.code and not isinstance(leaving.code, int):
            print(mask(str(leaving.code), secret_values(arguments)), file=sys.stderr)
        if leaving.code:
            leave_now(leaving.code if isinstance(leaving.code, int) else EXIT_FAILED)
    except BaseException as error:
        _fail(error, arguments)


def _train(arguments: list[str], signals: SignalWatch | None) -> None:
    request = read_request(arguments)
    if request.shows_only:
        if os.environ.get("RANK", "0") == "0":
            _show(request, arguments)
        return
    from distprof.world import join, leave, read_identity  # imports torch: not needed to show a configuration

    identity = read_identity()
    jobs = compose(request, launched=identity.launched, arguments=arguments)
    if jobs and jobs[0].sweep_dir is not None:
        from distprof.cli.sweep.command import run_sweep

        console = Console(soft_wrap=False)
        leave_now(run_sweep(jobs, request, arguments=arguments, console=console, signals=signals))
    configs = [_decode(job.values, identity) for job in jobs]
    from distprof.train.job import run_job  # imports torch.distributed: not needed for usage errors

    console, exit_code = Console(soft_wrap=False), EXIT_OK
    for job, config in zip(jobs, configs, strict=True):
        world = join(identity, device=config.device, backend=config.backend, timeout_s=config.group_timeout_s)
        ended = run_job(
            config, world, raw=job.values, notes=job.notes, arguments=arguments, console=console, signals=signals
        )
        exit_code = max(exit_code, ended)
        leave()
    if (identity.launched and jobs) or exit_code:
        leave_now(exit_code)


def _show(request: JobRequest, arguments: list[str]) -> None:
    """Prints what Hydra shows of a configuration, without anything in its names and values that a terminal obeys."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        compose(request, launched=False, arguments=arguments)
    print(strip_controls(shown.getvalue()).replace("{verbs}\n", list_verbs()), end="")


def _decode(values: dict[str, object], identity: Identity) -> Config:
    from distprof.world import resolve_device_type

    config = decode(Config, values)
    check(config, world_size=identity.world_size, device_type=resolve_device_type(config.device))
    if isinstance(config.logger, WandbConfig):
        from distprof.render.wandb.wandb_log import require_wandb

        require_wandb()
    return config


def _refuse(message: str, arguments: list[str], exit_code: int) -> None:
    """Prints the message once for the whole job: rank 0 prints it and exits, and its launcher ends the others."""
    if not _is_led():
        sys.stderr.write(f"distprof: {_clean(message, arguments)}\n")  # in one piece, whatever other ranks write
    elif exit_code == EXIT_USAGE:
        time.sleep(REFUSAL_GRACE_S)
    leave_now(exit_code)


def _is_led() -> bool:
    """Whether another process is rank 0; false if the launcher's variables make no sense, as nobody would print."""
    if "RANK" not in os.environ:
        return False
    from distprof.world import read_identity

    try:
        return read_identity().rank != 0
    except UsageError:
        return False


def _clean(text: str, arguments: list[str]) -> str:
    return clean_text(mask(text, secret_values(arguments)), LONGEST_MESSAGE)


def _fail(error: BaseException, arguments: list[str]) -> None:
    """Prints a line; the traceback is in the rank's file, the report, and the launcher's summary.

    Where all ranks fail alike, the launcher ends the others once rank 0 has said so.
    """
    lines = str(error).strip().splitlines() or [""]
    rank, secrets = os.environ.get("RANK", "0"), secret_values(arguments)
    text = clean_text(mask(f"{type(error).__name__}: {lines[0]}", secrets), LONGEST_MESSAGE)
    peer_left, trace = _A_PEER_LEFT.search(str(error)), mask("".join(traceback.format_exception(error)), secrets)
    if not peer_left:
        _write_launcher_error(text, trace)
    if peer_left or rank != "0":
        time.sleep(PEER_GRACE_S)
    sys.stderr.write(f"distprof: rank {rank} failed: {text}\n")
    if peer_left:
        _write_launcher_error(text, trace)
    leave_now(EXIT_FAILED)


def _write_launcher_error(message: str, trace: str) -> None:
    """Writes the file from which torchrun reads the first failure, like torch's own `record` but without secrets."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = {"py_callstack": trace, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)


def leave_now(exit_code: int) -> None:
    """Exits without Python's shutdown, in which torch's threads may abort, and others may wait forever."""
    for item in gc.get_objects():
        if type(item) is tempfile.TemporaryDirectory:  # such as wandb's, which Python would delete
            with contextlib.suppress(OSError):
                item.cleanup()
    if "wandb" in sys.modules:
        from distprof.render.wandb.wandb_log import end_service

        end_service(only_stopped=True)
    sys.stdout.flush()
    sys.stderr.flush()
    if "NVTX_INJECTION64_PATH" in os.environ and threading.current_thread() is threading.main_thread():
        # Nsight Systems writes the last ranges only when C's exit calls it
        faulthandler.dump_traceback_later(TOOL_EXIT_S, exit=True)
        ctypes.CDLL(None).exit(exit_code)
    os._exit(exit_code)
