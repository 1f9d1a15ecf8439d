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

// ErrUntrustedServer is returned if the server does not have a certificate of the CA the token was created for.
var ErrUntrustedServer = errors.New("this is not the server the token was created for")

// handshakeTimeout bounds the TLS handshake.
const handshakeTimeout = 10 * time.Second

// DiscoverCA connects to a server and returns the certificate of the CA whose public key has the hash, as PEM. The server
// has proved that it has a certificate of this CA for the name it was reached by. No request is sent.
//
// A CA that only has the right name, or a server that presents another cluster's CA, is rejected.
func DiscoverCA(ctx context.Context, server string, want Hash) ([]byte, error) {
	address, name, err := addressOf(server)
	if err != nil {
		return nil, err
	}
	var ca *x509.Certificate
	dialer := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: name, NextProtos: []string{"h2", "http/1.1"},
		// There is no CA to verify with yet. verifyByHash verifies the certificates by the hash.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) (err error) {
			ca, err = verifyByHash(state.PeerCertificates, name, want, time.Now())
			return err
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("get certificates of %s: %w", server, err)
	}
	conn.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}), nil
}

// verifyByHash finds the CA with the hash among the presented certificates, and verifies the server with it.
func verifyByHash(presented []*x509.Certificate, name string, want Hash, now time.Time) (*x509.Certificate, error) {
	i := slices.IndexFunc(presented, func(c *x509.Certificate) bool { return HashOf(c) == want && isRoot(c) })
	if i < 0 {
		return nil, fmt.Errorf("%w: it presents no CA whose public key has the hash %s; create a token for it with `skiff token create` there", ErrUntrustedServer, want)
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(presented[i])
	for _, c := range presented[1:] {
		intermediates.AddCert(c)
	}
	if _, err := presented[0].Verify(x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: intermediates, CurrentTime: now}); err != nil {
		return nil, fmt.Errorf("%w, or its certificate is not valid for this address: %w", ErrUntrustedServer, err)
	}
	return presented[i], nil
}

// RefreshCAs connects to a server that is verified by known CAs and returns all its CAs as PEM, including newer ones. A
// new CA is trusted if its key is part of the server's verified chain, which it is if a known CA has cross-signed it.
func RefreshCAs(ctx context.Context, server string, known []byte) ([]byte, error) {
	address, name, err := addressOf(server)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(known) {
		return nil, errors.New("no CA certificates")
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, RootCAs: roots, NextProtos: []string{"h2", "http/1.1"}}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("get CAs of %s: %w", server, err)
	}
	defer conn.Close()
	state := conn.(*tls.Conn).ConnectionState()
	for _, presented := range state.PeerCertificates[1:] {
		verified := slices.ContainsFunc(state.VerifiedChains, func(chain []*x509.Certificate) bool {
			return slices.ContainsFunc(chain[1:], func(c *x509.Certificate) bool { return HashOf(c) == HashOf(presented) })
		})
		block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: presented.Raw})
		if verified && isRoot(presented) && !bytes.Contains(known, block) {
			known = append(slices.Clip(known), block...)
		}
	}
	return known, nil
}

// isRoot reports whether a certificate is a self-signed CA.
func isRoot(c *x509.Certificate) bool {
	return c.IsCA && bytes.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignatureFrom(c) == nil
}

// addressOf returns the host and port of a server's URL, and the name its certificate must be valid for.
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
