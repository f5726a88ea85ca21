#!/usr/bin/env bash
# Trains GPT-2 small on this machine and reports where each rank's time went: the first thing to run.
#
#   launch/quickstart.sh                               4 ranks: on the GPUs, or a shorter job on the CPU
#   NPROC=2 launch/quickstart.sh strategy=fsdp train.precision=bf16
#   launch/quickstart.sh train=gpt2_tiny logger=none   a toy: seconds on a CPU
#
# The first time, installs into .venv beside this checkout ($DISTPROF_VENV: elsewhere; $PYTHON: with that Python).
# Arguments are Hydra overrides, KEY=VALUE; the run folder goes to runs/ in the current directory.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" gpu
say "training with ${NPROC:-4} ranks; $venv/bin/distprof shows the report again"
exec "$venv/bin/torchrun" --nproc-per-node "${NPROC:-4}" -m distprof train=gpt2_small "$@"
