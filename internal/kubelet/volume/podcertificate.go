package volume

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

// How long the first sync of a pod waits for its certificate. Later syncs check once each.
const (
	firstCertificateTimeout = 5 * time.Second
	initialPollInterval     = 50 * time.Millisecond
)

// certificates are the pod certificates of this node. Keys are created here and never leave the node. Nothing is
// persisted: after a restart a pod gets a new key and certificate.
type certificates struct {
	api      certificateAPI
	nodeName string
	now      func() time.Time

	mu     sync.Mutex
	issued map[certificateKey]*certificate
}

// certificateAPI is the part of the API that issuing certificates needs.
type certificateAPI struct {
	account func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	node    func(ctx context.Context, name string) (*corev1.Node, error)
	create  func(ctx context.Context, r *certificatesv1.PodCertificateRequest) (*certificatesv1.PodCertificateRequest, error)
	get     func(ctx context.Context, namespace, name string) (*certificatesv1.PodCertificateRequest, error)
}

// certificateKey identifies one source of a projected volume.
type certificateKey struct {
	pod    types.UID
	volume string
	index  int
}

// certificate is the state of a source: its current certificate, a pending request for the next one, or a denial, which
// is final.
type certificate struct {
	mu         sync.Mutex
	key, chain []byte
	refreshAt  time.Time

	request    string // name of the pending request
	requestKey []byte
	denied     error
}

func newCertificates(c *client.Client, nodeName string) *certificates {
	return &certificates{
		nodeName: nodeName, now: time.Now, issued: map[certificateKey]*certificate{},
		api: certificateAPI{
			account: func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
				return client.For[*corev1.ServiceAccount](c).Get(ctx, namespace, name)
			},
			node: func(ctx context.Context, name string) (*corev1.Node, error) {
				return client.For[*corev1.Node](c).Get(ctx, "", name)
			},
			create: func(ctx context.Context, r *certificatesv1.PodCertificateRequest) (*certificatesv1.PodCertificateRequest, error) {
				return client.For[*certificatesv1.PodCertificateRequest](c).Create(ctx, r, client.WriteOptions{})
			},
			get: func(ctx context.Context, namespace, name string) (*certificatesv1.PodCertificateRequest, error) {
				return client.For[*certificatesv1.PodCertificateRequest](c).Get(ctx, namespace, name)
			},
		},
	}
}

// get returns the private key and the certificate chain of a source as PEM. It requests a certificate if there is none or
// the current one is due for renewal; meanwhile the current one is used.
func (s *certificates) get(ctx context.Context, pod *corev1.Pod, volume string, index int, source *corev1.PodCertificateProjection) (key, chain []byte, err error) {
	c := s.of(certificateKey{pod: pod.UID, volume: volume, index: index})
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, firstCertificateTimeout)
	defer cancel()
	for poll := initialPollInterval; ; poll *= 2 {
		err := s.advance(ctx, pod, source, c)
		switch {
		case c.chain != nil:
			return c.key, c.chain, nil
		case c.denied != nil:
			return nil, nil, c.denied
		case err != nil && ctx.Err() == nil:
			return nil, nil, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, errors.New("credential bundle is not issued yet")
		case <-time.After(poll):
		}
	}
}

func (s *certificates) of(key certificateKey) *certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.issued[key]
	if c == nil {
		c = &certificate{}
		s.issued[key] = c
	}
	return c
}

func (s *certificates) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.issued {
		if key.pod == uid {
			delete(s.issued, key)
		}
	}
}

// advance creates a request for a certificate, or processes the response to one.
func (s *certificates) advance(ctx context.Context, pod *corev1.Pod, source *corev1.PodCertificateProjection, c *certificate) error {
	if c.denied != nil || c.request == "" && c.chain != nil && s.now().Before(c.refreshAt) {
		return nil
	}
	if c.request == "" {
		key, request, err := s.createRequest(ctx, pod, source)
		if err != nil {
			return fmt.Errorf("while creating PodCertificateRequest: %w", err)
		}
		c.requestKey, c.request = key, request.Name
	}
	request, err := s.api.get(ctx, pod.Namespace, c.request)
	if apierrors.IsNotFound(err) {
		c.request, c.requestKey = "", nil // it was deleted; the next call creates another
		return nil
	}
	if err != nil {
		return fmt.Errorf("while getting PodCertificateRequest %q: %w", pod.Namespace+"/"+c.request, err)
	}
	for _, condition := range request.Status.Conditions {
		switch condition.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied:
			c.denied = fmt.Errorf("PodCertificateRequest was permanently denied: reason=%q message=%q", condition.Reason, condition.Message)
		case certificatesv1.PodCertificateRequestConditionTypeFailed:
			c.denied = fmt.Errorf("PodCertificateRequest was permanently failed: reason=%q message=%q", condition.Reason, condition.Message)
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			c.key, c.chain = c.requestKey, withoutComments([]byte(request.Status.CertificateChain))
			c.request, c.requestKey = "", nil
			if request.Status.BeginRefreshAt != nil {
				c.refreshAt = request.Status.BeginRefreshAt.Time
			}
		}
	}
	return nil
}

// createRequest creates a key and a PodCertificateRequest for it.
func (s *certificates) createRequest(ctx context.Context, pod *corev1.Pod, source *corev1.PodCertificateProjection) ([]byte, *certificatesv1.PodCertificateRequest, error) {
	account, err := s.api.account(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return nil, nil, fmt.Errorf("while fetching service account: %w", err)
	}
	node, err := s.api.node(ctx, s.nodeName)
	if err != nil {
		return nil, nil, fmt.Errorf("while getting node object: %w", err)
	}
	key, proof, err := newKey(source.KeyType)
	if err != nil {
		return nil, nil, fmt.Errorf("while generating keypair: %w", err)
	}
	request, err := s.api.create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: source.SignerName, PodName: pod.Name, PodUID: pod.UID,
			ServiceAccountName: pod.Spec.ServiceAccountName, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(s.nodeName), NodeUID: node.UID,
			MaxExpirationSeconds: source.MaxExpirationSeconds, StubPKCS10Request: proof, UnverifiedUserAnnotations: source.UserAnnotations,
		},
	})
	return key, request, err
}

// newKey creates a private key of the given type, as PEM, and a PKCS#10 request that proves its possession.
func newKey(keyType string) (key, proof []byte, err error) {
	var private crypto.Signer
	switch keyType {
	case "RSA3072":
		private, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		private, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		private, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		private, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, nil, fmt.Errorf("unknown key type %q", keyType)
	}
	if err != nil {
		return nil, nil, err
	}
	if proof, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private); err != nil {
		return nil, nil, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), proof, nil
}

// withoutComments removes everything but the certificates from a chain.
func withoutComments(chain []byte) []byte {
	var text bytes.Buffer
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		text.Write(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
	}
	return text.Bytes()
}
