// Command skiff is Kubernetes in one program. This file turns the command line into a configuration and hands it to
// package system; it holds no logic of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"skiff/internal/config"
	"skiff/internal/network/cni"
	"skiff/internal/system"
	"skiff/internal/version"
)

// command is one word after `skiff`.
type command struct {
	name, summary string
	run           func(ctx context.Context, args []string) error
}

// commands in the order `skiff help` shows them.
var commands = []command{
	{"server", "run a control plane", server},
	{"agent", "join this machine to a cluster as one more node", agent},
	{"token", "make, list and delete the tokens by which machines join", token},
	{"controller-manager", "run the controllers alone", controllerManager},
	{"scheduler", "run the scheduler alone", scheduler},
	{"kubelet", "run this machine as a node", kubelet},
	{"why", "tell why a pod is on its node, or on none", why},
	{"what-if", "tell where the pods of a manifest would go", whatIf},
	{"hollow", "play nodes without containers, to test scale", hollow},
	{"image", "import and list the images of this node", image},
	{"clean", "remove the pods, network and mounts of a node that has stopped", clean},
	{"cert", "show, renew and rotate certificates", cert},
	{"version", "show the version", showVersion},
}

func main() {
	// skiff-cni is a program of its own, because this one takes long to start; a link of that name to this one works as well.
	if cni.Is(os.Args[0]) {
		os.Exit(cni.Main())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "skiff:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		usage()
		return nil
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(ctx, args[1:])
		}
	}
	usage()
	return fmt.Errorf("unknown command %q", args[0])
}

func usage() {
	fmt.Fprintln(os.Stderr, "skiff is Kubernetes in one program.\n\nUsage: skiff COMMAND [flags]")
	fmt.Fprintln(os.Stderr)
	for _, c := range commands {
		fmt.Fprintf(os.Stderr, "  %-20s %s\n", c.name, c.summary)
	}
	fmt.Fprintln(os.Stderr, "\n`skiff COMMAND -h` shows a command's flags.")
}

func server(ctx context.Context, args []string) error {
	c := config.DefaultServer()
	return runPart("server", &c, args, func() error { return system.RunServer(ctx, c) })
}

func controllerManager(ctx context.Context, args []string) error {
	c := config.DefaultControllerManager()
	return runPart("controller-manager", &c, args, func() error { return system.RunControllerManager(ctx, c) })
}

func scheduler(ctx context.Context, args []string) error {
	c := config.DefaultScheduler()
	return runPart("scheduler", &c, args, func() error { return system.RunScheduler(ctx, c) })
}

func hollow(ctx context.Context, args []string) error {
	c := config.DefaultHollow()
	return runPart("hollow", &c, args, func() error { return system.RunHollow(ctx, c) })
}

func clean(ctx context.Context, args []string) error {
	c := config.DefaultClean()
	return runPart("clean", &c, args, func() error { return system.Clean(ctx, c, os.Stdout) })
}

// settings are those of any part.
type settings interface {
	Flags(*flag.FlagSet)
	Validate() error
}

// runPart reads a part's flags into its settings and runs it.
func runPart(name string, c settings, args []string, run func() error) error {
	flags := flag.NewFlagSet("skiff "+name, flag.ContinueOnError)
	c.Flags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err := c.Validate(); err != nil {
		return err
	}
	return run()
}

func showVersion(_ context.Context, _ []string) error {
	v := version.Info()
	fmt.Printf("skiff %s (Kubernetes %s, %s, %s)\n", version.Skiff(), v.GitVersion, v.GoVersion, v.Platform)
	return nil
}
