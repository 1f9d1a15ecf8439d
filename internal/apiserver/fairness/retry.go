package fairness

import "sync"

// maxRetryAfter is the largest Retry-After, in seconds.
const maxRetryAfter = 32

// retry computes the Retry-After of a level: it doubles while many requests are rejected and falls by a second when few are.
type retry struct {
	mu         sync.Mutex
	seconds    int64 // 0 counts as 1
	lastRaised int64 // when seconds was last doubled
	now        int64 // the current second
	rejected   int64 // in the current second
	history    []rejections
}

type rejections struct{ second, count int64 }

// after counts a rejected request and returns its Retry-After in seconds.
func (r *retry) after(now int64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seconds = max(r.seconds, 1)
	if now != r.now {
		r.recordSecond()
		r.now, r.rejected = now, 0
		r.adjust(now)
	}
	r.rejected++
	return int(r.seconds)
}

// recordSecond adds the current second to the history and drops old seconds.
func (r *retry) recordSecond() {
	r.history = append(r.history, rejections{r.now, r.rejected})
	keep := min(2*r.seconds, maxRetryAfter)
	old := 0
	for old < len(r.history) && r.now-r.history[old].second > keep {
		old++
	}
	r.history = append(r.history[:0], r.history[old:]...)
}

// adjust changes the delay by the rejections of the last seconds, as many as the delay is long.
func (r *retry) adjust(now int64) {
	var rejected int64
	for _, past := range r.history {
		if past.second < now && now-past.second <= r.seconds {
			rejected += past.count
		}
	}
	switch {
	case now-r.lastRaised >= r.seconds && rejected >= 3*r.seconds:
		r.seconds, r.lastRaised = min(2*r.seconds, maxRetryAfter), now
	case rejected < r.seconds && r.seconds > 1:
		r.seconds--
	}
}
