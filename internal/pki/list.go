package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Entry is one certificate of a directory, as a person wants to see it.
type Entry struct {
	Name      string // of the file, without .crt
	Subject   string
	Issuer    string
	Serial    string
	Authority bool
	// Signs says that it is the one of its file that is in use: the others are trusted beside it.
	Signs     bool
	NotBefore time.Time
	NotAfter  time.Time
	RenewAt   time.Time // zero for an authority: it is replaced by hand
}

// List returns all certificates of the directory and those below it, by name.
func (f Dir) List() ([]Entry, error) {
	var entries []Entry
	err := filepath.WalkDir(string(f), func(path string, file os.DirEntry, err error) error {
		if err != nil || file.IsDir() || !strings.HasSuffix(path, ".crt") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		certs, err := ParseCertificates(data)
		if err != nil {
			return fmt.Errorf("parse %s: %w", path, err)
		}
		name, err := filepath.Rel(string(f), strings.TrimSuffix(path, ".crt"))
		if err != nil {
			return err
		}
		if !certs[0].IsCA {
			certs = certs[:1] // what follows leads to the authority
		}
		for i, cert := range certs {
			entry := Entry{
				Name: name, Subject: cert.Subject.String(), Issuer: cert.Issuer.String(), Serial: cert.SerialNumber.Text(16),
				Authority: cert.IsCA, Signs: i == 0, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter,
			}
			if !cert.IsCA {
				entry.RenewAt = RenewAt(cert)
			}
			entries = append(entries, entry)
		}
		return nil
	})
	slices.SortStableFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, err
}

// Renew lets the authority that signed a certificate, or the one that has followed it, issue it anew, with a fresh key and all
// else as it was.
func (f Dir) Renew(name string, now time.Time) error {
	pair, err := f.read(name)
	if err != nil {
		return err
	}
	cert, err := parseCert(pair.Cert)
	if err != nil {
		return fmt.Errorf("parse %s: %w", f.path(name+".crt"), err)
	}
	if cert.IsCA {
		return fmt.Errorf("%s is an authority: those are replaced, not renewed", name)
	}
	a, err := f.authorityOf(cert)
	if err != nil {
		return fmt.Errorf("renew %s: %w", name, err)
	}
	leaf := Leaf{
		CommonName: cert.Subject.CommonName, Organizations: cert.Subject.Organization, DNSNames: cert.DNSNames, IPs: cert.IPAddresses,
		Server: slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth), Client: slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth),
	}
	if pair, err = a.Issue(leaf, now); err != nil {
		return err
	}
	return f.write(name, pair)
}

// authorityOf finds the authority of the directory that a certificate is from.
func (f Dir) authorityOf(cert *x509.Certificate) (*Authority, error) {
	entries, err := f.List()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if !entry.Authority || !entry.Signs {
			continue
		}
		pair, err := f.read(entry.Name)
		if err != nil {
			continue // an authority whose key is elsewhere signs nothing here
		}
		a, err := parseAuthority(pair)
		if err != nil {
			return nil, err
		}
		known, err := ParseCertificates(pair.Cert)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(known, func(by *x509.Certificate) bool { return cert.CheckSignatureFrom(by) == nil }) {
			return a, nil
		}
	}
	return nil, errors.New("no authority of this directory has signed it")
}
