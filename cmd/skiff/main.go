// Command skiff is Kubernetes in one program. This package turns the command line into a configuration and passes it to package system.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"skiff/internal/network/cni"
)

func main() {
	// skiff-cni is a small program of its own because the runtime starts it for every pod. A link of that name to skiff works as well.
	if cni.Is(os.Args[0]) {
		os.Exit(cni.Main())
	}
	if err := newRootCommand().ExecuteContext(untilSignal()); err != nil {
		fmt.Fprintln(os.Stderr, "skiff:", err)
		os.Exit(1)
	}
}

// untilSignal returns a context that is done at the first signal to terminate. The second signal ends the process at once.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(1)
	}()
	return ctx
}
