package main

import (
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func nodeCommand() *cobra.Command {
	c := config.DefaultNodeCommand()
	drain := &cobra.Command{
		Use:   "drain NAME [flags]",
		Short: "Make a node unschedulable and evict its pods",
		Long: "Make a node unschedulable, evict its pods and wait until they have ended. Pod disruption budgets are respected; pods of DaemonSets and static pods stay.\n\n" +
			"Nothing is changed if there are pods that need --force or --delete-emptydir-data. 'kubectl uncordon' makes the node schedulable again.",
		Example: lines("skiff node drain node1 --timeout 5m"),
		Args:    arguments("the name of one node", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return system.DrainNode(cmd.Context(), c, args[0], os.Stdout)
		},
	}
	c.DrainFlags(drain.Flags())
	remove := &cobra.Command{
		Use:   "remove NAME [flags]",
		Short: "Remove a node that has stopped from the cluster",
		Long: "Remove a node that has stopped from the cluster. Pods that it has are deleted.\n\n" +
			"To take a node away: 'skiff node drain NAME', then 'skiff uninstall' on its host, then 'skiff node remove NAME'.",
		Args: arguments("the name of one node", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return system.RemoveNode(cmd.Context(), c, args[0], os.Stdout)
		},
	}
	c.RemoveFlags(remove.Flags())
	node := bindAll(&cobra.Command{Use: "node", Short: "Drain and remove nodes", Long: "Drain nodes, and remove them from the cluster."}, &c, drain, remove)
	node.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return node
}
