#!/usr/bin/env bash
# The CUDA suite: works with the packages it finds, prints each missing one as a skip, takes under 10 minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python
exec "${PYTHON:-$python}" -m pytest tests/gpu -q -rs -p no:cacheprovider --override-ini=asyncio_mode=auto "$@"
