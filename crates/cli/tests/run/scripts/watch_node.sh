# needs: node
# node runs a program again when it changes, and reports changes of a tree.
set -eu
expect() { IFS= read -r -t 600 line <&"${node[0]}"; echo "$line"; }
mkdir lib
echo 'module.exports = "first"' >lib/part.js
echo 'console.log(require("./lib/part.js"))' >main.js
coproc node { exec node --watch --no-warnings main.js 2>/dev/null; }
until_line() { while IFS= read -r -t 600 line <&"${node[0]}"; do case $line in $1) echo "$line"; return;; esac; done; echo "no $1"; exit 1; }
until_line first
until_line 'Completed*'
echo 'module.exports = "second"' >part.js; mv part.js lib/part.js
until_line second
kill "$node_PID"; wait "$node_PID" || true
cat >watch.js <<'Y'
const fs = require('fs'), names = new Set();
const watcher = fs.watch('tree', { recursive: true }, (kind, name) => {
  names.add(name);
  if (names.has('deep/file') && names.has('last')) { console.log('seen'); watcher.close(); }
});
fs.mkdirSync('tree/deep', { recursive: true });
setImmediate(() => { fs.writeFileSync('tree/deep/file', 'x'); fs.writeFileSync('tree/last', 'x'); });
setInterval(() => fs.writeFileSync('tree/deep/file', 'y'), 100).unref();
setTimeout(() => { console.log('missing', ...names); process.exit(1); }, 600000).unref();
Y
mkdir -p tree/deep
node watch.js
