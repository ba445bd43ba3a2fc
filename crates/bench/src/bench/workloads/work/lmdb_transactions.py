"""Synced transactions of LMDB, as many as the argument says."""
import sys, lmdb

with lmdb.open("lmdb", map_size=1 << 28) as database:
    for number in range(int(sys.argv[1])):
        with database.begin(write=True) as transaction:
            transaction.put(b"%d" % number, b"x" * 100)
