package dns

import (
	"context"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/miekg/dns"
)

// request is a packet and where it came from.
type request struct {
	packet []byte
	client netip.Addr
	isTCP  bool
}

// limit is the largest response.
func (r *request) limit(q *query) int {
	if r.isTCP {
		return maxTCPSize
	}
	return min(q.udpSize, maxUDPSize)
}

// worker is the memory with which one goroutine answers queries.
type worker struct {
	*Server
	q   query
	r   response
	buf []byte
	scratch
	key  []byte
	zone string
}

func (s *Server) newWorker() *worker {
	return &worker{Server: s, buf: make([]byte, 0, maxUDPSize), scratch: newScratch()}
}

// result says what to do with a request.
type result int

const (
	// respond: the response is complete.
	respond result = iota
	// drop: nothing is sent.
	drop
	// wait: the response needs other name servers.
	wait
)

// answer answers a request from memory: the index, the settings and the cache. It returns wait if that is not enough. The response is valid
// until the next call.
func (w *worker) answer(req request) ([]byte, result) {
	started := time.Now()
	outcome := w.fromMemory(req)
	if outcome != respond {
		return nil, outcome
	}
	return w.finish(req, started), respond
}

// resolve answers a request, with the help of other name servers if necessary.
func (w *worker) resolve(ctx context.Context, req request) ([]byte, result) {
	started := time.Now()
	outcome := w.fromMemory(req)
	if outcome == drop {
		return nil, drop
	}
	if outcome == wait {
		w.fromOthers(ctx, req)
	}
	return w.finish(req, started), respond
}

// refuse answers a request that cannot be forwarded now.
func (w *worker) refuse(req request) []byte {
	w.r.begin(w.buf, &w.q, req.limit(&w.q))
	w.r.rcode = dns.RcodeRefused
	return w.finish(req, time.Now())
}

// finish completes the response and records it.
func (w *worker) finish(req request, started time.Time) []byte {
	packet := w.r.finish(&w.q)
	w.buf = packet[:0]
	w.metrics.observe(seriesKey{zone: w.zone, isTCP: req.isTCP, is6: req.client.Is6(), qtype: countedType(w.q.qtype), rcode: w.r.rcode},
		w.q.dnssec, len(req.packet), len(packet), time.Since(started))
	return packet
}

// fromMemory writes the response, except for its end, if it can be made from memory.
func (w *worker) fromMemory(req request) result {
	w.zone = zonesLabel
	rcode, err := w.q.parse(req.packet)
	if err != nil {
		return drop
	}
	w.begin(req)
	if rcode != dns.RcodeSuccess {
		w.r.rcode = rcode
		return respond
	}
	if w.isProbe(&w.q) {
		w.r.rcode = dns.RcodeServerFailure
		return respond
	}
	if w.q.isBelow(w.index.zone) {
		w.zone = w.zoneLabel
		return w.fromZone()
	}
	if w.q.isBelow(reverse4) || w.q.isBelow(reverse6) {
		if w.fromReverse() {
			return respond
		}
	}
	if w.fromHosts() || w.fromCache() {
		return respond
	}
	return wait
}

// begin starts the response.
func (w *worker) begin(req request) { w.r.begin(w.buf, &w.q, req.limit(&w.q)) }

// newLookup prepares a lookup in the index.
func (w *worker) newLookup() lookup {
	return lookup{index: w.index, q: &w.q, r: &w.r, owner: questionName, scratch: &w.scratch, nameServers: w.ownAddresses()}
}

// fromZone answers from the cluster's zone.
func (w *worker) fromZone() result {
	l := w.newLookup()
	w.r.flags |= flagAuthoritative
	// The name in the question ends with the zone.
	zoneAt := questionName + w.q.nameSize - len(w.index.zone.wire)
	outcome := l.answer()
	switch {
	case outcome == found:
	case outcome == notOurs:
		// The name may be in the cache; otherwise other name servers are queried.
		return wait
	case !w.hasSynced():
		w.r.rcode, w.r.flags = dns.RcodeServerFailure, w.r.flags&^flagAuthoritative
	default:
		if outcome == noName {
			w.r.rcode = dns.RcodeNameError
		}
		w.r.soa(authoritySection, zoneAt, w.index.serial.Load())
	}
	return respond
}

// fromReverse answers for an address of the cluster. It returns false for others.
func (w *worker) fromReverse() bool {
	l := w.newLookup()
	switch outcome := l.reverse(); outcome {
	case notOurs:
		return false
	case found:
	case noName:
		if !w.hasSynced() {
			w.r.rcode = dns.RcodeServerFailure
			return true
		}
		if w.fromHosts() {
			return true
		}
		w.r.rcode = dns.RcodeNameError
		fallthrough
	default:
		w.r.soa(authoritySection, questionName+int(w.q.labels[w.q.labelCount-2]), w.index.serial.Load())
	}
	w.r.flags |= flagAuthoritative
	return true
}

// fromHosts answers from the hosts of the settings.
func (w *worker) fromHosts() bool {
	s := w.settings.Load()
	if len(s.hosts) == 0 {
		return false
	}
	if ip, ok := w.q.reverseAddress(); ok && w.q.qtype == dns.TypePTR {
		if name := s.hostNames[ip]; name != "" {
			w.r.flags |= flagAuthoritative
			w.r.record(answerSection, questionName, dns.TypePTR, recordTTL, []byte(name))
			return true
		}
	}
	ips, ok := s.hosts[string(w.q.name[:w.q.nameSize])]
	if !ok {
		return false
	}
	w.r.flags |= flagAuthoritative
	l := w.newLookup()
	l.addresses(ips)
	return true
}

// fromCache answers from the cache.
func (w *worker) fromCache() bool {
	w.key = cacheKey(w.key[:0], &w.q)
	now := time.Now()
	if m, age := w.success.get(w.key, now); m != nil {
		w.metrics.cacheRequests.Inc()
		w.metrics.successHits.Inc()
		m.write(&w.r, &w.q, age)
		return true
	}
	if m, age := w.denial.get(w.key, now); m != nil {
		w.metrics.cacheRequests.Inc()
		w.metrics.denialHits.Inc()
		m.write(&w.r, &w.q, age)
		return true
	}
	return false
}

// fromOthers completes a response with the help of other name servers. Failures are answered with SERVFAIL.
func (w *worker) fromOthers(ctx context.Context, req request) {
	// The CNAMEs of an ExternalName Service have been written.
	if w.r.counts[answerSection] > 0 {
		w.followExternal(ctx, req)
		return
	}
	m, err := w.forward(ctx, &w.q, w.q.question)
	if err != nil {
		w.logForward.Do(func() { w.log.Warn("failed to forward DNS query", "error", err) })
		w.r.rcode = dns.RcodeServerFailure
		return
	}
	w.writeForwarded(m, req)
}

// writeForwarded writes a response of other name servers.
func (w *worker) writeForwarded(m *message, req request) {
	// A client that uses TCP cannot ask for the rest in another way, and must not take what is left out for missing.
	if m.truncated && req.isTCP {
		w.r.rcode = dns.RcodeServerFailure
		return
	}
	m.write(&w.r, &w.q, 0)
}

// forward queries the name servers that are responsible for a name and caches their response. wire is the name as it is sent.
func (w *worker) forward(ctx context.Context, q *query, wire []byte) (*message, error) {
	if w.isLooping() {
		return nil, errLoop
	}
	question, err := newQuestion(q, wire)
	if err != nil {
		return nil, err
	}
	w.metrics.cacheRequests.Inc()
	w.metrics.cacheMisses.Inc()
	generation := w.generation.Load()
	servers := withoutOwn(w.settings.Load().servers(q, *w.hostServers.Load()), w.ownAddresses())
	reply, err := w.forwarder.exchange(ctx, question, servers)
	if err != nil {
		return nil, err
	}
	m, err := newMessage(reply)
	if err != nil {
		return nil, err
	}
	cache := w.success
	if m.isNegative {
		cache = w.denial
	}
	// A response of the former name servers is not kept when they have been replaced meanwhile.
	if w.generation.Load() == generation {
		cache.put(cacheKey(nil, q), m, time.Now())
	}
	return m, nil
}

// followExternal completes the response for an ExternalName Service whose target is outside of the cluster's zone: the CNAMEs are followed
// by the target's records.
func (w *worker) followExternal(ctx context.Context, req request) {
	// The records up to here again, as messages of the library: names of other servers' records are compressed differently.
	reply := new(dns.Msg)
	if err := reply.Unpack(w.r.finish(&w.q)); err != nil {
		w.r.rcode = dns.RcodeServerFailure
		return
	}
	reply.Extra = nil
	last, ok := reply.Answer[len(reply.Answer)-1].(*dns.CNAME)
	if !ok {
		w.r.rcode = dns.RcodeServerFailure
		return
	}
	target, err := parseDomain(last.Target)
	if err == nil {
		var records *dns.Msg
		if records, err = w.external(ctx, target); err == nil {
			reply.Rcode = records.Rcode
			reply.Answer = append(reply.Answer, records.Answer...)
			reply.Ns = records.Ns
			reply.Truncated = reply.Truncated || records.Truncated
		}
	}
	if _, parseErr := w.q.parse(req.packet); parseErr != nil {
		err = parseErr
	}
	w.begin(req)
	if err != nil {
		w.logForward.Do(func() {
			w.log.Warn("failed to resolve the target of an ExternalName service", "target", last.Target, "error", err)
		})
		reply.Rcode = dns.RcodeServerFailure
	}
	m, err := newMessage(reply)
	if err != nil {
		w.r.rcode = dns.RcodeServerFailure
		return
	}
	w.writeForwarded(m, req)
}

// external resolves a name outside of the cluster's zone for the type of the query.
func (w *worker) external(ctx context.Context, target domain) (*dns.Msg, error) {
	other := w.newWorker()
	other.q = w.q
	other.q.setName(target.wire)
	question := append([]byte(target.wire), w.q.question[len(w.q.question)-4:]...)
	other.q.question, other.q.hasOPT = question, false
	other.r.begin(other.buf, &other.q, maxTCPSize)
	if !other.fromHosts() && !other.fromCache() {
		m, err := other.forward(ctx, &other.q, question)
		if err != nil {
			return nil, err
		}
		m.write(&other.r, &other.q, 0)
	}
	reply := new(dns.Msg)
	if err := reply.Unpack(other.r.finish(&other.q)); err != nil {
		return nil, err
	}
	return reply, nil
}

// guard calls a function for a request and drops the request if it panics: a mistake in the handling of one packet must not end
// the process.
func (s *Server) guard(handle func()) {
	defer func() {
		if p := recover(); p != nil {
			s.metrics.panics.Inc()
			s.logPanic.Do(func() { s.log.Error("failed to answer DNS query: panic", "panic", p, "stack", string(debug.Stack())) })
		}
	}()
	handle()
}
