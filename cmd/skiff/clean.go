package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func cleanCommand() *cobra.Command {
	c := config.DefaultClean()
	return bind(&cobra.Command{
		Use:   "clean [flags]",
		Short: "Remove the pods, network and mounts of a stopped node",
		Long: "Remove what a node leaves on its host when skiff stops: pods, network, cgroups and mounts. Pods keep running without skiff until then.\n" +
			"The state of the cluster and the images are kept.",
	}, &c, func(ctx context.Context, _ []string) error { return system.Clean(ctx, c, os.Stdout) })
}
