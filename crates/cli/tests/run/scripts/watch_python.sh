# needs: python3
# pip: watchdog==6.0.0 watchfiles==1.1.0
# watchdog reports changes of a tree; watchfiles (the watcher of cargo watch) runs a command again.
set -eu
export PYTHONPATH=$PACKAGES PYTHONDONTWRITEBYTECODE=1
mkdir -p tree/deep
cat >watch.py <<'Y'
import os, queue, sys
from watchdog.events import FileSystemEventHandler
from watchdog.observers import Observer

class Handler(FileSystemEventHandler):
    def on_any_event(self, event):
        events.put((event.event_type, event.src_path, event.dest_path))

events = queue.Queue()
observer = Observer()
observer.schedule(Handler(), 'tree', recursive=True)
observer.start()

def until(wanted, act):
    act()
    while True:
        event = events.get(timeout=600)
        if event[0] == wanted:
            return print(*event)

def write(path, text):
    with open(path, 'w') as file:
        file.write(text)

until('created', lambda: write('tree/deep/file', 'x'))
until('closed', lambda: None)
until('modified', lambda: write('tree/deep/file', 'y'))
until('moved', lambda: os.rename('tree/deep/file', 'tree/file'))
until('deleted', lambda: os.unlink('tree/file'))
until('created', lambda: os.mkdir('tree/new'))
until('created', lambda: write('tree/new/inside', 'z'))
until('moved', lambda: os.rename('tree/new', 'tree/old'))
until('deleted', lambda: os.unlink('tree/old/inside'))
observer.stop()
observer.join()
Y
python3 watch.py
echo first >tree/part
coproc again { exec python3 -m watchfiles --filter all --sigint-timeout 5 'cat tree/part' tree 2>/dev/null; }
read -r -t 600 line <&"${again[0]}"; echo "$line"
# The command runs once before the watch begins.
for try in $(seq 600); do
    echo second >tree/part
    if read -r -t 1 line <&"${again[0]}"; then echo "$line"; break; fi
done
echo third >new; mv new tree/part
until_line() { while read -r -t 600 line <&"${again[0]}"; do [ "$line" != "$1" ] || { echo "$line"; return; }; done; echo "no $1"; exit 1; }
until_line third
kill "$again_PID"; wait "$again_PID" || true
