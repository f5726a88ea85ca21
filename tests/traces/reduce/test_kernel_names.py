"""Names of kernels and their categories: those of every library that a training job meets, and of real traces."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from distprof.facts.run import CollectiveKind
from distprof.facts.trace_summary import Category
from distprof.traces.reduce.kernel_names import (
    classify_collective,
    classify_kernel,
    infer_architecture,
    infer_precision,
    is_softmax,
    multiplies_on_matrix_cores,
    names_operation,
    runs_on_amd,
)
from tests.traces.reduce.real_traces import FILES, find_shared, read_events

PRODUCTS = {
    "volta_sgemm_128x64_tn": "fp32",
    "ampere_sgemm_32x32_sliced1x4_tn": "fp32",
    "void sgemm_largek_lds64<true, true, 6, 3, 4, 5, 2, 66>(float*, float const*)": "fp32",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nt_align1>(T1::Params)": "fp32",
    "void gemvNSP_kernel<float, float, float, float, 1, 16, 4, 1024, cublasGemvParams<float>>(int)": "fp32",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float>()": "fp32",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3": "fp32",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x32_stage4": "tf32",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(Params)": "tf32",
    "ampere_s1688gemm_128x128_ldg8_stages_32x1_nn": "tf32",
    "cutlass3x_sm90_tensorop_s64x128x8tf32gemm_f32_f32_f32_f32_f32_128x128x32": "tf32",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(Params)": "bf16",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel": "bf16",
    "ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nt": "bf16",
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT": "bf16",
    "nvjet_sm100_tst_mma_128x256x64_2_TNT": "bf16",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<tuple<>, cutlass::bfloat16_t, float": "bf16",
    "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI16x16x16x1": "bf16",
    "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<float, ck::bhalf_t>>()": "bf16",
    "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<64, unsigned short, unsigned short, float>>()": "bf16",
    "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<64, signed char, signed char, int>>()": "int8",
    "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47GridwiseGemm_bk0mk1_bk0nk1_mn_xdlops_"
    "bwd_weightILi64EttftLNS_25InMemoryDataOperationEnumE1ENS_16TensorDescriptorINS_5TupleIJNS_5EmbedINS6_IJiiEEES8_": (
        "bf16"
    ),
    "_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_28GridwiseGemm_xdl_cshuffle_v3INS_13tensor_layout4gemm8RowMajorENS3_11Column"
    "MajorES4_DF16_DF16_fDF16_DF16_NS_16tensor_operation12element_wise11PassThroughES8_S8_": "fp16",
    "_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_28GridwiseGemm_xdl_cshuffle_v3INS_13tensor_layout4gemm8RowMajorES4_S4_ffffS8"
    "_": "fp32",
    "_ZN2ck15kernel_gemm_xdlINS_12GridwiseGemmILi256EaaiaS8_EEEvv": "int8",
    "_ZN7cutlass6KernelI52cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_tn_8EEvNT_6ParamsE": "bf16",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT": "fp16",
    "volta_h884gemm_64x64_ldg8_nn": "fp16",
    "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn": "fp16",
    "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn": "fp16",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_nn": "fp16",
    "Cijk_Alik_Bljk_HHS_BH_MT64x64x32": "fp16",
    "Cijk_Ailk_Bljk_SB_MT64x64x16_SN": "fp32",
    "Cijk_Ailk_Bljk_DB_MT64x64x16": "fp64",
    "Cijk_Alik_Bljk_F8BS_BH_MT256x256x64": "fp8",
    "nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_TNT": "fp8",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1": "fp8",
    "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1": "fp8",
    "bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512_et128x8_m256x8x64": "fp4",
    "void deep_gemm::fp8_gemm_kernel<7168u, 2112u>(float*)": "fp8",
    "cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16": "int8",
    "cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1": "fp64",
    # where the name does not tell
    "nvjet_sss_128x128_64x4_1x2_h_bz_NTT": None,
    "_ZN2ck16tensor_operation6device11kernel_gemmINS_7SomeS8_IS8_S8_S_": None,
    "_ZN4mine11gemm_kernelIttftS8_EEvv": None,
    "Cijk_Alik_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT256x128x32": None,
    "cutlass_80_tensorop_s1688f32gemm_64x64_16x4_nn_align4": None,
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>, float": None,
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float>(cublasSplitKParams<float>)": None,
    "void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, cublasLtEpilogue_t)": None,
    "triton_tem_fused_addmm_7": None,
    "triton_mm": None,
    "_scaled_mm_kernel": None,
}
ATTENTIONS = {
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, cutlass::bfloat16_t>>()": "bf16",
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, cutlass::half_t>>()": "fp16",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<2, cutlass::half_t, float>>>()": "fp16",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)": "fp32",
    "fmha_cutlassB_bf16_aligned_128x64_k64_sm80(PyTorchMemEffAttention::Params)": "bf16",
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext": "fp8",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0": None,
    "_attn_fwd": None,
    "_attn_bwd_dkdv": None,
    "triton_tem_fused_flex_attention_0": None,
    "void vllm::paged_attention_v2_kernel<unsigned short, 128>(float*)": None,
}
CONVOLUTIONS = {
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_execute_kernel": "tf32",
    "sm80_xmma_wgrad_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4": "fp16",
    "sm80_xmma_dgrad_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize128x128x8_stage3": "fp32",
    "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3_nhwc_align4>()": "tf32",
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_128x128_32x4_nhwc_align8>()": "fp16",
    "cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1": "fp32",
    "volta_scudnn_128x128_stridedB_splitK_small_nn_v1": "fp32",
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": "fp32",
    "volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_interior_nhwc_tn_v1": "fp16",
    "turing_fp16_s1688cudnn_fp16_128x128_ldg8_dgrad_f2f_exp_small_nhwc_tt_v1": "fp16",
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)": "fp32",
    "void cudnn::detail::dgrad_alg1_engine<float, 128, 6, 7, 3, 3, 5, true>(int, int)": "fp32",
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)": "fp32",
    "void cudnn::cnn::wgrad_alg0_engine<__half, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int)": "fp16",
    "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int)": "fp32",
    "void implicit_convolve_sgemm<__half, float, 128, 6, 7, 3, 3, 5, 1, false, true, true>(int, int)": "fp16",
    "void explicit_convolve_sgemm<float, int, 1024, 5, 5, 3, 3, 3, 0, false>(int, int, int, float const*)": "fp32",
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(WinogradDataParams<float, float>)": "fp32",
    "void cudnn::winograd::generateWinogradTilesKernel<0, float, float>(GenerateWinogradTilesParams)": "fp32",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2": "bf16",
    "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f3x2_stride1": "fp32",
    # where the name does not tell, or nothing is multiplied
    "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock": None,
    "void at::native::im2col_kernel<float>(long, float const*)": None,
    "void cudnn::cnn::im2col4d_kernel<float, long>(cudnn::cnn::im2col4d_params, float const*)": None,
    "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*, void const*, float, int, int)": None,
    "cask_cudnn::computeWgradSplitKOffsetsKernel(cask_cudnn::ComputeSplitKOffsetsParams)": None,
    "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, float, int>(float const*)": None,
    "triton_tem_fused_convolution_3": None,
}
CATEGORIES = {
    Category.EMBEDDING: (
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<c10::Half, float>()",
        "split_embedding_backward_codegen_adagrad_unweighted_find_long_segments(at::GenericPackedTensorAccessor<int>)",
        "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half, float, false, long, 2ul>()",
        "void dense_embedding_codegen_forward_unweighted_kernel<float, float, float, long, 1ul, 8ul>()",
        "void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, long>(long const*)",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(long const*)",
        "void at::native::(anonymous namespace)::compute_grad_weight<float, long>(long const*)",
        "void at::native::(anonymous namespace)::krn_partials_per_segment<long>(long*, long const*)",
    ),
    Category.NORMALIZATION: (
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long, long)",
        "std::enable_if<(((8)>(0)))&&Convert<c10::BFloat16>::exists, void>::type vllm::fused_add_rms_norm_kernel<8>()",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128, true, 1, true>(cudnnTensorStruct)",
        "layernorm_backward_kernel10(float*, float*)",
        "triton_red_fused_native_layer_norm_3",
        "triton_per_fused__fused_rms_norm_12",
    ),
    Category.OPTIMIZER: (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMath>()",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(long)",
        "void adamw_kernel3<float, float>(float*, float*)",
        "triton_for_fused_2",
    ),
    Category.ELEMENTWISE: (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*>>()",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<SoftmaxGemmConvFunctor>>(int)",
        "void at::native::<unnamed>::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>(float*)",
        "void permute_pooled_embs_kernel<float>(float const*, long const*)",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int, int)",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(__nv_bfloat16 const*)",
        "gelu_forward_kernel2(float*, float const *)",
        "triton_poi_fused_mm_softmax_silu_5",
    ),
    Category.REDUCTION: (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>>>(ReduceOp)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>(float*)",
        "softmax_forward_kernel5(float*, float, float const *, int, int)",
        "void matmul_backward_bias_kernel9<float, bool=1>(float*, float const *)",
        "void global_norm_squared_kernel<float>(float*, float const *, unsigned long)",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int>>(int*)",
        "triton_red_fused_sum_1",
    ),
    Category.OTHER: ("", "my_kernel(float*)", "triton_", "void <unnamed>::frobnicate<gemm>()", "vector_of_wte_kernel"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products(name: str) -> None:
    assert (classify_kernel(name), infer_precision(name)) == (Category.MATMUL, PRODUCTS[name])


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    assert (classify_kernel(name), infer_precision(name)) == (Category.ATTENTION, ATTENTIONS[name])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    assert (classify_kernel(name), infer_precision(name)) == (Category.CONVOLUTION, CONVOLUTIONS[name])


SOFTMAXES = {
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)": True,
    "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 9, false>()": True,
    "void (anonymous namespace)::softmax_warp_backward<c10::Half, c10::Half, float, 11, false, true>()": True,
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, SoftMaxForwardEpilogue>()": True,
    "void scaled_masked_softmax_warp_forward<c10::Half, c10::Half, float, 10>(c10::Half*)": True,
    "softmax_forward_kernel5(float*, float, float const *, int, int)": True,
    "triton_per_fused__softmax_add_3": True,
    # of losses, of the choice of experts, inside fused attention, and other kernels
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)": False,
    "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, true>(float*)": False,
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>()": False,
    "triton_red_fused__log_softmax_2": False,
    "void vllm::moe::topkGatingSoftmax<8, 64, 4, 16>(float const*)": False,
    "void flash_attention_softmax_kernel<float>()": False,
    "void at::native::elementwise_kernel<128, 4, SoftmaxFunctor>(int)": False,
    "ampere_sgemm_128x64_tn": False,
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_softmaxes_that_fused_attention_would_not_need(name: str) -> None:
    assert is_softmax(name) == SOFTMAXES[name]


ARCHITECTURES = {
    "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn": (7, 5),
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)": (8, 0),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": (9, 0),
    "nvjet_sm100_tst_mma_128x256x64_2_TNT": (10, 0),
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(Params)": (8, 0),
    "flash::enable_sm90<flash::FlashAttnFwdSm90<2>>": (9, 0),
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKv": None,
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT": None,
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_a_kernel_was_made_for(name: str) -> None:
    assert infer_architecture(name) == ARCHITECTURES[name]


@pytest.mark.parametrize(("category", "name"), [(key, name) for key, names in CATEGORIES.items() for name in names])
def test_other_kernels(category: Category, name: str) -> None:
    assert classify_kernel(name) is category
    assert infer_precision(name) is None


AMD = {
    "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0_ISA90a_IU1": (True, True),
    "Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0": (True, True),
    "Cijk_Ailk_Bljk_SB_MT64x64x16_SE_1LDSB0_APM1_ISA000": (True, False),
    "_ZN2ck27kernel_gemm_xdl_cshuffle_v3INS_28GridwiseGemm_xdl_cshuffle_v3": (True, True),
    "_ZN2ck14kernel_gemm_dlINS_12GridwiseGemm": (True, False),
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8": (True, True),
    "mfma_moe2_afp4_wfp4_bf16_cshuffle_t64x128x256_vs": (True, True),
    "ampere_sgemm_128x64_tn": (False, False),
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT": (False, False),
}


@pytest.mark.parametrize("name", AMD)
def test_matrix_instructions_of_amd(name: str) -> None:
    assert (runs_on_amd(name), multiplies_on_matrix_cores(name)) == AMD[name]


def test_annotations_that_name_an_operation() -> None:
    told = ("nccl:all_to_all", "gloo:all_reduce", "c10d::alltoall_base_", "_c10d_functional::all_reduce", "rccl:send")
    assert all(map(names_operation, told))
    untold = ("record_param_comms", "## all_reduce ##", "nccl", "ProfilerStep#1", "aten::mm", "my nccl:all_reduce", "")
    assert not any(map(names_operation, untold))


def test_hostile_names_end_soon() -> None:
    whole = ("nccl_AllReduce" + "x" * 1_000_000, "<" * 1_000_000, "gemv" * 250_000, "std::enable_if" * 70_000)
    convolutions = ("winograd<" + "1, " * 300_000, "conv_engine<" * 90_000, "scudnn" * 160_000, "grad_engine_" * 90_000)
    embeddings = ("embedding_" * 100_000, "softmax_warp_forward<" * 50_000, "softmax_warp_forward<" + "," * 900_000)
    for name in (
        *whole,
        *convolutions,
        *embeddings,
        "_Z" + "9" * 1_000_000,
        "_Zgemm" + "t" * 1_000_000,
        "_ZgemmS" + "8" * 1_000_000,
    ):
        classify_kernel(name)
        infer_precision(name)
        runs_on_amd(name)
        multiplies_on_matrix_cores(name)
        names_operation(name)
        is_softmax(name)
        infer_architecture(name)
    assert classify_collective("NCCLKERNEL_ALLREDUCE\x1b[31m</script>") is CollectiveKind.ALL_REDUCE


UNTOLD_AT_MOST = {
    "a100_128ranks_rank0.json.gz": 0.001,
    "a100_128ranks_rank1.json.gz": 0.001,
    "b200_8ranks_rank0.json.gz": 0.04,  # routing of a mixture of experts
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_little_of_a_real_trace_is_untold(name: str) -> None:
    time_ns: Counter[Category] = Counter()
    for event in read_events(name):
        if event.get("cat") == "kernel":
            time_ns[classify_kernel(event["name"])] += event["end_ns"] - event["begin_ns"]
            assert (classify_collective(event["name"]) is not None) == (
                "nccl" in event["name"] or "all_reduce_kernel" in event["name"]
            )
    assert time_ns[Category.OTHER] <= UNTOLD_AT_MOST.get(name, 0) * time_ns.total()


def test_the_reference_run_of_llm_c() -> None:
    """Matrix products take 89 % there, all in single precision."""
    text = find_shared("reference", "nvprof_llmc_gpt2.txt").read_text(encoding="utf-8").partition("API calls")[0]
    shares: Counter[tuple[Category, str | None]] = Counter()
    for percent, name in re.findall(r"\s([\d.]+)%(?:\s+\S+){5}\s+(\S.*)", text):
        if not name.startswith("["):
            shares[classify_kernel(name), infer_precision(name)] += round(float(percent) * 100)
    assert shares.pop((Category.MATMUL, "fp32")) == 4388 + 1986 + 886 + 582 + 581 + 429
    assert not any(category is Category.MATMUL for category, _ in shares)
    assert shares[Category.OTHER, None] <= 3
