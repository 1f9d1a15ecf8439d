package main

import (
	"context"
	"math"
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func imageCommand() *cobra.Command {
	c := config.DefaultImage()
	image := bindAll(&cobra.Command{
		Use:   "image",
		Short: "Import and list the images of this node",
		Long:  "Import and list the images in the container runtime of this node.",
	}, &c,
		&cobra.Command{
			Use:     "import FILE... [flags]",
			Short:   "Import image archives",
			Long:    "Import image archives: those of 'docker save', or OCI layouts.",
			Example: lines("skiff image import app.tar"),
			Args:    arguments("the archives to import", 1, math.MaxInt),
			RunE: func(cmd *cobra.Command, files []string) error {
				return system.ImportImages(cmd.Context(), c, files, os.Stdout)
			},
		},
		&cobra.Command{
			Use: "ls [flags]", Aliases: []string{"list"}, Short: "List images", Args: noArguments,
			RunE: func(cmd *cobra.Command, _ []string) error { return system.ListImages(cmd.Context(), c, os.Stdout) },
		})
	image.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return image
}

func cleanCommand() *cobra.Command {
	c := config.DefaultClean()
	return bind(&cobra.Command{
		Use:   "clean [flags]",
		Short: "Remove the pods, network and mounts of a stopped node",
		Long: "Remove what a node leaves on its host when skiff stops: pods, network, cgroups and mounts. Pods keep running without skiff until then.\n" +
			"The state of the cluster and the images are kept.",
	}, &c, func(ctx context.Context, _ []string) error { return system.Clean(ctx, c, os.Stdout) })
}
