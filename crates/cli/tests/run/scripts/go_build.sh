# needs: go
# free: hello
# A build with Go's static tool.
set -eu
export GOCACHE=$PWD/cache GOPATH=$PWD/gopath GOFLAGS=-mod=mod GOTOOLCHAIN=local GOPROXY=off GOTELEMETRY=off CGO_ENABLED=0
printf 'module hello\n\ngo 1.19\n' >go.mod; mkdir -p inner; printf 'package inner\n\nfunc Twice(x int) int { return 2 * x }\n' >inner/inner.go
printf 'package main\n\nimport (\n\t"hello/inner"\n\t"syscall"\n)\n\nfunc main() {\n\tprintln(inner.Twice(21))\n\tfd, err := syscall.Open("written", syscall.O_CREAT|syscall.O_WRONLY, 0644)\n\tif err != nil { syscall.Exit(3) }\n\tsyscall.Write(fd, []byte("by go\\n"))\n}\n' >main.go
go version >/dev/null; go build -o hello . ; ./hello 2>said; cat said written; chmod 444 written; go vet ./... && echo vetted; go list ./... ; chmod -R u+w cache gopath 2>/dev/null || true; rm -rf cache gopath
