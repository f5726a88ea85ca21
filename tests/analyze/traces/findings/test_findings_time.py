"""Rules about device time: products, precision, small kernels, idleness. Two steps of 100 ms unless said otherwise."""

from __future__ import annotations

import pytest
from msgspec import structs

from distprof.analyze.traces.findings.idle import check_exposed_communication, check_host_bound, check_launch_gaps
from distprof.analyze.traces.findings.kernels import check_eager_attention, check_small_elementwise
from distprof.analyze.traces.findings.products import check_fp32_matmul, check_matmul_share, check_older_kernels
from distprof.facts.run import Run
from distprof.facts.trace_summary import Category, HostState, LaunchGap, LaunchGaps, QueueLength, TraceSummary
from distprof.render.finding_texts import describe_finding as word
from tests.analyze.traces.findings.synthetic_summaries import (
    find,
    find_nothing,
    find_why,
    make_device,
    make_kernel,
    make_range,
    make_rank,
    show_evidence,
)
from tests.factories import MS, make_run

NO_DEVICE = "no device activity was traced"
QUIET = make_rank()


def make_mix(products_ms: float, others_ms: float, unknown_ms: float = 0, rank: int = 0) -> TraceSummary:
    """Compute of a rank, with communication and copies that must not count."""
    kernels = [
        make_kernel(Category.MATMUL, products_ms / 2), make_kernel(Category.ATTENTION, products_ms / 2),
        make_kernel(Category.ELEMENTWISE, others_ms), make_kernel(Category.COMMUNICATION, 500),
        make_kernel(Category.COPY, 500),
    ]  # fmt: skip
    if unknown_ms:
        kernels.append(make_kernel(Category.OTHER, unknown_ms))
    return make_rank(rank, kernels=tuple(kernels))


def test_matmul_share_speaks_where_less_than_half_of_compute_multiplies() -> None:
    finding = find(check_matmul_share, make_mix(40, 60))
    assert word(finding).title == "Only 40.0 % of compute is matrix multiplication, attention or convolution"
    assert finding.share_ratio == pytest.approx(0.6 * 160 / 200)  # 60 % of a compute of 160 ms in a span of 200 ms
    assert show_evidence(finding)[:2] == [
        ("matrix multiplication, of compute", "40.0 %", "rank 0"),
        ("elementwise, of compute", "60.0 %, 30.0 ms per step", "rank 0, most of it in elementwise_kernel"),
    ]


def test_matmul_share_is_silent_at_half_and_where_it_cannot_tell() -> None:
    assert find_nothing(check_matmul_share, make_mix(50, 50))
    assert "11.0 % of compute is in kernels whose names do not tell" in find_why(
        check_matmul_share, make_mix(40, 49, 11)
    )
    assert find_why(check_matmul_share, make_mix(9, 91)) == "hardly any kernel is a matrix product by its name"
    assert find_why(check_matmul_share, make_rank(device=None)) == NO_DEVICE


def test_matmul_share_does_not_advise_a_fused_optimizer_where_embeddings_take_the_time() -> None:
    def advise(category: Category) -> str:
        kernels = (make_kernel(Category.MATMUL, 40), make_kernel(Category.ELEMENTWISE, 20), make_kernel(category, 40))
        return word(find(check_matmul_share, make_rank(kernels=kernels))).remedy

    assert "a fused optimizer" in advise(Category.OPTIMIZER)
    assert "a fused optimizer" not in advise(Category.EMBEDDING) and "fused already" in advise(Category.EMBEDDING)


def test_matmul_share_names_the_ranks_the_worst_first() -> None:
    finding = find(check_matmul_share, make_mix(40, 60), make_mix(80, 20, rank=1), make_mix(30, 70, rank=2))
    assert "Only 30.0 % of compute" in word(finding).title and word(finding).title.endswith("on ranks 0, 2")
    assert [where for _, _, where in show_evidence(finding)][:2] == ["rank 2", "rank 0"]


def make_fp32(share: float, *, name: str = "ampere_sgemm_128x64_tn", **head: object) -> TraceSummary:
    kernels = (
        make_kernel(Category.MATMUL, 100 * share, precision="fp32", name=name),
        make_kernel(Category.ELEMENTWISE, 100 * (1 - share)),
    )
    return make_rank(kernels=kernels, head=dict(head))


def test_fp32_matmul_says_share_and_ceiling() -> None:
    finding = find(check_fp32_matmul, make_fp32(0.8))
    assert word(finding).title.startswith("80.0 % of GPU time is single-precision (fp32) matrix products")
    assert finding.share_ratio == pytest.approx(80 / 200)
    assert "80.0 % shorter: no more than that" in word(finding).consequence
    assert (
        "8.0 times its fp32 peak, so the ceiling there is 70.0 %" in word(finding).consequence
    )  # 156 / 19.5; 80 % of 7/8
    assert "set_float32_matmul_precision('high')" in word(finding).remedy
    assert ("longest of them", "ampere_sgemm_128x64_tn", "rank 0") in show_evidence(finding)


def test_fp32_matmul_is_silent_below_a_twentieth_and_without_tensor_cores() -> None:
    assert find_nothing(check_fp32_matmul, make_fp32(0.049))
    for name, capability in (("NVIDIA GeForce GTX 1660", (7, 5)), ("Some GPU", (6, 1)), ("NVIDIA GTX 1080", None)):
        assert find_nothing(check_fp32_matmul, make_fp32(0.8, device_name=name, compute_capability=capability))


@pytest.mark.parametrize(
    ("device", "capability", "kernel", "tf32", "source"),
    [
        ("Tesla V100-SXM2-32GB", (7, 0), "volta_sgemm_128x64_tn", False, "Tesla V100-SXM2-32GB"),
        ("Unheard Of", (9, 0), "sgemm", True, "compute capability 9.0"),
        ("Unheard Of", (7, 5), "sgemm", False, "compute capability 7.5"),
        (None, None, "ampere_sgemm_128x64_tn", True, "it runs ampere_sgemm_128x64_tn"),
        (None, None, "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nt_align1>(T1::Params)", True, "it runs"),
        (None, None, "volta_sgemm_128x64_tn", False, "it runs volta_sgemm_128x64_tn"),
    ],
)
def test_fp32_matmul_knows_tensor_cores_by_name_capability_or_kernel(
    device: str | None, capability: tuple[int, int] | None, kernel: str, tf32: bool, source: str
) -> None:
    rank = make_fp32(0.8, name=kernel, device_name=device, compute_capability=capability)
    finding = find(check_fp32_matmul, rank)
    assert ("set_float32_matmul_precision" in word(finding).remedy) == tf32
    assert next(value for what, value, _ in show_evidence(finding) if what == "tensor cores").startswith(source)


def test_fp32_matmul_counts_convolutions() -> None:
    """Of 100 ms 8 are products, 50 convolutions in fp32 and 4 untold: 58 of 200 ms of the two steps."""
    kernels = (
        make_kernel(Category.MATMUL, 8, precision="fp32", name="volta_sgemm_64x64_nt"),
        make_kernel(Category.CONVOLUTION, 30, precision="fp32", name="void cudnn::detail::dgrad_engine<float, 512>()"),
        make_kernel(Category.CONVOLUTION, 20, precision="fp32", name="volta_scudnn_128x128_stridedB_small_nn_v1"),
        make_kernel(Category.CONVOLUTION, 4, precision=None, name="im2col"),
        make_kernel(Category.CONVOLUTION, 10, precision="fp16"), make_kernel(Category.ELEMENTWISE, 28),
    )  # fmt: skip
    finding = find(check_fp32_matmul, make_rank(kernels=kernels, head={"device_name": "Tesla V100-SXM2-32GB"}))
    assert finding.share_ratio == pytest.approx(58 / 200)
    text = word(finding)
    assert text.title.startswith(
        "58.0 % of GPU time is single-precision (fp32) matrix products and convolutions, which"
    )
    assert ("convolutions among them, of GPU time", "50.0 %", "rank 0") in show_evidence(finding)
    assert show_evidence(finding)[2][1].startswith("cudnn::detail::dgrad_engine<float, 512>")
    assert "58.0 % shorter: no more than that" in text.consequence and "Another 4.0 % are products" in text.consequence
    assert "channels_last" in text.remedy


def test_fp32_convolutions_alone_are_named_so_and_are_silent_below_a_twentieth() -> None:
    def make(share: float) -> TraceSummary:
        convolution = make_kernel(
            Category.CONVOLUTION, 100 * share, precision="fp32", name="ampere_scudnn_128x64_nn_v1"
        )
        return make_rank(kernels=(convolution, make_kernel(Category.ELEMENTWISE, 100 * (1 - share))))

    text = word(find(check_fp32_matmul, make(0.05)))
    assert text.title == "5.0 % of GPU time is single-precision (fp32) convolutions, which leave the tensor cores idle"
    assert "torch.backends.cudnn.allow_tf32" in text.remedy
    assert find_nothing(check_fp32_matmul, make(0.049))


SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)"
LOG_SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)"


def make_softmax(share: float, *, name: str = SOFTMAX) -> TraceSummary:
    kernels = (
        make_kernel(Category.REDUCTION, 100 * share, name=name), make_kernel(Category.ATTENTION, 10),
        make_kernel(Category.MATMUL, 90 - 100 * share),
    )  # fmt: skip
    return make_rank(kernels=kernels)


def test_eager_attention_is_seen_by_its_softmax() -> None:
    finding = find(check_eager_attention, make_softmax(0.46))
    assert word(finding).title == (
        "46.0 % of GPU time is softmax in kernels of its own, as in attention that is not fused"
    )
    assert finding.share_ratio == pytest.approx(46 / 200)
    share, longest, fused = show_evidence(finding)
    assert share == ("softmax, of GPU time", "46.0 %", "rank 0")
    assert longest[1].startswith("softmax_warp_forward<float") and longest[1].endswith("23.0 ms per step")
    assert fused == ("fused attention, of GPU time", "10.0 %", "rank 0")
    assert "scaled_dot_product_attention" in word(finding).remedy


def test_eager_attention_is_silent_below_a_twentieth_on_losses_and_without_a_device() -> None:
    assert find(check_eager_attention, make_softmax(0.05)).rule == "eager_attention"
    assert find_nothing(check_eager_attention, make_softmax(0.049))
    assert find_nothing(check_eager_attention, make_softmax(0.46, name=LOG_SOFTMAX))
    assert find_why(check_eager_attention, make_rank(device=None)) == NO_DEVICE


def make_older(share: float, **head: object) -> TraceSummary:
    kernels = (
        make_kernel(Category.MATMUL, 100 * share, precision="fp16", name="turing_fp16_s1688gemm_fp16_128x128_tn"),
        make_kernel(Category.MATMUL, 20, precision="fp32", name="ampere_sgemm_128x64_tn"),
        make_kernel(Category.MATMUL, 80 - 100 * share, name="sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"),
    )
    usual = {"device_name": "NVIDIA H100 80GB HBM3", "compute_capability": (9, 0)}
    return make_rank(kernels=kernels, head=usual | head)


def test_older_kernels_are_named_with_what_they_were_made_for() -> None:
    """The fp32 product uses no tensor cores whatever it was made for."""
    finding = find(check_older_kernels, make_older(0.4))
    assert word(finding).title == (
        "40.0 % of GPU time is matrix products in kernels made for older devices, of compute capability 7.5"
    )
    assert finding.share_ratio == pytest.approx(40 / 200)
    assert show_evidence(finding) == [
        ("products in older kernels, of GPU time", "40.0 %", "rank 0"),
        ("NVIDIA H100 80GB HBM3", "compute capability 9.0", "rank 0"),
        ("made for 7.5", "turing_fp16_s1688gemm_fp16_128x128_tn, 40.0 % of GPU time", "rank 0"),
    ]


def test_older_kernels_are_silent_below_a_twentieth_on_their_own_generation_and_without_a_capability() -> None:
    assert find(check_older_kernels, make_older(0.05)).rule == "older_kernels"
    assert find_nothing(check_older_kernels, make_older(0.049))
    assert find_nothing(check_older_kernels, make_older(0.4, device_name="Tesla T4", compute_capability=(7, 5)))
    unknown = "the trace does not tell what kind of device it is"
    assert find_why(check_older_kernels, make_older(0.4, compute_capability=None)) == unknown
    assert find_why(check_older_kernels, make_older(0.4, device_name="AMD Instinct MI300X")) == unknown
    assert find_nothing(check_older_kernels, make_rank(head={"compute_capability": None}))
    assert find_why(check_older_kernels, make_rank(device=None)) == NO_DEVICE


MFMA = "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0_AFC1_ISA90a_IU1"
VALU = "Cijk_Ailk_Bljk_SB_MT64x64x16_SE_1LDSB0_APM1_ISA906"


@pytest.mark.parametrize(
    ("device", "capability", "kernel", "use", "source"),
    [
        ("AMD Radeon Graphics", (9, 0), MFMA, "use the matrix cores at the rate of fp32", "it runs Cijk_Alik_Bljk_SB"),
        (None, None, MFMA, "use the matrix cores at the rate of fp32", "it runs Cijk_Alik_Bljk_SB"),
        ("AMD Instinct MI300X", (9, 4), MFMA, "use the matrix cores at the rate of fp32", "AMD Instinct MI300X"),
        ("AMD Instinct MI300X", (9, 4), VALU, "leave the matrix cores idle", "AMD Instinct MI300X"),
    ],
)
def test_fp32_matmul_speaks_of_matrix_cores_on_amd(
    device: str | None, capability: tuple[int, int] | None, kernel: str, use: str, source: str
) -> None:
    rank = make_fp32(0.8, name=kernel, device_name=device, compute_capability=capability)
    finding = find(check_fp32_matmul, rank)
    assert word(finding).title == f"80.0 % of GPU time is single-precision (fp32) matrix products, which {use}"
    assert next(value for what, value, _ in show_evidence(finding) if what == "matrix cores").startswith(source)
    text = f"{word(finding).title} {word(finding).remedy} {word(finding).consequence} {show_evidence(finding)}"
    assert not any(word in text for word in ("tensor cores", "compute capability", "set_float32", "TF32", "NVIDIA"))
    assert "bf16" in word(finding).remedy


@pytest.mark.parametrize("capability", [(9, 0), (9, 4), None])
def test_fp32_matmul_does_not_guess_what_an_amd_device_has(capability: tuple[int, int] | None) -> None:
    """An architecture's number is no capability: the MI50, which has no matrix cores, is a 9.0 as the MI250 is."""
    strange = make_fp32(0.8, name=VALU, device_name="AMD Unheard Of", compute_capability=capability)
    assert find_why(check_fp32_matmul, strange) == "the trace does not tell what kind of device it is"


def test_fp32_matmul_says_when_it_cannot_tell() -> None:
    strange = make_fp32(0.8, name="sgemm", device_name=None, compute_capability=None)
    assert find_why(check_fp32_matmul, strange) == "the trace does not tell what kind of device it is"
    untold = make_rank(kernels=(make_kernel(Category.MATMUL, 50, precision=None), make_kernel(Category.OTHER, 50)))
    assert "50.0 % of GPU time is matrix products whose names do not tell" in find_why(check_fp32_matmul, untold)
    assert find_why(check_fp32_matmul, make_rank(device=None)) == NO_DEVICE


def make_small(
    small: int, *, large: int = 0, others: int = 600, small_us: float = 4, idle_ms: float = 15
) -> TraceSummary:
    total_ms = small * small_us / 1_000 + large * 0.05
    kernels = (
        make_kernel(Category.ELEMENTWISE, total_ms, count=small + large, small_count=small),
        make_kernel(Category.MATMUL, 100, count=others),
    )
    return make_rank(kernels=kernels, device=make_device(idle_host=idle_ms))


def test_small_elementwise_counts_launches_per_step() -> None:
    finding = find(check_small_elementwise, make_small(3_000))
    assert (
        word(finding).title == "1,500 element-wise kernels per step take less than 10.0 us each: 83.3 % of all launches"
    )
    assert finding.share_ratio == pytest.approx(0.06)  # 3,000 times 4 us of 200 ms
    assert ("small element-wise kernels per step", "1,500", "rank 0") in show_evidence(finding)


def test_small_elementwise_bounds_their_time_by_that_of_the_others() -> None:
    """Of 200 launches 100 took 10 us at least: of 25 ms only 24 can be the small ones', and no more than 10 us each."""
    rank = make_small(3_000, large=1_000, small_us=4)
    assert find(check_small_elementwise, rank).share_ratio == pytest.approx(min(3_000 * 0.01, 62 - 10) / 200)


def test_small_elementwise_is_silent_where_they_are_few_or_cost_little() -> None:
    assert find_nothing(check_small_elementwise, make_small(2_400))  # 9.6 ms of 200
    assert find(check_small_elementwise, make_small(2_400, idle_ms=20)).rule == "small_elementwise"
    assert find_nothing(check_small_elementwise, make_small(198, others=10, idle_ms=50))  # 99 a step
    assert find_nothing(check_small_elementwise, make_small(3_000, others=9_001))
    assert find_why(check_small_elementwise, make_rank(device=None)) == NO_DEVICE


def test_without_steps_small_kernels_are_of_the_whole_trace() -> None:
    title = word(find(check_small_elementwise, structs.replace(make_small(3_000), num_steps=0))).title
    assert title.startswith("3,000 element-wise kernels in the whole trace")


def test_host_bound_says_which_rank_and_how_long() -> None:
    queue = QueueLength(mean=0.4, max=3, empty_ratio=0.7)
    finding = find(check_host_bound, QUIET, make_rank(1, device=make_device(idle_host=30), queue=queue))
    assert word(finding).title == "The device waits for the host 15.0 % of the step on rank 1"
    assert finding.share_ratio == pytest.approx(0.15)
    assert "15.0 ms per step" in word(finding).consequence
    assert show_evidence(finding) == [
        ("host-bound, of the step", "15.0 %", "rank 1"), ("nothing launched ahead", "70.0 % of the time", "rank 1"),
    ]  # fmt: skip


def test_where_a_rank_has_no_steps_sums_are_of_the_whole_trace() -> None:
    stepless = make_rank(1, device=make_device(idle_host=30), num_steps=0)
    finding = find(check_host_bound, make_rank(0, device=make_device(idle_host=40)), stepless)
    assert (finding.per_step, finding.ranks, finding.facts["idle_host_ns"]) == (False, (0, 1), 40 * MS)
    assert word(finding).title == "The device waits for the host 20.0 % of the traced time"
    assert "40.0 ms in the whole trace" in word(finding).consequence


@pytest.mark.parametrize(("check", "part"), [(check_host_bound, "idle_host"), (check_launch_gaps, "idle_launch")])
def test_idleness_is_silent_below_a_tenth_and_without_launches(check, part) -> None:  # type: ignore[no-untyped-def]
    assert find(check, make_rank(device=make_device(**{part: 20.0}))).share_ratio == pytest.approx(0.1)
    assert find_nothing(check, make_rank(device=make_device(**{part: 19.9})))
    assert find_why(check, make_rank(device=None)) == NO_DEVICE
    blind = make_device(idle_host=0, idle_launch=0, idle_unknown=50)
    assert "launches of what ran on the device are not in the trace" in find_why(check, make_rank(device=blind))


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def make_waiting(states_ms: dict[HostState, float], *, loader: str = LOADER) -> TraceSummary:
    """The device waits for the host as long as all states together."""
    loading = structs.replace(make_range(loader, 50, 0), loads=True)
    return make_rank(
        device=make_device(idle_host=sum(states_ms.values())), ranges=(loading, make_range("forward", 60, 51)),
        idle_host_in={state: round(ms * MS) for state, ms in states_ms.items()},
    )  # fmt: skip


def test_host_bound_names_the_data_loader_where_it_holds_most() -> None:
    """40 of 200 ms, 30 of them in the loader, which has no workers."""
    finding = find(check_host_bound, make_waiting({HostState.OPERATORS: 8, HostState.DATA: 30, HostState.UNKNOWN: 2}))
    text = word(finding)
    assert text.title == "The device waits for the host 20.0 % of the step: the host is loading data"
    assert finding.share_ratio == pytest.approx(0.2)
    assert show_evidence(finding)[1:4] == [
        (
            "meanwhile the host is loading data",
            "75.0 % of that time, 15.0 ms per step",
            f"rank 0, most of it in {LOADER}",
        ),
        ("meanwhile the host is in operators of the framework", "20.0 % of that time, 4.0 ms per step", "rank 0"),
        ("meanwhile the host is in nothing that the trace shows", "5.0 % of that time, 1.0 ms per step", "rank 0"),
    ]  # fmt: skip
    assert "nor would torch.compile or CUDA graphs" in text.consequence
    assert "has no workers" in text.remedy and "prefetch_factor" in text.remedy and "pin_memory" in text.remedy
    assert "mode='reduce-overhead'" not in text.remedy
    several = find(check_host_bound, make_waiting({HostState.DATA: 30}, loader="## data_load ##"))
    assert word(several).remedy.startswith("More DataLoader workers")


@pytest.mark.parametrize(
    ("state", "named", "advice"),
    [
        (HostState.SYNCHRONIZING, ": the host is in calls that wait for the device", ".item()"),
        (HostState.OPTIMIZER, ": the host is in the optimizer", "fused=True"),
        (HostState.OPERATORS, "", "mode='reduce-overhead'"),
        (HostState.CALLS, "", "mode='reduce-overhead'"),
        (HostState.UNKNOWN, "", "py-spy"),
    ],
)
def test_host_bound_advises_by_what_the_host_was_in(state: HostState, named: str, advice: str) -> None:
    text = word(find(check_host_bound, make_waiting({state: 20, HostState.DATA: 19.9})))
    assert text.title == f"The device waits for the host 20.0 % of the step{named}"
    assert advice in text.remedy


def test_what_holds_less_than_half_of_the_hosts_time_is_not_named() -> None:
    apart = {HostState.DATA: 19.9, HostState.OPERATORS: 10, HostState.OPTIMIZER: 10.1}
    text = word(find(check_host_bound, make_waiting(apart)))
    assert text.title == "The device waits for the host 20.0 % of the step" and "torch.compile," in text.remedy
    unknown = word(find(check_host_bound, make_rank(device=make_device(idle_host=40))))
    assert unknown.title == "The device waits for the host 20.0 % of the step" and "torch.compile," in unknown.remedy


def test_small_kernels_are_not_what_costs_time_while_the_host_loads_data() -> None:
    rank = make_small(2_400, idle_ms=40)
    assert find(check_small_elementwise, rank).facts["idle_launching_ratio"] == pytest.approx(0.2)
    waiting = {HostState.DATA: 20 * MS, HostState.OPERATORS: 20 * MS}
    assert find(check_small_elementwise, structs.replace(rank, idle_host_in=waiting)).rule == "small_elementwise"
    loading = {HostState.DATA: 21 * MS, HostState.OPERATORS: 19 * MS}
    assert find_nothing(check_small_elementwise, structs.replace(rank, idle_host_in=loading))


def make_gaps(*longest: LaunchGap, short_ms: float = 0, graph_ms: float = 0, one_stream: bool = False) -> TraceSummary:
    """Of the two steps' 200 ms 40 are launch gaps."""
    gaps = LaunchGaps(
        count=1_116, median_ns=1, p90_ns=4_200, short_ns=round(short_ms * MS), graph_ns=round(graph_ms * MS),
        longest=longest, one_stream=one_stream,
    )  # fmt: skip
    return make_rank(device=make_device(idle_launch=40), gaps=gaps)


def test_launch_gaps_are_shown_as_a_distribution_with_the_longest_of_them() -> None:
    gaps = (
        LaunchGap(length_ns=30 * MS, name="void decode_kernel(float*)", stream=7, graph=True),
        LaunchGap(length_ns=6 * MS, name="Memcpy DtoH", stream=9, graph=False),
    )
    finding = find(check_launch_gaps, make_gaps(*gaps, short_ms=4, graph_ms=30))
    assert show_evidence(finding) == [
        ("launch gaps, of the step", "20.0 %", "rank 0"),
        ("their number", "558 per step, half of them up to 1 ns, nine in ten up to 4.2 us", "rank 0"),
        ("the 2 longest", "90.0 % of their time", "rank 0"),
        ("before CUDA graphs and their nodes", "75.0 % of their time", "rank 0"),
        ("a gap", "30.0 ms before decode_kernel(float*)", "rank 0, stream 7, of a CUDA graph"),
        ("a gap", "6.0 ms before Memcpy DtoH", "rank 0, stream 9"),
    ]
    assert "nodes of CUDA graphs" in word(finding).consequence and "mode=" not in word(finding).remedy


@pytest.mark.parametrize(
    ("short_ms", "graph_ms", "consequence", "remedy"),
    [
        (20, 0, "launch latency, many times over", "mode='reduce-overhead'"),
        (20, 20, "launch latency, many times over", "graphs launched one behind the other"),
        (19.9, 20, "before nodes of CUDA graphs", "graphs launched one behind the other"),
        (19.9, 19.9, "too long for launch latency", "before the longest gaps"),
    ],
)
def test_launch_gaps_are_judged_by_where_half_of_their_time_is(
    short_ms: float, graph_ms: float, consequence: str, remedy: str
) -> None:
    text = word(find(check_launch_gaps, make_gaps(short_ms=short_ms, graph_ms=graph_ms)))
    assert consequence in text.consequence and remedy in text.remedy


def test_one_stream_alone_waits_for_no_other() -> None:
    text = word(find(check_launch_gaps, make_gaps(one_stream=True)))
    assert "though there is but one stream." in text.consequence
    assert "compare the step time without the profiler" in text.remedy and "wait_stream" not in text.remedy
    assert "mode='reduce-overhead'" in word(find(check_launch_gaps, make_gaps(short_ms=20, one_stream=True))).remedy


def make_exposed(rank: int, exposed_ms: float, busy_ms: float = 60) -> TraceSummary:
    return make_rank(rank, device=make_device(idle_communication=exposed_ms, communication_busy=busy_ms))


def test_exposed_communication_is_the_mean_and_tells_waiting_from_transfer() -> None:
    finding = find(check_exposed_communication, make_exposed(0, 50), make_exposed(1, 10))
    assert word(finding).title == "15.0 % of the step is communication that nothing overlaps (mean over ranks)"
    assert finding.share_ratio == pytest.approx(0.15)
    assert "rank 1 has 5.0 % and others up to 25.0 %" in word(finding).consequence
    assert ("of communication, beside compute", "50.0 %", "ranks 0-1") in show_evidence(finding)
    even = find(check_exposed_communication, make_exposed(0, 30), make_exposed(1, 31))
    assert "All ranks have about the same amount of it" in word(even).consequence


def test_exposed_communication_is_silent_below_a_tenth_and_without_collectives() -> None:
    check = check_exposed_communication
    assert find_nothing(check, make_exposed(0, 20), make_exposed(1, 19.8))
    assert find_nothing(check, make_exposed(0, 50))  # a world of one rank
    assert "no collective ran on a device" in find_why(check, make_exposed(0, 0, 0), make_exposed(1, 0, 0))
    assert find_why(check, make_rank(device=None), make_rank(1, device=None)) == NO_DEVICE
    two: Run = make_run(num_ranks=1, meta={"world_size": 2})
    assert "cannot tell transfer from waiting" in word(find(check, make_exposed(0, 50), run=two)).consequence
