#!/usr/bin/env bash
# Start private PostgreSQL and Redis servers for tests, or stop them.
# usage: eval "$(scripts/services.sh start)"; ...; scripts/services.sh stop "$SERVICES_DIR"
# Uses the installed programs (Debian: postgresql redis-server) with a throw-away folder and free
# ports, and prints the exports of DATABASE_URL, REDIS_URL and SERVICES_DIR. Not for real data:
# nothing is synced to disk.
set -Eeuo pipefail

postgres_bin() {
    local found
    found=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
    [ -x "$found/initdb" ] || found=$(dirname "$(command -v initdb)")
    printf '%s\n' "$found"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# PostgreSQL refuses to run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi
}

start_postgres() {
    local bin=$1 folder=$2 port=$3
    as_postgres "$bin/initdb" -D "$folder/pg" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync
    as_postgres "$bin/pg_ctl" -D "$folder/pg" -w -l "$folder/pg.log" start -o \
        "-p $port -k $folder -c listen_addresses=127.0.0.1 -c max_connections=200 -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
}

start_redis() {
    local folder=$1 port=$2
    as_postgres redis-server --daemonize yes --bind 127.0.0.1 --port "$port" --save "" \
        --appendonly no --dir "$folder" --pidfile "$folder/redis.pid" --logfile "$folder/redis.log"
    for _ in $(seq 100); do
        redis-cli -p "$port" ping >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "redis-server did not start: see $folder/redis.log" >&2
    return 1
}

start() {
    local bin folder postgres_port redis_port
    bin=$(postgres_bin)
    folder=$(mktemp -d -t relay-services.XXXXXX)
    if [ "$(id -u)" = 0 ]; then chown postgres "$folder"; fi
    postgres_port=$(free_port)
    redis_port=$(free_port)
    # runuser keeps the folder it is in, which postgres may not be allowed to enter.
    cd /
    trap 'stop "$folder" >&2 || true' ERR
    start_postgres "$bin" "$folder" "$postgres_port" >/dev/null
    start_redis "$folder" "$redis_port" >/dev/null
    echo "export DATABASE_URL=postgresql://postgres@127.0.0.1:$postgres_port/postgres"
    echo "export REDIS_URL=redis://127.0.0.1:$redis_port/0"
    echo "export SERVICES_DIR=$folder"
}

stop() {
    local folder=$1
    cd /
    if [ -f "$folder/redis.pid" ]; then kill "$(cat "$folder/redis.pid")" || true; fi
    if [ -d "$folder/pg" ]; then
        as_postgres "$(postgres_bin)/pg_ctl" -D "$folder/pg" -m fast -w stop || true
    fi
    rm -rf "$folder"
}

case "${1:-}" in
    start) start ;;
    stop) stop "${2:?usage: services.sh stop DIR}" ;;
    *) sed -n '2,6p' "$0"; exit 2 ;;
esac
