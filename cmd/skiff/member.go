package main

import (
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func memberCommand() *cobra.Command {
	c := config.DefaultMember()
	list := func(cmd *cobra.Command, _ []string) error { return system.ListMembers(cmd.Context(), c, os.Stdout) }
	member := bindAll(&cobra.Command{
		Use:   "member",
		Short: "List and remove the servers of a cluster",
		Long:  "List and remove the servers of a cluster, which are the members of its etcd. Without a command, list them.",
	}, &c,
		&cobra.Command{Use: "ls [flags]", Aliases: []string{"list"}, Short: "List the servers", Args: noArguments, RunE: list},
		&cobra.Command{
			Use:   "remove NAME [flags]",
			Short: "Remove a server",
			Long: "Remove a server from the cluster, by its name or ID. If it runs, it ends. It can join again with an empty data directory.\n\n" +
				"A server that was lost and joins again with its former address needs not be removed.",
			Args: arguments("the name or ID of one server", 1, 1),
			RunE: func(cmd *cobra.Command, names []string) error {
				return system.RemoveMember(cmd.Context(), c, names[0], os.Stdout)
			},
		})
	member.RunE = list
	return member
}
