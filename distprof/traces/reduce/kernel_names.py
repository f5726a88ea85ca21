"""What a kernel's name says: whether it is a collective, its category, and the precision of its matrix products.

Nothing is guessed: a kernel whose name does not say it is `Category.OTHER`, or has no precision. Kernels are judged by
their function, not by types in their template: an element-wise kernel over a ``...AllReduceFunctor`` is not a
collective. Only wrappers, such as ``cutlass::Kernel2<...>``, are judged by what they wrap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from distprof.facts.run import CollectiveKind
from distprof.facts.trace_summary import Category

LONGEST_JUDGED = 4_000
"""Characters of a name to look at: the front says what the kernel is."""
_CACHED = 16_384
PRODUCTS = (Category.MATMUL, Category.ATTENTION, Category.CONVOLUTION)
"""What multiplies matrices."""

_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\(anonymous\)::")
_WRAPPER = re.compile(r"^cutlass|^_z|kentry|(^|::)(device_)?kernel2?$|attention_kernel_batched_impl|^flashattn")

_LIBRARY = re.compile(
    r"^(.*::)?([nrhxmp]ccl|msccl|oneccl|cncl|hcom_|ucc_|(nv|roc)_?shmem|k?userbuffers_|quickreduce::|multimem_)"
    r"|^(\w+::)*(deep_ep|dpsk::ep|mori|c10d::(symmetric_memory|(nv|roc)shmem_extension))::"
)
_EXCHANGE = re.compile(
    r"all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|cross_device_reduce|lamport|_on_stream_kernel"
    r"|moea2a|(^|::)(a2a_|ep)(dispatch|combine)|exchangesplitandoffset"
)
_ROUTED = re.compile(r"dispatch(?!_layout)|combine|exchangesplit")
"""Kernels of libraries that send tokens to experts and back: an all-to-all exchange."""
_LOCAL = re.compile(
    r"^triton_(poi|red|per|tem|for|mm|bmm)|(warp|block)_?all_?reduce|(?<!fb)gemm|matmul|copy_(in|out)|elementwise"
)
_KINDS: tuple[tuple[str, CollectiveKind], ...] = (
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("crossdevicereduce", CollectiveKind.ALL_REDUCE),
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("fcollect", CollectiveKind.ALL_GATHER),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("all2all", CollectiveKind.ALL_TO_ALL),
)
_OPERATION = re.compile(r"([a-z]{1,4}ccl|gloo|ucc|mpi|_?c10d(_functional)?)::?\w", re.IGNORECASE)
"""PyTorch's names for annotations around collectives, and for operators that issue them."""

_TRITON: tuple[tuple[Category, str], ...] = (
    (Category.ATTENTION, r"attention|sdpa"),
    (Category.CONVOLUTION, r"^triton_(tem_fused_\w*)?convolution"),
    (Category.MATMUL, r"^triton_(tem_fused_\w*)?(scaled_)?(grouped_)?(add|b|badd)?mm(_|$)"),
    (Category.OPTIMIZER, r"^triton_for_"),
    (Category.NORMALIZATION, r"(layer|rms|group|batch|instance)_norm"),
    (Category.ELEMENTWISE, r"^triton_poi_"),
    (Category.REDUCTION, r"^triton_(red|per)_"),
)
_RULES: tuple[tuple[Category, tuple[str, ...]], ...] = (
    (Category.ATTENTION, (
        r"flash_(fwd|bwd)|flash_?attn|flash_?attention|\bflash::|flash_mla|fmha|mha_(fwd|bwd)|attention",
        r"\battn_(fwd|bwd)|_attn_(fwd|bwd)|sdpa|(batch|single)(decode|prefill)with",
    )),
    (Category.EMBEDDING, (
        r"^(?!.*(rotary|rope)).*embedding_?(bag|backward|codegen|nobag|forward|dense)",
        r"compute_grad_weight|partials?_per_segment|partial_segment_offset|num_of_partial_segments|sum_and_scatter",
    )),
    (Category.NORMALIZATION, (
        r"(layer|rms|group|batch|instance)_?norm|normalization::|\bbn_(fw|bw)|\bln_(fwd|bwd)|rowwisemoments",
        r"gammabeta|computeinternalgradients|computebackwardfusedparams",
    )),
    (Category.OPTIMIZER, (r"multi_?tensor_|adam|adagrad|fused_?sgd|(^|::|_)sgd_|lamb_?kernel|\blion_",)),
    (Category.CONVOLUTION, (
        r"conv(?!ert)|wgrad|dgrad|fprop|winograd|implicit_?gemm|(?<![a-z])[hs]\d*cudnn|cutlass_cudnn|cask_cudnn",
        r"im2col|col2im|im2d2col|\bigemm_(fwd|bwd|wrw)|miopensp3",
    )),
    (Category.REDUCTION, (r"backward_bias|dot_kernel",)),
    (Category.MATMUL, (
        r"(?<!fb)gemm|gemv|matmul|nvjet|cublas|\bcijk_|custom_cijk_|splitkreduce|^bmm_|xmma|_scaled_mm|_mm_kernel",
        r"marlin|machete|fused_moe_kernel|epilogue::impl::globalkernel",
    )),
    (Category.REDUCTION, (
        r"softmax|reduce|nll_?loss|cross_?entropy|fused_classifier|norm_squared|(^|_|::)sum_|scan(_|kernel|init)",
        r"cumsum|cumprod|sort|top_?k|arg(max|min)|histogram|pool_|pooling|(^|::)cub::device",
    )),
    (Category.ELEMENTWISE, (
        r"elementwise|copy|cast|fill|permute|transpose|nchwtonhwc|nhwctonchw|repeat_?interleave|upsample_|residual",
        r"gelu|silu|swiglu|relu|sigmoid|dropout|rotary|rope_|act_and_mul|\b(vectorized_)?add_|quant|fp8rowwise|fp8_q",
        r"index_?(select|put|add|copy|fill)|indexing_|index_kernel|gather|scatter|masked_|tri[ul]_|arange",
        r"reshape_and_cache|bounds_check_indices|linearize_index|offsets_range",
    )),
)  # fmt: skip
"""In order: the first match counts."""
_COMPILED = tuple((category, re.compile("|".join(patterns))) for category, patterns in _RULES)
_COMPILED_TRITON = tuple((category, re.compile(pattern)) for category, pattern in _TRITON)

_DATA: Mapping[str, str] = {
    "tf32": "tf32", "tfloat32": "tf32", "bf16": "bf16", "bfloat16": "bf16", "bhalf": "bf16",
    "f16": "fp16", "fp16": "fp16", "half": "fp16", "float16": "fp16", "f32": "fp32", "fp32": "fp32",
    "f64": "fp64", "fp64": "fp64", "double": "fp64", "e4m3": "fp8", "e5m2": "fp8", "fp8": "fp8",
    "e2m1": "fp4", "i8": "int8", "s8": "int8", "int8": "int8",
}  # fmt: skip
_TOKEN = f"({'|'.join(sorted(_DATA, key=len, reverse=True))})"
_LETTER: Mapping[str, str] = {
    "h": "fp16", "t": "bf16", "b": "bf16", "s": "fp32", "d": "fp64", "q": "fp8", "f8": "fp8", "b8": "fp8",
}  # fmt: skip
"""For cuBLAS' ``nvjet`` and Tensile's ``Cijk`` kernels: the first letter is the operand type."""
_NO_PRECISION = re.compile(
    r"splitk_?reduce|reducesplitk|epilogue::impl|cudnn_generated|offsetskernel|im2col|im2d2col|col2im|reduce_wgrad"
)
_BY_LETTER = (
    re.compile(r"^nvjet_(?:sm\d+_)?([htqd])\w*_"),
    re.compile(r"\A(?>.*?cijk_[a-z]+_[a-z]+_(f8|b8|[hbsd]))(?!\w*_mx_)", re.DOTALL),  # only the first place is tried
)
_BY_TOKEN = (
    re.compile(rf"xmma_(?:gemm|[fdw](?:prop|grad)_implicit_gemm(?:_indexed)?)_[a-z0-9]+_{_TOKEN}"),
    re.compile(rf"^(?:bmm|gemm)_(?:mx)?[a-z0-9]+_(?:mx)?(?:e2m1(?:mx)?)?{_TOKEN}"),
    re.compile(rf"qkv{_TOKEN}"),
)
_BY_SHAPE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"tf32|tfloat32"), "tf32"),
    (re.compile(r"(?<![a-z])s(gemm|cudnn)"), "fp32"),
    (re.compile(r"(?<![a-z])dgemm|(?<![a-z0-9])d884gemm"), "fp64"),
    (re.compile(r"(?<![a-z])h(gemm|cudnn)|(?<![a-z0-9])h\d+(gemm|cudnn)"), "fp16"),
    (re.compile(r"(ampere|_80_tensorop|_86_tensorop|_89_tensorop|_90_tensorop)_s1688gemm(?!_(b?f16|fp16))"), "tf32"),
    (re.compile(r"ampere_s1688cudnn(?!_(b?f16|fp16))"), "tf32"),
    (re.compile(r"volta_s884(gemm|cudnn)(?!_(b?f16|fp16))"), "fp16"),
)
"""Instruction shapes of cuBLAS and CUTLASS: 16x8x8 on 32-bit data is TF32 from Ampere on."""
_MATRIX_UNITS = re.compile(r"_mi\d+x\d+x\d+|mfma|wmma|_gtcx?\d?_|xdl")
_AMD = re.compile(r"\bcijk_|_isa\d{3}|_isa\d\d[a-f]|gfx\d|^_zn2ck|(^|\W)ck(_tile)?::|miopen|_gtcx?\d?_|mfma")
_MANGLED = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]{0,6}_|(?P<length>\d+)|(?P<type>DF16[_b]|Dh|[a-z])|.", re.DOTALL)
_BUILT_IN: Mapping[str, str] = {
    "t": "bf16", "DF16b": "bf16", "DF16_": "fp16", "Dh": "fp16", "f": "fp32", "d": "fp64", "a": "int8",
}  # fmt: skip
"""Operand types of Composable Kernel in mangled names; its bf16 is an unsigned short."""
_COMPOSABLE = re.compile(r"(void )?ck(_tile)?::")
_C_TYPE = re.compile(r"[<,] ?(unsigned short|signed char), ?(unsigned short|signed char), ")
_WIDTHS = ("int8", "fp16", "bf16", "fp32", "fp64")
_LEAST_TYPES = 3
"""Operands and accumulator: shorter lists of types are something else."""
_ANY_TOKEN = re.compile(rf"(?<![a-z0-9]){_TOKEN}(?![a-z0-9])")
_VECTOR = re.compile(r"gem(v|m(k1|sn)_)")
_FLOAT_FIRST = re.compile(r"<[^a-z<]*(int, int, )?float,")
"""Only behind `_VECTOR` ``float`` is the operand type; elsewhere in a template it may be the accumulator."""
_ENGINE = re.compile(r"(grad|alg\d)_engine|convolve_|winograd")
_FLOAT_DATA = re.compile(r"<(?:(?:\d+|true|false|int), )*float,")
"""Convolutions of cuDNN without tensor cores: the first type of the template is that of the data."""
_OTHER_SOFTMAX = re.compile(
    r"log_?softmax|softmax_warp_(?:for|back)ward<(?:[^<>,]*,){4} ?true|cross_?entropy|gating|top_?k"
)
"""Softmaxes of a loss over classes, and of the choice of experts."""
_ARCHITECTURES = (("volta_", (7, 0)), ("turing_", (7, 5)), ("ampere_", (8, 0)), ("hopper_", (9, 0)))
_GENERATION = re.compile(r"(?:^|[^a-z0-9])(?:sm|cutlass_|nvjet_sm)_?(\d{2,3})[a-z]?(?![a-z0-9])")


@lru_cache(maxsize=_CACHED)
def classify_collective(name: str) -> CollectiveKind | None:
    """The kind of a kernel that is a collective; None: it is not. `CollectiveKind.OTHER`: any other, or unspecified.

    Knows all generations of NCCL and its relatives, MSCCL and MSCCL++, oneCCL, NVSHMEM, PyTorch's symmetric memory,
    DeepEP, MORI, and kernels whose own name says that they exchange data between devices, such as the all-reduces of
    inference servers. All kernels of such a library count: preparing a dispatch is part of its cost. A kernel that
    multiplies matrices *and* exchanges data is compute; one that only adds up or normalises what arrives is a
    collective.
    """
    own = _parse_own_name(name)
    if _LOCAL.search(own) or not (_LIBRARY.match(own) or _EXCHANGE.search(own)):
        return None
    kind = classify_operation(own)
    return CollectiveKind.ALL_TO_ALL if kind is CollectiveKind.OTHER and _ROUTED.search(own) else kind


def names_operation(label: str) -> bool:
    """Whether the name of an annotation or operator says which collective is issued inside it."""
    return bool(_OPERATION.match(label))


def classify_operation(operation: str) -> CollectiveKind:
    """The kind of a collective from the name of its operation, such as ``_allgather_base``."""
    plain = re.sub(r"[^a-z0-9]", "", operation[:LONGEST_JUDGED].lower())
    return next((kind for word, kind in _KINDS if word in plain), CollectiveKind.OTHER)


@lru_cache(maxsize=_CACHED)
def classify_kernel(name: str) -> Category:
    """The category of a kernel.

    Embedding: lookups in tables and their backward, which may contain the optimizer's step of those tables, as fbgemm's
    ``split_embedding_backward_*_adagrad_*`` do. Element-wise: arithmetic on single elements, and moving data: casts,
    fills, gathers, permutations. Reduction: many values to fewer, or to an order: sums, softmax, losses, pools, scans,
    sorts. Optimizer: includes every ``foreach`` kernel.
    """
    if classify_collective(name) is not None:
        return Category.COMMUNICATION
    subject = _choose_subject(name)
    rules = _COMPILED_TRITON if subject.startswith("triton_") else _COMPILED
    return next((category for category, pattern in rules if pattern.search(subject)), Category.OTHER)


@lru_cache(maxsize=_CACHED)
def infer_precision(name: str) -> str | None:
    """The precision in which a matrix product, attention or a convolution multiplies; None: another kernel, or unknown.

    The wider one of two operands: "fp64", "fp32" (no tensor cores), "tf32", "bf16", "fp16", "fp8", "fp4", "int8".
    """
    subject = name[:LONGEST_JUDGED].lower()
    category = classify_kernel(name)
    if category not in PRODUCTS or _NO_PRECISION.search(subject):
        return None
    if subject.startswith("_z"):
        words, operands = _read_mangled(name[:LONGEST_JUDGED])
        subject = " ".join(words).lower()
        if "ck" in words and operands:
            return max((_BUILT_IN[operand] for operand in operands), key=_WIDTHS.index)
    elif _COMPOSABLE.match(subject) and (found := _C_TYPE.search(subject)):
        return "bf16" if found[1] == "unsigned short" else "int8"
    for pattern in _BY_LETTER:
        if found := pattern.search(subject):
            return _LETTER[found[1]]
    if subject.startswith(("nvjet", "triton_")) or "cijk_" in subject:
        return None
    for pattern in _BY_TOKEN:
        if found := pattern.search(subject):
            return _DATA[found[1]]
    if category is Category.CONVOLUTION:
        return _infer_convolution_precision(subject)
    for pattern, precision in _BY_SHAPE:
        if pattern.search(subject):
            return precision
    if found := _ANY_TOKEN.search(subject):
        return _DATA[found[1]]
    vector = _VECTOR.search(subject)
    return "fp32" if vector and _FLOAT_FIRST.search(subject, vector.end()) else None


def _infer_convolution_precision(subject: str) -> str | None:
    """Shapes come last: cuDNN's ``convolve_sgemm`` exists for fp16 data as well."""
    if found := _ANY_TOKEN.search(subject):
        return _DATA[found[1]]
    own, bracket, _ = subject.partition("<")
    if bracket and _ENGINE.search(own):
        return "fp32" if _FLOAT_DATA.match(subject, len(own)) else None
    return next((precision for pattern, precision in _BY_SHAPE if pattern.search(subject)), None)


def is_softmax(name: str) -> bool:
    """Whether a kernel is the softmax of something else than a loss or a choice of experts: mostly of attention that is
    not fused, between its two matrix products."""
    subject = name[:LONGEST_JUDGED].lower()
    softmax = classify_kernel(name) is Category.REDUCTION and "softmax" in _parse_own_name(name)
    return softmax and not _OTHER_SOFTMAX.search(subject)


def infer_architecture(name: str) -> tuple[int, int] | None:
    """The compute capability that a kernel was built for, which its device has at least; None: not in the name."""
    plain = name[:LONGEST_JUDGED].lower()
    found = [capability for word, capability in _ARCHITECTURES if word in plain]
    found += [(int(number[:-1]), int(number[-1])) for number in _GENERATION.findall(plain)]
    return max(found, default=None)


def runs_on_amd(name: str) -> bool:
    """Whether a kernel is from a library that runs only on AMD devices: Tensile, Composable Kernel, MIOpen."""
    return bool(_AMD.search(name[:LONGEST_JUDGED].lower()))


def multiplies_on_matrix_cores(name: str) -> bool:
    """Whether the name of an AMD kernel says that it uses matrix instructions; no if the name does not say so."""
    return bool(_MATRIX_UNITS.search(name[:LONGEST_JUDGED].lower()))


def _read_mangled(name: str) -> tuple[list[str], list[str]]:
    """The words of a mangled name, and the first two types of its first list of built-in types: the operands'.

    Substitutions such as ``S8_`` and numbers are skipped. Source: the Itanium C++ ABI, "Mangling".
    """
    words: list[str] = []
    row: list[str] = []
    operands: list[str] = []
    index = 2
    while index < len(name):
        found = _MANGLED.match(name, index)
        assert found is not None
        index = found.end()
        if found["type"]:
            row.append(found["type"])
            continue
        if len(row) >= _LEAST_TYPES and not operands and all(code in _BUILT_IN for code in row[:2]):
            operands = row[:2]
        row = []
        if found["length"]:
            length = int(found["length"][:4])
            words.append(name[index : index + length])
            index += length
    return words, operands


def _choose_subject(name: str) -> str:
    """The lower-case text by which to judge a kernel: its own name; for a wrapper, the template too."""
    own = _parse_own_name(name)
    return name[:LONGEST_JUDGED].lower() if _WRAPPER.search(own) else own


@lru_cache(maxsize=_CACHED)
def _parse_own_name(name: str) -> str:
    """The function's qualified name in lower case, without return type, template or arguments."""
    plain = _UNNAMED.sub("", name[:LONGEST_JUDGED].lower()).removeprefix("void ")
    if plain.startswith("std::enable_if"):
        plain = plain.partition(">::type ")[2]
    return re.split(r"[<(]", plain, maxsplit=1)[0].strip()
