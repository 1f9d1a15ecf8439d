package memory

import (
	"context"
	"fmt"
	"sort"
	"strings"

	"skiff/internal/store"
)

// watchBatchEvents bounds the events of one batch.
const watchBatchEvents = 1000

type watch struct {
	batches chan store.Batch
	err     error
}

func (w *watch) Batches() <-chan store.Batch { return w.batches }
func (w *watch) Err() error                  { return w.err }

func (s *Store) Watch(ctx context.Context, prefix string, after store.Revision) store.Watch {
	w := &watch{batches: make(chan store.Batch, 16)}
	go func() {
		w.err = s.follow(ctx, prefix, after, w.batches)
		close(w.batches)
	}()
	return w
}

// follow sends the changes below prefix after the revision until ctx is done, which is no error.
func (s *Store) follow(ctx context.Context, prefix string, after store.Revision, batches chan<- store.Batch) error {
	for {
		batch, changed, err := s.since(prefix, after)
		if err != nil {
			return fmt.Errorf("watch %s after %d: %w", prefix, after, err)
		}
		if batch.Revision <= after {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case batches <- batch:
			after = batch.Revision
		case <-ctx.Done():
			return nil
		}
	}
}

// since collects the events below prefix after the revision; the channel is closed when there are more.
func (s *Store) since(prefix string, after store.Revision) (store.Batch, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.Batch{}, nil, store.ErrUnavailable
	}
	if after+1 < s.compacted {
		return store.Batch{}, nil, store.ErrCompacted
	}
	batch := store.Batch{Revision: s.current}
	start := sort.Search(len(s.log), func(i int) bool { return s.log[i].Modified > after })
	for _, event := range s.log[start:] {
		if len(batch.Events) == watchBatchEvents {
			batch.Revision = batch.Events[len(batch.Events)-1].Modified
			break
		}
		if strings.HasPrefix(event.Key, prefix) {
			batch.Events = append(batch.Events, event)
		}
	}
	return batch, s.changed, nil
}
