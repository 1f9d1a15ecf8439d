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

// The bounds of the backoff of failed pulls.
const (
	backoffMin = 10 * time.Second
	backoffMax = 5 * time.Minute
)

// backoff is the backoff state of failed pulls, by pod and image.
type backoff struct {
	mu      sync.Mutex
	entries map[string]delay
}

type delay struct {
	since  time.Time
	length time.Duration
	last   string // the last error
}

// waiting reports whether a pull is in backoff, and the last error.
func (b *backoff) waiting(key string) (last string, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d, ok := b.entries[key]
	if !ok || time.Since(d.since) >= d.length {
		return "", false
	}
	return d.last, true
}

// failed records a failure and doubles the delay. Expired entries are removed.
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

// pulled is the result of a pull.
type pulled struct {
	ref  string
	size uint64
	took time.Duration
	err  error
}

// inFlightPull is a pull in progress. Pods that need the same image with the same credentials share it; it is cancelled when none waits for it.
type inFlightPull struct {
	done    chan struct{}
	result  pulled
	waiting int
	cancel  context.CancelFunc
}

// join waits for a pull of the image, and starts one if there is none.
func (i *Images) join(ctx context.Context, w request, with []credentials.Credential) pulled {
	key := pullKey(w.spec.Image, with)
	i.mu.Lock()
	f, ok := i.pulls[key]
	if !ok {
		within, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &inFlightPull{done: make(chan struct{}), cancel: cancel}
		i.pulls[key] = f
		go i.runPull(within, f, w, with)
	}
	f.waiting++
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if f.waiting--; f.waiting == 0 {
			f.cancel()
			// A cancelled pull must not be joined.
			if i.pulls[key] == f {
				delete(i.pulls, key)
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

func pullKey(image string, with []credentials.Credential) string {
	parts := []string{image}
	for _, c := range with {
		parts = append(parts, c.Hash(), fmt.Sprint(c.Source))
	}
	return strings.Join(parts, "\n")
}

// runPull pulls an image and publishes the result.
func (i *Images) runPull(ctx context.Context, f *inFlightPull, w request, with []credentials.Credential) {
	key := pullKey(w.spec.Image, with)
	f.result = i.pullLimited(ctx, w, with)
	i.mu.Lock()
	if i.pulls[key] == f {
		delete(i.pulls, key)
	}
	i.mu.Unlock()
	close(f.done)
}

// pullLimited pulls an image within the limits of concurrency and rate.
func (i *Images) pullLimited(ctx context.Context, w request, with []credentials.Credential) pulled {
	if i.semaphore != nil {
		select {
		case i.semaphore <- struct{}{}:
			defer func() { <-i.semaphore }()
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
	ref, used, err := i.pullWithCredentials(ctx, w, with)
	if err := i.records.end(w.spec.Image, ref, used); err != nil {
		i.Log.Error("failed to record image pull", "image", w.spec.Image, "error", err)
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

// pullWithCredentials tries each credential until one is accepted, and returns it.
func (i *Images) pullWithCredentials(ctx context.Context, w request, with []credentials.Credential) (ref string, used *credentials.Credential, err error) {
	if len(with) == 0 {
		ref, err = i.Runtime.PullImage(ctx, w.spec, nil, w.sandbox)
		return ref, nil, withoutStatus(err)
	}
	var failures []error
	for _, c := range with {
		ref, err := i.Runtime.PullImage(ctx, w.spec, &cri.RegistryAuth{Username: c.Username, Password: c.Password}, w.sandbox)
		if err == nil {
			return ref, &c, nil
		}
		failures = append(failures, withoutStatus(err))
	}
	return "", nil, aggregate(failures)
}

// withoutStatus removes the gRPC status from an error with code Unknown, because special failures are recognised by the prefix of the
// message.
func withoutStatus(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unknown {
		return errors.New(s.Message())
	}
	return err
}

// aggregate combines errors, without duplicates.
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
