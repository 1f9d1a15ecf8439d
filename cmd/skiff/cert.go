package main

import (
	"math"
	"os"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func certCommand() *cobra.Command {
	c := config.DefaultCert()
	show := func(*cobra.Command, []string) error { return system.ShowCertificates(c, os.Stdout) }
	cert := bindAll(&cobra.Command{
		Use:   "cert",
		Short: "Show, renew and rotate certificates",
		Long: "Show, renew and rotate the certificates in a data directory. Without a command, show them.\n\n" +
			"A running server loads renewed certificates within five minutes. It uses a new CA after a restart, and trusts the old ones until they are forgotten.",
	}, &c,
		&cobra.Command{Use: "show [flags]", Short: "Show all certificates and when they expire", Args: noArguments, RunE: show},
		&cobra.Command{
			Use:     "renew NAME...|all [flags]",
			Short:   "Renew certificates",
			Example: lines("skiff cert renew apiserver", "skiff cert renew all"),
			Args:    arguments("the names of the certificates to renew, or all", 1, math.MaxInt),
			RunE:    func(_ *cobra.Command, names []string) error { return system.RenewCertificates(c, names, os.Stdout) },
		},
		&cobra.Command{
			Use:     "rotate-ca NAME [flags]",
			Short:   "Replace a CA; the old one stays trusted",
			Example: lines("skiff cert rotate-ca ca"),
			Args:    arguments("the name of one CA, such as ca", 1, 1),
			RunE:    func(_ *cobra.Command, names []string) error { return system.RotateCA(c, names[0], os.Stdout) },
		},
		&cobra.Command{
			Use:   "forget-ca NAME [flags]",
			Short: "Stop trusting the predecessors of a CA",
			Args:  arguments("the name of one CA, such as ca", 1, 1),
			RunE:  func(_ *cobra.Command, names []string) error { return system.ForgetCAs(c, names[0], os.Stdout) },
		})
	cert.RunE = show
	return cert
}
