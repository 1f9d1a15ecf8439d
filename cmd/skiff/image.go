package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"skiff/internal/config"
	"skiff/internal/system"
)

// image is `skiff image import|ls`.
func image(ctx context.Context, args []string) error {
	c := config.DefaultImage()
	flags := flag.NewFlagSet("skiff image", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "Usage: skiff image [flags] import FILE... | ls\n\nThe images of this node's runtime. Archives are those of docker save, or OCI layouts.")
		flags.PrintDefaults()
	}
	c.Flags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	// Flags are understood on both sides of the verb.
	verb := flags.Arg(0)
	if flags.NArg() > 0 {
		if err := flags.Parse(flags.Args()[1:]); err != nil {
			return err
		}
	}
	if err := c.Validate(); err != nil {
		return err
	}
	switch {
	case verb == "import" && flags.NArg() > 0:
		return system.ImportImages(ctx, c, flags.Args(), os.Stdout)
	case verb == "ls" && flags.NArg() == 0:
		return system.ListImages(ctx, c, os.Stdout)
	case verb == "import":
		return errors.New("image import: name the archives to import")
	}
	flags.Usage()
	return fmt.Errorf("unknown image command %q", verb)
}
