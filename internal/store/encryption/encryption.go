// Package encryption encrypts objects at rest. It wraps the store below the cache: values are encrypted when they are
// written and decrypted when they are read.
//
// An EncryptionConfiguration lists the providers of each resource, in order: the first encrypts, all decrypt. The
// encrypted values are byte-compatible with upstream's. Each has a prefix that names provider and key:
//
//	k8s:enc:aescbc:v1:<key>:     AES-CBC, after a random initialization vector
//	k8s:enc:aesgcm:v1:<key>:     AES-GCM, after a random nonce
//	k8s:enc:secretbox:v1:<key>:  XSalsa20 and Poly1305, after a random nonce
//	k8s:enc:kms:v2:<name>:       a message with the ciphertext and the DEK seed as encrypted by a KMS plugin
//
// Where the cipher allows it, the storage key is authenticated with the value, so that an encrypted object cannot be
// moved to another key.
//
// A value that cannot be decrypted stays encrypted and does not prevent others from being read: a request for that
// object gets the error, and later the object if it can be decrypted by then, because the KMS plugin is available again.
package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"skiff/internal/store"
)

// transformer encrypts and decrypts values. key is the storage key; it is authenticated where the cipher allows it.
type transformer interface {
	encrypt(ctx context.Context, plain, key []byte) ([]byte, error)
	// decrypt also reports whether the value is stale: a write would use another provider or key now.
	decrypt(ctx context.Context, encrypted, key []byte) (plain []byte, stale bool, err error)
}

// prefixed is a transformer of values that begin with a prefix.
type prefixed struct {
	prefix []byte
	transformer
}

// chain encrypts with its first member and decrypts with every member whose prefix matches.
type chain struct {
	members []prefixed
	// none is the error when no prefix matches.
	none error
}

func (c *chain) encrypt(ctx context.Context, plain, key []byte) ([]byte, error) {
	first := &c.members[0]
	encrypted, err := first.transformer.encrypt(ctx, plain, key)
	if err != nil || len(first.prefix) == 0 {
		return encrypted, err
	}
	return append(first.prefix[:len(first.prefix):len(first.prefix)], encrypted...), nil
}

func (c *chain) decrypt(ctx context.Context, encrypted, key []byte) ([]byte, bool, error) {
	var errs []error
	for i := range c.members {
		m := &c.members[i]
		if !bytes.HasPrefix(encrypted, m.prefix) {
			continue
		}
		plain, stale, err := m.transformer.decrypt(ctx, encrypted[len(m.prefix):], key)
		if err == nil {
			return plain, stale || i > 0, nil
		}
		if len(m.prefix) > 0 {
			errs = append(errs, err)
		}
	}
	if err := utilerrors.Reduce(utilerrors.NewAggregate(errs)); err != nil {
		return nil, false, err
	}
	return nil, false, c.none
}

// identity does not encrypt. It refuses to decrypt encrypted values.
type identity struct{}

func (identity) encrypt(_ context.Context, plain, _ []byte) ([]byte, error) { return plain, nil }

func (identity) decrypt(_ context.Context, encrypted, _ []byte) ([]byte, bool, error) {
	if store.IsEncrypted(encrypted) {
		return nil, false, store.ErrNoProvider
	}
	return encrypted, false, nil
}

// transformers are the transformers of all resources, made from one version of the configuration file.
type transformers struct {
	byResource map[schema.GroupResource]transformer
	providers  []*kmsProvider
	content    []byte // of the file
}

var allResources = schema.GroupResource{Group: "*", Resource: "*"}

func (r *transformers) forResource(gr schema.GroupResource) transformer {
	if t := r.byResource[gr]; t != nil {
		return t
	}
	if t := r.byResource[schema.GroupResource{Group: gr.Group, Resource: "*"}]; t != nil {
		return t
	}
	if t := r.byResource[allResources]; t != nil {
		return t
	}
	return identity{}
}

// close closes the connections to the KMS plugins.
func (r *transformers) close() error {
	var errs []error
	for _, s := range r.providers {
		errs = append(errs, s.connection.Close())
	}
	return errors.Join(errs...)
}

// Encryption encrypts and decrypts values as a configuration file says. Run and HealthCheck accept a nil Encryption.
type Encryption struct {
	path         string
	reload       bool
	log          *slog.Logger
	transformers atomic.Pointer[transformers]
	// poll is how often the file is checked for changes.
	poll time.Duration
}

// filePoll is upstream's interval.
const filePoll = time.Minute

// New reads the configuration file. The KMS plugins need not be available yet. With reload, Run rereads the file when it changes.
func New(path string, reload bool, log *slog.Logger) (*Encryption, error) {
	e := &Encryption{path: path, reload: reload, log: log, poll: filePoll}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read encryption configuration: %w", err)
	}
	r, err := e.parse(content)
	if err != nil {
		return nil, err
	}
	e.transformers.Store(r)
	return e, nil
}

func (e *Encryption) parse(content []byte) (*transformers, error) {
	r, err := parseConfiguration(content)
	if err != nil {
		return nil, fmt.Errorf("encryption configuration %s: %w", e.path, err)
	}
	return r, nil
}

// ProbeProviders gets the current keys of the KMS plugins, so that the first writes can be encrypted. It returns after the
// plugins' timeout at the latest.
func (e *Encryption) ProbeProviders(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range e.transformers.Load().providers {
		all.Go(func() {
			if err := s.probe(ctx); err != nil {
				e.log.Warn("KMS plugin is not ready", "name", s.name, "error", err)
			}
		})
	}
	all.Wait()
}

// Run probes the KMS plugins and, with reload, watches the configuration file, until ctx is done.
func (e *Encryption) Run(ctx context.Context) error {
	if e == nil {
		return nil
	}
	for {
		r := e.transformers.Load()
		probing, stop := context.WithCancel(ctx)
		var probes sync.WaitGroup
		for _, s := range r.providers {
			probes.Go(func() { s.probePeriodically(probing, e.log) })
		}
		next := e.waitForChange(ctx)
		if next != nil {
			e.transformers.Store(next)
			e.log.Info("reloaded encryption configuration", "file", e.path)
		}
		stop()
		probes.Wait()
		if next == nil {
			return r.close()
		}
		// Calls that started with the old transformers may still use their connections.
		time.AfterFunc(r.grace(), func() { _ = r.close() })
	}
}

// waitForChange waits until the file has a new valid configuration, or until ctx is done.
func (e *Encryption) waitForChange(ctx context.Context) *transformers {
	ticker := time.NewTicker(e.poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if !e.reload {
			continue
		}
		next, err := e.reread(ctx)
		if err != nil {
			e.log.Error("failed to reload encryption configuration, keeping the current one", "error", err)
		}
		if next != nil {
			return next
		}
	}
}

func (e *Encryption) reread(ctx context.Context) (*transformers, error) {
	content, err := os.ReadFile(e.path)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(content, e.transformers.Load().content) {
		return nil, nil
	}
	next, err := e.parse(content)
	if err != nil {
		return nil, err
	}
	if err := next.await(ctx); err != nil {
		return nil, errors.Join(err, next.close())
	}
	return next, nil
}

// minGrace is how long at least new KMS plugins may take to become healthy, and old connections are kept.
const minGrace = 10 * time.Second

func (r *transformers) grace() time.Duration {
	sum := time.Duration(0)
	for _, s := range r.providers {
		sum += 2 * s.timeout
	}
	return max(sum, minGrace)
}

// await waits until all KMS plugins are healthy.
func (r *transformers) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.grace())
	defer cancel()
	for {
		err := r.healthy(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for KMS plugins of the new configuration: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (r *transformers) healthy(ctx context.Context) error {
	var errs []error
	for i, s := range r.providers {
		if err := s.probe(ctx); err != nil {
			errs = append(errs, fmt.Errorf("kms-provider-%d: %w", i, err))
		}
	}
	return utilerrors.Reduce(utilerrors.NewAggregate(errs))
}

// Healthy returns nil if all KMS plugins are healthy.
func (e *Encryption) Healthy(ctx context.Context) error { return e.transformers.Load().healthy(ctx) }

// HealthCheck is the name of the health check; empty when there is nothing to check.
func (e *Encryption) HealthCheck() string {
	if e == nil {
		return ""
	}
	if e.reload || len(e.transformers.Load().providers) > 0 {
		return "kms-providers"
	}
	return ""
}
