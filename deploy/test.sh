#!/usr/bin/env bash
# Everything CI runs: formatting, lint, types, unit tests, integration tests, short drills, and that nothing is left
# behind. Installs nothing on the system; says what it skips. PDSERVE_REQUIRE_ALL=1: a skip is a failure, as in CI.
# --all: the tests marked `long` too, which repeat at length what others show in short; for before a release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
chosen=(-m "not long")
[ "${1:-}" = --all ] && chosen=()
./deploy/install.sh --dev
export PATH=$PWD/.venv/bin:$PATH
export PDSERVE_TEST_RUN=run-$$-$RANDOM
left=$(mktemp)
types=$(mktemp)
trap 'rm -f "$left" "$types"' EXIT
python -m tests.leftovers before "$left"

failed=()
step() {  # NAME COMMAND…: runs it, goes on whatever comes of it
    local name=$1 started=$SECONDS
    shift
    echo "==> $name"
    "$@" || failed+=("$name")
    echo "    $name took $((SECONDS - started)) s"
}

the_types() {
    wait "$types_pid" && found=0 || found=$?
    cat "$types"
    return "$found"
}

mypy >"$types" 2>&1 &  # beside the tests
types_pid=$!
step format ruff format --check .
step lint ruff check .
# All kinds in one run, which imports everything once: in two processes, files in the order that tests/conftest.py gives.
step tests pytest -q -n 2 --dist loadfile --no-loadscope-reorder "${chosen[@]}" -rs --durations=25 \
    tests/integration tests/drill tests/unit
step types the_types
echo "==> gpu: not run here; on a machine with one: PYTHON=.venv/bin/python tests/gpu/run.sh"
step "nothing left behind" python -m tests.leftovers after "$left"

if [ ${#failed[@]} -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
echo "all passed in $SECONDS s"
