package controller

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"skiff/internal/client"
)

// Environment holds the dependencies that all controllers of a process share.
type Environment struct {
	Client    *client.Client
	Informers *client.Informers
	Events    *client.EventBroadcaster
	// Metrics may be nil.
	Metrics *Metrics
	Log     *slog.Logger
}

// Loop runs one controller.
type Loop struct {
	definition Definition
	syncer     Syncer
	pending    *pendingWrites
	spacing    *spacing
	metrics    *Metrics
	log        *slog.Logger

	mu        sync.Mutex
	queue     workqueue.TypedRateLimitingInterface[Key] // nil before Run
	beforeRun map[Key]struct{}                          // keys enqueued before Run
}

// NewLoop constructs a controller. It starts nothing: run the informers, then the loop.
func NewLoop(d Definition, env Environment) (*Loop, error) {
	if d.Component == "" {
		d.Component = d.Name
	}
	if d.Queue == "" {
		d.Queue = d.Name
	}
	d.Workers = max(d.Workers, 1)
	l := &Loop{
		definition: d,
		pending:    newPendingWrites(env.Informers, env.Client),
		spacing:    newSpacing(),
		metrics:    env.Metrics,
		log:        env.Log.With("controller", d.Name),
		beforeRun:  map[Key]struct{}{},
	}
	syncer, err := d.New(&Setup{Client: env.Client, Informers: env.Informers, Events: env.Events.NewRecorder(d.Component), Log: l.log, loop: l})
	if err != nil {
		return nil, fmt.Errorf("set up %s: %w", d.Name, err)
	}
	l.syncer = syncer
	return l, nil
}

// enqueue adds a key to the queue. Before Run keys are collected in a set: a process may wait for leadership for a long time.
func (l *Loop) enqueue(key Key, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.queue == nil:
		l.beforeRun[key] = struct{}{}
	case delay > 0:
		l.queue.AddAfter(key, delay)
	default:
		l.queue.Add(key)
	}
}

// Run runs the workers until ctx is done or the controller's Background fails, and returns when all workers have. The informers must
// have synced. A loop runs once.
func (l *Loop) Run(ctx context.Context) error {
	config := workqueue.TypedRateLimitingQueueConfig[Key]{Name: l.definition.Queue}
	if l.metrics != nil {
		config.MetricsProvider = l.metrics
	}
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(l.definition.rateLimiter(), config)
	l.mu.Lock()
	l.queue = queue
	for key := range l.beforeRun {
		queue.Add(key)
	}
	l.beforeRun = nil
	l.mu.Unlock()

	l.metrics.running(l.definition.Name, true)
	defer l.metrics.running(l.definition.Name, false)
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	var running sync.WaitGroup
	var runErr error
	if background, ok := l.syncer.(Background); ok {
		running.Go(func() {
			if err := background.Run(ctx); err != nil && ctx.Err() == nil {
				runErr = fmt.Errorf("%s: %w", l.definition.Name, err)
				queue.ShutDown() // do not run half a controller: return the error to the caller
			}
		})
	}
	for range l.definition.Workers {
		running.Go(func() {
			for l.processNextKey(ctx) {
			}
		})
	}
	running.Wait()
	queue.ShutDown()
	return runErr
}

// rateLimiter limits retries. Upstream's default: the backoff of a key doubles with each consecutive failure from 5 ms to 1000 s, and all
// keys together are retried 10 times per second, with a burst of 100.
func (d *Definition) rateLimiter() workqueue.TypedRateLimiter[Key] {
	if d.MaxBackoff == 0 {
		return workqueue.DefaultTypedControllerRateLimiter[Key]()
	}
	return workqueue.NewTypedItemExponentialFailureRateLimiter[Key](5*time.Millisecond, d.MaxBackoff)
}

// processNextKey syncs one key. It returns false when the queue has shut down.
func (l *Loop) processNextKey(ctx context.Context) bool {
	key, stopped := l.queue.Get()
	if stopped {
		return false
	}
	defer l.queue.Done(key)
	if observed, delay := l.pending.observed(ctx, key); !observed {
		l.metrics.skipped(l.definition.Name)
		l.queue.AddAfter(key, delay)
		return true
	}
	start := time.Now()
	if delay := l.spacing.delay(key, start); delay > 0 {
		l.queue.AddAfter(key, delay)
		return true
	}
	err := l.sync(ctx, key)
	l.metrics.synced(l.definition.Name, time.Since(start), err)
	switch {
	case err == nil:
		l.queue.Forget(key)
	case ctx.Err() != nil:
	default:
		// Conflicts are expected: the next sync uses the newer object.
		level := slog.LevelWarn
		if apierrors.IsConflict(err) {
			level = slog.LevelDebug
		}
		l.log.Log(ctx, level, "failed to sync", "key", key.String(), "error", err)
		l.queue.AddRateLimited(key)
	}
	return true
}

// sync calls the controller. It recovers from a panic, because the process also serves the API: only this key fails.
func (l *Loop) sync(ctx context.Context, key Key) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return l.syncer.Sync(ctx, key)
}
