package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Health is whether the rules follow the objects of the API. It serves /healthz and /livez in kube-proxy's format.
type Health struct {
	// timeout is how long a change may wait.
	timeout time.Duration
	// node returns the Node object, or nil.
	node    func() *corev1.Node
	metrics *Metrics

	mu sync.Mutex
	// oldest is when the oldest change that is not in the rules was received; zero: there is none.
	oldest, lastUpdated time.Time
}

func newHealth(timeout time.Duration) *Health {
	return &Health{timeout: timeout, lastUpdated: time.Now()}
}

// queued records that there is a change.
func (h *Health) queued(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.oldest.IsZero() {
		h.oldest = now
	}
}

// updated records that the rules have all changes.
func (h *Health) updated(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.oldest, h.lastUpdated = time.Time{}, now
}

// Healthy reports whether no change waits for too long.
func (h *Health) Healthy(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.oldest.IsZero() || now.Sub(h.oldest) < h.timeout
}

// nodeEligible reports whether load balancers should send new connections to the node.
func (h *Health) nodeEligible() bool {
	const toBeDeleted = "ToBeDeletedByClusterAutoscaler"
	node := h.node()
	if node == nil || node.DeletionTimestamp != nil {
		return false
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == toBeDeleted {
			return false
		}
	}
	return true
}

// familyHealth and proxyHealth are the body of a response.
type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

type proxyHealth struct {
	LastUpdated  time.Time                         `json:"lastUpdated"`
	CurrentTime  time.Time                         `json:"currentTime"`
	NodeEligible *bool                             `json:"nodeEligible,omitempty"`
	Healthy      bool                              `json:"healthy"`
	Status       map[corev1.IPFamily]*familyHealth `json:"status,omitempty"`
}

// Register adds the handlers of /healthz and /livez.
func (h *Health) Register(mux *http.ServeMux) {
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		eligible := h.nodeEligible()
		h.metrics.healthz(h.respond(w, &eligible))
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { h.metrics.livez(h.respond(w, nil)) })
}

// respond writes the state and returns the status code. /livez does not depend on the node.
func (h *Health) respond(w http.ResponseWriter, eligible *bool) string {
	now := time.Now()
	healthy := h.Healthy(now)
	h.mu.Lock()
	body := proxyHealth{CurrentTime: now, NodeEligible: eligible, Healthy: healthy, LastUpdated: h.lastUpdated}
	h.mu.Unlock()
	body.Status = map[corev1.IPFamily]*familyHealth{}
	for _, f := range families {
		body.Status[f.label()] = &familyHealth{LastUpdated: body.LastUpdated, Healthy: healthy}
	}
	code := http.StatusOK
	if !healthy || eligible != nil && !*eligible {
		code = http.StatusServiceUnavailable
	} else {
		// As kube-proxy: recent while the proxy is healthy.
		body.LastUpdated = now
	}
	text, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return strconv.Itoa(http.StatusInternalServerError)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(text)
	return strconv.Itoa(code)
}
