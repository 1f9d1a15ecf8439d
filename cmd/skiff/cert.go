package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"skiff/internal/config"
	"skiff/internal/system"
)

// cert is `skiff cert show|renew|rotate-ca|forget-ca`.
func cert(_ context.Context, args []string) error {
	c := config.DefaultCertificate()
	words, err := readArguments("cert", &certUsage{&c}, args)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		words = []string{"show"}
	}
	switch verb, names := words[0], words[1:]; {
	case verb == "show" && len(names) == 0:
		return system.ShowCertificates(c, os.Stdout)
	case verb == "renew" && len(names) > 0:
		return system.RenewCertificates(c, names, os.Stdout)
	case verb == "renew":
		return fmt.Errorf("cert renew: name the certificates to renew, or all")
	case verb == "rotate-ca" && len(names) == 1:
		return system.RotateAuthority(c, names[0], os.Stdout)
	case verb == "forget-ca" && len(names) == 1:
		return system.ForgetAuthorities(c, names[0], os.Stdout)
	case verb == "rotate-ca" || verb == "forget-ca":
		return fmt.Errorf("cert %s: name one authority, such as ca", verb)
	default:
		return fmt.Errorf("unknown cert command %q: it is show, renew, rotate-ca or forget-ca", verb)
	}
}

// certUsage adds what the flags do not tell.
type certUsage struct{ *config.Certificate }

func (c *certUsage) Flags(fs *flag.FlagSet) {
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "Usage: skiff cert [flags] show | renew NAME...|all | rotate-ca NAME | forget-ca NAME\n\n"+
			"The certificates below a data directory. A running server takes up what is renewed within five minutes, and a new authority when it is\n"+
			"started again; those of before are trusted beside it until they are forgotten.")
		fs.PrintDefaults()
	}
	c.Certificate.Flags(fs)
}
