# needs: cc
# Signals of faults that a program sends itself while it blocks them.
set -eu
cc -O1 -w -pthread -o program "$KIT/blocked_signals.c"
./program
