package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func doctorCommand() *cobra.Command {
	c := config.DefaultDoctor()
	return bind(&cobra.Command{
		Use:   "doctor [flags]",
		Short: "Examine this host and its cluster: what will break, when, and what to do",
		Long: "Examine this host before skiff is installed on it, or a cluster that runs, and say for each finding what will break, when, and what to do.\n\n" +
			"Without --kubeconfig this host is examined and, if --data-dir is that of a server or of an agent that has joined, its certificates and its cluster, too.\n" +
			"Nothing is changed. The exit code is 0 if nothing or only warnings were found, and 1 if something will break or the command failed.",
		Example: lines("skiff doctor", "skiff doctor --kubeconfig ~/.kube/config", "skiff doctor -o json"),
	}, &c, func(ctx context.Context, _ []string) error { return system.Doctor(ctx, c, os.Stdout) })
}
