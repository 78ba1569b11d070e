#!/usr/bin/env bash
# Makes .venv and installs pdserve into it, pinned; does nothing when that is done already. `--dev`: the test tools too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extra=""
[ "${1:-}" = "--dev" ] && extra="[dev]"

is_supported() {
    "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1
}

check_chosen() {  # PYTHON, when it is set
    local says="there is no such program"
    [ -z "${PYTHON:-}" ] || is_supported "$PYTHON" && return
    command -v "$PYTHON" >/dev/null && says=$("$PYTHON" --version 2>&1 | head -n 1 || true)
    echo "PYTHON=$PYTHON is no Python 3.11 (${says:-it says nothing}): set another, or unset it" >&2
    exit 1
}

find_python() {  # the first interpreter of the supported version
    local candidate found
    for candidate in "${PYTHON:-python3.11}" python3 python; do
        if is_supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    found=$(python3 --version 2>&1 | head -n 1 || true)
    echo "pdserve needs Python 3.11, found: ${found:-none}; install it, or name it: PYTHON=/path/to/python3.11 $0" >&2
    exit 1
}

check_chosen
if [ ! -x .venv/bin/python ]; then
    python=$(find_python)
    echo "making .venv with $("$python" --version)" >&2
    "$python" -m venv .venv
elif ! is_supported .venv/bin/python; then
    echo "pdserve needs Python 3.11, but .venv has $(.venv/bin/python --version); remove .venv and start again" >&2
    exit 1
fi

# What is installed is named by a hash of what was asked for; the test tools include all the rest.
wanted=$(cat pyproject.toml deploy/constraints.txt | sha256sum | cut -d' ' -f1)
stamp=.venv/.pdserve-installed
installed=$(cat "$stamp" 2>/dev/null || true)
[ "$installed" = "$wanted [dev]" ] && exit 0
[ -z "$extra" ] && [ "$installed" = "$wanted " ] && exit 0

size=""
[ -z "$installed" ] && size=" (about 2 GB, once)"
echo "installing pdserve${extra} into .venv${size}" >&2
rm -f "$stamp"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# --no-compile: one core would do it; below all cores do, and leave out what is never imported
if ! PIP_CONSTRAINT=$PWD/deploy/constraints.txt .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --no-compile --no-warn-script-location --editable ".${extra}" >"$log" 2>&1; then
    cat "$log" >&2
    echo "pdserve could not be installed: pip's words are above; start it again to go on" >&2
    exit 1
fi
.venv/bin/python -m compileall -q -j 0 -x '/tests?/|/testing/|transformers/models/(?!auto/|llama/|__init__)' \
    .venv/lib >/dev/null 2>&1 || true  # what is not compiled is slower to import, no more
echo "$wanted $extra" >"$stamp"
