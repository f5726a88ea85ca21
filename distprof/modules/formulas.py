"""FLOPs of operations whose formula torch lacks, or has wrong; a multiply and an add are two.

Only products count: of matrices, of a matrix and a vector, of two vectors, and convolutions. Arguments are those of
the operation, as shapes instead of tensors; where more must be known than shapes, they are the tensors themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

Shape = Sequence[int]
Formula = Callable[..., int]
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _takes_tensors(formula: Formula) -> Formula:
    """Marks a formula for torch: it is given tensors, not shapes."""
    formula._get_raw = True  # type: ignore[attr-defined]
    return formula


def _count_attention(query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _count_attention_backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))  # type: ignore[no-untyped-call]


def _count_convolution_backward(
    grad: Shape, given: Shape, weight: Shape, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, output_mask: Sequence[bool], **more: Any,
) -> int:  # fmt: skip
    """As much as forward for each of the gradients of the input and of the weights.

    For every place of its output, forward multiplies by every weight once: ``[out, in / groups, *kernel]`` holds what
    one group sees. Each gradient has the same triples (input, weight, output), so it has the same products. In a
    transposed convolution input and output change places; its weights are ``[in, out / groups, *kernel]``. torch's
    formula for the weights' gradient multiplies by all channels, not by those of the group.
    """
    places = prod((given if transposed else grad)[2:])
    return 2 * grad[0] * places * prod(weight) * sum(map(bool, output_mask[:2]))


def _count_convolution_of_sequence(given: Shape, weight: Shape, *rest: Any, out_shape: Shape, **more: Any) -> int:
    """Of ``[time, batch, in]`` by ``[kernel, in, out]``: every weight once for each place of the output."""
    return 2 * prod(out_shape[:2]) * prod(weight)


def _count_lstm_layer(given: Shape, input_weight: Shape, hidden_weight: Shape, *rest: Any, **more: Any) -> int:
    """One layer in one direction: per token of ``[time, batch, in]``, every weight of both matrices once."""
    return 2 * prod(given[:-1]) * (prod(input_weight) + prod(hidden_weight))


def _count_lstm_layer_backward(*given: Any, **more: Any) -> int:
    """Twice forward: oneDNN makes all gradients, whether the input needs one or not."""
    return 2 * _count_lstm_layer(*given)


def _count_recurrent(given: Shape, weights: Sequence[Shape], *rest: Any, **more: Any) -> int:
    """All layers and directions: per token, every weight of every matrix once, those of a projection included.

    ``given`` is ``[time, batch, in]``, ``[batch, time, in]`` or, for sequences of unequal length, ``[tokens, in]``.
    """
    return 2 * prod(given[:-1]) * sum(prod(weight) for weight in weights if len(weight) == 2)


def _count_recurrent_backward(given: Shape, weights: Sequence[Shape], *rest: Any, **more: Any) -> int:
    """As forward for the gradients of input and states, which are always made, and again for those of the weights."""
    output_mask = more["output_mask"] if "output_mask" in more else rest[-1]
    return _count_recurrent(given, weights) * (1 + bool(output_mask[3]))


def _measure_sequences(states: Tensor) -> tuple[int, int, int]:
    """Tokens, sequences, and the length of the longest, of ``[batch, length, width]``, nested or not."""
    if not states.is_nested:
        return states.shape[0] * states.shape[1], states.shape[0], states.shape[1]
    lengths = states._nested_tensor_size()[:, 0]
    return int(lengths.sum()), len(lengths), int(lengths.max())


@_takes_tensors
def _count_native_attention(query: Tensor, key: Tensor, value: Tensor, embed_dim: int, *rest: Any, **more: Any) -> int:
    """Four projections, and two products of ``queries x keys x width`` for scores and mixing.

    Nested sequences are projected without padding, and attend over the longest, to which torch pads them.
    """
    tokens, batch, length = _measure_sequences(query)
    key_tokens, _, key_length = _measure_sequences(key)
    projected = 2 * tokens + key_tokens + _measure_sequences(value)[0]
    return 2 * embed_dim * (projected * embed_dim + 2 * batch * length * key_length)


FEED_FORWARD = {"ffn_weight_1": 12, "ffn_weight_2": 14}
"""Where the fused encoder layer is given these, after the width."""


@_takes_tensors
def _count_encoder_layer(src: Tensor, embed_dim: int, *rest: Any, **more: Any) -> int:
    """Attention as above, and per token every weight of the two matrices of the feed-forward part."""
    inner: int = sum(more[name].numel() if name in more else rest[at].numel() for name, at in FEED_FORWARD.items())
    return _count_native_attention(src, src, src, embed_dim) + 2 * _measure_sequences(src)[0] * inner


def _count_product(left: Shape, right: Shape, *rest: Any, **more: Any) -> int:
    """Of ``[..., m, k]`` and ``[..., k, n]``: m n k multiply-adds."""
    return 2 * prod(left) * right[-1]


def _count_products(lefts: Sequence[Shape], rights: Sequence[Shape], *rest: Any, **more: Any) -> int:
    """Of two lists of matrices, one by one."""
    return sum(map(_count_product, lefts, rights))


def _count_added_product(added: Any, left: Shape, right: Shape, *rest: Any, **more: Any) -> int:
    """The product; adding to it does not count."""
    return _count_product(left, right)


def _count_grouped_product(left: Shape, right: Shape, *rest: Any, **more: Any) -> int:
    """One product per group: rows, columns or the dimension between are split over groups, or each has its matrices.

    Rows that belong to no group count as if they did: which those are stands in the data.
    """
    return 2 * prod(left if len(right) == 3 else left[-2:]) * right[-1]


def _count_vector_product(left: Shape, *rest: Any, **more: Any) -> int:
    """Of ``[m, k]`` or ``[k]`` and ``[k]``: every element of the first once."""
    return 2 * prod(left)


def _count_added_vector_product(added: Any, left: Shape, *rest: Any, **more: Any) -> int:
    return _count_vector_product(left)


def _count_by_output(given: Shape, *rest: Any, out_shape: Shape, **more: Any) -> int:
    """Of ``[..., k]`` and packed weights, whose shape is not to be seen: k multiply-adds per element of the output."""
    return 2 * prod(out_shape) * given[-1]


def _count_distances(left: Shape, right: Shape, *rest: Any, out_shape: Shape, **more: Any) -> int:
    """``|x - y|^2 = [-2 x, |x|^2, 1] [y, 1, |y|^2]``: one product, whose inner dimension is longer by two."""
    return 2 * prod(out_shape) * (left[-1] + 2)


def _count_trilinear(
    first: Shape, second: Shape, third: Shape, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], *rest: Any, **more: Any,
) -> int:  # fmt: skip
    """A product of two, and its product with the third.

    Each of the three lacks the dimensions in its list, and those in ``sumdim`` are summed. The first product is over
    all dimensions of two operands, and sums those that the third lacks; the second is over what is left. A bilinear
    layer from i and j to o has b o i j and b o j multiply-adds.
    """
    sizes: dict[int, int] = {}
    dims = []
    for shape, lacking in ((first, expand1), (second, expand2), (third, expand3)):
        own = [dim for dim in range(len(shape) + len(lacking)) if dim not in lacking]
        sizes |= dict(zip(own, shape, strict=True))
        dims.append({*own})
    pair = dims[0] | dims[1]
    rest_dims = (pair - ({*sumdim} - dims[2])) | dims[2]
    return 2 * (prod(sizes[dim] for dim in pair) + prod(sizes[dim] for dim in rest_dims))


@_takes_tensors
def _count_matrices(left: Tensor, right: Tensor, *rest: Any, **more: Any) -> int:
    """m n k multiply-adds; of a compressed sparse matrix only what it stores, per column or row of the other.

    Of two such matrices, each element of the first meets those that the second stores in one of its rows.
    """
    if left.layout == right.layout == torch.sparse_csr and not right.is_meta:
        return 2 * int(right.crow_indices().diff()[left.col_indices()].sum())
    if left.layout in COMPRESSED:
        return 2 * left.values().numel() * right.shape[-1]
    if right.layout in COMPRESSED:
        return 2 * right.values().numel() * left.shape[0]
    return _count_product(left.shape, right.shape)


@_takes_tensors
def _count_added_matrices(added: Tensor, left: Tensor, right: Tensor, *rest: Any, **more: Any) -> int:
    return _count_matrices(left, right)


@_takes_tensors
def _count_sparse_product(added: Tensor, left: Tensor, right: Tensor, *rest: Any, **more: Any) -> int:
    """What the sparse matrix stores, for each column of the other."""
    return 2 * left._nnz() * right.shape[-1]


@_takes_tensors
def _count_sampled_product(wanted: Tensor, left: Tensor, right: Tensor, *rest: Any, **more: Any) -> int:
    """Only those elements of the product that the sparse matrix has."""
    return 2 * wanted._nnz() * left.shape[-1]


TABLE: dict[str, Formula] = {
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable": _count_attention,
    "_scaled_dot_product_attention_math_for_mps": _count_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _count_attention_backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _count_attention_backward,
    "convolution_backward": _count_convolution_backward,
    "conv_tbc": _count_convolution_of_sequence,
    "mkldnn_rnn_layer": _count_lstm_layer,
    "mkldnn_rnn_layer_backward": _count_lstm_layer_backward,
    "_cudnn_rnn miopen_rnn": _count_recurrent,
    "_cudnn_rnn_backward miopen_rnn_backward": _count_recurrent_backward,
    "_native_multi_head_attention": _count_native_attention,
    "_transformer_encoder_layer_fwd": _count_encoder_layer,
    "mm": _count_matrices,
    "addmm addmm_": _count_added_matrices,
    "_int_mm _scaled_mm_v2": _count_product,
    "_foreach_mm": _count_products,
    "addbmm addbmm_ baddbmm_ _addmm_activation": _count_added_product,
    "_grouped_mm _scaled_grouped_mm": _count_grouped_product,
    "mv dot vdot": _count_vector_product,
    "addmv addmv_": _count_added_vector_product,
    "mkldnn_linear quantized.linear quantized.linear_relu quantized.linear_dynamic": _count_by_output,
    "quantized.linear_relu_dynamic quantized.linear_dynamic_fp16 _dyn_quant_matmul_4bit": _count_by_output,
    "_weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu": _count_by_output,
    "_euclidean_dist": _count_distances,
    "_trilinear": _count_trilinear,
    "_sparse_addmm": _count_sparse_product,
    "sparse_sampled_addmm": _count_sampled_product,
}
"""Formulas by operations; those of ``aten`` where no other library is named."""


def _resolve_operations() -> dict[Any, Formula]:
    """What this torch has of the table."""
    found: dict[Any, Formula] = {}
    for names, formula in TABLE.items():
        for name in names.split():
            library, _, operation = name.rpartition(".")
            packet = getattr(getattr(torch.ops, library or "aten"), operation, None)
            if packet is not None:
                found[packet] = formula
    return found


FORMULAS = _resolve_operations()
"""By operation; for `torch.utils.flop_counter.FlopCounterMode` as its ``custom_mapping``."""
