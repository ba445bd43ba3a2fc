"""Small appends to the log of LevelDB, as many as the argument says."""
import sys, plyvel

database = plyvel.DB("leveldb", create_if_missing=True)
for number in range(int(sys.argv[1])):
    database.put(b"%d" % number, b"x" * 100)
database.close()
