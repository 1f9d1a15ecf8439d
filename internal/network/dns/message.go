package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// message is a response of another name server, in wire format and without OPT. It is immutable: cached messages are shared.
type message struct {
	// wire begins with a header of which only the counts are used, and the question.
	wire []byte
	// ttls are the offsets of the TTLs of all records, in order.
	ttls   []uint16
	counts [3]uint16
	rcode  int
	// lifetime is how long the message may be cached; 0: not at all.
	lifetime time.Duration
	// isNegative is set if the message says that there is no record.
	isNegative bool
	// truncated is set if the other name server has left out records.
	truncated bool
}

// Bounds of the time that messages are cached, as in kubeadm's CoreDNS ("cache 30").
const (
	minLifetime = 5 * time.Second
	maxLifetime = 30 * time.Second
)

// newMessage makes a message from a response. Its records about the connection between two servers are removed: OPT, and the signature TSIG.
func newMessage(m *dns.Msg) (*message, error) {
	own := *m
	own.Extra = nil
	for _, rr := range m.Extra {
		if kind := rr.Header().Rrtype; kind != dns.TypeOPT && kind != dns.TypeTSIG {
			own.Extra = append(own.Extra, rr)
		}
	}
	own.Compress = true
	// Extended codes need an OPT record.
	own.Rcode = m.Rcode & rcodeMask
	wire, err := own.Pack()
	if err != nil {
		return nil, fmt.Errorf("encode response: %w", err)
	}
	if len(wire) > maxTCPSize {
		return nil, errors.New("encode response: larger than a DNS message can be")
	}
	// A record that was decoded although parts of it were missing is not encoded as it was.
	if err := new(dns.Msg).Unpack(wire); err != nil {
		return nil, fmt.Errorf("encode response: %w", err)
	}
	result := &message{wire: wire, rcode: own.Rcode, counts: [3]uint16{uint16(len(own.Answer)), uint16(len(own.Ns)), uint16(len(own.Extra))}}
	if result.ttls, err = ttlOffsets(wire, len(own.Answer)+len(own.Ns)+len(own.Extra)); err != nil {
		return nil, err
	}
	result.truncated = own.Truncated
	result.isNegative = own.Rcode == dns.RcodeNameError || own.Rcode == dns.RcodeSuccess && len(own.Answer) == 0
	result.lifetime = lifetime(&own, result.isNegative)
	return result, nil
}

// ttlOffsets finds the TTLs of the records of a message.
func ttlOffsets(wire []byte, records int) ([]uint16, error) {
	broken := errors.New("decode response: a record is incomplete")
	at := headerSize
	size, ok := skipName(wire[at:])
	if !ok {
		return nil, broken
	}
	at += size + 4
	offsets := make([]uint16, 0, records)
	for range records {
		if at > len(wire) {
			return nil, broken
		}
		size, ok := skipName(wire[at:])
		if !ok || at+size+10 > len(wire) {
			return nil, broken
		}
		offsets = append(offsets, uint16(at+size+4))
		at += size + 10 + int(binary.BigEndian.Uint16(wire[at+size+8:]))
	}
	if at > len(wire) {
		return nil, broken
	}
	return offsets, nil
}

// lifetime is how long a response may be cached: the least TTL of its records, for a negative one that of its SOA record.
func lifetime(m *dns.Msg, isNegative bool) time.Duration {
	if m.Truncated || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0
	}
	least := uint32(maxLifetime / time.Second)
	if isNegative {
		hasSOA := false
		for _, rr := range m.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				hasSOA = true
				least = min(least, soa.Hdr.Ttl, soa.Minttl)
			}
		}
		// Without SOA record a negative response must not be cached (RFC 2308).
		if !hasSOA {
			return 0
		}
	}
	for _, rr := range m.Answer {
		least = min(least, rr.Header().Ttl)
	}
	if least == 0 {
		return 0
	}
	return max(minLifetime, time.Duration(least)*time.Second)
}

// write writes the message as the response to a query: with the query's ID, question and EDNS, TTLs reduced by the age of the message,
// and truncated to the limit.
func (m *message) write(r *response, q *query, age time.Duration) {
	r.rcode = m.rcode
	if len(r.buf) != headerSize+len(q.question) || len(m.wire) < len(r.buf) {
		// The question of the message is as long as the client's: it is for the same name.
		r.rcode = dns.RcodeServerFailure
		return
	}
	elapsed := uint32(age / time.Second)
	start := len(r.buf)
	for i, offset := range m.ttls {
		end := int(offset) + 6 + int(binary.BigEndian.Uint16(m.wire[offset+4:]))
		s := m.section(i)
		if end > r.limit {
			r.truncated = s != additionalSection
			break
		}
		r.buf = append(r.buf, m.wire[start:end]...)
		ttl := binary.BigEndian.Uint32(m.wire[offset:])
		binary.BigEndian.PutUint32(r.buf[offset:], ttl-min(ttl, elapsed))
		r.counts[s]++
		start = end
	}
	r.truncated = r.truncated || m.truncated
}

// section is the section of a record.
func (m *message) section(record int) section {
	switch answers, authorities := int(m.counts[answerSection]), int(m.counts[authoritySection]); {
	case record < answers:
		return answerSection
	case record < answers+authorities:
		return authoritySection
	}
	return additionalSection
}

// size is the memory that the message takes.
func (m *message) size() int { return len(m.wire) + 2*len(m.ttls) + 128 }
