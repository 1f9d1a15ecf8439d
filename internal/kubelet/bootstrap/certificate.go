package bootstrap

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	random "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/atomicfile"
	"skiff/internal/client"
)

const (
	// approvalTimeout is how long a CSR may be pending before another one is created.
	approvalTimeout = 15 * time.Minute
	// checkInterval is how often Run checks the certificate. It is short so that suspends and changes of the clock or the
	// node's addresses are noticed.
	checkInterval = time.Minute
	// templatePollInterval is how often Run checks for the template before it is available.
	templatePollInterval = time.Second
	// A failed request is retried with exponential backoff.
	minRetry, maxRetry = 10 * time.Second, 15 * time.Minute
	// switchoverTime is how long clients may use the previous certificate: they read the file every five minutes.
	switchoverTime = 6 * time.Minute
)

// Certificate is a certificate of a node that the cluster signs. It is stored in one file with its key, so that the two
// always match.
type Certificate struct {
	// File holds the certificate and its key.
	File string
	// Signer is the signer name of the CSR.
	Signer string
	// Template returns the desired subject and addresses, or nil if they are not known yet.
	Template func() *x509.CertificateRequest
	Log      *slog.Logger

	current atomic.Pointer[tls.Certificate]
	// renewAt is when the current certificate is renewed. It is only used before and in Run.
	renewAt time.Time
}

// NodeClient is the client certificate of the node.
func NodeClient(dir, node string, log *slog.Logger) *Certificate {
	request := &x509.CertificateRequest{Subject: nodeSubject(node)}
	return &Certificate{
		File: filepath.Join(dir, "kubelet-client-current.pem"), Signer: certificatesv1.KubeAPIServerClientKubeletSignerName, Log: log,
		Template: func() *x509.CertificateRequest { return request },
	}
}

// NodeServing is the serving certificate of the kubelet, for the addresses in the node's status. It is not requested
// before there are any.
func NodeServing(dir, node string, registered func() *corev1.Node, log *slog.Logger) *Certificate {
	return &Certificate{
		File: filepath.Join(dir, "kubelet-server-current.pem"), Signer: certificatesv1.KubeletServingSignerName, Log: log,
		Template: func() *x509.CertificateRequest {
			request := &x509.CertificateRequest{Subject: nodeSubject(node), DNSNames: []string{node}}
			object := registered()
			if object == nil {
				return nil
			}
			for _, address := range object.Status.Addresses {
				if ip := net.ParseIP(address.Address); ip != nil && !slices.ContainsFunc(request.IPAddresses, ip.Equal) {
					request.IPAddresses = append(request.IPAddresses, ip)
				}
			}
			if len(request.IPAddresses) == 0 {
				return nil
			}
			return request
		},
	}
}

func nodeSubject(node string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
}

// Load reads the certificate from its file, if there is one.
func (c *Certificate) Load() error {
	data, err := os.ReadFile(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		c.Log.Warn("stored certificate is invalid, requesting another one", "file", c.File, "error", err)
		return nil
	}
	c.setCurrent(&pair)
	return nil
}

// Store stores a certificate and makes it the current one.
func (c *Certificate) Store(cert, key []byte) error {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.File), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(c.File, slices.Concat(bytes.TrimRight(cert, "\n"), []byte("\n"), key), 0o600); err != nil {
		return err
	}
	c.setCurrent(&pair)
	return nil
}

func (c *Certificate) setCurrent(pair *tls.Certificate) {
	c.renewAt = renewalTime(pair.Leaf, random.Float64())
	c.current.Store(pair)
}

// renewalTime is between 70 and 90 percent of a certificate's lifetime, with jitter so that nodes do not renew together;
// early enough for all connections to switch over, and not in the first half.
func renewalTime(cert *x509.Certificate, jitter float64) time.Time {
	life := cert.NotAfter.Sub(cert.NotBefore)
	at := cert.NotBefore.Add(time.Duration(float64(life) * (0.7 + 0.2*jitter)))
	if latest := cert.NotAfter.Add(-switchoverTime); at.After(latest) {
		at = latest
	}
	if earliest := cert.NotBefore.Add(life / 2); at.Before(earliest) {
		at = earliest
	}
	return at
}

// GetCertificate is for the tls.Config of a server.
func (c *Certificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if current := c.current.Load(); current != nil {
		return current, nil
	}
	return nil, errors.New("no serving certificate available for the kubelet")
}

// Usable reports whether there is a certificate that has not expired and matches the template.
func (c *Certificate) Usable(now time.Time) bool {
	current, template := c.current.Load(), c.Template()
	return current != nil && now.Before(current.Leaf.NotAfter) && (template == nil || covers(current.Leaf, template))
}

// RenewUnlessSignedBy makes Run renew the certificate at once if another CA signed it, because that CA may be removed
// soon.
func (c *Certificate) RenewUnlessSignedBy(ca *x509.Certificate) {
	if current := c.current.Load(); current != nil && current.Leaf.CheckSignatureFrom(ca) != nil {
		c.renewAt = time.Time{}
	}
}

// covers reports whether a certificate matches the template exactly.
func covers(cert *x509.Certificate, template *x509.CertificateRequest) bool {
	sameIPs := len(cert.IPAddresses) == len(template.IPAddresses) && !slices.ContainsFunc(template.IPAddresses, func(ip net.IP) bool {
		return !slices.ContainsFunc(cert.IPAddresses, ip.Equal)
	})
	return sameIPs && cert.Subject.CommonName == template.Subject.CommonName && slices.Equal(cert.Subject.Organization, template.Subject.Organization) &&
		slices.Equal(cert.DNSNames, template.DNSNames)
}

// Run requests the certificate if there is none, before it expires, and when the template changes, until ctx is done.
func (c *Certificate) Run(ctx context.Context, api *client.Client) error {
	retry := minRetry
	for {
		wait := checkInterval
		switch {
		case c.Template() == nil:
			wait = templatePollInterval
		case !c.Usable(time.Now()) || !time.Now().Before(c.renewAt):
			err := c.Obtain(ctx, api)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				c.Log.Error("failed to obtain certificate", "signer", c.Signer, "error", err, "retryAfter", retry.String())
				wait, retry = retry, min(2*retry, maxRetry)
				break
			}
			retry = minRetry
			c.Log.Info("obtained certificate", "signer", c.Signer, "notAfter", c.current.Load().Leaf.NotAfter)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// Obtain creates a key and a CSR for it, and waits for the certificate.
func (c *Certificate) Obtain(ctx context.Context, api *client.Client) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	return c.obtain(ctx, api, key, func([]byte) error { return nil })
}

// ObtainWithToken is Obtain for a host that joins. It uses the key of an earlier certificate, or of an earlier attempt, if there is one: by its
// key the server recognizes the host to which the name of the node belongs.
func (c *Certificate) ObtainWithToken(ctx context.Context, api *client.Client) error {
	key, err := c.joinKey()
	if err != nil {
		return err
	}
	// The key is stored as soon as the server knows it.
	err = c.obtain(ctx, api, key, func(key []byte) error {
		if err := os.MkdirAll(filepath.Dir(c.File), 0o700); err != nil {
			return err
		}
		return atomicfile.Write(c.pendingFile(), key, 0o600)
	})
	if err != nil {
		return err
	}
	return os.Remove(c.pendingFile())
}

// pendingFile holds the key of a request while the host joins.
func (c *Certificate) pendingFile() string { return c.File + ".pending" }

// joinKey is the key that identifies the host.
func (c *Certificate) joinKey() (*ecdsa.PrivateKey, error) {
	template, current := c.Template(), c.current.Load()
	if current != nil && template != nil && current.Leaf.Subject.CommonName == template.Subject.CommonName {
		if key, ok := current.PrivateKey.(*ecdsa.PrivateKey); ok {
			return key, nil
		}
	}
	stored, err := os.ReadFile(c.pendingFile())
	if err == nil {
		if block, _ := pem.Decode(stored); block != nil {
			return x509.ParseECPrivateKey(block.Bytes)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// obtain creates a CSR for a key, and waits for the certificate. requested is called with the key, as PEM, when the server has the CSR.
func (c *Certificate) obtain(ctx context.Context, api *client.Client, key *ecdsa.PrivateKey, requested func(key []byte) error) error {
	template := c.Template()
	if template == nil {
		return errors.New("subject of the certificate is not known yet")
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return fmt.Errorf("create certificate request: %w", err)
	}
	purpose := certificatesv1.UsageClientAuth
	if c.Signer == certificatesv1.KubeletServingSignerName {
		purpose = certificatesv1.UsageServerAuth
	}
	requests := client.For[*certificatesv1.CertificateSigningRequest](api)
	request, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: c.Signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, purpose},
		},
	}, client.WriteOptions{})
	if err != nil {
		return fmt.Errorf("create CertificateSigningRequest: %w", err)
	}
	if err := requested(keyPEM); err != nil {
		return err
	}
	cert, err := c.await(ctx, requests, request)
	if err != nil {
		return err
	}
	if err := c.Store(cert, keyPEM); err != nil {
		return fmt.Errorf("store certificate of request %s: %w", request.Name, err)
	}
	return nil
}

// await waits until a CSR is signed or denied. It polls often at first, because CSRs are usually approved automatically.
func (c *Certificate) await(ctx context.Context, requests client.Resource[*certificatesv1.CertificateSigningRequest], request *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	waiting, cancel := context.WithTimeout(ctx, approvalTimeout)
	defer cancel()
	logged := false
	for wait := 20 * time.Millisecond; ; wait = min(wait*3/2, 3*time.Second) {
		select {
		case <-time.After(wait):
		case <-waiting.Done():
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("request %s was not approved within %v: approve it with `kubectl certificate approve`", request.Name, approvalTimeout)
		}
		now, err := requests.Get(waiting, "", request.Name)
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return nil, fmt.Errorf("get request %s: %w", request.Name, err)
		case err != nil: // the server may be temporarily unavailable
			c.Log.Debug("failed to get certificate request", "request", request.Name, "error", err)
			continue
		case now.UID != request.UID:
			return nil, fmt.Errorf("request %s was replaced", request.Name)
		}
		for _, condition := range now.Status.Conditions {
			if condition.Type == certificatesv1.CertificateDenied || condition.Type == certificatesv1.CertificateFailed {
				return nil, fmt.Errorf("request %s: %s: %s: %s", request.Name, condition.Type, condition.Reason, condition.Message)
			}
		}
		if len(now.Status.Certificate) > 0 {
			return now.Status.Certificate, nil
		}
		if wait >= 2*time.Second && !logged {
			logged = true
			c.Log.Info("waiting for certificate; see `kubectl describe csr`, approve with `kubectl certificate approve`", "request", request.Name, "signer", c.Signer)
		}
	}
}
