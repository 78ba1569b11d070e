#!/usr/bin/env bash
# Makes .venv and installs pdserve into it, pinned; does nothing when that is done already. `--dev`: the test tools too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extra=""
[ "${1:-}" = "--dev" ] && extra="[dev]"

find_python() {  # the first interpreter of the supported version
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3 python; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    local found
    found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "none")
    echo "pdserve needs Python 3.11, found: ${found}; install it, or name it: PYTHON=/path/to/python3.11 $0" >&2
    exit 1
}

if [ ! -x .venv/bin/python ]; then
    python=$(find_python)
    echo "making .venv with $("$python" --version)" >&2
    "$python" -m venv .venv
elif ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "pdserve needs Python 3.11, but .venv has $(.venv/bin/python --version); remove .venv and start again" >&2
    exit 1
fi

# What is installed is named by a hash of what was asked for; the test tools include all the rest.
wanted=$(cat pyproject.toml deploy/constraints.txt | sha256sum | cut -d' ' -f1)
stamp=.venv/.pdserve-installed
installed=$(cat "$stamp" 2>/dev/null || true)
[ "$installed" = "$wanted [dev]" ] && exit 0
[ -z "$extra" ] && [ "$installed" = "$wanted " ] && exit 0

echo "installing pdserve${extra} into .venv (some gigabytes the first time)" >&2
rm -f "$stamp"
PIP_CONSTRAINT=$PWD/deploy/constraints.txt .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extra}"
echo "$wanted $extra" >"$stamp"
