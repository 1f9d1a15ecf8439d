package main

import (
	"math"
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func tokenCommand() *cobra.Command {
	c := config.DefaultToken()
	create := &cobra.Command{
		Use:   "create [flags]",
		Short: "Create a token and print it",
		Long: "Create a token with which hosts can join the cluster, and print it.\n\n" +
			"The token is secret. It contains the hash of the cluster's CA, by which a joining host verifies the server.",
		Example: lines("skiff token create --ttl 1h", "skiff agent --server https://ADDRESS:6443 --token TOKEN    # on the new node",
			"skiff token create --server --ttl 1h", "skiff server --join https://ADDRESS:6443 --join-token TOKEN    # on the new server"),
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return system.CreateToken(cmd.Context(), c, os.Stdout) },
	}
	c.CreateFlags(create.Flags())
	list := func(cmd *cobra.Command, _ []string) error { return system.ListTokens(cmd.Context(), c, os.Stdout) }
	token := bindAll(&cobra.Command{
		Use:   "token",
		Short: "Manage the tokens with which nodes and servers join",
		Long:  "Create, list and delete the tokens with which nodes and servers join the cluster. Without a command, list them.",
	}, &c, create,
		&cobra.Command{Use: "ls [flags]", Aliases: []string{"list"}, Short: "List the tokens, without their secrets", Args: noArguments, RunE: list},
		&cobra.Command{
			Use:     "delete ID... [flags]",
			Aliases: []string{"revoke"},
			Short:   "Delete tokens",
			Long:    "Delete tokens by their IDs. Nodes that have joined with them are not affected.",
			Args:    arguments("the IDs of the tokens to delete", 1, math.MaxInt),
			RunE: func(cmd *cobra.Command, ids []string) error {
				return system.DeleteTokens(cmd.Context(), c, ids, os.Stdout)
			},
		})
	token.RunE = list
	return token
}
