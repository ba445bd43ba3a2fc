# needs: inotifywait
# inotifywait sees the changes of other programs, below directories that are made meanwhile, too.
set -eu
mkdir -p tree/sub
coproc wait { exec inotifywait -m -r --format '%w %e %f' tree 2>&1; }
# Prints events until one of a pattern.
until_event() { while IFS= read -r -t 600 line <&"${wait[0]}"; do echo "$line"; case $line in $1) return;; esac; done; echo "no $1"; exit 1; }
until_event '*established*'
echo text >tree/sub/file; until_event '*CLOSE_WRITE* file'
mv tree/sub/file tree/moved; until_event '*MOVED_TO moved'
chmod 600 tree/moved; until_event '*ATTRIB moved'
ln tree/moved tree/link; until_event '*CREATE link'
rm tree/link; until_event '*DELETE link'
mkdir tree/new; until_event '*CLOSE_NOWRITE* new'
echo text >tree/new/file; until_event '*CLOSE_WRITE* file'
rm tree/new/file; until_event '*DELETE file'
rmdir tree/sub; until_event '*DELETE,ISDIR sub'
kill "$wait_PID"
