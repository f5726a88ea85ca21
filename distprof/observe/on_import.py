"""Waits for a script to import a module itself: importing torch earlier would fix settings that a script makes before,
and a framework may never be needed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


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
