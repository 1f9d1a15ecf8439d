package kubelet

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// sandboxesPerCPU is how many sandboxes are created concurrently for each CPU: enough to keep the CPU busy while some of them wait.
	sandboxesPerCPU = 4
	// maxSandboxHold is how long the creation of a sandbox counts against the limit. One that takes longer is waiting for something,
	// such as a CNI plugin for its daemon, whose pod may be among those that wait for the semaphore.
	maxSandboxHold = 2 * time.Second
)

// sandboxSemaphore bounds the number of sandboxes that are created concurrently.
//
// Creating a sandbox runs several processes. With far more of them than CPUs they contend for caches and locks: creating all sandboxes
// at once takes a tenth longer in total, and hardly any pod runs before nearly all do.
type sandboxSemaphore chan struct{}

func newSandboxSemaphore() sandboxSemaphore {
	return make(sandboxSemaphore, sandboxesPerCPU*runtime.NumCPU())
}

// acquire waits until a sandbox may be created. The caller calls release when it has been, or could not be.
func (s sandboxSemaphore) acquire(ctx context.Context) (release func(), err error) {
	select {
	case s <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	once := sync.OnceFunc(func() { <-s })
	timer := time.AfterFunc(maxSandboxHold, once)
	return func() {
		timer.Stop()
		once()
	}, nil
}
