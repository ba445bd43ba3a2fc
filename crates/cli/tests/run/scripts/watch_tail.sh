# needs: tail
# tail -F follows a log that is appended to, moved away, replaced and cut.
set -eu
expect() { IFS= read -r -t 600 line <&"${tail[0]}"; echo "$line"; }
echo one >log
coproc tail { exec stdbuf -oL tail -F log 2>/dev/null; }
expect
echo two >>log; expect
mv log log.1; echo three >log; expect
echo four >>log; expect
# Shorter than before, in one call.
echo 5 >new; mv new log; expect
kill "$tail_PID"
