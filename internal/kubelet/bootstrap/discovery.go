package bootstrap

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"
)

// ErrUntrustedServer: the server is not the one the token was made for.
var ErrUntrustedServer = errors.New("this is not the server the token was made for")

// handshakeTimeout is how long a server may take to show its certificates.
const handshakeTimeout = 10 * time.Second

// DiscoverCA asks a server for its certificates and returns the one of the authority whose key has the hash, as PEM. The server
// has proved then that it has a certificate of this authority for the name it was asked by. Nothing is sent to it.
//
// An authority of which only the name is right, or a server that merely shows somebody else's authority, does not get through.
func DiscoverCA(ctx context.Context, server string, want Hash) ([]byte, error) {
	address, name, err := addressOf(server)
	if err != nil {
		return nil, err
	}
	var authority *x509.Certificate
	dialer := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: name, NextProtos: []string{"h2", "http/1.1"},
		// There is nothing yet to verify against; judge does it by the hash, and no connection stands without its consent.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) (err error) {
			authority, err = verifyByHash(state.PeerCertificates, name, want, time.Now())
			return err
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("ask %s for its certificates: %w", server, err)
	}
	conn.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw}), nil
}

// judge finds the authority with the hash among the certificates a server shows, and verifies the server by it.
func verifyByHash(shown []*x509.Certificate, name string, want Hash, now time.Time) (*x509.Certificate, error) {
	i := slices.IndexFunc(shown, func(c *x509.Certificate) bool { return HashOf(c) == want && isRoot(c) })
	if i < 0 {
		return nil, fmt.Errorf("%w: it shows no authority whose key has the hash %s; make a token for it with `skiff token create` there", ErrUntrustedServer, want)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(shown[i])
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	if _, err := shown[0].Verify(x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: between, CurrentTime: now}); err != nil {
		return nil, fmt.Errorf("%w, or is not reached by its own name: %w", ErrUntrustedServer, err)
	}
	return shown[i], nil
}

// RefreshCAs asks a server that is known by its authorities for those that have come after them, and returns all, as PEM. One is believed
// if its key is among those by which the server has proved itself: an authority signs for the key of the one that follows it.
func RefreshCAs(ctx context.Context, server string, known []byte) ([]byte, error) {
	address, name, err := addressOf(server)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(known) {
		return nil, errors.New("no authority is known")
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, RootCAs: roots, NextProtos: []string{"h2", "http/1.1"}}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("ask %s for its authorities: %w", server, err)
	}
	defer conn.Close()
	state := conn.(*tls.Conn).ConnectionState()
	for _, shown := range state.PeerCertificates[1:] {
		proven := slices.ContainsFunc(state.VerifiedChains, func(chain []*x509.Certificate) bool {
			return slices.ContainsFunc(chain[1:], func(c *x509.Certificate) bool { return HashOf(c) == HashOf(shown) })
		})
		block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: shown.Raw})
		if proven && isRoot(shown) && !bytes.Contains(known, block) {
			known = append(slices.Clip(known), block...)
		}
	}
	return known, nil
}

// isRoot says whether a certificate is that of an authority, and signed by its own key: so that all it says is what the owner of the key has said.
func isRoot(c *x509.Certificate) bool {
	return c.IsCA && bytes.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignatureFrom(c) == nil
}

// addressOf splits a server's URL into where to connect to and the name it must have.
func addressOf(server string) (address, name string, err error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", "", err
	}
	if u.Scheme != "https" || u.Hostname() == "" {
		return "", "", fmt.Errorf("%q is not an https URL of an API server", server)
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port), u.Hostname(), nil
}
