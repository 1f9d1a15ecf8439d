package main

import (
	"context"

	"skiff/internal/config"
	"skiff/internal/system"
)

// agent is `skiff agent`.
func agent(ctx context.Context, args []string) error {
	c := config.DefaultAgent()
	return runPart("agent", &c, args, func() error { return system.RunAgent(ctx, c) })
}
