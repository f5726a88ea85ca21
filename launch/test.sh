#!/usr/bin/env bash
# Checks the checkout: lint, formatting, types, tests.
#
#   launch/test.sh                                          everything that this machine can run
#   launch/test.sh --fast                                   about a minute: no test that trains, and none marked slow
#   launch/test.sh tests/config/test_config.py -k unknown   these tests only: arguments go to pytest
#
# The first time, installs into .venv beside this checkout ($DISTPROF_VENV: elsewhere; $PYTHON: with that Python).
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
cd "$root"
pytest=("$venv/bin/python" -m pytest -q)
say "ruff"
"$venv/bin/ruff" check --quiet .
"$venv/bin/ruff" format --quiet --check distprof tests benchmarks || give_up "not formatted: run ruff format"
if [[ ${1-} == --fast ]]; then # the rooms that need neither torch nor Hydra, while mypy takes the other core
    say "mypy, and pytest without training"
    "$venv/bin/mypy" & types=$!
    "${pytest[@]}" -n 2 -m "not slow" tests/{analyze,benchmarks/simulate,facts,render,report,storage,traces,test_architecture.py,test_documents.py} "${@:2}" || failed=1
    wait $types
    exit "${failed-0}"
fi
if (($#)); then
    say "mypy"
    "$venv/bin/mypy"
    say "pytest"
    exec "${pytest[@]}" "$@"
fi
say "mypy, and pytest beside it"
"$venv/bin/mypy" & types=$!
"${pytest[@]}" -n 4 --dist worksteal -m "not live" # on two cores, since tests of processes mostly wait for them
wait $types
say "pytest: tests that watch a clock while ranks train"
mapfile -t live < <(grep -rl --include='*.py' 'mark\.live' tests)
exec "${pytest[@]}" -m live "${live[@]}"
