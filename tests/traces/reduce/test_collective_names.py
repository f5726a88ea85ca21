"""Names of kernels that are collectives, of every library that a training job meets, and of those that only look so."""

from __future__ import annotations

import pytest

from distprof.facts.run import CollectiveKind
from distprof.facts.trace_summary import Category
from distprof.traces.reduce.kernel_names import (
    classify_collective,
    classify_kernel,
    infer_precision,
)

REDUCE, SCATTER, GATHER, EXCHANGE, OTHER = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.OTHER,
)

COLLECTIVES = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": REDUCE,
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": REDUCE,
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": REDUCE,
    "ncclSymDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16": REDUCE,
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": SCATTER,
    "ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)": SCATTER,
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": GATHER,
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": GATHER,
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": OTHER,
    "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)": OTHER,
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": OTHER,
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)": OTHER,
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": OTHER,
    "void rcclGenericKernel<4, true>(ncclDevComm*, channelMasks, ncclWork*)": OTHER,
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*)": OTHER,
    "nccl:all_reduce": REDUCE,
    "nccl:_all_gather_base": GATHER,
    "nccl:_reduce_scatter_base": SCATTER,
    "nccl:all_to_all": EXCHANGE,
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)": REDUCE,
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)": REDUCE,
    "void c10d::symmetric_memory::two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**, unsigned long)": REDUCE,
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(tensorrt_llm::kernels::AllReduceParams)": REDUCE,
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<half, 8>()": REDUCE,
    "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)": SCATTER,
    "nvshmemi_barrier_on_stream_kernel_threadgroup(int)": OTHER,
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)": OTHER,
    "void nvshmemi_signal_wait_until_on_stream_kernel(unsigned long*, int, unsigned long)": OTHER,
    "void fcollect_on_stream_kernel<float, (threadgroup_t)2>(int, float*, float const*, unsigned long)": GATHER,
    "void alltoall_on_stream_kernel<float, (threadgroup_t)2>(int, float*, float const*, unsigned long)": EXCHANGE,
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)": EXCHANGE,
    "void deep_ep::internode_ll::combine<true, 7168, 9, 2>(void*, void*)": EXCHANGE,
    "void deep_ep::internode_ll::clean_low_latency_buffer<256>(int*, int)": OTHER,
    "void deep_ep::intranode::barrier<8>(int**, int)": OTHER,
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)": OTHER,
    "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*, bool const*)": EXCHANGE,
    "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*, long*, float*)": EXCHANGE,
    "void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*, int, int const*)": EXCHANGE,
    "void dpsk::ep::internode::cached_notify<false>(int, int, int, int, int*, int, int, int const*)": OTHER,
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*, int*, int*, bool*)": OTHER,
    "void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(EpDispatchCombineArgs<__hip_bfloat16>)": EXCHANGE,
    "void EpCombineInterNodeKernel<float>(mori::moe::EpDispatchCombineArgs<float>)": EXCHANGE,
    "void a2a_dispatch_send_kernel<16, 8, NotFixed, NotFixed, NotFixed>(unsigned long)": EXCHANGE,
    "void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<8>(int const*)": EXCHANGE,
    "void tensorrt_llm::kernels::moe_alltoall::moeA2ACombineKernel<__nv_bfloat16, 8>()": EXCHANGE,
    "void c10d::nvshmem_extension::exchangeSplitAndOffset(long*, int, int)": EXCHANGE,
    "exchangeSplitAndOffset_2d(long*, long*, int, int, unsigned long, bool)": EXCHANGE,
    "allToAllV(void*, void*, long*, unsigned long, int, int)": EXCHANGE,
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)": OTHER,
    "c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int, unsigned long)": OTHER,
    "void c10d::symmetric_memory::multimem_one_shot_all_reduce_kernel<float, 16, 8>(float*, float*)": REDUCE,
    "void c10d::symmetric_memory::multimem_all_gather_kernel<16>(char*, char*)": GATHER,
    "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*, vllm::RankSignals)": REDUCE,
    "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>(sglang::RankData*)": REDUCE,
    "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*)": REDUCE,
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 8>, true>, __half>": REDUCE,
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8, true, false>(AllReduceParams)": REDUCE,
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2, __nv_bfloat16, true>()": REDUCE,
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16, 256>(AllReduceFusionParams)": REDUCE,
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<(Pattern)1, half, 8>()": REDUCE,
    "void transformer_engine::userbuffers_fp16_sum_inplace_gpu_mc<4>(int, int, int)": OTHER,
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8": OTHER,
    "void mscclpp::executionKernel<__half, mscclpp::LL16Packet>(int, mscclpp::DeviceExecutionPlan*)": OTHER,
    "pcclKernel_twoShotAllReduceKernel": REDUCE,
    "hcom_allReduce__432_0_1": REDUCE,
    "void oneccl_all_to_all_kernel<float>(float*)": EXCHANGE,
}
NOT_COLLECTIVES = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, AllReduceFunctor>>(ReduceOp)",
    "triton_poi_fused_all_gather_into_tensor_wait_tensor_0",
    "void fsdp::all_gather_copy_in_kernel<float>(float*)",
    "void block_all_reduce_sum_f32_kernel<256>(float*, float*, int)",
    "gemm_all_reduce_fused_kernel",
    "void deep_gemm::fp8_gemm_kernel<7168u, 2112u>(float*)",
    "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<half, half, 4, true>>()",
    "void cuda::reduce_fused_impl<__nv_bfloat16, false, false>(int4 const*, float const*)",
    "void success_kernel<float>(float*)",
    "void steps::dispatch_rows<float>(float*)",
    "void blockAllReduceKernel<float>(float*)",
    "void at::native::vectorized_elementwise_kernel<4, ncclFunctor>(int)",
    "ampere_sgemm_128x64_tn",
    "",
)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name: str) -> None:
    assert classify_collective(name) is COLLECTIVES[name]
    assert classify_kernel(name) is Category.COMMUNICATION
    assert infer_precision(name) is None


@pytest.mark.parametrize("name", NOT_COLLECTIVES)
def test_what_only_looks_like_a_collective(name: str) -> None:
    assert classify_collective(name) is None
    assert classify_kernel(name) is not Category.COMMUNICATION
