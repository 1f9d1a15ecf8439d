package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"skiff/internal/config"
	"skiff/internal/system"
)

func installCommand() *cobra.Command {
	server, agent := installServerCommand(), installAgentCommand()
	install := &cobra.Command{
		Use:   "install",
		Short: "Install skiff as a systemd service of this host",
		Long: "Install skiff as a systemd service of this host, enable it and start it. Without a command, install a server without flags.\n\n" +
			"Pods keep running while the service is stopped or restarted. Installing again changes the flags of the service and restarts it.\n" +
			"The service also reads " + config.DefaultFile + ", if that exists: after a change, 'systemctl restart skiff' suffices.",
		Example: lines("skiff install", "skiff install server --service-cidr 10.200.0.0/16", "skiff install agent --server https://10.0.0.1:6443 --token TOKEN"),
		Args:    unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server.SetContext(cmd.Context())
			return server.RunE(server, nil)
		},
	}
	install.AddCommand(server, agent, refreshCommand())
	return install
}

func installServerCommand() *cobra.Command {
	c := config.InstallServer{Server: config.DefaultServer()}
	cmd := &cobra.Command{
		Use:   "server [flags]",
		Short: "Install a server as a service",
		Long:  "Install 'skiff server' as a systemd service of this host. It is run with the flags that are given here; a token to join with is kept in a file.",
	}
	return bind(cmd, &c, func(ctx context.Context, _ []string) error {
		return system.InstallServer(ctx, c, serviceArguments(cmd.Flags(), &c.Install), os.Stdout)
	})
}

func installAgentCommand() *cobra.Command {
	c := config.InstallAgent{Agent: config.DefaultAgent()}
	cmd := &cobra.Command{
		Use:     "agent [flags]",
		Short:   "Install an agent as a service",
		Long:    "Install 'skiff agent' as a systemd service of this host. It is run with the flags that are given here; the token is kept in a file.",
		Example: lines("skiff install agent --server https://10.0.0.1:6443 --token TOKEN"),
	}
	return bind(cmd, &c, func(ctx context.Context, _ []string) error {
		return system.InstallAgent(ctx, c, serviceArguments(cmd.Flags(), &c.Install), os.Stdout)
	})
}

func refreshCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "refresh",
		Short: "Restart the installed service with this version of skiff",
		Long: "Write the unit of the installed service as this version of skiff has it, with the flags that the service has, and restart the service if it is running.\n" +
			"Packages run this after an upgrade.",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return system.RefreshService(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

func uninstallCommand() *cobra.Command {
	var c config.Uninstall
	return bind(&cobra.Command{
		Use:   "uninstall [flags]",
		Short: "Remove the service, its pods and its data from this host",
		Long: "Stop the service that 'skiff install' made and remove it with everything it has made on this host: pods, network, cgroups, mounts\n" +
			"and, unless --keep-data is given, the data directory with the state of the cluster. The programs of skiff are kept.",
	}, &c, func(ctx context.Context, _ []string) error { return system.Uninstall(ctx, c, os.Stdout) })
}

// serviceArguments are the flags that were given, on the command line or in the environment, as arguments of the service's command. Those of the
// installation itself are not among them, and no values of a configuration file: the service reads it. Paths become absolute: a service has another
// working directory.
func serviceArguments(given *pflag.FlagSet, installation interface{ Flags(*config.FlagGroups) }) []string {
	var groups config.FlagGroups
	installation.Flags(&groups)
	ownFlags := pflag.NewFlagSet("", pflag.ContinueOnError)
	groups.AddTo(ownFlags)
	var arguments []string
	given.Visit(func(f *pflag.Flag) {
		if ownFlags.Lookup(f.Name) != nil {
			return
		}
		values := []string{f.Value.String()}
		if repeated, ok := config.RepeatedValues(f); ok {
			if values = repeated; len(values) == 0 {
				values = []string{""}
			}
		}
		for _, value := range values {
			switch {
			case isPath(f):
				value = absolute(value)
			case f.Name == "tls-sni-cert-key":
				files, names, _ := strings.Cut(value, ":")
				cert, key, _ := strings.Cut(files, ",")
				value = strings.TrimSuffix(absolute(cert)+","+absolute(key)+":"+names, ":")
			}
			arguments = append(arguments, "--"+f.Name+"="+value)
		}
	})
	return arguments
}

// isPath reports whether a flag's value is a path. The help of such a flag says so in its first words.
func isPath(f *pflag.Flag) bool {
	return strings.HasPrefix(f.Usage, "Path ") || strings.HasPrefix(f.Usage, "Director")
}

// absolute makes a path absolute. It leaves what stands for no file, for a standard stream, for the home directory or for an object store.
func absolute(path string) string {
	if path == "" || path == "-" || strings.HasPrefix(path, "~/") || strings.Contains(path, "://") {
		return path
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return path // the working directory does not exist any more
	}
	return abs
}
