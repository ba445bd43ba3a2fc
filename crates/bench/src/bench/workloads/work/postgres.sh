# A database server in the directory `postgres`: made, filled, used for $1 transactions, stopped.
set -e
initdb --auth=trust --username=bench --pgdata=postgres > log
pg_ctl --pgdata=postgres --log=log --options="-c listen_addresses= -c unix_socket_directories=$PWD/postgres" --wait start >> log
trap 'pg_ctl --pgdata=postgres --mode=fast --wait stop >> log' EXIT
pgbench --host="$PWD/postgres" --username=bench --initialize --quiet postgres >> log 2>&1
pgbench --host="$PWD/postgres" --username=bench --transactions="$1" postgres >> log 2>&1
