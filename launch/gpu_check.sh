#!/usr/bin/env bash
# Checks on a GPU what distprof claims about GPUs: a line per check with its value, what is expected and the verdict.
#
#   launch/gpu_check.sh                       all checks, in less than ten minutes, offline; two GPUs: more checks
#   launch/gpu_check.sh --out results.json    where the JSON goes (default: gpu_check.json in this folder)
#   launch/gpu_check.sh --keep FOLDER         the jobs' run folders stay there, to be looked at
#   launch/gpu_check.sh --dry-run             without a GPU: runs everything but the calls to one, and judges nothing
#   launch/gpu_check.sh --fetch FOLDER        elsewhere, with a network: the packages that a machine with torch lacks;
#                                             there: PYTHONPATH=FOLDER launch/gpu_check.sh
#
# Runs with $PYTHON (default: .venv's, else python3), which needs torch 2.11 or later; installs nothing.
# Exit codes: 0 every check holds; 1 one does not; 2 no GPU, or a torch that is too old.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-$([[ -x $root/.venv/bin/python ]] && echo "$root/.venv/bin/python" || echo python3)}
if [[ ${1-} == --fetch ]]; then
    exec "$python" -m pip install -qq --no-deps --target "$2" -c "$root/constraints.txt" \
        hydra-core omegaconf antlr4-python3-runtime pyyaml packaging msgspec nvtx rich pygments markdown-it-py mdurl nvidia-ml-py
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 WANDB_MODE=disabled
exec "$python" -m benchmarks.gpu_check "$@"
