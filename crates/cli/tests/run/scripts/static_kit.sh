# needs: cc
# free: pointers transfers clone_stack vfork_signals mapping_faults
# hidden: /dev/fuse
# Programs that try the borders of calls, linked statically.
set -eu
ulimit -c 0
cc -O1 -w -pthread -static -o pointers "$KIT/pointers.c"
./pointers
cc -O1 -w -pthread -static -o clone_stack "$KIT/clone_stack.c"
./clone_stack
cc -O1 -w -static -o vfork_signals "$KIT/vfork_signals.c"
./vfork_signals file
cc -O1 -w -static -o mapping_faults "$KIT/mapping_faults.c"
./mapping_faults
