package pki

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Entry is one certificate of a folder, as a person wants to see it.
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

// List returns all certificates of the folder and those below it, by name.
func (f Folder) List() ([]Entry, error) {
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
