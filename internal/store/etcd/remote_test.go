package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"skiff/internal/store"
	"skiff/internal/store/etcd"
)

// certificates writes a CA and a certificate for 127.0.0.1 signed by it.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caBytes, err := x509.CreateCertificate(rand.Reader, authority, authority, caKey.Public(), caKey)
	must(err)
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "etcd"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	leafBytes, err := x509.CreateCertificate(rand.Reader, leaf, authority, leafKey.Public(), caKey)
	must(err)
	keyBytes, err := x509.MarshalECPrivateKey(leafKey)
	must(err)
	return write("ca.crt", "CERTIFICATE", caBytes), write("tls.crt", "CERTIFICATE", leafBytes), write("tls.key", "EC PRIVATE KEY", keyBytes)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestRemoteOverTLS(t *testing.T) {
	ca, cert, key := certificates(t)
	address := "https://" + freeAddress(t)
	open(t, etcd.Config{DataDir: t.TempDir(), Listen: []string{address}, CAFile: ca, CertFile: cert, KeyFile: key})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s := open(t, etcd.Config{Servers: []string{address}, CAFile: ca, CertFile: cert, KeyFile: key})
	if _, err := s.Create(ctx, "/registry/a", []byte("v"), 0); err != nil {
		t.Fatal(err)
	}
	if !s.Shared() {
		t.Error("a cluster is ours alone")
	}
	// A client without a certificate is refused.
	untrusted := open(t, etcd.Config{Servers: []string{address}, CAFile: ca})
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := untrusted.Get(short, "/registry/a"); err == nil || errors.Is(err, store.ErrNotFound) {
		t.Errorf("a untrusted reads: %v", err)
	}
}

// The servers may start late, stop and restart: the watch continues without gap or duplicate.
func TestRemoteServerRestarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	address := "unix://" + t.TempDir() + "/socket"
	s := open(t, etcd.Config{Servers: []string{address}})
	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	if err := s.Healthy(short); err == nil {
		t.Error("healthy without a server")
	}
	stop()

	events := make(chan store.Event, 100)
	started := make(chan struct{})
	go func() {
		<-started
		after := store.Revision(1)
		for ctx.Err() == nil {
			w := s.Watch(ctx, "/registry/", after)
			for batch := range w.Batches() {
				for _, event := range batch.Events {
					events <- event
				}
				after = batch.Revision
			}
		}
	}()
	for round := range 3 {
		server := open(t, etcd.Config{DataDir: dir, Listen: []string{address}})
		if round == 0 {
			close(started)
		}
		for i := range 5 {
			key := fmt.Sprintf("/registry/%d-%d", round, i)
			var err error
			for ctx.Err() == nil {
				if _, err = s.Create(ctx, key, []byte("v"), 0); err == nil || errors.Is(err, store.ErrExists) {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			select {
			case event := <-events:
				if event.Key != key {
					t.Fatalf("got %s, want %s", event.Key, key)
				}
			case <-ctx.Done():
				t.Fatalf("no event of %s (written: %v)", key, err)
			}
		}
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
