# needs: cat mkfifo python3
# free: renamed interpreter
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
printf '#!/bin/sh\ncat /proc/$$/comm\n' >script
chmod +x script
./script
cp "$(command -v python3)" interpreter
cat >path.py <<'X'
import ctypes
find = ctypes.CDLL(None).getauxval
find.restype, find.argtypes = ctypes.c_char_p, [ctypes.c_ulong]
AT_EXECFN = 31
print(find(AT_EXECFN).decode())
X
./interpreter path.py
"$PWD"/./interpreter path.py | sed "s|$PWD|HERE|"
printf '#!%s\n' "$PWD/interpreter" >typed
cat path.py >>typed
chmod +x typed
./typed
