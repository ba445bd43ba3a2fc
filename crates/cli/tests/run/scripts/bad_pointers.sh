# needs: cc
# free: pointers
# Bad pointers are errors where the kernel says so, whatever signals the program handles or blocks; and its own faults stay its own.
set -eu
ulimit -c 0
cc -O1 -w -pthread -o pointers "$KIT/pointers.c"
./pointers
