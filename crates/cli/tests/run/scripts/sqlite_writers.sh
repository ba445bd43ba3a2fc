# needs: sqlite3
# free: *.db
# Two processes that write one database at the same time.
set -eu
for mode in wal delete; do
    db=$mode.db; sqlite3 $db "pragma journal_mode=$mode; create table t(w, n)" >/dev/null
    writer() { for n in $(seq 40); do echo "insert into t values($1, $n);"; done | sqlite3 -cmd '.timeout 300000' $db; }
    writer 1 & one=$!; writer 2 & two=$!; wait $one; wait $two
    sqlite3 $db 'select w, count(*), sum(n) from t group by w; pragma integrity_check'
done
rm -f *-wal *-shm *-journal
