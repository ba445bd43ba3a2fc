# needs: cargo cc
# ignored: crate/target/*
# A small crate with a library, a build script and tests, built offline.
set -eu
export CARGO_HOME=$PWD/cargo CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never
cp -r "$KIT/crate" .; chmod -R u+w crate; cd crate; cargo build --offline -q -j2; target/debug/hello; cargo test --offline -q -j2 2>&1 | grep 'test result' | sed 's/; finished.*//'
touch -d '+1 hour' src/main.rs; cargo build --offline -q -j2; target/debug/hello again; cargo clean -q; ls target 2>/dev/null | wc -l; rm -rf "$CARGO_HOME"
