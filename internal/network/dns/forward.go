package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// maxForwarded is the number of queries that wait for other name servers at the same time, as in kubeadm's CoreDNS.
	maxForwarded = 1000
	// maxForwardedPerClient keeps one client from taking all of them.
	maxForwardedPerClient = 250
	// attemptTimeout is how long to wait for one name server, forwardTimeout for all of them together.
	attemptTimeout = 2 * time.Second
	forwardTimeout = 5 * time.Second
	// failureMemory is how long a name server that did not respond is only queried after all others.
	failureMemory = 10 * time.Second
	// maxRounds is how often all name servers are tried.
	maxRounds = 2
)

// errNoServers is returned if there is no name server to forward a query to.
var errNoServers = errors.New("no name servers to forward to")

// forwarder sends queries to other name servers. Each query has its own socket, with a random port and a random ID.
type forwarder struct {
	metrics *metrics

	mu sync.Mutex
	// inFlight counts the forwarded queries by client; total is their sum.
	inFlight map[netip.Addr]int
	total    int
	// failures are the name servers that did not respond, and when.
	failures map[netip.AddrPort]time.Time
}

func newForwarder(m *metrics) *forwarder {
	return &forwarder{metrics: m, inFlight: map[netip.Addr]int{}, failures: map[netip.AddrPort]time.Time{}}
}

// acquire takes a seat for a query of a client. It returns false if there is none; otherwise release must be called.
func (f *forwarder) acquire(client netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.total >= maxForwarded || f.inFlight[client] >= maxForwardedPerClient {
		f.metrics.forwardRejects.Inc()
		return false
	}
	f.total++
	f.inFlight[client]++
	return true
}

func (f *forwarder) release(client netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total--
	if f.inFlight[client]--; f.inFlight[client] == 0 {
		delete(f.inFlight, client)
	}
}

// reset forgets which name servers failed: the configuration has changed.
func (f *forwarder) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.failures)
}

// order returns the servers in the order in which they are tried: those that failed lately last.
func (f *forwarder) order(servers []netip.AddrPort, now time.Time) []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	var healthy, failed []netip.AddrPort
	for _, server := range servers {
		if at, ok := f.failures[server]; ok && now.Sub(at) < failureMemory {
			failed = append(failed, server)
		} else {
			healthy = append(healthy, server)
		}
	}
	if len(healthy) == 0 && len(failed) > 0 {
		f.metrics.healthcheckBroken.Inc()
	}
	return append(healthy, failed...)
}

func (f *forwarder) record(server netip.AddrPort, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.failures, server)
		return
	}
	f.failures[server] = time.Now()
}

// exchange sends a question to the first server that responds and returns its response. A server that fails or refuses, or does not send the whole of a
// truncated response, is followed by the next one; if all do, a truncated response counts, or else the last one.
func (f *forwarder) exchange(ctx context.Context, question *dns.Msg, servers []netip.AddrPort) (*dns.Msg, error) {
	if len(servers) == 0 {
		return nil, errNoServers
	}
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	var last, truncated *dns.Msg
	var failure error
	for range maxRounds {
		for _, server := range f.order(servers, time.Now()) {
			reply, err := f.exchangeWith(ctx, question, server)
			if ctx.Err() == nil || err == nil {
				f.record(server, err)
			}
			switch {
			case err != nil:
				failure = fmt.Errorf("query %s: %w", server, err)
			case reply.Rcode == dns.RcodeServerFailure || reply.Rcode == dns.RcodeRefused || reply.Rcode == dns.RcodeNotImplemented:
				last = reply
			case reply.Truncated:
				truncated = reply
			default:
				return reply, nil
			}
			if ctx.Err() != nil {
				break
			}
		}
		if last != nil || truncated != nil || ctx.Err() != nil {
			break
		}
	}
	if truncated != nil {
		return truncated, nil
	}
	if last != nil {
		return last, nil
	}
	return nil, failure
}

// exchangeWith sends a question to a server over UDP, and again over TCP if the response is truncated. Without an answer over TCP, which a firewall may not let
// pass, the truncated response is returned.
func (f *forwarder) exchangeWith(ctx context.Context, question *dns.Msg, server netip.AddrPort) (*dns.Msg, error) {
	reply, err := f.exchangeOver(ctx, "udp", question, server)
	if err != nil || !reply.Truncated {
		return reply, err
	}
	if whole, err := f.exchangeOver(ctx, "tcp", question, server); err == nil {
		return whole, nil
	}
	return reply, nil
}

func (f *forwarder) exchangeOver(ctx context.Context, network string, question *dns.Msg, server netip.AddrPort) (*dns.Msg, error) {
	started := time.Now()
	// A new ID for each attempt; the socket is new too.
	own := question.Copy()
	own.Id = dns.Id()
	client := &dns.Client{Net: network, Timeout: attemptTimeout, UDPSize: maxUDPSize}
	reply, _, err := client.ExchangeContext(ctx, own, server.String())
	if err != nil {
		return nil, err
	}
	if err := checkReply(own, reply); err != nil {
		return nil, err
	}
	f.metrics.forwarded(server, reply.Rcode, time.Since(started))
	return reply, nil
}

// checkReply verifies that a message is the response to a question.
func checkReply(question, reply *dns.Msg) error {
	switch {
	case !reply.Response || reply.Id != question.Id:
		return errors.New("the message is not a response to the query")
	case len(reply.Question) != 1:
		return fmt.Errorf("the response has %d questions", len(reply.Question))
	}
	asked, have := question.Question[0], reply.Question[0]
	if asked.Qtype != have.Qtype || asked.Qclass != have.Qclass || !strings.EqualFold(asked.Name, have.Name) {
		return errors.New("the response is for another question")
	}
	return nil
}

// newQuestion makes the query that is forwarded for a client's query, for the name that is given in wire format.
func newQuestion(q *query, wire []byte) (*dns.Msg, error) {
	name, _, err := dns.UnpackDomainName(wire, 0)
	if err != nil {
		return nil, err
	}
	m := &dns.Msg{Question: []dns.Question{{Name: name, Qtype: q.qtype, Qclass: dns.ClassINET}}}
	m.RecursionDesired = true
	m.CheckingDisabled = q.flags&flagCheckingDisabled != 0
	m.SetEdns0(maxUDPSize, q.dnssec)
	return m, nil
}

// withoutOwn removes the addresses of this name server: it must not query itself.
func withoutOwn(servers []netip.AddrPort, own []netip.Addr) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(servers), func(s netip.AddrPort) bool { return slices.Contains(own, s.Addr()) })
}
