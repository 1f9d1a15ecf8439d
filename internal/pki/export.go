package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Export returns what cannot be made again: the CAs and the keys that sign service account tokens, by their file names. Leaf certificates are not among
// them, because they are issued anew.
func (d Dir) Export() (map[string][]byte, error) {
	files, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	exported := map[string][]byte{}
	for _, file := range files {
		if name, ok := strings.CutSuffix(file.Name(), ".key"); ok {
			if err := d.export(name, exported); err != nil {
				return nil, fmt.Errorf("export %s: %w", name, err)
			}
		}
	}
	return exported, nil
}

// export adds the files of one key, unless it is that of a leaf certificate. A CA that is rotated meanwhile is consistent, because its key is read
// first: RotateCA writes the certificates first, which match the old key too.
func (d Dir) export(name string, to map[string][]byte) error {
	key, err := os.ReadFile(d.path(name + ".key"))
	if err != nil {
		return err
	}
	certs, err := os.ReadFile(d.path(name + ".crt"))
	if errors.Is(err, fs.ErrNotExist) {
		return d.exportSigningKey(name, key, to)
	}
	if err != nil {
		return err
	}
	parsed, err := ParseCertificates(certs)
	if err != nil {
		return err
	}
	if len(parsed) == 0 || !parsed[0].IsCA {
		return nil
	}
	if _, err := parseCA(Pair{Cert: certs, Key: key}); err != nil {
		return err
	}
	to[name+".key"], to[name+".crt"] = key, certs
	return nil
}

// exportSigningKey adds a key without a certificate.
func (d Dir) exportSigningKey(name string, key []byte, to map[string][]byte) error {
	if _, err := parseKey(key); err != nil {
		return err
	}
	to[name+".key"] = key
	public, err := os.ReadFile(d.path(name + ".pub"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	to[name+".pub"] = public
	return err
}
