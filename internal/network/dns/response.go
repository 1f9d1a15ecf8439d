package dns

import (
	"encoding/binary"
	"net/netip"

	"github.com/miekg/dns"
)

const (
	// optSize is the size of an OPT record without options.
	optSize = 11
	// questionName is the offset of the name in the question, which the owner names of answers refer to.
	questionName = headerSize
	// maxPointer is the largest offset that a compressed name can refer to.
	maxPointer = 0x3fff
)

// section is a section of a response.
type section int

const (
	answerSection section = iota
	authoritySection
	additionalSection
)

// response is a response that is being written. Records are appended in the order of the sections. A record that does not fit is left out;
// if it is not an additional one, the response is truncated.
type response struct {
	buf    []byte
	limit  int
	counts [3]uint16
	// truncated is set when a record of the answer or authority section did not fit.
	truncated bool
	rcode     int
	flags     uint16
}

// begin starts the response to a query. limit is the largest size of the message.
func (r *response) begin(buf []byte, q *query, limit int) {
	*r = response{limit: limit, flags: flagResponse | flagRecursionAvailable | q.flags&(flagRecursionDesired|flagCheckingDisabled|opcodeMask)}
	if q.hasOPT {
		r.limit -= optSize
	}
	r.buf = append(append(buf[:0], make([]byte, headerSize)...), q.question...)
}

// finish completes the message.
func (r *response) finish(q *query) []byte {
	flags := r.flags | uint16(r.rcode)&rcodeMask
	if r.truncated {
		flags |= flagTruncated
	}
	additional := r.counts[additionalSection]
	if q.hasOPT {
		additional++
		opt := [optSize]byte{}
		binary.BigEndian.PutUint16(opt[1:], dns.TypeOPT)
		binary.BigEndian.PutUint16(opt[3:], maxUDPSize)
		opt[5] = byte(r.rcode >> 4)
		if q.dnssec {
			binary.BigEndian.PutUint16(opt[7:], flagDNSSEC)
		}
		r.buf = append(r.buf, opt[:]...)
	}
	b := r.buf
	binary.BigEndian.PutUint16(b, q.id)
	binary.BigEndian.PutUint16(b[2:], flags)
	if len(q.question) > 0 {
		binary.BigEndian.PutUint16(b[4:], 1)
	}
	binary.BigEndian.PutUint16(b[6:], r.counts[answerSection])
	binary.BigEndian.PutUint16(b[8:], r.counts[authoritySection])
	binary.BigEndian.PutUint16(b[10:], additional)
	return b
}

// record appends a record whose owner is the name at an offset of the message. data appends the record's data; nil: there is none.
// It returns the offset of the data, or 0 if the record does not fit.
func (r *response) record(s section, owner int, rrtype uint16, ttl uint32, data []byte) int {
	const fixedSize = 12
	if len(r.buf)+fixedSize+len(data) > r.limit || owner > maxPointer || r.truncated {
		if s != additionalSection {
			r.truncated = true
		}
		return 0
	}
	var head [fixedSize]byte
	binary.BigEndian.PutUint16(head[:], 0xc000|uint16(owner))
	binary.BigEndian.PutUint16(head[2:], rrtype)
	binary.BigEndian.PutUint16(head[4:], dns.ClassINET)
	binary.BigEndian.PutUint32(head[6:], ttl)
	binary.BigEndian.PutUint16(head[10:], uint16(len(data)))
	r.buf = append(append(r.buf, head[:]...), data...)
	r.counts[s]++
	return len(r.buf) - len(data)
}

// address appends an A or AAAA record.
func (r *response) address(s section, owner int, ip netip.Addr) bool {
	if ip.Is4() {
		data := ip.As4()
		return r.record(s, owner, dns.TypeA, recordTTL, data[:]) != 0
	}
	data := ip.As16()
	return r.record(s, owner, dns.TypeAAAA, recordTTL, data[:]) != 0
}

// soa appends the SOA record of a zone whose name is at an offset of the message.
func (r *response) soa(s section, zone int, serial uint32) {
	if zone > maxPointer {
		return
	}
	var data [64]byte
	b := data[:0]
	for _, labels := range []string{"\x02ns\x03dns", "\x0ahostmaster"} {
		b = append(b, labels...)
		b = binary.BigEndian.AppendUint16(b, 0xc000|uint16(zone))
	}
	for _, value := range []uint32{serial, 7200, 1800, 86400, recordTTL} {
		b = binary.BigEndian.AppendUint32(b, value)
	}
	r.record(s, zone, dns.TypeSOA, recordTTL, b)
}
