package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"skiff/internal/version"
)

// The groups of commands, in the order of the help.
const (
	groupCluster    = "cluster"
	groupScheduling = "scheduling"
	groupComponents = "components"
	groupOther      = "other"
)

// newRootCommand is the command `skiff` with all its subcommands.
func newRootCommand() *cobra.Command {
	cobra.EnableCommandSorting = false
	root := &cobra.Command{
		Use:           "skiff",
		Short:         "skiff is Kubernetes in one program.",
		Long:          "skiff is Kubernetes in one program: API server, etcd, controllers, scheduler and node.",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(
		&cobra.Group{ID: groupCluster, Title: "Cluster commands"},
		&cobra.Group{ID: groupScheduling, Title: "Scheduling commands"},
		&cobra.Group{ID: groupComponents, Title: "Standalone components"},
		&cobra.Group{ID: groupOther, Title: "Other commands"},
	)
	root.SetCompletionCommandGroupID(groupOther)
	root.SetHelpCommandGroupID(groupOther)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupCluster, serverCommand(), agentCommand(), tokenCommand(), memberCommand(), nodeCommand(), certCommand(), snapshotCommand(), imageCommand(), cleanCommand(),
		upgradeCommand(), installCommand(), uninstallCommand(), doctorCommand())
	add(groupScheduling, whyCommand(), whatIfCommand())
	add(groupComponents, apiServerCommand(), controllerManagerCommand(), schedulerCommand(), kubeletCommand(), proxyCommand(), hollowNodeCommand())
	add(groupOther, versionCommand())
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd, nil) })
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long:  "Print the version of skiff and the Kubernetes version whose API it serves.",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "skiff version "+version.String())
			return err
		},
	}
}
