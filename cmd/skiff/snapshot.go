package main

import (
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func snapshotCommand() *cobra.Command {
	c := config.DefaultSnapshot()
	list := func(cmd *cobra.Command, _ []string) error { return system.ListSnapshots(cmd.Context(), c, os.Stdout) }
	save := &cobra.Command{
		Use:   "save [flags]",
		Short: "Have the running server save a snapshot",
		Long: "Have the running server save a snapshot where its --snapshot-dir says, and verify it.\n\n" +
			"A snapshot contains the state of the cluster, its CAs and service account keys, and the configuration of encryption at rest. It is encrypted with the\n" +
			"passphrase of --snapshot-passphrase-file of the server: keep a copy of the passphrase on another host.",
		Example: lines("skiff snapshot save", "skiff snapshot save --name before-upgrade"),
		Args:    noArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return system.SaveSnapshot(cmd.Context(), c, os.Stdout) },
	}
	c.SaveFlags(save.Flags())
	restore := &cobra.Command{
		Use:   "restore NAME|latest|FILE [flags]",
		Short: "Restore a snapshot into the data directory of a stopped server",
		Long: "Restore a snapshot into the data directory of a stopped server. It is the name of a stored snapshot, latest for the newest one, or a path with a slash.\n\n" +
			"All of the snapshot is verified before anything is changed. The state that was in the data directory is kept in its directory replaced.",
		Example: lines("skiff snapshot restore latest --replace", "skiff snapshot restore ./before-upgrade-host1-20260102T030405.000Z.snapshot --snapshot-passphrase-file passphrase"),
		Args:    arguments("one snapshot: its name, latest, or the path of a file", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return system.RestoreSnapshot(cmd.Context(), c, args[0], os.Stdout)
		},
	}
	c.RestoreFlags(restore.Flags())
	ls := &cobra.Command{Use: "ls [flags]", Aliases: []string{"list"}, Short: "List the stored snapshots", Args: noArguments, RunE: list}
	c.StorageFlags(ls.Flags())
	prune := &cobra.Command{
		Use:   "prune [flags]",
		Short: "Delete all but the newest snapshots",
		Long:  "Delete all but the newest snapshots, of whichever server and name. A server deletes the oldest of its scheduled snapshots by itself.",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return system.PruneSnapshots(cmd.Context(), c, os.Stdout) },
	}
	c.PruneFlags(prune.Flags())
	snapshot := bindAll(&cobra.Command{
		Use:   "snapshot",
		Short: "Save and restore snapshots of the cluster",
		Long:  "Save, list, delete and restore snapshots of the state of the cluster and of its keys.",
	}, &c, save, ls, prune, restore)
	snapshot.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return snapshot
}
