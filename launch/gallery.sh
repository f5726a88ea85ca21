#!/usr/bin/env bash
# Makes the pictures of docs/gallery.md again: runs the command below each, and takes the first screen of its report.html.
#
#   launch/gallery.sh                      all of them, in ten minutes on two cores
#   launch/gallery.sh slow-rank jitter     these
#
# Runs with $PYTHON (default: .venv's, else python3), where torch is installed. Needs Chromium; slow-link needs root and
# iproute2, too. Run folders go to runs/gallery/.
# Exit codes: 0 made; 1 a job left no page; 2 no Chromium, or no such picture.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf 'gallery: %s\n' "$*" >&2; }
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || command -v chrome) ||
    { say "no Chromium on PATH (Debian, Ubuntu: apt-get install chromium)"; exit 2; }
python=$(command -v "${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}")
PATH=$(cd "$(dirname "$python")" && pwd):$PATH
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

[[ $# -gt 0 ]] || set -- $(sed -n 's/^!\[.*(pictures\/\(.*\)\.png)$/\1/p' docs/gallery.md)
for name in "$@"; do
    command=$(sed -n "/(pictures\/$name\.png)\$/,/^\`\`\`\$/p" docs/gallery.md | sed '1,/^```bash$/d; /^```$/d')
    [[ -n $command ]] || { say "docs/gallery.md has no picture $name"; exit 2; }
    rm -rf "runs/gallery/$name"
    bash -c "$command" || say "$name: its command ended with exit code $?"
    page=$(find "runs/gallery/$name" -name report.html) && [[ -n $page ]] || { say "$name: no page"; exit 1; }
    picture=docs/pictures/$name.png
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,1120 \
        --screenshot="$picture" "$PWD/$page" 2>/dev/null
    python - "$picture" <<'FEWER_COLOURS'
import sys
from PIL import Image
Image.open(sys.argv[1]).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(sys.argv[1], optimize=True)
FEWER_COLOURS
    say "$picture: $(stat -c %s "$picture") bytes"
done
