// Package encryption keeps objects in the store unreadable for who has only the store. It stands between the cache and the
// store: values are sealed on their way in and opened on their way out, so that everybody above works with plain
// bytes and nobody below sees any.
//
// An EncryptionConfiguration says for each resource which providers to use, in order: the first seals, all open. The sealed
// forms are upstream's to the byte, each with a prefix that names provider and key:
//
//	k8s:enc:aescbc:v1:<key>:     AES-CBC, a random vector first
//	k8s:enc:aesgcm:v1:<key>:     AES-GCM, a random nonce first
//	k8s:enc:secretbox:v1:<key>:  XSalsa20 and Poly1305, a random nonce first
//	k8s:enc:kms:v2:<name>:       a message with the data, and the seed of its key as a key management service sealed it
//
// The key of the store is authenticated along with the value, where the method allows: an object cannot be put in another's place.
//
// What cannot be opened stays as it is, sealed, and does not keep anything else from being read: whoever asks for that
// very object gets the error, and the object when it can be opened after all, because a service is back.
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

// transformer seals and opens values. key is the store's, and is authenticated where that is possible.
type transformer interface {
	seal(ctx context.Context, plain, key []byte) ([]byte, error)
	// open also tells whether the value is stale: it would be sealed otherwise today.
	open(ctx context.Context, sealed, key []byte) (plain []byte, stale bool, err error)
}

// prefixed is a transformer of values that begin with a prefix.
type prefixed struct {
	prefix []byte
	transformer
}

// chain seals with its first member and opens with whichever fits.
type chain struct {
	members []prefixed
	// none is the error when no member fits.
	none error
}

func (c *chain) seal(ctx context.Context, plain, key []byte) ([]byte, error) {
	first := &c.members[0]
	sealed, err := first.transformer.seal(ctx, plain, key)
	if err != nil || len(first.prefix) == 0 {
		return sealed, err
	}
	return append(first.prefix[:len(first.prefix):len(first.prefix)], sealed...), nil
}

func (c *chain) open(ctx context.Context, sealed, key []byte) ([]byte, bool, error) {
	var errs []error
	for i := range c.members {
		m := &c.members[i]
		if !bytes.HasPrefix(sealed, m.prefix) {
			continue
		}
		plain, stale, err := m.transformer.open(ctx, sealed[len(m.prefix):], key)
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

// identity leaves values as they are. It refuses to open what somebody else has sealed.
type identity struct{}

func (identity) seal(_ context.Context, plain, _ []byte) ([]byte, error) { return plain, nil }

func (identity) open(_ context.Context, sealed, _ []byte) ([]byte, bool, error) {
	if store.Sealed(sealed) {
		return nil, false, store.ErrNotConfigured
	}
	return sealed, false, nil
}

// rules are the transformers of all resources.
type rules struct {
	byResource map[schema.GroupResource]transformer
	services   []*service
	content    []byte // of the file
}

var anything = schema.GroupResource{Group: "*", Resource: "*"}

func (r *rules) of(gr schema.GroupResource) transformer {
	if t := r.byResource[gr]; t != nil {
		return t
	}
	if t := r.byResource[schema.GroupResource{Group: gr.Group, Resource: "*"}]; t != nil {
		return t
	}
	if t := r.byResource[anything]; t != nil {
		return t
	}
	return identity{}
}

// close lets the services go.
func (r *rules) close() error {
	var errs []error
	for _, s := range r.services {
		errs = append(errs, s.connection.Close())
	}
	return errors.Join(errs...)
}

// Encryption seals and opens values by a configuration file. A nil Encryption has nothing to run and nothing to check.
type Encryption struct {
	path   string
	reload bool
	log    *slog.Logger
	rules  atomic.Pointer[rules]
	// poll is how often the file is looked at.
	poll time.Duration
}

// filePoll is how often the file is looked at, as upstream does.
const filePoll = time.Minute

// New reads the file. The services it names need not answer yet. reload: the file is read again when it changes.
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
	e.rules.Store(r)
	return e, nil
}

func (e *Encryption) parse(content []byte) (*rules, error) {
	r, err := parseRules(content)
	if err != nil {
		return nil, fmt.Errorf("encryption configuration %s: %w", e.path, err)
	}
	return r, nil
}

// Prime asks the services for their keys, so that the first writes need not fail. It returns after a moment, successful or not.
func (e *Encryption) Prime(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range e.rules.Load().services {
		all.Go(func() {
			if err := s.probe(ctx); err != nil {
				e.log.Warn("a key management service is not ready", "name", s.name, "error", err)
			}
		})
	}
	all.Wait()
}

// Run keeps in touch with the services, and follows the file if that is wanted, until ctx ends.
func (e *Encryption) Run(ctx context.Context) error {
	if e == nil {
		return nil
	}
	for {
		r := e.rules.Load()
		following, stop := context.WithCancel(ctx)
		var probes sync.WaitGroup
		for _, s := range r.services {
			probes.Go(func() { s.follow(following, e.log) })
		}
		next := e.nextRules(ctx)
		if next != nil {
			e.rules.Store(next)
			e.log.Info("encryption configuration was read again", "file", e.path)
		}
		stop()
		probes.Wait()
		if next == nil {
			return r.close()
		}
		// Who began with the old rules may still need their services.
		time.AfterFunc(r.grace(), func() { _ = r.close() })
	}
}

// nextRules waits until the file says something new that can be used, or until ctx ends.
func (e *Encryption) nextRules(ctx context.Context) *rules {
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
		next, err := e.readAgain(ctx)
		if err != nil {
			e.log.Error("encryption configuration cannot be used, the old one stays", "error", err)
		}
		if next != nil {
			return next
		}
	}
}

func (e *Encryption) readAgain(ctx context.Context) (*rules, error) {
	content, err := os.ReadFile(e.path)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(content, e.rules.Load().content) {
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

// shortestGrace is how long at least new services may take to answer, and old ones are kept.
const shortestGrace = 10 * time.Second

func (r *rules) grace() time.Duration {
	sum := time.Duration(0)
	for _, s := range r.services {
		sum += 2 * s.timeout
	}
	return max(sum, shortestGrace)
}

// await waits for all services to be healthy.
func (r *rules) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.grace())
	defer cancel()
	for {
		err := r.healthy(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("key management services of the new configuration: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (r *rules) healthy(ctx context.Context) error {
	var errs []error
	for i, s := range r.services {
		if err := s.probe(ctx); err != nil {
			errs = append(errs, fmt.Errorf("kms-provider-%d: %w", i, err))
		}
	}
	return utilerrors.Reduce(utilerrors.NewAggregate(errs))
}

// Healthy tells whether all key management services are, for the check of this name.
func (e *Encryption) Healthy(ctx context.Context) error { return e.rules.Load().healthy(ctx) }

// HealthCheck is the name of the check, empty when there is nothing to check.
func (e *Encryption) HealthCheck() string {
	if e == nil {
		return ""
	}
	if e.reload || len(e.rules.Load().services) > 0 {
		return "kms-providers"
	}
	return ""
}
