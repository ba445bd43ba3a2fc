# A Redis server with an append-only file and snapshots is killed, and finds all that it confirmed.
# needs: redis-server redis-cli redis-check-aof redis-check-rdb
# ignored: data/*
# ignored: log
set -eu
mkdir data
ask() { redis-cli -s "$HOME/socket" "$@"; }
start() {
    redis-server --port 0 --unixsocket "$HOME/socket" --dir "$PWD/data" --appendonly yes --appendfsync always \
        --daemonize yes --pidfile "$HOME/pid" --logfile "$PWD/log"
    until [ "$(ask ping 2>&1)" = PONG ]; do :; done
}
start
for number in $(seq 100); do echo "set key:$number $(seq "$number" | cksum | tr ' ' -)"; done | ask | sort | uniq -c
ask bgrewriteaof
until ask info persistence | grep -q aof_rewrite_in_progress:0; do :; done
for number in $(seq 50); do echo "lpush list $number"; done | ask | tail -n 1
ask save
kill -9 "$(cat "$HOME/pid")"
while ask ping >/dev/null 2>&1; do :; done
rm -f "$HOME/socket"
start
ask dbsize
ask lrange list 0 2
ask get key:25
ask debug digest-value key:99 list 2>/dev/null | cksum
ask shutdown nosave
while [ -e "$HOME/pid" ]; do :; done
redis-check-aof data/appendonlydir/*.manifest | tail -n 1
redis-check-rdb data/dump.rdb | grep -o 'RDB looks OK'
