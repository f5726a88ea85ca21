"""Functional collectives, such as the one that DTensors issue inside ``clip_grad_norm_`` under FSDP2.

They are issued immediately and waited for where the result is first used; that wait is recorded too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from distprof.facts.run import CollectiveKind
from distprof.patching import after_import, replace, require_fit
from distprof.record.collectives.collective_watch import CollectiveWatch
from distprof.unseen import unseen

_FUNCTIONAL = "torch.distributed._functional_collectives"
_FORMS: dict[str, tuple[CollectiveKind, int, bool]] = {
    "all_reduce": (CollectiveKind.ALL_REDUCE, 2, False),
    "all_gather_single": (CollectiveKind.ALL_GATHER, 2, True),
    "all_gather_tensor": (CollectiveKind.ALL_GATHER, 2, True),
    "reduce_scatter_single": (CollectiveKind.REDUCE_SCATTER, 3, False),
    "reduce_scatter_tensor": (CollectiveKind.REDUCE_SCATTER, 3, False),
    "broadcast": (CollectiveKind.OTHER, 2, False),
    "all_to_all_single": (CollectiveKind.ALL_TO_ALL, 3, False),
    "all_gather_single_autograd": (CollectiveKind.ALL_GATHER, 2, True),  # whose backward C++ issues, and waits for
    "all_gather_tensor_autograd": (CollectiveKind.ALL_GATHER, 2, True),
    "reduce_scatter_single_autograd": (CollectiveKind.REDUCE_SCATTER, 3, False),
    "reduce_scatter_tensor_autograd": (CollectiveKind.REDUCE_SCATTER, 3, False),
    "all_to_all_single_autograd": (CollectiveKind.ALL_TO_ALL, 3, False),
}
"""Kind, position of the group argument, and whether the tensor is one rank's part of the whole."""
_NEWER = {
    "all_gather_tensor": "all_gather_single", "reduce_scatter_tensor": "reduce_scatter_single",
    "all_gather_tensor_autograd": "all_gather_single_autograd",
    "reduce_scatter_tensor_autograd": "reduce_scatter_single_autograd",
}  # fmt: skip
_MAX_PENDING = 1024
_ISSUING = -1
_HELD_NS = 50_000
"""If a wait is shorter than this, the collective was over before, at an unknown time."""


def watch_functional(collective_watch: CollectiveWatch) -> Callable[[], None]:
    """Records functional collectives and the waits for them, as soon as something imports them.

    Returns:
        A function that undoes it.
    """
    undo: list[Callable[[], None]] = []

    def install() -> None:
        with collective_watch.leave_out("functional collectives are"):
            undo.extend(_install(sys.modules[_FUNCTIONAL], collective_watch))

    undo.append(after_import(_FUNCTIONAL, install))

    def restore() -> None:
        while undo:
            undo.pop()()

    return restore


def _install(functional: Any, collective_watch: CollectiveWatch) -> list[Callable[[], None]]:
    """Returns functions that undo it.

    Raises:
        Misfit: This torch has others.
    """
    pending: dict[int, tuple[int, bool]] = {}
    for name in ("_resolve_group_name", "AsyncCollectiveTensor"):
        require_fit(functional, name)
    watched = {"wait_tensor": _wrap_wait(require_fit(functional, "wait_tensor"), collective_watch, pending)}
    for name, (_, position, _) in _FORMS.items():
        if not hasattr(functional, _NEWER.get(name, "")) and (name not in _NEWER.values() or hasattr(functional, name)):
            with collective_watch.leave_out(f"functional {name} is"):
                require_fit(functional, name, {position: "group"})
                watched[name] = _wrap_issue(functional, name, collective_watch, pending)
    return [replace([functional], name, new) for name, new in watched.items()]


def _wrap_issue(
    functional: Any, name: str, collective_watch: CollectiveWatch, pending: dict[int, tuple[int, bool]]
) -> Callable[..., Any]:
    original, (kind, position, is_part) = getattr(functional, name), _FORMS[name]

    def watch(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if _ISSUING in pending:  # a differentiable one calls the plain one, which is the same collective
            return call(*args, **options)
        try:
            tensor = args[0]
            given = args[position] if len(args) > position else options["group"]
            group = functional._resolve_group_name(given, options.get("tag", ""))
            code = collective_watch.look_up_code(group)
            size_bytes, device = _measure(kind, tensor, args, options)
            on_device = collective_watch.ends_on_device(group, device)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # torch raises its own error
            return call(*args, **options)
        size_bytes *= collective_watch.look_up_size(code) if is_part else 1
        ticket = collective_watch.issue(kind, size_bytes, code, asynchronous=True, on_device=on_device)
        if len(pending) >= _MAX_PENDING:
            pending.clear()
        pending[_ISSUING] = (ticket, on_device)  # some collectives wait before they return
        try:
            result = call(*args, **options)
        except BaseException:
            pending.pop(_ISSUING, None)
            raise
        if pending.pop(_ISSUING, None) is not None and isinstance(result, functional.AsyncCollectiveTensor):
            # Whoever waits gives ``wait_tensor`` the tensor inside, or a view of it: only the storage is the same.
            pending[_locate(result.elem)] = (ticket, on_device)
        return result

    return collective_watch.surround(original, watch, name=name)


@unseen
def _measure(kind: CollectiveKind, tensor: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, Any]:
    """Bytes of the tensor, or of what is received in its place, and where it lies."""
    size_bytes: int = tensor.nbytes
    splits = args[1] if len(args) > 1 else options.get("output_split_sizes")
    if kind is CollectiveKind.ALL_TO_ALL and splits is not None and len(tensor):
        size_bytes = sum(splits) * size_bytes // len(tensor)
    return size_bytes, tensor.device


def _wrap_wait(
    original: Callable[..., Any], collective_watch: CollectiveWatch, pending: dict[int, tuple[int, bool]]
) -> Callable[..., Any]:
    recorder = collective_watch.recorder

    def watch(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        found = pending.pop(_locate(*args, **options), None) or pending.pop(_ISSUING, None)
        if found is None:
            return call(*args, **options)
        ticket, on_device = found
        began_ns = recorder.wait(ticket)
        try:
            result = call(*args, **options)
        finally:
            ended_ns = recorder.resume()
        if not on_device and ended_ns - began_ns > _HELD_NS:
            recorder.end_collective(ticket, ended_ns)
        return result

    return collective_watch.surround(original, watch, lambda: bool(pending) and collective_watch.is_ours())


@unseen
def _locate(tensor: Any) -> int:
    """The address of the storage, which a tensor shares with its views; -2: a tensor that has none of its own."""
    try:
        address: int = getattr(tensor, "elem", tensor).untyped_storage().data_ptr()
    except (AttributeError, RuntimeError):
        return -2
    return address
