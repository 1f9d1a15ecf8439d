package encryption

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	kmsapi "k8s.io/kms/apis/v2"
)

const (
	// A seed is written with for at most seedLife after the service last confirmed its key; it is asked every
	// probeInterval, or every retryInterval while it does not answer. An answer counts for a while, by what it was.
	seedLife      = 3 * time.Minute
	probeInterval = time.Minute
	retryInterval = 10 * time.Second
	goodAnswer    = 20 * time.Second
	badAnswer     = 3 * time.Second

	// maxOpened bounds the keys that are remembered for reading.
	maxOpened = 10000
)

// service is a key management service behind a socket, and the key it last gave us: a seed that we made, and that the service
// sealed. Every value is sealed with a key of its own, derived from the seed.
type service struct {
	name       string
	timeout    time.Duration
	connection *grpc.ClientConn
	client     kmsapi.KeyManagementServiceClient

	// current is what is written with, nil until the service has sealed a seed.
	current atomic.Pointer[seed]

	// opened are the transformers of seeds the service has opened, by sealed form, key and annotations.
	openedMu sync.Mutex
	opened   map[string]transformer

	// The last probe. mu is held while one is made.
	mu       sync.Mutex
	version  string
	answered time.Time
	answer   error

	// failed is when the service last could not open a seed, in nanoseconds.
	failed atomic.Int64
}

// seed is what values are sealed with until the service changes its key.
type seed struct {
	transformer transformer
	envelope    envelope // without data
	expires     time.Time
}

func newService(name, endpoint string, timeout time.Duration) (*service, error) {
	address := strings.TrimPrefix(endpoint, "unix://")
	// A name that begins with @ is one of Linux' abstract sockets.
	if abstract, ok := strings.CutPrefix(address, "/@"); ok {
		address = "@" + abstract
	}
	connection, err := grpc.NewClient("passthrough:///kms",
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		}))
	if err != nil {
		return nil, fmt.Errorf("could not configure KMSv2-Plugin's probe %q, error: %w", name, err)
	}
	return &service{
		name: name, timeout: timeout, connection: connection, client: kmsapi.NewKeyManagementServiceClient(connection),
		opened: map[string]transformer{},
	}, nil
}

func (s *service) seal(ctx context.Context, plain, key []byte) ([]byte, error) {
	current := s.current.Load()
	if current == nil {
		return nil, errors.New("got unexpected nil transformer")
	}
	if now := time.Now(); now.After(current.expires) {
		return nil, fmt.Errorf("encryptedDEKSource with keyID hash %q expired at %s (current time is %s)",
			hashed(current.envelope.keyID), current.expires.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	data, err := current.transformer.seal(ctx, plain, key)
	if err != nil {
		return nil, err
	}
	e := current.envelope
	e.data = data
	return e.append(nil), nil
}

func (s *service) open(ctx context.Context, sealed, key []byte) ([]byte, bool, error) {
	e, err := parseEnvelope(sealed)
	if err != nil {
		return nil, false, err
	}
	current := s.current.Load()
	if current == nil {
		return nil, false, errors.New("got unexpected nil transformer")
	}
	t, err := s.transformerOf(ctx, &e)
	if err != nil {
		return nil, false, err
	}
	plain, _, err := t.open(ctx, e.data, key)
	if err != nil {
		return nil, false, err
	}
	return plain, e.keyID != current.envelope.keyID || e.source != current.envelope.source, nil
}

// transformerOf asks the service to open the seed or the key that a value was sealed with, unless it did so before.
func (s *service) transformerOf(ctx context.Context, e *envelope) (transformer, error) {
	id := e.identity()
	s.openedMu.Lock()
	t := s.opened[id]
	s.openedMu.Unlock()
	if t != nil {
		return t, nil
	}
	if isHasty(ctx) && time.Since(time.Unix(0, s.failed.Load())) < retryInterval {
		return nil, errors.New("the key management service did not answer a moment ago")
	}
	call, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	response, err := s.client.Decrypt(call, &kmsapi.DecryptRequest{
		Ciphertext: e.sealedKey, Uid: uuid.NewString(), KeyId: e.keyID, Annotations: e.annotations,
	})
	if err != nil {
		s.failed.Store(time.Now().UnixNano())
		return nil, fmt.Errorf("failed to decrypt DEK, error: %w", err)
	}
	if e.source == sourceSeed {
		t, err = newDerived(response.Plaintext)
	} else {
		t, err = newGCM(response.Plaintext)
	}
	if err != nil {
		return nil, err
	}
	s.remember(id, t)
	return t, nil
}

func (s *service) remember(id string, t transformer) {
	s.openedMu.Lock()
	defer s.openedMu.Unlock()
	if len(s.opened) >= maxOpened {
		clear(s.opened)
	}
	s.opened[id] = t
}

// hasty marks the contexts of those who would rather do without than wait for a service that was silent a moment ago.
type hasty struct{}

func isHasty(ctx context.Context) bool { return ctx.Value(hasty{}) != nil }

// follow asks the service again and again, until ctx ends.
func (s *service) follow(ctx context.Context, log *slog.Logger) {
	for {
		wait := probeInterval
		if err := s.probe(ctx); err != nil && ctx.Err() == nil {
			log.Warn("a key management service is not healthy", "name", s.name, "error", err)
			wait = retryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// probe asks the service how it is and which key it uses. With a new key comes a new seed.
func (s *service) probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	valid := goodAnswer
	if s.answer != nil {
		valid = badAnswer
	}
	if time.Since(s.answered) < valid {
		return s.answer
	}
	err := s.ask(ctx)
	s.answered, s.answer = time.Now(), err
	return err
}

func (s *service) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	status, err := s.client.Status(ctx, &kmsapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("failed to perform status section of the healthz check for KMS Provider %s, error: %w", s.name, err)
	}
	var errs []error
	if status.Healthz != "ok" {
		errs = append(errs, fmt.Errorf("got unexpected healthz status: %s", status.Healthz))
	}
	switch {
	case status.Version != "v2" && status.Version != "v2beta1":
		errs = append(errs, fmt.Errorf("expected KMSv2 API version v2, got %s", status.Version))
	case s.version == "":
		s.version = status.Version
	case s.version != status.Version:
		errs = append(errs, fmt.Errorf("KMSv2 API version should not change after the initial status response version %s, got %s", s.version, status.Version))
	}
	if err := validateKeyID(status.KeyId); err != nil {
		errs = append(errs, fmt.Errorf("got invalid KMSv2 KeyID hash %q: %w", hashed(status.KeyId), err))
	} else {
		errs = append(errs, s.renew(ctx, status.KeyId))
	}
	if err := utilerrors.Reduce(utilerrors.NewAggregate(errs)); err != nil {
		return fmt.Errorf("kmsv2 Provider %s is not healthy, error: %w", s.name, err)
	}
	return nil
}

// renew lets the seed live on, or makes a new one when the service uses another key.
func (s *service) renew(ctx context.Context, keyID string) error {
	expires := time.Now().Add(seedLife)
	if current := s.current.Load(); current != nil && current.envelope.keyID == keyID {
		s.current.Store(&seed{current.transformer, current.envelope, expires})
		return nil
	}
	secret := make([]byte, seedSize)
	rand.Read(secret)
	t, err := newDerived(secret)
	if err != nil {
		return err
	}
	response, err := s.client.Encrypt(ctx, &kmsapi.EncryptRequest{Plaintext: secret, Uid: uuid.NewString()})
	if err != nil {
		return fmt.Errorf("failed to encrypt DEK, error: %w", err)
	}
	e := envelope{keyID: response.KeyId, sealedKey: response.Ciphertext, annotations: response.Annotations, source: sourceSeed, data: []byte{0}}
	if err := e.validate(); err != nil {
		return err
	}
	if e.keyID != keyID {
		return fmt.Errorf("failed to rotate DEK: the service says its key is %q, and seals with %q", hashed(keyID), hashed(e.keyID))
	}
	e.data = nil
	s.remember(e.identity(), t)
	s.current.Store(&seed{t, e, expires})
	return nil
}

// hashed is how keys of services are shown.
func hashed(keyID string) string {
	if keyID == "" {
		return ""
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(keyID)))
}
