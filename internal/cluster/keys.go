package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"skiff/internal/atomicfile"
	"skiff/internal/kubelet/bootstrap"
	"skiff/internal/pki"
)

// Keys are the files that all servers share, by name: CAs with their keys, and the key that signs service account tokens.
type Keys map[string][]byte

// caFile is the certificate of the CA that tokens refer to.
const caFile = "ca.crt"

// sharedFiles are the names of the files, in the order in which they are written: a certificate after its key.
var sharedFiles = []string{
	"service-account.key", "service-account.pub", "etcd-ca.key", "etcd-ca.crt", "front-proxy-ca.key", "front-proxy-ca.crt", "ca.key", caFile,
}

// exportKeys returns the shared files of a directory. Other keys in it stay where they are, and a server that is configured with keys elsewhere has fewer.
func exportKeys(dir string) (Keys, error) {
	exported, err := pki.Dir(dir).Export()
	if err != nil {
		return nil, fmt.Errorf("read the keys of the cluster: %w", err)
	}
	maps.DeleteFunc(exported, func(name string, _ []byte) bool { return !slices.Contains(sharedFiles, name) })
	return exported, nil
}

// Write writes the files to a directory. It refuses a directory that has other keys: they belong to another cluster.
func (k Keys) Write(dir string) error {
	for name := range k {
		if !slices.Contains(sharedFiles, name) {
			return fmt.Errorf("%q is not one of the files that servers share", name)
		}
	}
	for name, shared := range k {
		existing, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the keys of the cluster: %w", err)
		}
		if !bytes.Equal(shared, existing) {
			return fmt.Errorf("%s is of another cluster: remove it to join this one", filepath.Join(dir, name))
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write the keys of the cluster: %w", err)
	}
	for _, name := range sharedFiles {
		data, ok := k[name]
		if !ok {
			continue
		}
		mode := os.FileMode(0o644)
		if filepath.Ext(name) == ".key" {
			mode = 0o600
		}
		if err := atomicfile.Write(filepath.Join(dir, name), data, mode); err != nil {
			return fmt.Errorf("write the keys of the cluster: %w", err)
		}
	}
	return nil
}

// verify checks that the keys are those of the cluster that a token was created for.
func (k Keys) verify(token bootstrap.Token) error {
	cas, err := pki.ParseCertificates(k[caFile])
	if err != nil {
		return fmt.Errorf("parse the CA of the cluster: %w", err)
	}
	for _, ca := range cas {
		if bootstrap.HashOf(ca) == token.CAHash {
			return nil
		}
	}
	return bootstrap.ErrUntrustedServer
}
