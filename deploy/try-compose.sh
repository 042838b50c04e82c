#!/bin/sh
# Try compose.yaml on a real engine: all services healthy, form, API, a Celery task, a verifier killed in the middle of an answer.
#   deploy/try-compose.sh [--profile cooperate ...]      # flags go to `up`
# COMPOSE names another Compose (`docker-compose`); PYTHON an interpreter with celery, for the task.
set -eu
COMPOSE=${COMPOSE:-docker compose}
PYTHON=${PYTHON:-.venv/bin/python}
URL=http://127.0.0.1:${PACELINE_PORT:-8000}
LIMIT_S=${LIMIT_S:-900}
cd "$(dirname "$0")/.."

fail() {
    echo "try-compose: $1" >&2
    $COMPOSE ps >&2
    exit 1
}

wait_ready() {
    waited_s=0
    until curl -sf "$URL/readyz" >/dev/null; do
        waited_s=$((waited_s + 2))
        [ "$waited_s" -le "$LIMIT_S" ] || fail "not ready after $LIMIT_S s"
        sleep 2
    done
}

ask() {  # ask EXTRA_JSON
    curl -sf "$URL/api/generate" -H 'content-type: application/json' \
        -d "{\"prompt\": \"Write a Python class for a stack.\", \"max_tokens\": 96$1}"
}

text_of() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)["text"])'
}

started_s=$(date +%s)
# shellcheck disable=SC2086
$COMPOSE "$@" up -d >/dev/null 2>&1 || fail "up failed"
wait_ready
echo "ready after $(($(date +%s) - started_s)) s"
curl -sf "$URL/" | grep -q '<form' || fail "the page has no form"
plain=$(ask ', "speculation": false' | text_of)
[ "$(ask '' | text_of)" = "$plain" ] || fail "the text differs with speculation"
echo "form and API answer, the text is the same with speculation and without"

redis=$(docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$($COMPOSE ps -q redis)")
task=$("$PYTHON" - "redis://:${PACELINE_REDIS_PASSWORD:-paceline}@$redis:6379/0" <<'EOF'
import sys
from celery import Celery

app = Celery(broker=sys.argv[1], backend=sys.argv[1])
fields = {"prompt": "Write a Python class for a stack.", "max_tokens": 96}
print(app.send_task("paceline.generate", kwargs=fields).get(timeout=120)["text"])
EOF
)
[ "$task" = "$plain" ] || fail "the Celery task's text differs"
echo "a Celery task gives the same text"

ask '' | text_of >/tmp/try-compose.$$ &
asking=$!
sleep 1
kill -9 "$(docker inspect -f '{{.State.Pid}}' "$($COMPOSE ps -q verify | head -n 1)")"
wait "$asking" || fail "the request was lost with its verifier"
[ "$(cat /tmp/try-compose.$$)" = "$plain" ] || fail "the text differs after its verifier was killed"
rm -f /tmp/try-compose.$$
wait_ready
echo "the verifier was killed: the same text"
