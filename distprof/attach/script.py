"""Runs a script or a module as Python itself runs it: as ``__main__``, with its own arguments and path."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from distprof.errors import UsageError

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


def require_script(path: str) -> None:
    """Makes sure that there is a script.

    Raises:
        UsageError: There is none, in Python's own words.
    """
    if not os.path.exists(path):
        said = f"[Errno {errno.ENOENT}] {os.strerror(errno.ENOENT)}"
        raise UsageError(f"can't open file {os.path.abspath(path)!r}: {said}")


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Runs a file, or a folder or archive with a ``__main__.py``. What it raises comes through, `SystemExit` too."""
    sys.argv = [path, *arguments]
    if not os.path.isfile(path) or path.endswith((".zip", ".pyz", ".pyc")):
        runpy.run_path(path, run_name="__main__")
        return
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(path).resolve().parent)
    whole = os.path.abspath(path)
    main = _make_main()
    main.__file__ = whole
    main.__loader__ = SourceFileLoader("__main__", whole)
    vars(main)["__cached__"] = None
    with io.open_code(whole) as file:
        source = file.read()
    exec(compile(source, whole, "exec", dont_inherit=True), vars(main))


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Runs a module as ``python -m`` does."""
    sys.argv = ["-m", *arguments]
    _make_main()
    run: Callable[[str], object] = runpy._run_module_as_main  # type: ignore[attr-defined]  # what python -m calls
    run(name)


def _make_main() -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={}, __doc__=None)
    sys.modules["__main__"] = main
    return main


def show_error(error: BaseException) -> None:
    """Shows an error that ends the program as if the script had been run without distprof, and has it shown once.

    At once, because a launcher stops this rank soon after another one has failed. Only a hook of the script's is called
    where Python calls it: it may end the process. A hook that fails is left to Python as well.
    """
    hook, whole = sys.excepthook, error.__traceback__

    def show(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        hook(kind, raised.with_traceback(_without_own(trace)), raised.__traceback__)

    sys.excepthook = show
    if _only_shows(hook) and not isinstance(error, SystemExit):
        with contextlib.suppress(Exception):
            show(type(error), error, whole)
            sys.excepthook = lambda kind, raised, trace: None if raised is error else show(kind, raised, trace)
        error.__traceback__ = whole


def _only_shows(hook: Callable[..., object]) -> bool:
    """Whether a hook for errors is Python's, or torch's around Python's, which puts the rank before each line."""
    if getattr(hook, "__module__", "") != "torch.distributed.distributed_c10d":
        return hook is sys.__excepthook__
    return any(cell.cell_contents is sys.__excepthook__ for cell in getattr(hook, "__closure__", None) or ())


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    frames, after = [], 0
    while trace is not None:
        frames.append(trace)
        if trace.tb_frame.f_code.co_filename.startswith(_PACKAGE + "attach"):
            after = len(frames)  # what runs the script, and Python's runpy before it
        trace = trace.tb_next
    kept: TracebackType | None = None
    for item in reversed(frames[after:]):
        if not item.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            kept = TracebackType(kept, item.tb_frame, item.tb_lasti, item.tb_lineno)
    return kept
