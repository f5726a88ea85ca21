#!/usr/bin/env bash
#SBATCH --job-name=distprof
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --open-mode=append
#
# Trains on the nodes of a Slurm job, one torchrun on each, and reports where each rank's time went.
#
#   sbatch --nodes 2 --gpus-per-node 4 launch/slurm.sh train=gpt2_small
#   sbatch --nodes 2 --gpus-per-node 4 launch/slurm.sh -m distprof.attach train.py --epochs 2    your own script
#   sbatch --nodes 2 --gpus-per-node 4 launch/slurm.sh train.py      one that calls distprof.start()
#   sbatch --requeue --signal=B:USR1@120 ... launch/slurm.sh ...     120 s before the time limit, and at a preemption
#       where Slurm sends the signal then: the ranks end as by SIGTERM, with whole records, and the job queues again
#   NODE_RUNS=/tmp/distprof sbatch ... launch/slurm.sh ...           for nodes that share no disk: each writes there,
#       and at the end runs/ here gets it all
#
# Slurm copies this file before it runs: submit from the folder in which runs/ shall be, with Python's environment
# active ($PYTHON: that Python, on every node). $NPROC: ranks per node, else its GPUs, else 1. $MAX_RESTARTS: how often
# torchrun starts all ranks again when one fails; all of that is one run. $PREFLIGHT=no: without
# distprof doctor on every node first. Whole nodes, since others on a node distort what is measured.
# Exit codes: those of srun; 1 a node is not fit; else those of distprof gather and distprof report.
set -euo pipefail

say() { printf 'distprof: %s\n' "$*" >&2; }
give_up() { say "$*"; exit 1; }
[[ -n ${SLURM_JOB_NODELIST-} ]] || give_up "not in a Slurm job: sbatch --nodes 2 --gpus-per-node 4 launch/slurm.sh ..."

python=${PYTHON:-python}
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
gpus=${SLURM_GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}} # 4, or a100:4
start=$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
runs=${NODE_RUNS:+$NODE_RUNS/$start}
every_node=(srun --nodes "${#hosts[@]}" --ntasks "${#hosts[@]}" --ntasks-per-node 1 --cpu-bind none)

case ${1-} in
    -m) job=(-m "${2?-m needs a module}"); shift 2 ;;
    *.py) job=("$1"); shift ;;
    *) job=(-m distprof) ;;
esac
case ${job[*]} in "-m distprof" | "-m distprof.attach") job+=(${runs:+"runs_dir=$runs"}) ;; esac
export NODE_RUNS=$runs # for scripts that call distprof.start(runs_dir=...)

# Else ranks that start again may read where the others were before: github.com/pytorch/pytorch/issues/135712
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=${TORCH_DISABLE_SHARE_RDZV_TCP_STORE-1}
# The node says itself whether the ranks meet there: its name may be another one than the one that Slurm knows.
# shellcheck disable=SC2016 # expanded on each node
place='--rdzv-conf "is_host=$((SLURM_NODEID == 0))" --local-addr "$SLURMD_NODENAME"'
meeting=${hosts[0]}:${MASTER_PORT:-$((15000 + SLURM_JOB_ID % 15000))}
on_every_node() { # ID PROCESSES_PER_NODE WORDS... for one torchrun on each
    exec "${every_node[@]}" --kill-on-bad-exit=1 bash -c "exec \"\$0\" -m torch.distributed.run $place \"\$@\"" "$python" \
        --nnodes "${#hosts[@]}" --nproc-per-node "$2" --rdzv-backend c10d --rdzv-id "$1" --rdzv-endpoint "$meeting" "${@:3}"
}

if [[ ${PREFLIGHT-} != no ]]; then
    say "preflight on ${#hosts[@]} nodes"
    "${every_node[@]}" --label "$python" -m distprof doctor --runs-dir "${runs:-runs}" ||
        give_up "a node is not fit, see above; PREFLIGHT=no starts all the same"
    ((${#hosts[@]} == 1)) || (on_every_node "$start-doctor" 1 -m distprof doctor --all-ranks --runs-dir "${runs:-runs}") ||
        give_up "the nodes could not be compared, see above; PREFLIGHT=no starts all the same"
fi

(on_every_node "$start" "${NPROC:-${gpus##*:}}" --max-restarts "${MAX_RESTARTS:-0}" "${job[@]}" "$@") &
ranks=$! again=
trap 'again=yes; kill -TERM "$ranks"' USR1
trap 'kill -TERM "$ranks"' TERM INT
while kill -0 "$ranks" 2>/dev/null; do wait "$ranks" || true; done # a signal ends a wait
code=0
wait "$ranks" || code=$?

follow() { local ended=0; "$@" || ended=$?; ((code)) || code=$ended; } # the exit code is the first that is not 0
if [[ -n $runs ]]; then
    parts=$(mktemp -d)
    for host in "${hosts[@]}"; do # through srun's output: there may be no other way between the nodes
        mkdir "$parts/$host"
        srun --nodes 1 --ntasks 1 --nodelist "$host" tar -C "$runs" -c . | tar -C "$parts/$host" -x ||
            say "$host: nothing came from $runs"
    done
    for name in $(find "$parts" -mindepth 2 -maxdepth 2 -type d -printf '%f\n' | sort -u); do
        follow "$python" -m distprof gather "$parts"/*/"$name" --out "runs/$name"
        [[ ! -d runs/$name ]] || follow "$python" -m distprof report "runs/$name"
    done
    rm -rf "$parts"
fi
if [[ -n $again ]]; then
    say "queues again"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
