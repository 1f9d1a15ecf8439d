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

// Entry describes one certificate of a directory for display.
type Entry struct {
	Name    string // of the file, without .crt
	Subject string
	Issuer  string
	Serial  string
	IsCA    bool
	// Signing is set for the certificate its file's key belongs to. The others of a CA's file are only trusted.
	Signing   bool
	NotBefore time.Time
	NotAfter  time.Time
	RenewAt   time.Time // zero for a CA, which is only replaced on demand
}

// List returns the certificates of the directory and its subdirectories, sorted by name.
func (d Dir) List() ([]Entry, error) {
	var entries []Entry
	err := filepath.WalkDir(string(d), func(path string, file os.DirEntry, err error) error {
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
		name, err := filepath.Rel(string(d), strings.TrimSuffix(path, ".crt"))
		if err != nil {
			return err
		}
		if !certs[0].IsCA {
			certs = certs[:1] // the rest are intermediates
		}
		for i, cert := range certs {
			entry := Entry{
				Name: name, Subject: cert.Subject.String(), Issuer: cert.Issuer.String(), Serial: cert.SerialNumber.Text(16),
				IsCA: cert.IsCA, Signing: i == 0, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter,
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

// Renew reissues a certificate with a new key and otherwise unchanged. It is signed by the CA that signed it before, or
// by the CA that replaced it.
func (d Dir) Renew(name string, now time.Time) error {
	pair, err := d.read(name)
	if err != nil {
		return err
	}
	cert, err := parseCert(pair.Cert)
	if err != nil {
		return fmt.Errorf("parse %s: %w", d.path(name+".crt"), err)
	}
	if cert.IsCA {
		return fmt.Errorf("%s is a CA: CAs are rotated, not renewed", name)
	}
	ca, err := d.issuerOf(cert)
	if err != nil {
		return fmt.Errorf("renew %s: %w", name, err)
	}
	leaf := Leaf{
		CommonName: cert.Subject.CommonName, Organizations: cert.Subject.Organization, DNSNames: cert.DNSNames, IPs: cert.IPAddresses,
		Server: slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth), Client: slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth),
	}
	if pair, err = ca.Issue(leaf, now); err != nil {
		return err
	}
	return d.write(name, pair)
}

// issuerOf returns the CA of the directory that signed a certificate, or the CA that replaced it.
func (d Dir) issuerOf(cert *x509.Certificate) (*CA, error) {
	entries, err := d.List()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if !entry.IsCA || !entry.Signing {
			continue
		}
		pair, err := d.read(entry.Name)
		if err != nil {
			continue // a CA without its key cannot sign here
		}
		ca, err := parseCA(pair)
		if err != nil {
			return nil, err
		}
		trusted, err := ParseCertificates(pair.Cert)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(trusted, func(by *x509.Certificate) bool { return cert.CheckSignatureFrom(by) == nil }) {
			return ca, nil
		}
	}
	return nil, errors.New("no CA of this directory has signed it")
}
