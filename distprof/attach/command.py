"""Runs a script or a module as Python itself runs it, and watches it: what ``python -m distprof.attach`` does."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from distprof.config.redact import mask, secret_values
from distprof.errors import EXIT_OK, EXIT_USAGE, DistprofError, UsageError, describe_error
from distprof.patching import after_import

if TYPE_CHECKING:
    from distprof.profiler.session.session import Session

REFUSAL_GRACE_S = 10.0
"""How long a rank leaves it to rank 0 to say why nothing runs. Then it says so too: rank 0 may be on another host."""

USAGE = """\
usage: python -m distprof.attach [NAME=VALUE ...] [--] SCRIPT [ARGUMENTS ...]
       python -m distprof.attach [NAME=VALUE ...] [--] -m MODULE [ARGUMENTS ...]
       torchrun --nproc-per-node 4 -m distprof.attach SCRIPT [ARGUMENTS ...]

Runs the script as Python does, unchanged, and writes a report of what each rank did.
NAME=VALUE: name=, run_dir=, runs_dir=, live=true, and the options of conf/profile/, such as profile.level=off
"""


class Request(Struct, frozen=True, kw_only=True):
    """What to run, and how to watch it."""

    options: dict[str, object]
    """For `distprof.start`; ``name`` may be among them."""
    target: str
    """A script, or the name of a module."""
    is_module: bool
    arguments: tuple[str, ...]
    """The script's own."""

    @property
    def name(self) -> str:
        """What the run is called unless an option says so."""
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).stem


class Watch:
    """What watches the script, once it has imported torch."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._session: Session | None = None
        after_import("torch", self._start)

    def end(self, error: BaseException | None = None) -> None:
        """The script has ended, with this error if there is one."""
        if self._session is not None:
            well = isinstance(error, SystemExit) and error.code in (None, 0)
            self._session.end_process(None if well else error)
        elif error is None and "torch" not in sys.modules:
            _print_line("the script has not imported torch: nothing is recorded")

    def _start(self) -> None:
        """Raises SystemExit if an option is wrong; whatever else fails costs the recording only."""
        options = dict(self._request.options)
        name = options.pop("name", self._request.name)
        try:
            from distprof import start

            self._session = start(str(name), **options)  # type: ignore[arg-type]
            self._session.find_steps()
        except DistprofError as error:
            _refuse(error)
        except Exception as error:
            _print_line(f"nothing is recorded: {describe_error(error)}")


def attach(arguments: list[str] | None = None) -> None:
    """Runs what a command line names, and ends as it does.

    Args:
        arguments: None: those of this process.
    """
    try:
        request = read_request(sys.argv[1:] if arguments is None else arguments)
        if request is not None and not request.is_module:
            require_script(request.target)
    except DistprofError as error:
        _refuse(error)
    if request is None:
        print(USAGE, end="")
        raise SystemExit(EXIT_OK)
    watch = Watch(request)
    run = run_module if request.is_module else run_script
    try:
        run(request.target, request.arguments)
    except BaseException as error:
        show_error(error)
        watch.end(error)
        raise
    watch.end()


def read_request(arguments: Sequence[str]) -> Request | None:
    """Reads a command line. None: it asks for help.

    Raises:
        UsageError: It names no script, or an override is not of the form name=value.
    """
    options: dict[str, object] = {}
    rest = list(arguments)
    while rest and rest[0] not in ("--", "-m"):
        name, equals, value = rest[0].partition("=")
        if rest[0] in ("-h", "--help"):
            return None
        if not equals or not name.replace(".", "_").isidentifier():
            break  # the script: some launchers remove the "--"
        options[name.removeprefix("profile.")] = _read_value(value)
        rest.pop(0)
    if rest and rest[0] == "--":
        rest.pop(0)
    is_module = bool(rest) and rest[0] == "-m"
    if is_module:
        rest.pop(0)
    if not rest:
        raise UsageError("no script to run: python -m distprof.attach [name=value ...] -- SCRIPT [ARGUMENTS ...]")
    if not is_module and rest[0].startswith("-"):
        raise UsageError(f"{rest[0]}: not an option of distprof.attach; those of the script come after its name")
    return Request(options=options, target=rest[0], is_module=is_module, arguments=tuple(rest[1:]))


def _read_value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        listed = text[1:-1] if text[:1] + text[-1:] == "[]" else None  # [a,b], as Hydra takes it
        return text if listed is None else [item.strip() for item in listed.split(",")]
    return value if isinstance(value, (bool, int, float, list)) or value is None else text


def _refuse(error: DistprofError) -> NoReturn:
    """Says it once for all ranks: the others give rank 0 time to, after which its launcher ends them."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(REFUSAL_GRACE_S)
    _print_line(str(error))
    raise SystemExit(EXIT_USAGE) from None


def _print_line(text: str) -> None:
    """Standard output belongs to the script."""
    print(f"distprof: {mask(text, secret_values(sys.argv[1:]))}", file=sys.stderr, flush=True)


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
