#!/usr/bin/env bash
# Tries distprof with other releases of torch: the tests of what is wrapped in torch, then jobs as a user starts them.
#
#   launch/test_torch.sh 2.8.0                             this release; several: one after the other
#   launch/test_torch.sh $(launch/test_torch.sh --list)    every release that is tried
#   DISTPROF_TORCH_KEEP=no launch/test_torch.sh 2.8.0      deletes the environment, 2 to 7 GB, when the release is done
#
# Makes .venv-torch-VERSION beside this checkout ($DISTPROF_TORCH_VENVS: in that folder; $PYTHON: with that Python), with
# the versions of constraints.txt, without those that a release of torch pins or refuses itself. The jobs, of two ranks
# on the CPU: DDP, FSDP2 where torch can, attach; a report must have their phases. Exit code 1: something failed.
set -euo pipefail

tried=(2.6.0 2.8.0 2.11.0 2.13.0 2.14.1 2.15.0) # the lowest supported, those that differ, and the newest
tests=(tests/{record,observe,modules,train,attach/test_{compiled,programs}.py,test_patching.py}
    tests/profiler/{windows/test_module_window,test_open_session_ranks,job/test_model_inspection}.py
    tests/test_job.py::test_{every_way_to_train_is_reported,two_copies_of_a_sharded_model_are_kept_alike_by_all_reduces})

job() { # name, phases of its report, arguments of torchrun
    "$venv/bin/torchrun" --standalone --nproc-per-node 2 -m "${@:3}" &>"$out/log" || { tail -20 "$out/log"; give_up "$1: failed"; }
    for phase in $2; do grep -q "\"phase\": *\"$phase\"" "$out/$1/report.json" || give_up "$1: no $phase in its report"; done
    say "torch $version: $1: trained, and reported with $2"
}
try() {
    export DISTPROF_VENV=$1 constraints=$out/constraints.txt
    { grep -vE '^(torch|sympy|setuptools)==' "$here/../constraints.txt"; echo "torch==$version"; } >"$constraints"
    source "$here/setup.sh" test
    cd "$root"
    local quick=(train=gpt2_tiny train.steps=4 logger=none hardware.peak=1e13)
    job ddp "forward backward all_reduce" distprof "${quick[@]}" run_dir="$out/ddp"
    if "$venv/bin/python" -c 'import torch; torch.cpu.Stream.record_event' 2>/dev/null; then
        job fsdp2 "all_gather all_reduce" distprof "${quick[@]}" strategy=fsdp run_dir="$out/fsdp2"
    else say "torch $version: fsdp2: not on a CPU"; fi
    job attach "backward all_reduce optimizer" distprof.attach run_dir="$out/attach" -- tests/attach/programs/plain_ddp.py
    # Importing torch 2.6 alone takes twice as long as 2.13: the limit of the first test of a file holds that, too.
    "$venv/bin/python" -m pytest -q -n 3 --dist loadfile --timeout 900 -m "not live" "${tests[@]}"
}
[[ ${1-} == --list ]] && { printf '%s\n' "${tried[@]}"; exit; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) failed=0
for version; do
    out=$(mktemp -d) folder=${DISTPROF_TORCH_VENVS:-$here/..}/.venv-torch-$version
    set +e; (set -e; try "$folder"); (($?)) && failed=1; set -e # not ||, which would have errors of try passed over
    [[ ${DISTPROF_TORCH_KEEP-} != no ]] || rm -rf "$folder"; rm -rf "$out"
done
exit $failed
