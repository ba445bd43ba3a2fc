# needs: go cc
# free: static dynamic
# hidden: /dev/fuse
# Programs in Go, with and without the C library.
set -eu
export GOCACHE=$PWD/cache GOPATH=$PWD/gopath GOTOOLCHAIN=local GOPROXY=off GOTELEMETRY=off GOFLAGS=-trimpath
cp "$KIT/go_program.go" program.go
CGO_ENABLED=0 go build -o static program.go && ./static
printf 'package main\n\n// static int twice(int x) { return 2 * x; }\nimport "C"\nimport "os"\n\nfunc init() {\n\tif len(os.Args) == 1 {\n\t\tprintln(C.twice(21))\n\t}\n}\n' >cgo.go
CGO_ENABLED=1 go build -o dynamic program.go cgo.go && ./dynamic 2>&1
chmod -R u+w cache gopath 2>/dev/null || true; rm -rf cache gopath
