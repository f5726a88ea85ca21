"""Collectives as they are seen: calls of torch, buckets of DDP, FSDP's groups, NCCL's ring."""
