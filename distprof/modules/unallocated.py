"""Runs a model without computing or allocating it: its tensors have the sizes that the kernels of a CPU give them.

The meta device is not enough for that. It has kernels of its own: attention writes out its scores and an LSTM is taken
apart, which keeps more or less than what runs in training. And code that looks at a value, such as whether a mask hides
anything, cannot run there. Here tensors are torch's fake tensors on a CPU, for which torch chooses a CPU's kernels, and
small tensors that do not depend on parameters, such as tokens, positions and masks, are real.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

MAX_REAL_BYTES = 16 * 2**20
"""A tensor that takes more has no values."""
MAX_REAL_NUMBERS = 2**16
"""Likewise, bytes of one of numbers with a point in a model that is built, which has many of them."""
MAX_PROBE_TOKENS, MAX_PROBE_SEQUENCES, MAX_PROBE_WEIGHTS = 4096, 32, 2**26
"""An LSTM whose work space must be known is run on so much at most."""


class NotKnown(Exception):
    """What a kernel keeps is not known."""


VALUES_NEEDED = (NotKnown, DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""Raised where a model looks at values that there are not."""


class Unallocated(TorchDispatchMode):
    """While it is open, tensors that are large or come from such that have no values have no values either."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.notes: dict[str, None] = {}
        """What was taken for granted, in order."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if any(each.is_meta for each in given):  # kept by the model elsewhere than among its buffers
            args, kwargs = tree_map_only(
                Tensor, lambda each: self.make_like(each) if each.is_meta else each, (args, kwargs)
            )
        if any(isinstance(each, FakeTensor) or each.is_meta for each in given):
            if _writes_into_first(func) and not isinstance(args[0], FakeTensor):
                return args[0]  # torch would make a copy without values; torch 2.8 corrupts its heap by that
            special = SPECIAL.get(str(func))
            return func(*args, **kwargs) if special is None else special(self, func, args, kwargs)
        if func._schema.is_mutable or self._fits(func, args, kwargs):
            return func(*args, **kwargs)
        with self.fake:
            return func(*args, **kwargs)

    def _fits(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether what a call makes may have values."""
        try:
            with self.fake:
                made = func(*args, **kwargs)
        except VALUES_NEEDED:
            return True  # there are values, and what they take is small
        return all(each.nbytes <= MAX_REAL_BYTES for each in tree_leaves(made) if isinstance(each, Tensor))

    def make_like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """One without values, on a CPU. ``dtype``: of numbers with a point; None: its own."""
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        with self.fake, torch.no_grad():
            made: Tensor = torch.empty_strided(tensor.size(), tensor.stride(), dtype=wanted, device="cpu")
            return made

    def take(self, inputs: Any, dtype: torch.dtype | None = None) -> Any:
        """What a model is given, with ones where the meta device has whole numbers, and no other values.

        Args:
            inputs: Tensors, in any containers.
            dtype: Of numbers with a point. None: their own.
        """

        def take_one(tensor: Tensor) -> Tensor:
            has_point = tensor.is_floating_point() or tensor.is_complex()
            is_fake = isinstance(tensor, FakeTensor)
            if is_fake:
                return tensor
            if tensor.nbytes > MAX_REAL_BYTES or (has_point and (tensor.is_meta or dtype is not None)):
                return self.make_like(tensor, dtype).requires_grad_(tensor.requires_grad)
            return torch.ones_like(tensor, device="cpu") if tensor.is_meta else tensor

        return tree_map_only(Tensor, take_one, inputs)

    @contextlib.contextmanager
    def standing_in(self, model: nn.Module, dtype: torch.dtype | None = None) -> Iterator[None]:
        """Inside, the model's parameters, and its buffers but small ones with values, are tensors without values.

        Args:
            model: Gets its own tensors back.
            dtype: Of the parameters inside. None: their own.
        """
        made: dict[int, Tensor] = {}
        before: list[tuple[dict[str, Any], dict[str, Any]]] = []

        def replace(held: dict[str, Any], make: Callable[[Tensor], Tensor | None]) -> None:
            before.append((held, dict(held)))
            for name, each in held.items():
                if each is not None:
                    if id(each) not in made and (new := make(each)) is not None:
                        made[id(each)] = new
                    held[name] = made.get(id(each), each)

        try:
            for module in model.modules():
                replace(module._parameters, lambda each: nn.Parameter(self.make_like(each, dtype), each.requires_grad))
                replace(module._buffers, lambda each: self.make_like(each) if _has_no_values(each) else None)
            _renew_flat_weights(model)
            with self:
                yield
        finally:
            for held, was in before:
                held.update(was)
            _renew_flat_weights(model)


def _writes_into_first(func: Any) -> bool:
    """Whether an operation returns what it is given first, changed: ``add_``, ``copy_``, ``index_add_``."""
    first = func._schema.arguments[:1]
    return bool(first and func._schema.returns) and bool(first[0].alias_info and first[0].alias_info.is_write)


def _has_no_values(tensor: Tensor) -> bool:
    return tensor.is_meta or tensor.nbytes > MAX_REAL_BYTES


class Building(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is open, tensors are made on the meta device, except for small ones, which a model may look at."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if any(each.is_meta for each in given):
            args, kwargs = tree_map_only(Tensor, lambda each: each.to("meta"), (args, kwargs))
        elif not given and any(each.name == "device" for each in func._schema.arguments):
            made: Tensor = func(*args, **{**kwargs, "device": "meta"})
            if made.nbytes > (MAX_REAL_NUMBERS if made.is_floating_point() else MAX_REAL_BYTES):
                return made
        return func(*args, **kwargs)


def is_unallocated(model: nn.Module) -> bool:
    """Whether a model's parameters, or buffers if it has none, have no values; sharded ones are left alone."""
    tensors: list[Tensor] = [*model.parameters()] or [*model.buffers()]
    plain = all(isinstance(each, FakeTensor) or each.is_meta for each in tensors)
    return bool(tensors) and plain and not any(hasattr(each, "to_local") for each in tensors)


def _renew_flat_weights(model: nn.Module) -> None:
    """A recurrent layer has a second list of its parameters."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            names: list[str] = module._flat_weights_names
            module._flat_weights = [getattr(module, name, None) for name in names]


Special = Callable[[Unallocated, Any, Any, Any], Any]


def _multiply_groups(run: Unallocated, func: Any, args: Any, kwargs: Any) -> Any:
    """torch knows the shape of grouped products for bfloat16 only, and its kernel for a CPU takes other formats too."""
    left, right, *rest = args
    if left.dtype == torch.bfloat16:
        return func(*args, **kwargs)
    shape = [left.shape[-2], right.shape[-1]]
    if left.ndim == right.ndim:
        shape.insert(0, left.shape[0] if left.ndim == 3 else (rest[0] if rest else kwargs["offs"]).shape[0])
    return left.new_empty(shape, dtype=kwargs.get("out_dtype"))


def _run_lstm_layer(run: Unallocated, func: Any, args: Any, kwargs: Any) -> Any:
    """What oneDNN keeps for backward is in a work space of a size that it alone knows."""
    *made, space = func(*args, **kwargs)
    if not torch.is_grad_enabled():
        return (*made, space)
    shapes = tuple(tuple(each.shape) for each in args[:3])
    rest = tuple(tuple(each) if isinstance(each, list) else each for each in args[7:])
    size = _probe_lstm(func, shapes, args[0].dtype, rest)
    run.notes["LSTM: activations as oneDNN keeps them on a CPU; a GPU's library keeps another amount"] = None
    return (*made, space.new_empty(size))


def _run_lstm_backward(run: Unallocated, func: Any, args: Any, kwargs: Any) -> Any:
    """oneDNN's gradients are of float32 whatever it is given; torch 2.8 takes them for the format of the inputs."""
    return [each.new_empty(each.shape, dtype=torch.float32) for each in func(*args, **kwargs)]


@functools.lru_cache(maxsize=256)
def _probe_lstm(func: Any, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, rest: tuple[Any, ...]) -> int:
    """Bytes of the work space: of some sequences, run for real over some of the steps, and in proportion."""
    (steps, batch, width), *weight_shapes = shapes
    if sum(map(prod, weight_shapes)) > MAX_PROBE_WEIGHTS or () not in rest:
        raise NotKnown("what oneDNN keeps of an LSTM is not known for one so large, or of sequences of unequal length")
    some = min(batch, MAX_PROBE_SEQUENCES)
    some_steps = min(steps, MAX_PROBE_TOKENS // some)
    given = torch.zeros(some_steps, some, width, dtype=dtype)
    weights = [torch.zeros(shape, dtype=dtype) for shape in weight_shapes]
    biases = [torch.zeros(weight_shapes[0][0], dtype=dtype)] * 2
    states = [torch.zeros(some, weight_shapes[1][1], dtype=dtype)] * 2
    with torch.enable_grad():  # without, there is no such space
        space: Tensor = func(given, *weights, *biases, *states, *map(_thaw, rest))[3]
    return space.nbytes * steps * batch // (some_steps * some)


def _thaw(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


DIM_POSITIONS = {"aten.topk.default": 2, "aten.argmax.default": 1, "aten.max.dim": 1}
"""Operations that tell where the largest elements are, and which argument is the dimension."""


def _choose(run: Unallocated, func: Any, args: Any, kwargs: Any) -> Any:
    """Where the largest elements are depends on values. Here each place has as many: experts share evenly."""
    found = func(*args, **kwargs)
    index: Tensor = found if isinstance(found, Tensor) else found[1]
    position = DIM_POSITIONS[str(func)]
    dim = kwargs.get("dim", args[position] if len(args) > position else -1)
    if dim is None or not index.ndim or index.nbytes > MAX_REAL_BYTES:
        return found
    last = index.movedim(dim, -1) if index.ndim == args[0].ndim else index
    even = (torch.arange(index.numel()) % args[0].shape[dim]).reshape(last.shape)
    chosen = even.movedim(-1, dim) if last is not index else even
    run.notes["what is chosen by value (top-k, maximum), such as experts, is taken as spread evenly"] = None
    return chosen if isinstance(found, Tensor) else (found[0], chosen)


SPECIAL: dict[str, Special] = {
    "aten._grouped_mm.default": _multiply_groups, "aten.mkldnn_rnn_layer.default": _run_lstm_layer,
    "aten.mkldnn_rnn_layer_backward.default": _run_lstm_backward, **dict.fromkeys(DIM_POSITIONS, _choose),
}  # fmt: skip
"""What is done in place of an operation without values."""
