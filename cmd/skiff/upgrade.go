package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func upgradeCommand() *cobra.Command {
	c := config.DefaultUpgrade()
	return bind(&cobra.Command{
		Use:   "upgrade --check [flags]",
		Short: "Say what an upgrade to this version would do",
		Long: "Say what an upgrade to this version of skiff would do: whether it is possible and why not, which APIs and nodes stand in its way, whether there is\n" +
			"a snapshot to go back to, and in which order to upgrade the machines. Run it with the new version, before it replaces the old one.\n\n" +
			"Nothing is changed. The exit code is 1 if the upgrade would be refused.",
		Example: lines("./skiff-new upgrade --check", "./skiff-new upgrade --check --kubeconfig admin.kubeconfig"),
	}, &c, func(ctx context.Context, _ []string) error { return system.CheckUpgrade(ctx, c, os.Stdout) })
}
