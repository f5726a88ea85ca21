#!/usr/bin/env bash
# Captures a job with Nsight Systems, exports the capture to SQLite and reports it.
#
#   launch/nsys.sh -- train=gpt2_small train.steps=5     CUDA and NVTX of the measured steps, every rank of this node
#   NPROC=2 launch/nsys.sh -t cuda,nvtx,osrt -- train=gpt2_tiny
#   launch/nsys.sh --per-rank -- strategy=fsdp           one report per rank instead of one per node
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=node0 launch/nsys.sh -- train=gpt2_small      on each node, with its NODE_RANK
#
# Before the --: options of nsys profile; after it: Hydra overrides, KEY=VALUE. One rank per GPU, else 2 ($NPROC: so
# many). $NSYS: the nsys to use, else the one on PATH. Everything lies in runs/<date>_nsys/ (runs_dir=...: elsewhere).
# nsys writes the environment of every process that it may read into its report. Variables that look like keys are kept
# from the job, and named; where other processes hold keys, the job gets a process namespace of its own. Where that is
# not allowed, the capture is refused, unless --keep-secrets before the -- accepts them in the .nsys-rep.
# Installs into .venv beside this checkout the first time ($DISTPROF_VENV: elsewhere; $PYTHON: with that Python).
# Exit codes: those of the job if it failed; 1 no report; 2 usage, no nsys; else those of distprof report.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" gpu
exec "$venv/bin/python" -m distprof.cli.capture "$@"
