#!/bin/sh
# Kill a container of each service of compose.yaml as a crash would, one after the other, and wait until each is healthy again:
#   ./paceline bench load meanwhile --url http://localhost:8080 -- deploy/drill.sh [SERVICE ...]    # without names: every one below
# Before that the drafters are scaled up to three and down again. Run it as root where the engine runs: after `docker kill` no
# engine starts the container again, since it counts as a stop on request. COMPOSE and COMPOSE_PROJECT_NAME as in
# rolling-restart.sh.
set -eu
COMPOSE=${COMPOSE:-docker compose}
LIMIT_S=${LIMIT_S:-600}
REST_S=5
cd "$(dirname "$0")/.."

about() {  # about CONTAINER FIELD
    docker inspect -f "{{.$2}}" "$1"
}

wait_until() {  # wait_until CONTAINER FIELD VALUE
    waited_s=0
    until [ "$(about "$1" "$2")" = "$3" ]; do
        waited_s=$((waited_s + 1))
        [ "$waited_s" -le "$LIMIT_S" ] || { echo "$1: $2 is not $3 after $LIMIT_S s" >&2; exit 1; }
        sleep 1
    done
}

scale() {  # scale SERVICE COUNT
    $COMPOSE up -d --no-deps --no-build --no-recreate --scale "$1=$2" "$1" >/dev/null 2>&1
    for container in $($COMPOSE ps -q "$1"); do
        wait_until "$container" State.Health.Status healthy
    done
    echo "$1: $2"
    sleep "$REST_S"
}

crash() {  # crash SERVICE
    container=$($COMPOSE ps -q "$1" 2>/dev/null | head -n 1)
    [ -n "$container" ] || return 0  # its profile is not used
    restarts=$(about "$container" RestartCount)
    kill -9 "$(about "$container" State.Pid)"
    echo "$1: killed"
    wait_until "$container" RestartCount $((restarts + 1))
    wait_until "$container" State.Health.Status healthy
    echo "$1: healthy again"
    sleep "$REST_S"
}

# Not the web server: callers that wait for an answer on one connection lose it with the process, and have to try again.
[ $# -gt 0 ] || set -- draft fuse control verify verify-vllm beat draft-general draft-code draft-prose draft-chat \
    fuse-cooperate control-cooperate verify-cooperate beat-cooperate redis
scale draft 3
scale draft 1
for service in "$@"; do
    crash "$service"
done
