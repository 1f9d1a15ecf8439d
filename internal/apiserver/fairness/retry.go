package fairness

import "sync"

// longestRetry is the most seconds that a refused client is asked to wait.
const longestRetry = 32

// retry says how long refused clients of a level should stay away: twice as long while many are refused, a second less when few
// are.
type retry struct {
	mu      sync.Mutex
	seconds int64 // 0 counts as 1
	raised  int64 // when seconds was last doubled
	now     int64 // the current second
	refused int64 // in the current second
	history []refusals
}

type refusals struct{ second, count int64 }

// after counts a refused request.
func (r *retry) after(now int64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seconds = max(r.seconds, 1)
	if now != r.now {
		r.remember()
		r.now, r.refused = now, 0
		r.reconsider(now)
	}
	r.refused++
	return int(r.seconds)
}

// remember adds the current second to the history and drops what is too old to matter.
func (r *retry) remember() {
	r.history = append(r.history, refusals{r.now, r.refused})
	keep := min(2*r.seconds, longestRetry)
	old := 0
	for old < len(r.history) && r.now-r.history[old].second > keep {
		old++
	}
	r.history = append(r.history[:0], r.history[old:]...)
}

// reconsider looks at the last seconds before now, as many as clients are asked to wait.
func (r *retry) reconsider(now int64) {
	var refused int64
	for _, past := range r.history {
		if past.second < now && now-past.second <= r.seconds {
			refused += past.count
		}
	}
	switch {
	case now-r.raised >= r.seconds && refused >= 3*r.seconds:
		r.seconds, r.raised = min(2*r.seconds, longestRetry), now
	case refused < r.seconds && r.seconds > 1:
		r.seconds--
	}
}
