#!/usr/bin/env bash
# Checks everything that can be checked here: lint, types, tests. Arguments go to pytest.
#
#   launch/test.sh
#   launch/test.sh tests/test_config.py -k unknown
#
# Installs into .venv beside this checkout the first time ($DISTPROF_VENV: elsewhere; $PYTHON: with that Python).
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
cd "$root"
say "ruff"
"$venv/bin/ruff" check --quiet .
say "mypy"
"$venv/bin/mypy"
say "pytest"
(($#)) && exec "$venv/bin/python" -m pytest -q "$@"
"$venv/bin/python" -m pytest -q -n 2 -m "not live"
say "pytest: tests that watch a clock while ranks train"
exec "$venv/bin/python" -m pytest -q -m live
