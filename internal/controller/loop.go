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

// Backoff of a key that fails: doubled with each failure in a row.
const (
	firstBackoff   = 5 * time.Millisecond
	longestBackoff = time.Minute
)

// Environment is what all controllers of a process share.
type Environment struct {
	Client    *client.Client
	Informers *client.Informers
	Events    *client.Events
	// Metrics may be nil: nothing is counted.
	Metrics *Metrics
	Log     *slog.Logger
}

// Loop runs one controller.
type Loop struct {
	definition Definition
	syncer     Syncer
	ledger     *ledger
	metrics    *Metrics
	log        *slog.Logger

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[Key] // nil before Run
	early map[Key]struct{}                          // keys enqueued before Run
}

// NewLoop wires a controller. It starts nothing: run the informers, then the loop.
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
		ledger:     newLedger(env.Informers, env.Client),
		metrics:    env.Metrics,
		log:        env.Log.With("controller", d.Name),
		early:      map[Key]struct{}{},
	}
	syncer, err := d.New(&Setup{Client: env.Client, Informers: env.Informers, Events: env.Events.For(d.Component), Log: l.log, loop: l})
	if err != nil {
		return nil, fmt.Errorf("wire %s: %w", d.Name, err)
	}
	l.syncer = syncer
	return l, nil
}

// enqueue adds a key to the queue. Before Run keys are only remembered: a follower that waits for leadership keeps each once.
func (l *Loop) enqueue(key Key, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.queue == nil:
		l.early[key] = struct{}{}
	case delay > 0:
		l.queue.AddAfter(key, delay)
	default:
		l.queue.Add(key)
	}
}

// Run works until ctx ends, or until the controller's own work fails, and all workers have returned. The informers must have synced. A loop runs once.
func (l *Loop) Run(ctx context.Context) error {
	config := workqueue.TypedRateLimitingQueueConfig[Key]{Name: l.definition.Queue}
	if l.metrics != nil {
		config.MetricsProvider = l.metrics
	}
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstBackoff, longestBackoff), config)
	l.mu.Lock()
	l.queue = queue
	for key := range l.early {
		queue.Add(key)
	}
	l.early = nil
	l.mu.Unlock()

	l.metrics.running(l.definition.Name, true)
	defer l.metrics.running(l.definition.Name, false)
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	var running sync.WaitGroup
	var failure error
	if background, ok := l.syncer.(Background); ok {
		running.Go(func() {
			if err := background.Run(ctx); err != nil && ctx.Err() == nil {
				failure = fmt.Errorf("%s: %w", l.definition.Name, err)
				queue.ShutDown() // half a controller is worse than none: whoever runs the loop must hear of it
			}
		})
	}
	for range l.definition.Workers {
		running.Go(func() {
			for l.next(ctx) {
			}
		})
	}
	running.Wait()
	queue.ShutDown()
	return failure
}

// next works on one key. It returns false when the queue has shut down.
func (l *Loop) next(ctx context.Context) bool {
	key, stopped := l.queue.Get()
	if stopped {
		return false
	}
	defer l.queue.Done(key)
	if ready, wait := l.ledger.ready(ctx, key); !ready {
		l.metrics.skipped(l.definition.Name)
		l.queue.AddAfter(key, wait)
		return true
	}
	began := time.Now()
	err := l.sync(ctx, key)
	l.metrics.synced(l.definition.Name, time.Since(began), err)
	switch {
	case err == nil:
		l.queue.Forget(key)
	case ctx.Err() != nil:
	default:
		// Someone else wrote first: ordinary, the next look sees it.
		level := slog.LevelWarn
		if apierrors.IsConflict(err) {
			level = slog.LevelDebug
		}
		l.log.Log(ctx, level, "sync failed", "key", key.String(), "error", err)
		l.queue.AddRateLimited(key)
	}
	return true
}

// sync calls the controller. A panic is one key's failure, not the end of a process that also serves the API.
func (l *Loop) sync(ctx context.Context, key Key) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return l.syncer.Sync(ctx, key)
}
