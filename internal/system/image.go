package system

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"skiff/internal/config"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/runtime"
)

// ImportImages imports image archives into a node's container runtime.
func ImportImages(ctx context.Context, c config.Image, archives []string, out io.Writer) error {
	return withImages(c, func(images runtime.Importer) error {
		for _, archive := range archives {
			if err := images.Import(ctx, archive); err != nil {
				return err
			}
			fmt.Fprintln(out, "imported", archive)
		}
		return nil
	})
}

// ListImages writes the images of a node's container runtime, one line per name.
func ListImages(ctx context.Context, c config.Image, out io.Writer) error {
	return withImages(c, func(images runtime.Importer) error {
		list, err := images.List(ctx)
		if err != nil {
			return fmt.Errorf("list images: %w", err)
		}
		w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
		fmt.Fprintln(w, "IMAGE\tID\tSIZE")
		for _, line := range imageLines(list) {
			fmt.Fprintln(w, line)
		}
		return w.Flush()
	})
}

// imageLines is one line per name of each image, sorted by name. An image without a tag shows its digest.
func imageLines(images []*cri.Image) []string {
	var lines []string
	for _, image := range images {
		names := image.RepoTags
		if len(names) == 0 {
			names = image.RepoDigests
		}
		for _, name := range names {
			lines = append(lines, fmt.Sprintf("%s\t%s\t%.1f MB", name, shortID(image.ID), float64(image.Size)/1e6))
		}
	}
	slices.Sort(lines)
	return lines
}

// shortID is an image ID cut to the algorithm and twelve digits.
func shortID(id string) string {
	const length = len("sha256:") + 12
	return id[:min(len(id), length)]
}

// withImages calls a function with a client of the container runtime.
func withImages(c config.Image, do func(runtime.Importer) error) error {
	own, err := runtime.Endpoint(c.DataDir)
	if err != nil {
		return err
	}
	images, err := runtime.NewImporter(cmp.Or(c.ContainerRuntimeEndpoint, own))
	if err != nil {
		return fmt.Errorf("connect to the container runtime: %w", err)
	}
	defer images.Close()
	return do(images)
}
