# needs: cc
# free: program
# io_uring: each operation on files, errors, chains, several kinds of rings, threads, children.
set -eu
cc -O1 -w -pthread -o program "$KIT/rings.c"
./program all /dev/shm
