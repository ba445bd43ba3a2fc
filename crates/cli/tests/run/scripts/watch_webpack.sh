# needs: node npm
# npm: webpack@5.112.2 webpack-cli@7.3.1
# webpack builds again when a source file is changed, replaced or added.
set -eu
mkdir src
echo 'module.exports = "first"' >src/part.js
echo 'console.log(require("./part.js"))' >src/index.js
webpack="$PACKAGES/node_modules/webpack/bin/webpack.js"
options="--watch --mode development --devtool false --output-path $PWD/dist"
coproc pack { exec node "$webpack" $options 2>&1; }
# It may build once more for a file that is hardly older than its watch.
until_built() {
    while IFS= read -r -t 600 line <&"${pack[0]}"; do
        case $line in
        *"compiled successfully"*) built=$(node dist/main.js || true); [ "$built" != "$1" ] || { echo "$built"; return; };;
        *rror*) echo "$line";;
        esac
    done
    echo "not built again"; exit 1
}
until_built first
echo 'module.exports = "second"' >src/part.js
until_built second
echo 'module.exports = "third"' >src/new.js; mv src/new.js src/part.js
until_built third
echo 'module.exports = "fourth"' >src/added.js
echo 'console.log(require("./part.js"), require("./added.js"))' >src/index.js
until_built "third fourth"
kill "$pack_PID"; wait "$pack_PID" || true
