# needs: cc
# free: program
# Linux's asynchronous I/O: completions, errors, other files in the same call, the ring in memory.
set -eu
cc -O1 -w -pthread -o program "$KIT/aio.c"
./program /dev/shm
