#!/usr/bin/env bash
# Every request of the HTTP door with curl: serving_curl.sh IMAGE [http://127.0.0.1:8000] [STREAM]
# A server on another machine needs -H "Authorization: Bearer $TOKEN" with every POST.
set -euo pipefail
image=$1 server=${2:-http://127.0.0.1:8000} stream=${3:-camera-1}
ask() { curl --silent --show-error --fail-with-body "$@"; echo; }
json='Content-Type: application/json'

ask "$server/readyz"

# One image; the answer has the id by which its label can be sent later.
answer=$(ask "$server/v1/predict?stream=$stream" -H 'Content-Type: image/png' --data-binary "@$image")
echo "$answer"
request=$(sed -E 's/.*"request":"([^"]*)".*/\1/' <<<"$answer")
ask "$server/v1/labels?stream=$stream" -H "$json" -d "{\"request\": \"$request\", \"labels\": [3]}"

ask -X POST "$server/v1/snapshot?stream=$stream"
ask "$server/v1/mode?stream=$stream" -H "$json" -d '{"mode": "hold"}'
ask "$server/v1/mode?stream=$stream" -H "$json" -d '{"mode": "adapted"}'
ask "$server/v1/rollback?stream=$stream" -H "$json" -d '{"steps": 1}'
ask -X POST "$server/v1/reset?stream=$stream"
ask -X POST "$server/v1/release?stream=$stream"

ask "$server/v1/streams/$stream"
ask "$server/v1/streams/$stream/history?since=0"
ask "$server/metrics" | grep -E "^equipoise_(stream_batches_total|confidence)"
