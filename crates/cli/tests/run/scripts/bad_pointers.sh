# needs: cc
# free: pointers
# Invalid pointers give the kernel's errors, whatever signals the program handles or blocks. The
# program's own faults reach its handlers.
set -eu
ulimit -c 0
cc -O1 -w -pthread -o pointers "$KIT/pointers.c"
./pointers
