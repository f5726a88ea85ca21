# Sourced by the other recipes, with the extra to install in $1: makes a virtual environment in .venv (or in
# $DISTPROF_VENV) with $PYTHON (default: python3) and installs distprof into it; again only if requirements change.
# Sets $root, the checkout, and $venv, the environment. $constraints: a file in place of constraints.txt.

unset PYTHONDONTWRITEBYTECODE # or each process compiles torch again, which is not compiled here: 12 s of a core

say() { printf 'distprof: %s\n' "$*" >&2; }
give_up() { say "$*"; exit 1; }

extra=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${DISTPROF_VENV:-$root/.venv}
python=${PYTHON:-python3}
constraints=${constraints:-$root/constraints.txt}

if [[ ! -x $venv/bin/python ]]; then
    command -v "$python" >/dev/null || give_up "$python: not found; install Python 3.11, 3.12 or 3.13, or set PYTHON"
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
        give_up "$("$python" --version) is not supported; set PYTHON to a Python 3.11, 3.12 or 3.13"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        give_up "$python cannot make virtual environments; install its venv module (Debian, Ubuntu: python3-venv)"
    say "making the virtual environment $venv"
    "$python" -m venv "$venv"
fi
venv=$(cd "$venv" && pwd)

stamp=$venv/.distprof-$extra
wanted=$({ echo "$root"; cat "$root/pyproject.toml" "$constraints"; } | cksum)
if [[ ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
    say "installing distprof[$extra] (minutes the first time)"
    "$venv/bin/python" -m pip install -qq --no-compile --disable-pip-version-check -c "$constraints" -e "$root[$extra]"
    echo "$wanted" >"$stamp" # last: an installation that was cut short is made again
fi
