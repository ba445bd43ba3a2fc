# needs: cc
# free: program
# Registers and flags of accesses to pages of mappings that come later, at each alignment of the
# stack.
set -eu
cc -O1 -w -o program "$KIT/mapping_faults.c"
./program
