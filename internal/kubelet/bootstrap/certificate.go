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
	// approvalTimeout is how long a request waits for its answer before it is given up and made anew.
	approvalTimeout = 15 * time.Minute
	// checkInterval is how often Run looks: a clock may be set, a machine may sleep, a node may get other addresses.
	checkInterval = time.Minute
	// templatePollInterval is how often Run looks until it knows what to ask for.
	templatePollInterval = time.Second
	// A request that failed is made again after minRetry, and ever later, up to maxRetry.
	minRetry, maxRetry = 10 * time.Second, 15 * time.Minute
	// switchoverTime is how long connections may still use the certificate of before: clients read the file every five minutes.
	switchoverTime = 6 * time.Minute
)

// Certificate is one certificate of a node, which the cluster signs on request: kept in one file together with its key, so
// that the two always belong together.
type Certificate struct {
	// File holds the certificate and its key.
	File string
	// Signer is who is asked.
	Signer string
	// Template is what the certificate must say, or nil when that is not known yet.
	Template func() *x509.CertificateRequest
	Log      *slog.Logger

	current atomic.Pointer[tls.Certificate]
	// renewAt is when the current one is renewed. Nobody but what is called before Run, and Run, uses it.
	renewAt time.Time
}

// NodeClient is the certificate by which the API server knows the node of this name.
func NodeClient(dir, node string, log *slog.Logger) *Certificate {
	request := &x509.CertificateRequest{Subject: nodeSubject(node)}
	return &Certificate{
		File: filepath.Join(dir, "kubelet-client-current.pem"), Signer: certificatesv1.KubeAPIServerClientKubeletSignerName, Log: log,
		Template: func() *x509.CertificateRequest { return request },
	}
}

// NodeServing is the certificate by which others know the node's own server. It is for the addresses that the node has registered;
// there is none before there are some.
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

// Load takes the certificate from its file, if there is one that belongs to its key.
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
		c.Log.Warn("a kept certificate cannot be used, another one will be asked for", "file", c.File, "error", err)
		return nil
	}
	c.setCurrent(&pair)
	return nil
}

// Store makes a certificate the current one.
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

// renewalTime is between seven and nine tenths of a certificate's life, so that nodes that were made together do not ask together; but early
// enough for every connection to change over, and not in the first half.
func renewalTime(cert *x509.Certificate, share float64) time.Time {
	life := cert.NotAfter.Sub(cert.NotBefore)
	at := cert.NotBefore.Add(time.Duration(float64(life) * (0.7 + 0.2*share)))
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

// Usable says whether the certificate can be shown to somebody: there is one, it is for whom it should be and not past.
func (c *Certificate) Usable(now time.Time) bool {
	current, template := c.current.Load(), c.Template()
	return current != nil && now.Before(current.Leaf.NotAfter) && (template == nil || covers(current.Leaf, template))
}

// RenewUnlessSignedBy has Run renew the certificate at once if another authority has signed it: that one may be forgotten soon.
func (c *Certificate) RenewUnlessSignedBy(authority *x509.Certificate) {
	if current := c.current.Load(); current != nil && current.Leaf.CheckSignatureFrom(authority) != nil {
		c.renewAt = time.Time{}
	}
}

// covers: a certificate says what is template, and nothing else.
func covers(cert *x509.Certificate, template *x509.CertificateRequest) bool {
	sameIPs := len(cert.IPAddresses) == len(template.IPAddresses) && !slices.ContainsFunc(template.IPAddresses, func(ip net.IP) bool {
		return !slices.ContainsFunc(cert.IPAddresses, ip.Equal)
	})
	return sameIPs && cert.Subject.CommonName == template.Subject.CommonName && slices.Equal(cert.Subject.Organization, template.Subject.Organization) &&
		slices.Equal(cert.DNSNames, template.DNSNames)
}

// Run asks for the certificate when there is none, in time before it ends, and when what it must say has changed, until ctx ends.
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
				c.Log.Error("the cluster does not give this node its certificate", "signer", c.Signer, "error", err, "again in", retry.String())
				wait, retry = retry, min(2*retry, maxRetry)
				break
			}
			retry = minRetry
			c.Log.Info("certificate received", "signer", c.Signer, "until", c.current.Load().Leaf.NotAfter)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// Obtain makes a key, asks for a certificate for it and waits for the answer.
func (c *Certificate) Obtain(ctx context.Context, api *client.Client) error {
	template := c.Template()
	if template == nil {
		return errors.New("it is not known yet what the certificate must say")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return fmt.Errorf("make a certificate request: %w", err)
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
		return fmt.Errorf("ask for a certificate: %w", err)
	}
	cert, err := c.await(ctx, requests, request)
	if err != nil {
		return err
	}
	if err := c.Store(cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})); err != nil {
		return fmt.Errorf("keep the certificate of request %s: %w", request.Name, err)
	}
	return nil
}

// await waits until a request is answered: at first impatiently, for usually nobody has to be asked.
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
			return nil, fmt.Errorf("nobody has approved request %s within %v: `kubectl certificate approve` does", request.Name, approvalTimeout)
		}
		now, err := requests.Get(waiting, "", request.Name)
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return nil, fmt.Errorf("see what became of request %s: %w", request.Name, err)
		case err != nil: // the server may be away for a moment
			c.Log.Debug("a certificate request cannot be read", "request", request.Name, "error", err)
			continue
		case now.UID != request.UID:
			return nil, fmt.Errorf("request %s has become another's", request.Name)
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
			c.Log.Info("waiting for a certificate; `kubectl describe csr` tells more, `kubectl certificate approve` approves", "request", request.Name, "signer", c.Signer)
		}
	}
}
