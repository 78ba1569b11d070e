#!/usr/bin/env bash
# Ends the cluster that launch.sh started, and leaves nothing of it: ./deploy/stop.sh [--name NAME]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ ! -x "$root/.venv/bin/pdserve" ]; then
    echo "nothing to end: nothing was ever launched from $root"
    exit 0
fi
exec "$root/.venv/bin/pdserve" down "$@"
