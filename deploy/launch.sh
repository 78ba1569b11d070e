#!/usr/bin/env bash
# From a fresh clone to a serving cluster: installs what is missing, then `pdserve up`, which takes the same options:
#   ./deploy/launch.sh [--config FILE] [--prefill N] [--decode N] [--model PATH|HUB_ID] [--detach] …
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/deploy/install.sh"
exec "$root/.venv/bin/pdserve" up "$@"
