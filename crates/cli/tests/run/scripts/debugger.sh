# needs: gdb gcc
# free: waits
# ignored: output
# A debugger attaches to a program in the directory, knows its symbols, and calls its functions.
set -u
cat >waits.c <<'C'
#include <unistd.h>
int number_of_arguments;
int main(int count, char **arguments) {
    number_of_arguments = count;
    pause();
    return 0;
}
C
gcc -g -O0 -o waits waits.c || exit 1
./waits one two &
tries=0
# It pauses.
until [ "$(cut -d' ' -f1 /proc/$!/syscall)" = 34 ] || [ $tries = 5000 ]; do tries=$((tries + 1)); done
gdb -q -p $! -batch -ex bt -ex 'print number_of_arguments' -ex 'call (int)access("waits.c", 0)' \
    -ex 'call (long)open("new", 0101, 0644) > 0' >output 2>&1
grep -o 'in main' output
grep '^\$' output
ls
kill $!
wait $! || echo "ended with $?"
