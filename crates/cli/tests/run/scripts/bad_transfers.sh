# needs: cc
# free: program
# Transfers, mappings, polls and sockets with descriptors that do not permit them give the kernel's
# errors, in the kernel's order.
set -eu
cc -O1 -w -o program "$KIT/bad_transfers.c"
./program
