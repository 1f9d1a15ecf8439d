package main

import (
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
