package fairness

import "sync"

// maxRetryAfter is the largest Retry-After, in seconds.
const maxRetryAfter = 32

// retryAfter computes the Retry-After of a priority level: it doubles while many requests are rejected and is decremented while few are.
type retryAfter struct {
	mu         sync.Mutex
	delay      int64 // the Retry-After in seconds; 0 counts as 1
	lastRaised int64 // the second in which delay was last doubled
	second     int64 // the second that rejected counts
	rejected   int64 // the number of requests rejected in second
	history    []rejections
}

type rejections struct{ second, count int64 }

// reject counts a rejected request and returns its Retry-After in seconds.
func (r *retryAfter) reject(now int64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = max(r.delay, 1)
	if now != r.second {
		r.recordSecond()
		r.second, r.rejected = now, 0
		r.adjust(now)
	}
	r.rejected++
	return int(r.delay)
}

// recordSecond adds the count of the current second to the history and drops old seconds.
func (r *retryAfter) recordSecond() {
	r.history = append(r.history, rejections{r.second, r.rejected})
	keep := min(2*r.delay, maxRetryAfter)
	old := 0
	for old < len(r.history) && r.second-r.history[old].second > keep {
		old++
	}
	r.history = append(r.history[:0], r.history[old:]...)
}

// adjust doubles or decrements the delay, depending on how many requests were rejected in the last delay seconds.
func (r *retryAfter) adjust(now int64) {
	var rejected int64
	for _, past := range r.history {
		if past.second < now && now-past.second <= r.delay {
			rejected += past.count
		}
	}
	switch {
	case now-r.lastRaised >= r.delay && rejected >= 3*r.delay:
		r.delay, r.lastRaised = min(2*r.delay, maxRetryAfter), now
	case rejected < r.delay && r.delay > 1:
		r.delay--
	}
}
