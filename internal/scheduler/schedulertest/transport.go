package schedulertest

import (
	"errors"
	"net/http"
	"sync"
	"syscall"
)

// LossyTransport loses requests or their responses.
type LossyTransport struct {
	http.RoundTripper
	// Lose decides by method and path whether the request is lost before it is sent, or its response afterwards. Calls do not overlap.
	// A nil function loses nothing.
	Lose func(method, path string) (request, response bool)

	mu   sync.Mutex
	sent map[string]int
}

// RoundTrip sends a request, unless it is lost.
func (l *LossyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	request, response := l.decide(r.Method, r.URL.Path)
	if request {
		return nil, syscall.ECONNREFUSED
	}
	got, err := l.RoundTripper.RoundTrip(r)
	if err == nil && response {
		_ = got.Body.Close()
		return nil, errors.New("connection reset by peer")
	}
	return got, err
}

func (l *LossyTransport) decide(method, path string) (request, response bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent == nil {
		l.sent = map[string]int{}
	}
	l.sent[method+" "+path]++
	if l.Lose == nil {
		return false, false
	}
	return l.Lose(method, path)
}

// Count is the number of requests with a method and path, lost ones included.
func (l *LossyTransport) Count(method, path string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent[method+" "+path]
}
