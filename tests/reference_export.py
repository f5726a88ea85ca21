"""A synthetic export with the numbers of a real one: a 2.7B model trained for one step under nsys after three warm-ups.

Every range has the instances and the total of the real capture's `nvtx_sum` table, to the ns. How a total is spread
over the instances is known only for ranges with four of them: the smallest and largest are real, and the two others are
equal. Ranges inside these get a proportional share of each instance. For kernels, names, launches and totals are real,
and where they were launched follows from their counts (225 launches per step of one matrix product are seven per layer
and one head). Backward launches from a thread of its own, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from benchmarks.synthetic_nsys import SyntheticExport

PID = 2700
AUTOGRAD = PID + 1
LAYERS = 32
PASSES = 4
"""Forward passes; the last one is measured, the others are warm-up."""
BEGIN_NS = 20_000_000_000
CALL_NS = 2_000

WARMUP_NS = 9_866_325_771
STEP_NS = 2_758_088_295
FORWARD_NS = 843_662_433
LOSS_NS = 3_113_887
BACKWARD_NS = 1_732_475_648
OPTIMIZER_NS = 178_760_308

FOUR_TIMES: Mapping[str, tuple[int, int, int]] = {
    "token_embeddings": (49_097_929, 328_904, 47_930_013),
    "layer_0": (903_231_175, 7_188_525, 880_993_013), "layer_1": (32_416_460, 6_014_687, 13_388_604),
    "layer_2": (31_706_038, 5_973_456, 12_965_846), "layer_3": (30_313_833, 5_885_794, 12_166_090),
    "layer_4": (34_304_385, 5_899_981, 16_243_143), "layer_5": (34_966_762, 5_912_947, 16_199_377),
    "layer_6": (32_417_751, 5_935_090, 13_415_657), "layer_7": (31_789_241, 5_963_225, 13_806_162),
    "layer_8": (70_968_732, 5_969_237, 52_883_652), "layer_9": (31_372_556, 5_851_477, 13_539_339),
    "layer_10": (29_439_851, 5_851_296, 11_613_258), "layer_11": (30_846_866, 5_889_451, 12_962_399),
    "layer_12": (30_432_163, 5_884_161, 12_219_965), "layer_13": (75_908_733, 6_021_048, 57_776_562),
    "layer_14": (34_070_137, 5_883_239, 16_292_289), "layer_15": (38_027_865, 5_954_288, 19_604_494),
    "layer_16": (31_808_618, 5_891_485, 14_073_705), "layer_17": (69_634_238, 5_930_191, 51_764_531),
    "layer_18": (31_361_794, 5_951_453, 13_469_231), "layer_19": (32_502_055, 5_826_338, 14_678_729),
    "layer_20": (32_848_815, 5_902_877, 15_062_411), "layer_21": (30_595_954, 5_939_329, 12_497_589),
    "layer_22": (29_851_817, 5_859_061, 11_937_954), "layer_23": (66_908_110, 12_234_965, 19_768_585),
    "layer_24": (90_672_651, 12_256_448, 26_172_204), "layer_25": (90_165_106, 11_440_600, 26_436_580),
    "layer_26": (105_233_309, 25_826_967, 27_301_234), "layer_27": (140_356_919, 26_085_203, 62_032_385),
    "layer_28": (96_421_866, 18_037_847, 26_204_085), "layer_29": (95_504_771, 17_172_503, 26_213_945),
    "layer_30": (92_776_559, 14_544_517, 26_107_837), "layer_31": (92_234_238, 14_091_631, 26_077_237),
    "final_norm": (12_491_567, 608_000, 4_015_031), "lm_head": (1_522_931, 158_440, 1_029_926),
}  # fmt: skip
"""Total, smallest and largest, ns, of the ranges with one instance per pass, in model order."""
SLOW_FIRST = ("token_embeddings", "layer_0")
"""Ranges whose largest instance is in the first pass; for the others it is assumed to be the measured one."""

LAYER_PARTS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "layer": (("attention_sublayer", 1_896_613_679), ("ffn_sublayer", 701_380_211)),
    "attention_sublayer": (
        ("attention projections", 329_760_873), ("rope encoding", 356_320_108),
        ("causal mask construction", 78_305_758), ("scaled_dot_product_attention", 489_582_879),
        ("output projection", 21_192_761),
    ),
    "scaled_dot_product_attention": (("annotated_scaled_dot_product_attention", 488_840_469),),
    "annotated_scaled_dot_product_attention": (
        ("computing attention scores", 195_493_826), ("computing softmax", 163_841_492), ("final matmul", 52_802_349),
    ),
}  # fmt: skip
"""The contents of each layer in order, with totals over all layers and passes, ns."""

BACKWARD, OPTIMIZER = "backward_pass", "optimizer_step"
AT = "void at::native::"


class KernelFact(Struct, frozen=True):
    """One kernel of the real capture."""

    name: str
    launches: int
    total_ns: int
    places: tuple[tuple[str, int, int], ...]
    """Range, launches per instance of it, ns of each; the last entry takes what remains of both."""


KERNELS = (
    KernelFact("ampere_sgemm_128x64_tn", 900, 3_002_482_417, (
        ("attention projections", 3, 1_448_000), ("output projection", 1, 1_448_000), ("lm_head", 1, 1_440_000),
        ("ffn_sublayer", 3, 0),
    )),
    KernelFact("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nt_align1>(T1::Params)", 772, 2_235_157_813,
               ((BACKWARD, 193, 0),)),
    KernelFact("ampere_sgemm_128x32_sliced1x4_nn", 260, 1_487_779_391, ((BACKWARD, 65, 0),)),
    KernelFact("ampere_sgemm_128x128_nn", 768, 854_356_834, (("final matmul", 1, 481_000), (BACKWARD, 160, 0))),
    KernelFact("ampere_sgemm_128x64_nn", 128, 731_264_017, ((BACKWARD, 32, 0),)),
    KernelFact("ampere_sgemm_128x64_nt", 128, 727_675_106, ((BACKWARD, 32, 0),)),
    KernelFact(f"{AT}elementwise_kernel<(int)128, (int)2>(int, T3)", 2444, 219_552_934,
               (("rope encoding", 8, 30_000), (BACKWARD, 355, 0))),
    KernelFact(f"{AT}vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<float>>(int, T2, T3)", 2064,
               197_551_348, (("computing softmax", 1, 42_000), ("ffn_sublayer", 2, 88_000), (BACKWARD, 420, 0))),
    KernelFact(f"{AT}<unnamed>::multi_tensor_apply_kernel<TensorListMetadata<2>>(T1, T2, T3)", 1304, 143_804_577,
               ((OPTIMIZER, 326, 0),)),
    KernelFact(f"{AT}<unnamed>::multi_tensor_apply_kernel<TensorListMetadata<4>>(T1, T2, T3)", 652, 130_989_437,
               ((OPTIMIZER, 163, 0),)),
    KernelFact("ampere_sgemm_128x128_nt", 256, 122_711_755, ((BACKWARD, 64, 0),)),
    KernelFact("ampere_sgemm_128x128_tn", 256, 83_350_734,
               (("computing attention scores", 1, 323_000), (BACKWARD, 32, 0))),
    KernelFact(f"{AT}reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float>>(T3)", 644, 42_214_467,
               (("computing softmax", 1, 90_000), (BACKWARD, 129, 0))),
    KernelFact(f"{AT}vectorized_elementwise_kernel<(int)4, exp_kernel_cuda>(int, T2, T3)", 128, 19_800_351,
               (("computing softmax", 1, 0),)),
    KernelFact(f"{AT}vectorized_elementwise_kernel<(int)4, sigmoid_kernel_cuda>(int, T2, T3)", 128, 11_134_852,
               (("ffn_sublayer", 1, 0),)),
)  # fmt: skip
"""The longest of the capture's 57 kernels: 10.0 of its 11.0 s."""


def make_reference_export() -> SyntheticExport:
    """The capture. The step begins where the warm-up ends, `BEGIN_NS` + `WARMUP_NS`."""
    export = SyntheticExport()
    export.add_process(PID)
    export.add_gpu(0, name="NVIDIA A100-SXM4-80GB", memory_bytes=80 * 2**30, capability=(8, 0))
    maker = _Maker(export)
    export.add_range(PID, "warmup", BEGIN_NS, BEGIN_NS + WARMUP_NS)
    for turn in range(PASSES - 1):
        begin_ns = BEGIN_NS + turn * WARMUP_NS // (PASSES - 1)
        over_ns = maker.run_forward(turn, begin_ns)
        maker.launch_in(BACKWARD, turn, over_ns, over_ns + BACKWARD_NS, thread=AUTOGRAD)
        maker.launch_in(OPTIMIZER, turn, over_ns + BACKWARD_NS, over_ns + BACKWARD_NS + OPTIMIZER_NS)
    step_ns = BEGIN_NS + WARMUP_NS
    export.add_range(PID, "profiled_step", step_ns, step_ns + STEP_NS)
    at_ns = step_ns
    for name, long_ns in (
        ("forward_pass", FORWARD_NS), ("loss_computation", LOSS_NS), (BACKWARD, BACKWARD_NS), (OPTIMIZER, OPTIMIZER_NS),
    ):  # fmt: skip
        export.add_range(PID, name, at_ns, at_ns + long_ns)
        at_ns += long_ns
    maker.run_forward(PASSES - 1, step_ns)
    loss_over_ns = step_ns + FORWARD_NS + LOSS_NS
    maker.launch_in(BACKWARD, PASSES - 1, loss_over_ns, loss_over_ns + BACKWARD_NS, thread=AUTOGRAD)
    maker.launch_in(OPTIMIZER, PASSES - 1, loss_over_ns + BACKWARD_NS, at_ns)
    return export


class _Maker:
    """Lays out ranges and launches kernels from them; the device runs them in order."""

    def __init__(self, export: SyntheticExport) -> None:
        self._export = export
        self._device_ns = 0
        self._spans = _spread_instances()
        self._lengths = {fact.name: _spread_kernels(fact) for fact in KERNELS}

    def run_forward(self, turn: int, begin_ns: int) -> int:
        """One pass through the model. Returns its end."""
        for name in FOUR_TIMES:
            begin_ns = self._open(name, turn, begin_ns)
        return begin_ns

    def _open(self, name: str, turn: int, begin_ns: int, layer: int | None = None) -> int:
        if name.startswith("layer_"):
            layer = int(name.removeprefix("layer_"))
        place = turn if layer is None or name.startswith("layer_") else turn * LAYERS + layer
        end_ns = begin_ns + self._spans[name][place]
        self._export.add_range(PID, name, begin_ns, end_ns)
        parts = LAYER_PARTS.get("layer" if name.startswith("layer_") else name, ())
        at_ns = begin_ns
        for part, _ in parts:
            at_ns = self._open(part, turn, at_ns, layer)
        assert at_ns <= end_ns
        self.launch_in(name, turn, at_ns, end_ns)
        return end_ns

    def launch_in(self, place: str, turn: int, begin_ns: int, end_ns: int, *, thread: int | None = None) -> None:
        """Launches the place's kernels, evenly over the time."""
        found = [(fact.name, count) for fact in KERNELS for where, count, _ in fact.places if where == place]
        names = [name for name, count in found for _ in range(count)]
        for number, name in enumerate(names):
            called_ns = begin_ns + (end_ns - begin_ns) * number // len(names)
            begins_ns = max(self._device_ns, called_ns + CALL_NS)
            self._device_ns = begins_ns + next(self._lengths[name][place])
            call = self._export.add_call(PID, "cudaLaunchKernel_v7000", called_ns, called_ns + CALL_NS, thread=thread)
            self._export.add_kernel(PID, name, begins_ns, self._device_ns, correlation=call)


def _spread_instances() -> dict[str, list[int]]:
    """The duration of every instance of each range, ns: by pass, and inside a layer by pass and layer."""
    spans: dict[str, list[int]] = {}
    for name, (total_ns, smallest_ns, largest_ns) in FOUR_TIMES.items():
        middle_ns = total_ns - smallest_ns - largest_ns
        low_ns = middle_ns // 2
        inner = [smallest_ns, low_ns, middle_ns - low_ns]
        spans[name] = [largest_ns, *inner] if name in SLOW_FIRST else [*inner, largest_ns]
    spans["layer"] = [spans[f"layer_{layer}"][turn] for turn in range(PASSES) for layer in range(LAYERS)]
    for whole, parts in LAYER_PARTS.items():
        for part, total_ns in parts:
            spans[part] = _share(spans[whole], total_ns)
    return spans


def _share(wholes_ns: list[int], total_ns: int) -> list[int]:
    """Proportional parts that sum exactly to the total."""
    parts = [whole_ns * total_ns // sum(wholes_ns) for whole_ns in wholes_ns]
    lost = total_ns - sum(parts)
    return [part + (place < lost) for place, part in enumerate(parts)]


def _spread_kernels(fact: KernelFact) -> dict[str, Iterator[int]]:
    """Of one kernel, place by place, how long each launch takes, ns: in all the real total."""
    lengths: dict[str, Iterator[int]] = {}
    left, left_ns = fact.launches, fact.total_ns
    for place, count, long_ns in fact.places:
        one_a_pass = place in (BACKWARD, OPTIMIZER, "lm_head")
        launches = count * PASSES * (1 if one_a_pass else LAYERS)
        if place == fact.places[-1][0]:
            assert launches == left, f"{fact.name}: {launches} launches of {left}"
            lengths[place] = iter(_share([1] * left, left_ns))
        else:
            lengths[place] = iter([long_ns] * launches)
            left, left_ns = left - launches, left_ns - launches * long_ns
    return lengths
