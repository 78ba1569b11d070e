#!/usr/bin/env bash
# Writes deploy/constraints.txt: the version of every package that pyproject.toml brings along, in a new environment.
# Versions that are pinned already stay, unless pyproject.toml asks for others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A pin that pyproject.toml itself names is dropped, so that the two cannot contradict each other.
"${PYTHON:-python3.11}" - pyproject.toml deploy/constraints.txt >"$work/constraints.txt" <<'PYTHON'
import re, sys, tomllib

project = tomllib.load(open(sys.argv[1], "rb"))
direct = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]]
named = {re.match(r"[\w.-]+", text)[0].lower().replace("_", "-") for text in direct if "==" in text}
for line in open(sys.argv[2]):
    if not line.startswith("#") and line.split("==")[0].strip().lower().replace("_", "-") not in named:
        print(line, end="")
PYTHON

"${PYTHON:-python3.11}" -m venv "$work/venv"
PIP_CONSTRAINT="$work/constraints.txt" "$work/venv/bin/python" -m pip install --quiet --editable ".[dev]"
{
    echo "# Every package of the runtime and of the tests, pinned. Written by deploy/lock.sh."
    "$work/venv/bin/python" -m pip freeze --all --exclude-editable --exclude pip | sed -E 's/\+[a-z0-9.]+$//'
} >deploy/constraints.txt
