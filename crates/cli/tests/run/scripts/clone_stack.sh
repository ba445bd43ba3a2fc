# needs: cc
# free: program
# Children on stacks of their own, without the parent's memory.
set -eu
cc -O1 -w -pthread -o program "$KIT/clone_stack.c"
./program
