package main

import (
	"context"

	"skiff/internal/config"
	"skiff/internal/system"
)

// kubelet is `skiff kubelet`.
func kubelet(ctx context.Context, args []string) error {
	c := config.DefaultKubelet()
	return runPart("kubelet", &c, args, func() error { return system.RunKubelet(ctx, c) })
}
