package cri

import (
	"context"
	"runtime"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// sandboxesPerProcessor is how many sandboxes are made at once for each processor: enough to have work while some of them wait.
	sandboxesPerProcessor = 4
	// patience is how long a sandbox in the making keeps others waiting. One that takes longer waits for something itself, such as a
	// network plugin for its daemon, which may be among the pods whose turn comes next.
	patience = 2 * time.Second
)

// Paced is a runtime that makes a few sandboxes at a time.
//
// Each of them keeps several programs busy. Where there are far more of those than processors they take caches and locks from each
// other, so that all together need a tenth more time than in turns, and no pod runs before nearly all do.
func Paced(r Runtime) Runtime {
	return &paced{Runtime: r, turns: make(chan struct{}, sandboxesPerProcessor*runtime.NumCPU())}
}

type paced struct {
	Runtime
	turns chan struct{}
}

func (p *paced) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	select {
	case p.turns <- struct{}{}:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	done := sync.OnceFunc(func() { <-p.turns })
	defer done()
	defer time.AfterFunc(patience, done).Stop()
	return p.Runtime.RunPodSandbox(ctx, config, handler)
}
