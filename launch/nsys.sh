#!/usr/bin/env bash
# Captures a job with Nsight Systems, exports the capture to SQLite and reports it.
#
#   launch/nsys.sh -- train=gpt2_small train.steps=5     CUDA and NVTX of the measured steps, every rank of this node
#   NPROC=2 launch/nsys.sh -t cuda,nvtx,osrt -- train=gpt2_tiny
#   launch/nsys.sh --per-rank -- strategy=fsdp           one report per rank instead of one per node
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=node0 launch/nsys.sh -- train=gpt2_small      on each node, with its NODE_RANK
#
# Before the --: options of nsys profile, or --no-report; after it: Hydra overrides, KEY=VALUE. Runs one rank per GPU, or
# 2 on a CPU ($NPROC: that many). $NSYS: the nsys to use, else the one on PATH. Results go to runs/<date>_nsys/
# (runs_dir=FOLDER: elsewhere). nsys writes the environment of every process that it can read into its report. Variables that look like
# keys are withheld from the job, and named; if other processes hold keys, the job gets its own process namespace. If
# that is not allowed, the capture is refused, unless --keep-secrets before the -- accepts the keys in the .nsys-rep.
# The first time, installs into .venv beside this checkout ($DISTPROF_VENV: elsewhere; $PYTHON: with that Python).
# Exit codes: those of the job if it failed; 1 no report, or no kernels of a job on GPUs; 2 usage or no nsys; else those
# of distprof report.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" gpu
exec "$venv/bin/python" -m distprof.cli.capture "$@"
