package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func whyCommand() *cobra.Command {
	c := config.DefaultWhy()
	return bind(&cobra.Command{
		Use:   "why pod/NAME [flags]",
		Short: "Explain the placement of a pod",
		Long: "Explain why the scheduler placed a pod on its node, or why no node fits it and what would make it schedulable.\n" +
			"The answer comes from the scheduler's decision record.",
		Example: lines("skiff why -n demo pod/web-0", "skiff why web-0 -o json"),
		Args:    arguments("one pod: skiff why pod/NAME", 1, 1),
	}, &c, func(ctx context.Context, args []string) error { return system.Why(ctx, c, args[0], os.Stdout) })
}

func whatIfCommand() *cobra.Command {
	c := config.DefaultWhatIf()
	return bind(&cobra.Command{
		Use:     "what-if -f FILE [flags]",
		Short:   "Show where the pods of a manifest would be placed",
		Long:    "Show on which nodes the scheduler would place the pods of a manifest, without creating them.",
		Example: lines("skiff what-if -f deployment.yaml", "kubectl create deployment web --image web --replicas 3 --dry-run=client -o yaml | skiff what-if -f -"),
	}, &c, func(ctx context.Context, _ []string) error { return system.WhatIf(ctx, c, os.Stdin, os.Stdout) })
}
