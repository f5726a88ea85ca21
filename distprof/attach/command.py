"""Runs a script as it is, and watches it: what ``python -m distprof.attach`` does."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from distprof.attach.request import USAGE, Request, read_request
from distprof.attach.script import require_script, run_module, run_script, show_error
from distprof.config.redact import mask, secret_values
from distprof.errors import EXIT_OK, EXIT_USAGE, DistprofError, describe_error
from distprof.patching import after_import

if TYPE_CHECKING:
    from distprof.profiler.session.session import Session

REFUSAL_GRACE_S = 10.0
"""How long a rank waits for rank 0 to say why nothing runs, before it says so itself: its host may be the only one."""


class Watch:
    """What watches the script, once it has imported torch."""

    def __init__(self, request: Request) -> None:
        """Waits for torch."""
        self._request = request
        self._session: Session | None = None
        after_import("torch", self._start)

    def end(self, error: BaseException | None = None) -> None:
        """The script has ended, with this error if there is one."""
        if self._session is not None:
            well = isinstance(error, SystemExit) and error.code in (None, 0)
            self._session.end_process(None if well else error)
        elif error is None:
            _say("the script has not imported torch: nothing is recorded")

    def _start(self) -> None:
        """Raises SystemExit if an option is wrong; whatever else fails costs the recording only."""
        options = dict(self._request.options)
        name = options.pop("name", self._request.name)
        try:
            from distprof.profiler.open_session import start

            self._session = start(str(name), **options)  # type: ignore[arg-type]
            self._session.find_steps()
        except DistprofError as error:
            _refuse(error)
        except Exception as error:
            _say(f"nothing is recorded: {describe_error(error)}")


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


def _refuse(error: DistprofError) -> NoReturn:
    """Says it once for all ranks: the others give rank 0 time to, after which its launcher ends them."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(REFUSAL_GRACE_S)
    _say(str(error))
    raise SystemExit(EXIT_USAGE) from None


def _say(text: str) -> None:
    """Standard output belongs to the script."""
    print(f"distprof: {mask(text, secret_values(sys.argv[1:]))}", file=sys.stderr, flush=True)
