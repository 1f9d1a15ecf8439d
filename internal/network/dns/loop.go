package dns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// errLoop is returned for queries while forwarding leads back to this server.
var errLoop = errors.New("the name servers forward queries back to the cluster's DNS")

// loopInterval is the time between two probes while there is a loop.
const loopInterval = 30 * time.Second

// loopDetector finds out whether the name servers that queries are forwarded to forward them back. As CoreDNS's plugin "loop" does, it sends
// a query for a random name and sees whether the query arrives. Queries are not forwarded while they do: each would be repeated until all seats are
// taken.
type loopDetector struct {
	// probe is the name of the current probe in wire format.
	probe   atomic.Pointer[string]
	looping atomic.Bool
	// generation counts the requests for a probe.
	generation atomic.Uint64
}

// trigger requests a probe.
func (d *loopDetector) trigger() { d.generation.Add(1) }

func (s *Server) isLooping() bool { return s.loop.looping.Load() }

// isProbe reports whether a query is the probe, and records the loop.
func (s *Server) isProbe(q *query) bool {
	if q.qtype != dns.TypeHINFO {
		return false
	}
	probe := s.loop.probe.Load()
	if probe == nil || *probe != string(q.name[:q.nameSize]) {
		return false
	}
	if !s.loop.looping.Swap(true) {
		s.log.Error("failed to forward DNS queries: loop detected", "error", errLoop)
	}
	return true
}

// runLoopDetection sends a probe whenever the name servers have changed, and while there is a loop.
func (s *Server) runLoopDetection(ctx context.Context) {
	probed := uint64(0)
	var last time.Time
	ticker := time.NewTicker(resolvConfInterval)
	defer ticker.Stop()
	for {
		current := s.loop.generation.Load()
		if len(s.ownAddresses()) > 0 && (current != probed || s.isLooping() && time.Since(last) > loopInterval) {
			s.probe(ctx)
			probed, last = current, time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// probe sends a probe to each name server that any query may be forwarded to.
func (s *Server) probe(ctx context.Context) {
	name := fmt.Sprintf("%d.%d.", rand.Uint64(), rand.Uint64())
	d, err := parseDomain(name)
	if err != nil {
		return
	}
	s.loop.looping.Store(false)
	s.loop.probe.Store(&d.wire)
	defer s.loop.probe.Store(nil)
	settings := s.settings.Load()
	servers := *s.hostServers.Load()
	if len(settings.upstreams) > 0 {
		servers = settings.upstreams
	}
	question := new(dns.Msg).SetQuestion(name, dns.TypeHINFO)
	for _, server := range withoutOwn(servers, s.ownAddresses()) {
		// The response does not matter: a loop is detected when the query arrives.
		_, _ = s.forwarder.exchangeOver(ctx, "udp", question, server)
	}
}
