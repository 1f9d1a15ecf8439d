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
	// lookAgain is how often a Keeper looks: a machine that was asleep, or whose clock was set, must not miss the day, and who
	// renews a certificate by hand wants to see it used.
	lookAgain = 5 * time.Minute
	// tryAgain is how soon a renewal that failed is tried again. There is a third of the certificate's life to succeed in.
	tryAgain = 10 * time.Minute
)

// Keeper keeps one certificate of a directory fresh while the program runs: at two thirds of its life the authority issues the
// next one, with a key of its own, and one that somebody else has put into the directory is taken up. Handshakes take whichever is
// current; connections that stand are not touched.
type Keeper struct {
	directory Dir
	name      string
	authority *Authority
	leaf      Leaf
	current   atomic.Pointer[keptPair]
	// written is when the file was written that was read last. Only Keep and Run, one after the other, use it.
	written time.Time

	mu      sync.Mutex
	renewed []func(Pair) error
}

type keptPair struct {
	pair Pair
	tls  tls.Certificate
	// chain is tls with the authority behind it.
	chain *tls.Certificate
}

// Keep loads the certificate called name or lets the authority issue it, and returns its Keeper. Run renews it.
func (f Dir) Keep(name string, a *Authority, leaf Leaf) (*Keeper, error) {
	k := &Keeper{directory: f, name: name, authority: a, leaf: leaf}
	return k, k.renew(time.Now())
}

// OnRenew has f called with the certificate now, and whenever it is renewed: to write a kubeconfig, to close connections
// that still use the old one. When f fails it is called again later.
func (k *Keeper) OnRenew(f func(Pair) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewed = append(k.renewed, f)
	return f(k.Pair())
}

// Pair is the current certificate and its key, as PEM.
func (k *Keeper) Pair() Pair { return k.current.Load().pair }

// Certificate is the current certificate.
func (k *Keeper) Certificate() *x509.Certificate { return k.current.Load().tls.Leaf }

// GetCertificate is for the tls.Config of a server.
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return &k.current.Load().tls, nil
}

// GetChain is GetCertificate with the authority's own certificate at the end: nobody has to believe it, but who knows the hash of its
// key can learn it from here.
func (k *Keeper) GetChain(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return k.current.Load().chain, nil
}

// GetClientCertificate is for the tls.Config of a client.
func (k *Keeper) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return &k.current.Load().tls, nil
}

// Run renews the certificate in time, until ctx ends.
func (k *Keeper) Run(ctx context.Context, log *slog.Logger) error {
	untold, wait := false, lookAgain
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		var err error
		if now := time.Now(); now.After(RenewAt(k.Certificate())) || k.changed() {
			before := k.Certificate()
			if err = k.renew(now); err == nil && !before.Equal(k.Certificate()) {
				untold = true
				log.Info("certificate renewed", "name", k.name, "until", k.Certificate().NotAfter)
			}
		}
		if err == nil && untold {
			err = k.tell()
			untold = err != nil
		}
		if wait = lookAgain; err != nil {
			log.Error("renewing a certificate failed", "name", k.name, "until", k.Certificate().NotAfter, "error", err)
			wait = tryAgain
		}
	}
}

// changed reports whether somebody has written the certificate's file.
func (k *Keeper) changed() bool {
	info, err := os.Stat(k.directory.path(k.name + ".crt"))
	return err == nil && !info.ModTime().Equal(k.written)
}

// renew takes the certificate from the directory, or a new one when that no longer serves.
func (k *Keeper) renew(now time.Time) error {
	if info, err := os.Stat(k.directory.path(k.name + ".crt")); err == nil {
		k.written = info.ModTime() // before it is read: what comes later is found the next time
	}
	pair, err := k.directory.Leaf(k.name, k.authority, k.leaf, now)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", k.name, err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", k.name, err)
	}
	chain := cert
	chain.Certificate = append(slices.Clone(cert.Certificate), k.authority.cert.Raw)
	k.current.Store(&keptPair{pair: pair, tls: cert, chain: &chain})
	return nil
}

// tell calls everybody who wants to know of the new certificate.
func (k *Keeper) tell() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.renewed {
		if err := f(k.Pair()); err != nil {
			return fmt.Errorf("hand on certificate %s: %w", k.name, err)
		}
	}
	return nil
}

// Keepers are the certificates of one program.
type Keepers []*Keeper

// Run renews all of them in time, until ctx ends.
func (k Keepers) Run(ctx context.Context, log *slog.Logger) error {
	var all sync.WaitGroup
	for _, keeper := range k {
		all.Go(func() { _ = keeper.Run(ctx, log) }) // never fails
	}
	all.Wait()
	return nil
}

// ServerTLS is the TLS configuration of a server that keeps its certificate fresh and shows its authority with it. It asks clients for a certificate of one
// of the authorities but does not judge what it gets: who signs for whom is for the authenticators to say, and a client
// whose certificate has expired gets an answer it can read.
func ServerTLS(serving *Keeper, clients ...*Authority) *tls.Config {
	hint := x509.NewCertPool()
	for _, a := range clients {
		for rest, err := ParseCertificates(a.Cert); err == nil && len(rest) > 0; rest = rest[1:] {
			hint.AddCert(rest[0])
		}
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: serving.GetChain,
		ClientAuth:     tls.RequestClientCert,
		ClientCAs:      hint,
		NextProtos:     []string{"h2", "http/1.1"},
	}
}
