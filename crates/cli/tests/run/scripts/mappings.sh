# needs: cc
# free: program
# ignored: sparse
# Pages of mappings that come later: growth, holes, bytes requested again, moves.
set -eu
cc -O1 -w -pthread -o program "$KIT/mappings.c"
./program
