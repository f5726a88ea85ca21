"""Checks what distprof claims about GPUs on a real one: `launch/gpu_check.sh`."""
