package bootstrap

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/internal/pki"
	"skiff/test/inprocess"
)

// signer responds to every request with a certificate, or as refuse says. It stands for the controllers.
type signer struct {
	api    *client.Client
	ca     *pki.CA
	life   time.Duration
	refuse atomic.Pointer[certificatesv1.RequestConditionType]
	asked  atomic.Int32
}

func (s *signer) run(ctx context.Context) {
	requests := client.For[*certificatesv1.CertificateSigningRequest](s.api)
	for seen := map[string]bool{}; ctx.Err() == nil; time.Sleep(10 * time.Second) {
		all, _, _ := requests.List(ctx, "", client.Selector{})
		for _, r := range all {
			if !seen[r.Name] && s.answer(ctx, requests, r.DeepCopy()) == nil {
				seen[r.Name] = true
			}
		}
	}
}

func (s *signer) answer(ctx context.Context, requests client.Resource[*certificatesv1.CertificateSigningRequest], r *certificatesv1.CertificateSigningRequest) error {
	condition := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", Message: "so it is"}
	refuse := s.refuse.Load()
	if refuse != nil {
		condition.Type = *refuse
	}
	r.Status.Conditions = append(r.Status.Conditions, condition)
	r, err := requests.Update(ctx, r, client.WriteOptions{Subresource: "approval"})
	s.asked.Add(1)
	if err != nil || refuse != nil {
		return err
	}
	block, _ := pem.Decode(r.Spec.Request)
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	now := time.Now()
	r = r.DeepCopy()
	r.Status.Certificate, err = s.ca.Sign(x509.Certificate{
		Subject: parsed.Subject, DNSNames: parsed.DNSNames, IPAddresses: parsed.IPAddresses, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: now, NotAfter: now.Add(s.life), BasicConstraintsValid: true,
	}, parsed.PublicKey, now)
	if err != nil {
		return err
	}
	_, err = requests.UpdateStatus(ctx, r)
	return err
}

// withSigner runs a test with a server and a signer in a synctest bubble.
func withSigner(t *testing.T, life time.Duration, test func(t *testing.T, ctx context.Context, s *signer)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ca, err := pki.NewCA("test", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		s := &signer{api: inprocess.Start(t, ctx), ca: ca, life: life}
		var running sync.WaitGroup
		running.Go(func() { s.run(ctx) })
		defer running.Wait()
		defer cancel()
		test(t, ctx, s)
	})
}

func TestCertificateIsRenewedWhileRunning(t *testing.T) {
	withSigner(t, 24*time.Hour, func(t *testing.T, ctx context.Context, s *signer) {
		dir := t.TempDir()
		c := NodeClient(dir, "one", slog.New(slog.DiscardHandler))
		if err := c.Load(); err != nil || c.Usable(time.Now()) {
			t.Fatalf("there is a certificate before there is one: %v", err)
		}
		if err := c.Obtain(ctx, s.api); err != nil {
			t.Fatal(err)
		}
		first := c.current.Load().Leaf
		if first.Subject.CommonName != "system:node:one" || first.Subject.Organization[0] != "system:nodes" || !c.Usable(time.Now()) {
			t.Errorf("got a certificate for %v", first.Subject)
		}
		if info, err := os.Stat(filepath.Join(dir, "kubelet-client-current.pem")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key is kept with %v, %v", info, err)
		}
		ctx, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { _ = c.Run(ctx, s.api) })
		time.Sleep(16 * time.Hour)
		if !c.current.Load().Leaf.Equal(first) {
			t.Error("renewed before seven tenths of its life")
		}
		time.Sleep(6 * time.Hour)
		if second := c.current.Load().Leaf; second.Equal(first) || bytes.Equal(second.RawSubjectPublicKeyInfo, first.RawSubjectPublicKeyInfo) {
			t.Error("not renewed, with another key, at nine tenths of its life")
		}
		time.Sleep(10 * 24 * time.Hour)
		if !c.Usable(time.Now()) || s.asked.Load() < 10 || s.asked.Load() > 16 {
			t.Errorf("after eleven days: %d requests, usable %v", s.asked.Load(), c.Usable(time.Now()))
		}
		stop()
		running.Wait()
		kept := c.current.Load().Leaf
		for _, test := range []struct {
			signer  *pki.CA
			renewed bool
		}{{s.ca, false}, {newCA(t, "next"), true}} {
			c.RenewUnlessSignedBy(test.signer.Certificate())
			if due := !time.Now().Before(c.renewAt); due != test.renewed || !c.Usable(time.Now()) {
				t.Errorf("due for renewal: %v, want %v", due, test.renewed)
			}
		}
		// After a restart the stored certificate is used.
		again := NodeClient(dir, "one", slog.New(slog.DiscardHandler))
		if err := again.Load(); err != nil || !again.current.Load().Leaf.Equal(kept) {
			t.Errorf("the stored certificate is not loaded: %v", err)
		}
		if other := NodeClient(dir, "two", slog.New(slog.DiscardHandler)); other.Load() != nil || other.Usable(time.Now()) {
			t.Error("a node uses the certificate of another")
		}
		time.Sleep(24 * time.Hour)
		if again.Usable(time.Now()) {
			t.Error("an expired certificate is usable")
		}
	})
}

func TestServingCertificateAddresses(t *testing.T) {
	withSigner(t, 1000*time.Hour, func(t *testing.T, ctx context.Context, s *signer) {
		var node atomic.Pointer[corev1.Node]
		addresses := func(ips ...string) {
			n := &corev1.Node{}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "one"}}
			for _, ip := range ips {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
			}
			node.Store(n)
		}
		c := NodeServing(t.TempDir(), "one", node.Load, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { _ = c.Run(ctx, s.api) })
		time.Sleep(time.Minute)
		addresses()
		time.Sleep(time.Minute)
		if _, err := c.GetCertificate(nil); err == nil || s.asked.Load() != 0 {
			t.Errorf("asked %d times before the node has an address: %v", s.asked.Load(), err)
		}
		addresses("10.0.0.1")
		time.Sleep(20 * time.Second)
		if cert, err := c.GetCertificate(nil); err != nil || cert.Leaf.VerifyHostname("10.0.0.1") != nil || cert.Leaf.VerifyHostname("one") != nil {
			t.Fatalf("the node has no certificate for its address: %v", err)
		}
		time.Sleep(24 * time.Hour)
		if s.asked.Load() != 1 {
			t.Errorf("asked %d times", s.asked.Load())
		}
		addresses("10.0.0.2", "fd00::2")
		time.Sleep(2 * time.Minute)
		cert, err := c.GetCertificate(nil)
		if err != nil || cert.Leaf.VerifyHostname("fd00::2") != nil || cert.Leaf.VerifyHostname("10.0.0.1") == nil {
			t.Errorf("the certificate does not follow the addresses: %v", err)
		}
		stop()
		running.Wait()
	})
}

func TestDeniedRequest(t *testing.T) {
	withSigner(t, time.Hour, func(t *testing.T, ctx context.Context, s *signer) {
		c := NodeClient(t.TempDir(), "one", slog.New(slog.DiscardHandler))
		denied := certificatesv1.CertificateDenied
		s.refuse.Store(&denied)
		if err := c.Obtain(ctx, s.api); err == nil || !strings.Contains(err.Error(), "Denied: Test: so it is") {
			t.Errorf("denied: %v", err)
		}
		// It goes on asking, ever more slowly, until it gets one.
		ctx, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() { _ = c.Run(ctx, s.api) })
		time.Sleep(time.Hour)
		if n := s.asked.Load(); n < 6 || n > 12 {
			t.Errorf("asked %d times within an hour", n)
		}
		s.refuse.Store(nil)
		time.Sleep(16 * time.Minute)
		if !c.Usable(time.Now()) {
			t.Error("no certificate after requests are approved")
		}
		stop()
		running.Wait()
	})
}

func TestUnapprovedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		api := inprocess.Start(t, ctx)
		c := NodeClient(t.TempDir(), "one", slog.New(slog.DiscardHandler))
		began := time.Now()
		err := c.Obtain(ctx, api)
		if err == nil || !strings.Contains(err.Error(), "kubectl certificate approve") || time.Since(began) != approvalTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ending, end := context.WithTimeout(ctx, time.Minute)
		defer end()
		if err := c.Obtain(ending, api); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended: %v", err)
		}
	})
}

func TestRenewalTime(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		life     time.Duration
		share    float64
		min, max time.Duration
	}{
		{1000 * time.Hour, 0, 700 * time.Hour, 700 * time.Hour},
		{1000 * time.Hour, 1, 900 * time.Hour, 900 * time.Hour},
		{15 * time.Minute, 1, 9 * time.Minute, 9 * time.Minute}, // connections need the rest to change over
		{10 * time.Minute, 1, 5 * time.Minute, 5 * time.Minute},
		{time.Minute, 0, 30 * time.Second, 30 * time.Second},
	} {
		at := renewalTime(&x509.Certificate{NotBefore: start, NotAfter: start.Add(test.life)}, test.share).Sub(start)
		if at < test.min-time.Second || at > test.max+time.Second {
			t.Errorf("%v, share %v: after %v", test.life, test.share, at)
		}
	}
}

// A host that joins again, after its join was interrupted or its certificate expired, has the key by which the server knows it.
func TestObtainWithTokenKeepsKey(t *testing.T) {
	withSigner(t, time.Hour, func(t *testing.T, ctx context.Context, s *signer) {
		dir := t.TempDir()
		load := func() *Certificate {
			c := NodeClient(dir, "one", slog.New(slog.DiscardHandler))
			if err := c.Load(); err != nil {
				t.Fatal(err)
			}
			return c
		}
		key := func(c *Certificate) string { return string(c.current.Load().Leaf.RawSubjectPublicKeyInfo) }
		interrupted, interrupt := context.WithTimeout(ctx, time.Millisecond)
		defer interrupt()
		c := load()
		if err := c.ObtainWithToken(interrupted, s.api); err == nil {
			t.Fatal("a certificate before the signer signs")
		}
		pending, err := os.ReadFile(c.pendingFile())
		if err != nil {
			t.Fatal(err)
		}
		c = load()
		if err := c.ObtainWithToken(ctx, s.api); err != nil {
			t.Fatal(err)
		}
		if stored, err := os.ReadFile(c.File); err != nil || !bytes.Contains(stored, pending) {
			t.Errorf("another key was used: %v", err)
		}
		if _, err := os.Stat(c.pendingFile()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the pending key is left: %v", err)
		}
		first := key(c)
		time.Sleep(2 * time.Hour)
		if c = load(); c.Usable(time.Now()) {
			t.Fatal("the certificate has not expired")
		}
		if err := c.ObtainWithToken(ctx, s.api); err != nil || key(c) != first {
			t.Errorf("after the expiration: %v, the same key: %v", err, key(c) == first)
		}
		other := NodeClient(dir, "two", slog.New(slog.DiscardHandler))
		if err := errors.Join(other.Load(), other.ObtainWithToken(ctx, s.api)); err != nil || key(other) == first {
			t.Errorf("with another name: %v, the same key: %v", err, key(other) == first)
		}
	})
}
