# needs: watchman python3
# free: watched/log
# watchman keeps a view of a tree, and starts a command for each change.
set -eu
mkdir watched state
cd watched
echo '{}' >.watchmanconfig
echo first >file
man() { watchman --sockname "$HOME/socket" --statefile "$HOME/state" --logfile "$HOME/log" --pidfile "$HOME/pid" --no-pretty "$@"; }
man watch "$PWD" >/dev/null
show() { python3 -c 'import json, sys
found = json.load(sys.stdin)
print(found.get("error") or sorted((file["name"], file["exists"], file["size"]) for file in found["files"]))'; }
query() { man -j <<<'["query", "'"$PWD"'", {"suffix": "txt", "fields": ["name", "exists", "size"]}]' | show; }
query
mkdir sub
echo text >sub/a.txt
echo more text >b.txt
query
mv b.txt sub/c.txt
rm sub/a.txt
query
man watch-del "$PWD" >/dev/null
man shutdown-server >/dev/null
