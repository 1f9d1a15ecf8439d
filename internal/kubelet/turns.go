package kubelet

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// sandboxesPerProcessor is how many sandboxes are made at once for each processor: enough to have work while some of them wait.
	sandboxesPerProcessor = 4
	// turnTime is how long a sandbox in the making keeps others waiting. One that takes longer waits for something itself, such as a
	// network plugin for its daemon, which may be among the pods whose turn comes next.
	turnTime = 2 * time.Second
)

// turns lets a few sandboxes be made at a time.
//
// Each of them keeps several programs busy. Where there are far more of those than processors they take caches and locks from each
// other, so that all together need a tenth more time than in turns, and no pod runs before nearly all do.
type turns chan struct{}

func newTurns() turns { return make(turns, sandboxesPerProcessor*runtime.NumCPU()) }

// take waits for a turn. Who has it calls done in the end.
func (t turns) take(ctx context.Context) (done func(), err error) {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release := sync.OnceFunc(func() { <-t })
	timer := time.AfterFunc(turnTime, release)
	return func() {
		timer.Stop()
		release()
	}, nil
}
