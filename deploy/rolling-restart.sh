#!/bin/sh
# Replace the containers of compose.yaml by new ones, one after the other, so that no request is lost (docs/operations.md):
#   docker compose build && deploy/rolling-restart.sh [SERVICE ...]      # without names: all that run and may run twice
# A new container is started beside the old one and must be healthy before the old one is stopped, so there has to be
# memory for one more of each kind. COMPOSE is the command, COMPOSE_PROJECT_NAME the project, LIMIT_S the longest start.
set -eu
COMPOSE=${COMPOSE:-docker compose}
LIMIT_S=${LIMIT_S:-600}
cd "$(dirname "$0")/.."

containers() {  # of a service; none of one whose profile is not used
    $COMPOSE ps -q "$1" 2>/dev/null || true
}

is_healthy() {  # is_healthy CONTAINER
    [ "$(docker inspect -f '{{.State.Health.Status}}' "$1" 2>/dev/null)" = healthy ]
}

start_one_more() {  # start_one_more SERVICE: beside those there are
    before=$(containers "$1")
    count=$(echo "$before" | wc -w)
    if ! output=$($COMPOSE up -d --no-deps --no-build --no-recreate --scale "$1=$((count + 1))" "$1" 2>&1); then
        printf '%s\n%s: there cannot be one more; is its published port a range?\n' "$output" "$1" >&2
        exit 1
    fi
    new=$(containers "$1" | grep -vxF "$before")
    waited_s=0
    until is_healthy "$new"; do
        waited_s=$((waited_s + 1))
        [ "$waited_s" -le "$LIMIT_S" ] || { echo "$1: not healthy after $LIMIT_S s; the old one still runs" >&2; exit 1; }
        sleep 1
    done
}

stop_one() {  # stop_one CONTAINER
    grace_s=$(docker inspect -f '{{.Config.StopTimeout}}' "$1")
    docker stop --time "$grace_s" "$1" >/dev/null
    docker rm "$1" >/dev/null
}

[ $# -gt 0 ] || set -- draft fuse verify verify-vllm control beat web draft-general draft-code draft-prose \
    draft-chat fuse-cooperate verify-cooperate control-cooperate beat-cooperate web-cooperate
for service in "$@"; do
    old=$(containers "$service")
    for container in $old; do
        echo "$service: one more"
        start_one_more "$service"
        echo "$service: it is healthy; the old one is told to stop"
        stop_one "$container"
        echo "$service: the old one has ended"
    done
done
