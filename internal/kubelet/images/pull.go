package images

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/images/credentials"
)

// A pull that failed is tried again after the first of these, then after twice that, until the second.
const (
	backoffMin = 10 * time.Second
	backoffMax = 5 * time.Minute
)

// backoff remembers failures, by pod and image.
type backoff struct {
	mu      sync.Mutex
	entries map[string]delay
}

type delay struct {
	since  time.Time
	length time.Duration
	last   string // what went wrong
}

// waiting reports whether it is too early to try again, and what went wrong the last time.
func (b *backoff) waiting(key string) (last string, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d, ok := b.entries[key]
	if !ok || time.Since(d.since) >= d.length {
		return "", false
	}
	return d.last, true
}

// failed notes a failure and doubles the wait. Failures that are long past do not count, and are forgotten here.
func (b *backoff) failed(key, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.entries, func(_ string, d delay) bool { return time.Since(d.since) > 2*backoffMax })
	length := backoffMin
	if d, ok := b.entries[key]; ok {
		length = min(2*d.length, backoffMax)
	}
	b.entries[key] = delay{time.Now(), length, message}
}

func (b *backoff) succeeded(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.entries, key)
}

// pulled is how a pull went.
type pulled struct {
	ref  string
	size uint64
	took time.Duration
	err  error
}

// flight is a pull under way. Pods that want the same image with the same credentials share it; it ends early when none waits any more.
type flight struct {
	done    chan struct{}
	result  pulled
	waiting int
	cancel  context.CancelFunc
}

// join waits for a pull of the image, and starts it if there is none.
func (i *Images) join(ctx context.Context, w want, with []credentials.Credential) pulled {
	key := flightKey(w.spec.Image, with)
	i.mu.Lock()
	f, ok := i.flights[key]
	if !ok {
		within, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &flight{done: make(chan struct{}), cancel: cancel}
		i.flights[key] = f
		go i.fly(within, key, f, w, with)
	}
	f.waiting++
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if f.waiting--; f.waiting == 0 {
			f.cancel()
			// Nobody may join a pull that was given up.
			if i.flights[key] == f {
				delete(i.flights, key)
			}
		}
	}()
	select {
	case <-f.done:
		return f.result
	case <-ctx.Done():
		return pulled{err: ctx.Err()}
	}
}

func flightKey(image string, with []credentials.Credential) string {
	parts := []string{image}
	for _, c := range with {
		parts = append(parts, c.Hash(), fmt.Sprint(c.Source))
	}
	return strings.Join(parts, "\n")
}

// fly waits for its turn and pulls.
func (i *Images) fly(ctx context.Context, key string, f *flight, w want, with []credentials.Credential) {
	f.result = i.inTurn(ctx, w, with)
	i.mu.Lock()
	if i.flights[key] == f {
		delete(i.flights, key)
	}
	i.mu.Unlock()
	close(f.done)
}

func (i *Images) inTurn(ctx context.Context, w want, with []credentials.Credential) pulled {
	if i.tokens != nil {
		select {
		case i.tokens <- struct{}{}:
			defer func() { <-i.tokens }()
		case <-ctx.Done():
			return pulled{err: ctx.Err()}
		}
	}
	if !i.limit.Allow() {
		return pulled{err: errors.New("pull QPS exceeded")}
	}
	began := time.Now()
	if err := i.records.begin(w.spec.Image); err != nil {
		return pulled{err: fmt.Errorf("failed to record image pull intent: %w", err)}
	}
	ref, used, err := i.tryAll(ctx, w, with)
	if err := i.records.end(w.spec.Image, ref, used); err != nil {
		i.Log.Error("cannot remember who may use an image", "image", w.spec.Image, "err", err)
	}
	if err != nil {
		return pulled{err: err}
	}
	result := pulled{ref: ref, took: time.Since(began)}
	if image, err := i.Runtime.ImageStatus(ctx, w.spec); err == nil && image != nil {
		result.size = image.Size
	}
	return result
}

// tryAll pulls with each credential until one is accepted, and says which.
func (i *Images) tryAll(ctx context.Context, w want, with []credentials.Credential) (ref string, used *credentials.Credential, err error) {
	if len(with) == 0 {
		ref, err = i.Runtime.PullImage(ctx, w.spec, nil, w.sandbox)
		return ref, nil, plain(err)
	}
	var failures []error
	for _, c := range with {
		ref, err := i.Runtime.PullImage(ctx, w.spec, &cri.RegistryAuth{Username: c.Username, Password: c.Password}, w.sandbox)
		if err == nil {
			return ref, &c, nil
		}
		failures = append(failures, plain(err))
	}
	return "", nil, aggregate(failures)
}

// plain takes off what gRPC puts around an error of no particular code. Special failures are known by how their text begins.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unknown {
		return errors.New(s.Message())
	}
	return err
}

// aggregate makes one error of several: one text for those that say the same.
func aggregate(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	var texts []string
	seen := map[string]bool{}
	for _, err := range errs {
		if text := err.Error(); !seen[text] {
			seen[text] = true
			texts = append(texts, text)
		}
	}
	if len(texts) == 1 {
		return errors.New(texts[0])
	}
	return fmt.Errorf("[%s]", strings.Join(texts, ", "))
}
