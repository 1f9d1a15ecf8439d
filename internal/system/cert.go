package system

import (
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"skiff/internal/config"
	"skiff/internal/pki"
)

func certificateDir(c config.Cert) pki.Dir {
	return pki.Dir(filepath.Join(c.DataDir, "pki"))
}

// ShowCertificates lists the certificates of a data directory.
func ShowCertificates(c config.Cert, out io.Writer) error {
	entries, err := certificateDir(c).List()
	if err != nil {
		return err
	}
	now := time.Now()
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tSUBJECT\tISSUER\tEXPIRES\tLEFT\tRENEWED")
	for _, e := range entries {
		renewed := "by hand"
		switch {
		case e.IsCA && !e.Signing:
			renewed = "old, still trusted"
		case !e.IsCA:
			renewed = e.RenewAt.UTC().Format(time.DateOnly)
		}
		left := fmt.Sprintf("%dd", int(e.NotAfter.Sub(now).Hours()/24))
		if now.After(e.NotAfter) {
			left = "expired"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Name, e.Subject, e.Issuer, e.NotAfter.UTC().Format(time.RFC3339), left, renewed)
	}
	return w.Flush()
}

// RenewCertificates renews certificates by their names, or all.
func RenewCertificates(c config.Cert, names []string, out io.Writer) error {
	dir := certificateDir(c)
	if len(names) == 1 && names[0] == "all" {
		entries, err := dir.List()
		if err != nil {
			return err
		}
		names = nil
		for _, e := range entries {
			if !e.IsCA {
				names = append(names, e.Name)
			}
		}
	}
	for _, name := range names {
		if err := dir.Renew(name, time.Now()); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s renewed\n", name)
	}
	return nil
}

// RotateCA replaces a CA by a new one. The old one stays trusted.
func RotateCA(c config.Cert, name string, out io.Writer) error {
	ca, err := certificateDir(c).RotateCA(name, "", time.Now())
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s is now %s; restart the server to use it\n", name, ca.Certificate().Subject.CommonName)
	return nil
}

// ForgetCAs ends the trust in the predecessors of a CA.
func ForgetCAs(c config.Cert, name string, out io.Writer) error {
	ca, err := certificateDir(c).DropOldCAs(name)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "only %s is trusted now; restart the server to make it so\n", ca.Certificate().Subject.CommonName)
	return nil
}
