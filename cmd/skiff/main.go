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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRootCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "skiff:", err)
		os.Exit(1)
	}
}
