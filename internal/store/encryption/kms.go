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
	// A seed is used to encrypt for at most seedLifetime after the plugin last confirmed its key. The plugin is probed every
	// probeInterval, or every retryInterval while it is not healthy. The result of a probe is cached for a shorter time.
	seedLifetime    = 3 * time.Minute
	probeInterval   = time.Minute
	retryInterval   = 10 * time.Second
	healthyProbeTTL = 20 * time.Second
	failedProbeTTL  = 3 * time.Second

	// maxDecryptedKeys bounds the decrypted keys in memory.
	maxDecryptedKeys = 10000
	// maxBackgroundCalls bounds the calls to a plugin that no request waits for.
	maxBackgroundCalls = 8
)

// kmsProvider is a KMS plugin behind a socket, and the current seed: made here, encrypted by the plugin. Every value is
// encrypted with its own key, derived from the seed.
type kmsProvider struct {
	name       string
	timeout    time.Duration
	connection *grpc.ClientConn
	client     kmsapi.KeyManagementServiceClient

	// current is the seed to encrypt with, nil until the plugin has encrypted one.
	current atomic.Pointer[seed]

	// decrypted are the transformers of the seeds that the plugin has decrypted, by envelope.identity.
	decryptedMu sync.Mutex
	decrypted   map[string]transformer
	decrypting  map[string]bool // calls to the plugin in the background

	// The last probe. mu is held during a probe.
	mu       sync.Mutex
	version  string
	probed   time.Time
	probeErr error

	// failed is when the plugin last failed to decrypt a seed, in Unix nanoseconds.
	failed atomic.Int64
}

// seed encrypts values until the plugin changes its key.
type seed struct {
	transformer transformer
	envelope    envelope // without data
	expires     time.Time
}

func newKMSProvider(name, endpoint string, timeout time.Duration) (*kmsProvider, error) {
	address := strings.TrimPrefix(endpoint, "unix://")
	// A name that begins with @ is an abstract Unix socket.
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
	return &kmsProvider{
		name: name, timeout: timeout, connection: connection, client: kmsapi.NewKeyManagementServiceClient(connection),
		decrypted: map[string]transformer{}, decrypting: map[string]bool{},
	}, nil
}

func (s *kmsProvider) encrypt(ctx context.Context, plain, key []byte) ([]byte, error) {
	current := s.current.Load()
	if current == nil {
		return nil, errors.New("got unexpected nil transformer")
	}
	if now := time.Now(); now.After(current.expires) {
		return nil, fmt.Errorf("encryptedDEKSource with keyID hash %q expired at %s (current time is %s)",
			keyIDHash(current.envelope.keyID), current.expires.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	data, err := current.transformer.encrypt(ctx, plain, key)
	if err != nil {
		return nil, err
	}
	e := current.envelope
	e.data = data
	return e.append(nil), nil
}

func (s *kmsProvider) decrypt(ctx context.Context, encrypted, key []byte) ([]byte, bool, error) {
	e, err := parseEnvelope(encrypted)
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
	plain, _, err := t.decrypt(ctx, e.data, key)
	if err != nil {
		return nil, false, err
	}
	return plain, e.keyID != current.envelope.keyID || e.source != current.envelope.source, nil
}

// transformerOf has the plugin decrypt the seed or key of an envelope, unless it is cached.
func (s *kmsProvider) transformerOf(ctx context.Context, e *envelope) (transformer, error) {
	id := e.identity()
	s.decryptedMu.Lock()
	t := s.decrypted[id]
	s.decryptedMu.Unlock()
	if t != nil {
		return t, nil
	}
	if mode := pluginCallsOf(ctx); mode != callAlways && time.Since(time.Unix(0, s.failed.Load())) < retryInterval {
		return nil, errors.New("the KMS plugin failed a moment ago")
	} else if mode == callInBackground {
		s.decryptInBackground(id, e)
		return nil, errors.New("the KMS plugin has not decrypted the key yet")
	}
	return s.decryptKey(ctx, id, e)
}

// decryptInBackground has the plugin decrypt a key for values that are read later.
func (s *kmsProvider) decryptInBackground(id string, e *envelope) {
	s.decryptedMu.Lock()
	defer s.decryptedMu.Unlock()
	if s.decrypting[id] || len(s.decrypting) >= maxBackgroundCalls {
		return
	}
	s.decrypting[id] = true
	key := *e
	key.data = nil // a whole object, which the call does not need
	go func() {
		// An error is counted in failed; whoever needs the value gets it by a call of their own.
		_, _ = s.decryptKey(context.Background(), id, &key)
		s.decryptedMu.Lock()
		defer s.decryptedMu.Unlock()
		delete(s.decrypting, id)
	}()
}

// decryptKey has the plugin decrypt the seed or key of an envelope, and caches it.
func (s *kmsProvider) decryptKey(ctx context.Context, id string, e *envelope) (t transformer, err error) {
	call, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	response, err := s.client.Decrypt(call, &kmsapi.DecryptRequest{
		Ciphertext: e.encryptedDEK, Uid: uuid.NewString(), KeyId: e.keyID, Annotations: e.annotations,
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
	s.addDecrypted(id, t)
	return t, nil
}

func (s *kmsProvider) addDecrypted(id string, t transformer) {
	s.decryptedMu.Lock()
	defer s.decryptedMu.Unlock()
	if len(s.decrypted) >= maxDecryptedKeys {
		clear(s.decrypted)
	}
	s.decrypted[id] = t
}

// pluginCalls says when a read calls a plugin to decrypt a key that is not cached.
type pluginCalls int

const (
	// callAlways is for reads of one object.
	callAlways pluginCalls = iota
	// callUnlessFailed is for lists: one that failed a moment ago is not called for each object.
	callUnlessFailed
	// callInBackground is for the watch feed, on which a slow plugin must not delay the events of other kinds.
	callInBackground
)

type pluginCallsKey struct{}

func withPluginCalls(ctx context.Context, mode pluginCalls) context.Context {
	return context.WithValue(ctx, pluginCallsKey{}, mode)
}

func pluginCallsOf(ctx context.Context) pluginCalls {
	mode, _ := ctx.Value(pluginCallsKey{}).(pluginCalls)
	return mode
}

// probePeriodically probes the plugin until ctx is done.
func (s *kmsProvider) probePeriodically(ctx context.Context, log *slog.Logger) {
	for {
		wait := probeInterval
		if err := s.probe(ctx); err != nil && ctx.Err() == nil {
			log.Warn("KMS plugin is not healthy", "name", s.name, "error", err)
			wait = retryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// probe checks the plugin's health and its current key. A new key needs a new seed.
func (s *kmsProvider) probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	valid := healthyProbeTTL
	if s.probeErr != nil {
		valid = failedProbeTTL
	}
	if time.Since(s.probed) < valid {
		return s.probeErr
	}
	err := s.checkStatus(ctx)
	s.probed, s.probeErr = time.Now(), err
	return err
}

func (s *kmsProvider) checkStatus(ctx context.Context) error {
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
		errs = append(errs, fmt.Errorf("got invalid KMSv2 KeyID hash %q: %w", keyIDHash(status.KeyId), err))
	} else {
		errs = append(errs, s.renew(ctx, status.KeyId))
	}
	if err := utilerrors.Reduce(utilerrors.NewAggregate(errs)); err != nil {
		return fmt.Errorf("kmsv2 Provider %s is not healthy, error: %w", s.name, err)
	}
	return nil
}

// renew extends the lifetime of the seed, or makes a new one when the plugin uses another key.
func (s *kmsProvider) renew(ctx context.Context, keyID string) error {
	expires := time.Now().Add(seedLifetime)
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
	e := envelope{keyID: response.KeyId, encryptedDEK: response.Ciphertext, annotations: response.Annotations, source: sourceSeed, data: []byte{0}}
	if err := e.validate(); err != nil {
		return err
	}
	if e.keyID != keyID {
		return fmt.Errorf("failed to rotate DEK: the plugin reports key ID %q but encrypts with %q", keyIDHash(keyID), keyIDHash(e.keyID))
	}
	e.data = nil
	s.addDecrypted(e.identity(), t)
	s.current.Store(&seed{t, e, expires})
	return nil
}

// keyIDHash is how key IDs appear in errors.
func keyIDHash(keyID string) string {
	if keyID == "" {
		return ""
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(keyID)))
}
