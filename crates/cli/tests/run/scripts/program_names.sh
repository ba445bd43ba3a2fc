# needs: cat mkfifo
# free: renamed
# What other processes see of a program in the directory: its path and its short name.
set -eu
cp "$(command -v cat)" renamed
mkfifo never
./renamed <>never &
tries=0
until [ "$(cat /proc/$!/comm)" = renamed ] || [ $tries = 5000 ]; do tries=$((tries + 1)); done
cat /proc/$!/comm
[ "$(readlink /proc/$!/exe)" = "$PWD/renamed" ] && echo 'the path is right'
[ "$(readlink -f /proc/$!/exe)" = "$PWD/renamed" ] && echo 'also after it is resolved'
kill $!
wait $! || echo "ended with $?"
