package pki

import (
	"context"
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

const (
	// checkInterval is how often a Renewer checks its certificate. It is short so that suspends, clock changes and
	// certificates replaced by an administrator are noticed.
	checkInterval = 5 * time.Minute
	// retryInterval is how soon a renewal that failed is tried again. There is a third of the certificate's life to succeed in.
	retryInterval = 10 * time.Minute
)

// Renewer keeps one certificate of a directory valid while the program runs. At two thirds of its lifetime the CA issues
// a replacement with a new key. A certificate that someone else wrote to the directory is loaded. New handshakes use the
// current certificate; established connections are not affected.
type Renewer struct {
	dir     Dir
	name    string
	ca      *CA
	leaf    Leaf
	current atomic.Pointer[loadedPair]
	// written is the modification time of the file that was read last. It is only used by Dir.Renewer and Run, which do
	// not overlap.
	written time.Time

	mu      sync.Mutex
	onRenew []func(Pair) error
}

// loadedPair is a Pair parsed for use in handshakes.
type loadedPair struct {
	pair Pair
	tls  tls.Certificate
	// chain is tls followed by the CA's certificate.
	chain *tls.Certificate
}

// Renewer loads or issues the certificate with the given file name and returns a Renewer for it. Run renews it.
func (d Dir) Renewer(name string, ca *CA, leaf Leaf) (*Renewer, error) {
	r := &Renewer{dir: d, name: name, ca: ca, leaf: leaf}
	return r, r.renew(time.Now())
}

// OnRenew calls f with the current certificate now, and again after every renewal: to write a kubeconfig, or to close
// connections that use the old certificate. If f fails it is retried later.
func (r *Renewer) OnRenew(f func(Pair) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onRenew = append(r.onRenew, f)
	return f(r.Pair())
}

// Pair is the current certificate and its key, as PEM.
func (r *Renewer) Pair() Pair { return r.current.Load().pair }

// Certificate is the current certificate.
func (r *Renewer) Certificate() *x509.Certificate { return r.current.Load().tls.Leaf }

// GetCertificate is for the tls.Config of a server.
func (r *Renewer) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return &r.current.Load().tls, nil
}

// GetChain is GetCertificate with the CA's certificate appended. Clients need not trust it; a client that has the hash of
// the CA's key (bootstrap.DiscoverCA) can obtain the CA's certificate from it.
func (r *Renewer) GetChain(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return r.current.Load().chain, nil
}

// GetClientCertificate is for the tls.Config of a client.
func (r *Renewer) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return &r.current.Load().tls, nil
}

// Run renews the certificate before it expires, until ctx is done.
func (r *Renewer) Run(ctx context.Context, log *slog.Logger) error {
	notifyPending, wait := false, checkInterval
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		var err error
		if now := time.Now(); now.After(RenewAt(r.Certificate())) || r.changed() {
			before := r.Certificate()
			if err = r.renew(now); err == nil && !before.Equal(r.Certificate()) {
				notifyPending = true
				log.Info("certificate renewed", "name", r.name, "notAfter", r.Certificate().NotAfter)
			}
		}
		if err == nil && notifyPending {
			err = r.notify()
			notifyPending = err != nil
		}
		if wait = checkInterval; err != nil {
			log.Error("failed to renew certificate", "name", r.name, "notAfter", r.Certificate().NotAfter, "error", err)
			wait = retryInterval
		}
	}
}

// changed reports whether the certificate's file was written since it was last read.
func (r *Renewer) changed() bool {
	info, err := os.Stat(r.dir.path(r.name + ".crt"))
	return err == nil && !info.ModTime().Equal(r.written)
}

// renew loads the certificate from the directory, or issues a new one if the stored one cannot be used any longer.
func (r *Renewer) renew(now time.Time) error {
	if info, err := os.Stat(r.dir.path(r.name + ".crt")); err == nil {
		r.written = info.ModTime() // before reading: a later write is noticed by the next check
	}
	pair, err := r.dir.Leaf(r.name, r.ca, r.leaf, now)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", r.name, err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", r.name, err)
	}
	chain := cert
	chain.Certificate = append(slices.Clone(cert.Certificate), r.ca.cert.Raw)
	r.current.Store(&loadedPair{pair: pair, tls: cert, chain: &chain})
	return nil
}

// notify calls the OnRenew functions.
func (r *Renewer) notify() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.onRenew {
		if err := f(r.Pair()); err != nil {
			return fmt.Errorf("notify about renewed certificate %s: %w", r.name, err)
		}
	}
	return nil
}

// Renewers are the certificates of one program.
type Renewers []*Renewer

// Run renews all of them until ctx is done.
func (r Renewers) Run(ctx context.Context, log *slog.Logger) error {
	var all sync.WaitGroup
	for _, renewer := range r {
		all.Go(func() { _ = renewer.Run(ctx, log) }) // only returns nil
	}
	all.Wait()
	return nil
}
