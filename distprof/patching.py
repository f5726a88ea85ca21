"""Replaces functions of torch: only where they take their arguments as they were known to, and for a limited time.

Also waits for a script to import a module itself: importing torch earlier would fix settings that a script makes first,
parts of torch take half a second to import, and a framework may never be needed.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from inspect import Parameter
from types import CodeType, ModuleType
from typing import Any

from distprof.errors import DistprofError

_INHERITED: Any = object()
_LEFT_OUT = " (left out of warnings, as importlib._bootstrap is)"
"""Python's warnings do not count frames whose file has these last two names in its own."""


class Misfit(DistprofError):
    """A release has something else than what distprof knows; it is not wrapped."""


def require_fit(place: Any, name: str, reads: Mapping[int, str] | None = None) -> Any:
    """A function of a module or class, if it is as it was known.

    Args:
        place: The module or class.
        name: Of the function.
        reads: The names of the arguments that are read, by position.

    Raises:
        Misfit: It is not there, or takes one of the arguments elsewhere or under another name.
    """
    full = f"{getattr(place, '__qualname__', None) or getattr(place, '__name__', type(place).__name__)}.{name}"
    function = getattr(place, name, None)
    if function is None:
        raise Misfit(f"this torch has no {full}")
    for position, argument in (reads or {}).items():
        if not _takes(function, position, argument):
            raise Misfit(f"{full} of this torch takes no `{argument}` as its argument {position + 1}")
    return function


def _takes(function: Any, position: int, argument: str) -> bool:
    """Whether an argument stands where it is read. A function that has no signature, as one written in C, takes it."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return True
    if any(each.kind is Parameter.VAR_POSITIONAL for each in parameters[: position + 1]):
        return True
    return position < len(parameters) and parameters[position].name == argument


def replace(places: Sequence[Any], name: str, new: Any) -> Callable[[], None]:
    """Replaces an attribute of the first module or class, and of the others that have the same one.

    Returns:
        A function that puts everything back, except where somebody has replaced it since.

    Raises:
        AttributeError: The first place does not have it.
    """
    original = getattr(places[0], name)
    # What getattr gives for a method in C would not bind to an object again, so what the class holds is kept.
    there = [place for place in places if place is places[0] or getattr(place, name, None) is original]
    held = [(place, vars(place).get(name, _INHERITED)) for place in there]
    for place, _ in held:
        setattr(place, name, new)

    def put_back() -> None:
        for place, before in held:
            if vars(place).get(name) is new:
                delattr(place, name) if before is _INHERITED else setattr(place, name, before)

    return put_back


class Swap:
    """A replaced attribute of a class that steps aside for a while, unless somebody has replaced it since."""

    def __init__(self, place: type, name: str, new: Any, plain: Any = None) -> None:
        """Replaces it.

        Args:
            place: The class.
            name: Of the attribute.
            new: What takes its place.
            plain: What stands there while that is aside. None: what the class has held so far.
        """
        self._place, self._name, self._new = place, name, new
        self._plain = vars(place).get(name) if plain is None else plain  # None: inherited, so that nothing steps aside
        self._undo = replace([place], name, new)

    def step_aside(self, aside: bool) -> None:
        """Steps aside, or back; nothing happens if it is so already."""
        there, instead = (self._new, self._plain) if aside else (self._plain, self._new)
        if self._plain is not None and vars(self._place).get(self._name) is there:
            setattr(self._place, self._name, instead)

    def undo(self) -> None:
        """Puts back what was there first."""
        self.step_aside(False)
        self._undo()


def step_aside(swaps: Iterable[Swap], aside: bool) -> None:
    """Several at once."""
    for swap in swaps:
        swap.step_aside(aside)


def leave_out_of_warnings(*wrappers: Any) -> None:
    """Has wrappers be none of the frames that ``stacklevel`` counts: what torch warns of is the script's line, as it is
    without distprof, and not a line of ours, for which each warning would come once for all lines of the script.

    To be called before `distprof.compiling.skip_compile`, which knows a function by its code.
    """
    for wrapper in wrappers:
        wrapper.__code__ = _leave_out(wrapper.__code__)


@functools.cache
def _leave_out(code: CodeType) -> CodeType:
    """The same for all wrappers of one code, whose instructions the processor's caches then hold once."""
    if code.co_filename.endswith(_LEFT_OUT):
        return code
    return code.replace(co_filename=code.co_filename + _LEFT_OUT)


def is_instance(value: object, module: str, name: str) -> bool:
    """Whether a value is of a class whose module may not be imported: whoever has such a value has imported it."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def is_fsdp2(module: object) -> bool:
    """Whether ``fully_shard`` was applied to a module. To import torch.distributed.fsdp would take half a second."""
    return is_instance(module, "torch.distributed.fsdp", "FSDPModule")


class _Waiting:
    """First of Python's finders until the module is there; it finds nothing itself."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name, self._action, self._looks = name, action, False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self._looks:
            return None
        self._looks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looks = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if vars(loader).get("exec_module") is exec_module:  # else somebody waits in the same way, and calls this
                del loader.exec_module
            load(module)
            self.stop()
            self._action()

        loader.exec_module = exec_module

    def stop(self) -> None:
        """Waits no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def after_import(name: str, action: Callable[[], None]) -> Callable[[], None]:
    """Calls an action right after a module has been imported for the first time, or now if it has been.

    Args:
        name: Of the module.
        action: Raises nothing.

    Returns:
        A function after which the action is no longer called.
    """
    waiting = _Waiting(name, action)
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, waiting)
    return waiting.stop
