package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// fileCheckInterval is how often files that are in use are checked for changes.
const fileCheckInterval = 10 * time.Second

// reloadedFiles is a value made from files. It is made again when the files have changed, at the first use after fileCheckInterval. If that
// fails, the value that was made before is kept.
type reloadedFiles[V any] struct {
	files []string
	parse func(contents [][]byte) (V, error)
	log   *slog.Logger

	mu      sync.Mutex // held while the files are read, so that only one goroutine reads them
	current atomic.Pointer[filesVersion[V]]
}

// filesVersion is the value of one state of the files.
type filesVersion[V any] struct {
	value    V
	contents [][]byte
	checked  time.Time
}

// load reads the files for the first time.
func (f *reloadedFiles[V]) load() error {
	contents, err := f.read()
	if err != nil {
		return err
	}
	value, err := f.parse(contents)
	if err != nil {
		return err
	}
	f.current.Store(&filesVersion[V]{value, contents, time.Now()})
	return nil
}

func (f *reloadedFiles[V]) read() ([][]byte, error) {
	contents := make([][]byte, len(f.files))
	for i, file := range f.files {
		var err error
		if contents[i], err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

// get returns the current value.
func (f *reloadedFiles[V]) get() V {
	current := f.current.Load()
	if time.Since(current.checked) < fileCheckInterval || !f.mu.TryLock() {
		return current.value
	}
	defer f.mu.Unlock()
	next := &filesVersion[V]{current.value, current.contents, time.Now()}
	contents, err := f.read()
	if err == nil && !slices.EqualFunc(contents, current.contents, bytes.Equal) {
		var value V
		if value, err = f.parse(contents); err == nil {
			next.value, next.contents = value, contents
			f.log.Info("reloaded certificates", "files", f.files)
		}
	}
	if err != nil {
		f.log.Error("failed to reload certificates", "files", f.files, "error", err)
	}
	f.current.Store(next)
	return next.value
}

// CertFiles are a certificate and its key in files that someone else renews.
type CertFiles struct {
	reloadedFiles[*tls.Certificate]
}

// ReadCertFiles reads a certificate, which may be followed by its chain, and its key.
func ReadCertFiles(certFile, keyFile string, log *slog.Logger) (*CertFiles, error) {
	f := &CertFiles{reloadedFiles[*tls.Certificate]{files: []string{certFile, keyFile}, log: log}}
	f.parse = func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return nil, fmt.Errorf("parse %s and %s: %w", certFile, keyFile, err)
		}
		return &pair, nil
	}
	return f, f.load()
}

// Chain returns the certificate and what follows it in its file.
func (f *CertFiles) Chain() ([]*x509.Certificate, error) {
	return ParseCertificates(f.current.Load().contents[0])
}

// GetCertificate is for the tls.Config of a server.
func (f *CertFiles) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.get(), nil
}

// CABundle are CA certificates: those of files, which are reloaded when they change, and those of CAs of a Dir.
type CABundle struct {
	reloadedFiles[caCertificates]
}

type caCertificates struct {
	pem   []byte
	certs []*x509.Certificate
	pool  *x509.CertPool
}

// ReadCABundle reads the certificates of a PEM file, in addition to those of the given CAs. An empty file name means only the CAs.
func ReadCABundle(file string, log *slog.Logger, cas ...*CA) (*CABundle, error) {
	b := &CABundle{reloadedFiles[caCertificates]{log: log}}
	if file != "" {
		b.files = []string{file}
	}
	b.parse = func(contents [][]byte) (caCertificates, error) {
		bundle := caCertificates{pool: x509.NewCertPool()}
		var texts [][]byte
		for _, ca := range cas {
			texts = append(texts, ca.Cert)
		}
		for _, content := range append(texts, contents...) {
			certs, err := ParseCertificates(content)
			if err != nil {
				return bundle, fmt.Errorf("parse %s: %w", file, err)
			}
			for _, cert := range certs {
				bundle.certs = append(bundle.certs, cert)
				bundle.pem = append(bundle.pem, encodeCert(cert.Raw)...)
				bundle.pool.AddCert(cert)
			}
		}
		return bundle, nil
	}
	return b, b.load()
}

// Pool returns the certificates as a pool to verify with. It is the same pool until the file changes.
func (b *CABundle) Pool() *x509.CertPool { return b.get().pool }

func (b *CABundle) certificates() []*x509.Certificate { return b.get().certs }

// PEM returns the certificates as PEM.
func (b *CABundle) PEM() []byte { return b.get().pem }

// Overlaps reports whether both bundles have a certificate in common.
func (b *CABundle) Overlaps(other *CABundle) bool {
	return slices.ContainsFunc(b.get().certs, func(cert *x509.Certificate) bool {
		return slices.ContainsFunc(other.get().certs, cert.Equal)
	})
}

// MergeCertificates returns the certificates of several PEM texts, each once, without those that have expired.
func MergeCertificates(now time.Time, texts ...[]byte) ([]byte, error) {
	var merged []byte
	seen := map[string]bool{}
	for _, text := range texts {
		if len(text) == 0 {
			continue
		}
		certs, err := ParseCertificates(text)
		if err != nil {
			return nil, err
		}
		for _, cert := range certs {
			if !seen[string(cert.Raw)] && cert.NotAfter.After(now.Add(-backdate)) {
				seen[string(cert.Raw)] = true
				merged = append(merged, encodeCert(cert.Raw)...)
			}
		}
	}
	return merged, nil
}
