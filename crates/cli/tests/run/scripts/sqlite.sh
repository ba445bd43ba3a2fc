# needs: sqlite3
# free: *.db
# A database in every journal mode, with a death of its writer inside a transaction.
set -eu
for mode in delete truncate persist memory wal off; do
    sqlite3 $mode.db "pragma journal_mode=$mode; create table t(a integer primary key, b); with recursive c(x) as (values(1) union all select x+1 from c where x<2000) insert into t select x, hex(zeroblob(20)) from c; create index i on t(b,a); update t set b='u'||a where a%3=0; delete from t where a%7=0; select count(*), sum(a) from t; pragma integrity_check; vacuum;"
    ls $mode.db*
done
sqlite3 wal.db 'pragma mmap_size=100000000; select count(*) from t; insert into t(b) values(1); pragma wal_checkpoint(truncate);'
sqlite3 delete.db .dump | sqlite3 again.db; sqlite3 again.db 'select sum(a) from t'; sqlite3 wal.db '.backup back.db'; sqlite3 back.db 'select count(*) from t'
(echo 'begin; delete from t;'; echo 'insert into t values(1,2);'; sleep 5) | sqlite3 delete.db & sleep 0.3; sqlite3 delete.db 'select count(*) from t'; kill %1 2>/dev/null; wait 2>/dev/null || true
sqlite3 -cmd '.timeout 300000' delete.db 'pragma integrity_check; select count(*) from t'; sqlite3 delete.db "select fileio.name from (select 'x' as name) fileio"; rm -f *-journal *-wal *-shm
