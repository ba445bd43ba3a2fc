// What programs in Go do: many goroutines on files, children, signals, its own name.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

func check(err error, what string) {
	if err != nil {
		fmt.Println("wrong:", what, err)
		os.Exit(1)
	}
}

func files(routine int) {
	for round := 0; round < 60; round++ {
		path := fmt.Sprintf("go/%d/%d", routine, round%8)
		check(os.MkdirAll(filepath.Dir(path), 0o755), "mkdir")
		check(os.WriteFile(path, []byte(path), 0o644), "write")
		content, err := os.ReadFile(path)
		check(err, "read")
		if string(content) != path {
			fmt.Println("wrong content", path, string(content))
			os.Exit(1)
		}
		check(os.Rename(path, path+"x"), "rename")
		runtime.Gosched()
	}
}

func inParallel(count int, act func(int)) {
	var all sync.WaitGroup
	for i := 0; i < count; i++ {
		all.Add(1)
		go func(i int) { defer all.Done(); act(i) }(i)
	}
	all.Wait()
}

func main() {
	if len(os.Args) > 1 {
		directory, err := os.Getwd()
		check(err, "getwd")
		fmt.Println(os.Args[1], filepath.Base(directory), os.Getenv("FROM"))
		os.Exit(3)
	}
	own, err := os.Executable()
	check(err, "executable")
	fmt.Println(filepath.Base(own))
	inParallel(64, files)
	entries, err := os.ReadDir("go/7")
	check(err, "readdir")
	fmt.Println(len(entries), entries[0].Name())
	// Children, also from many goroutines at once, while others are preempted.
	stop := make(chan bool)
	for i := 0; i < runtime.GOMAXPROCS(0); i++ {
		go func() {
			for count := 0; ; count++ {
				if count%(1<<20) == 0 {
					select {
					case <-stop:
						return
					default:
					}
				}
			}
		}()
	}
	inParallel(8, func(routine int) {
		for i := 0; i < 4; i++ {
			command := exec.Command(own, "child")
			command.Dir, command.Env = "go/7", append(os.Environ(), "FROM=parent")
			output, err := command.CombinedOutput()
			if command.ProcessState.ExitCode() != 3 || string(output) != "child 7 parent\n" {
				fmt.Println("wrong child", err, string(output))
				os.Exit(1)
			}
		}
	})
	close(stop)
	output, err := exec.Command("sh", "-c", "cat go/7/0x; ls go | wc -l").CombinedOutput()
	check(err, "sh")
	fmt.Println(strings.TrimSpace(string(output)))
	signals := make(chan os.Signal, 100)
	signal.Notify(signals)
	for i := 0; i < 50; i++ {
		check(syscall.Kill(os.Getpid(), syscall.SIGUSR1), "kill")
		for received := range signals {
			if received == syscall.SIGUSR1 {
				break
			}
		}
	}
	// With all signals taken, children start with the default actions.
	check(exec.Command("true").Run(), "child after signals")
	signal.Reset()
	// A nil pointer is a panic that can be recovered.
	func() {
		defer func() { fmt.Println("recovered", recover() != nil) }()
		var pointer *int
		fmt.Println(*pointer)
	}()
	time.Sleep(time.Millisecond)
	fmt.Println("done")
}
