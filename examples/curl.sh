#!/bin/sh
# The HTTP API with curl: the model, a streamed chat, a completion, who served it, and what an error looks like.
#     examples/curl.sh [--url http://127.0.0.1:8000]
set -eu
url=http://127.0.0.1:8000
case ${1-} in
  '') ;;
  --url) url=${2:?--url needs an address, as in http://127.0.0.1:8000} ;;
  *) echo "usage: $0 [--url URL]" >&2; exit 2 ;;
esac
json='Content-Type: application/json'

echo "# the model"
curl -sS "$url/v1/models"

printf '\n\n# a chat, streamed\n'
curl -sSN "$url/v1/chat/completions" -H "$json" \
  -d '{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 32, "stream": true}'

printf '\n# a completion, and in the headers who served it\n'
curl -sSi "$url/v1/completions" -H "$json" \
  -d '{"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}'

printf '\n\n# an error names the field and its limit\n'
curl -sS "$url/v1/completions" -H "$json" -d '{"prompt": "x", "temperature": 3}'
echo
