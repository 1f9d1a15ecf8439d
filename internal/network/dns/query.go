package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/miekg/dns"
)

const (
	headerSize   = 12
	maxNameSize  = 255
	maxLabelSize = 63
	// maxLabels is the number of labels of a name of maxNameSize, without the root.
	maxLabels = 127
	// minUDPSize is the size of a response that every client accepts over UDP.
	minUDPSize = 512
	// maxUDPSize is the largest response over UDP, whatever the client accepts: a packet of this size is not fragmented on any usual link.
	maxUDPSize = 1232
	// maxTCPSize is the largest message over TCP.
	maxTCPSize = 65535
	// maxAdditional is the number of records in the additional section of a query. Clients send at most OPT and a signature.
	maxAdditional = 4
)

// The bits of a message header.
const (
	flagResponse           = 1 << 15
	flagAuthoritative      = 1 << 10
	flagTruncated          = 1 << 9
	flagRecursionDesired   = 1 << 8
	flagRecursionAvailable = 1 << 7
	flagCheckingDisabled   = 1 << 4
	opcodeMask             = 0xf << 11
	rcodeMask              = 0xf
	// flagDNSSEC is the DO bit in the flags of OPT.
	flagDNSSEC = 1 << 15
)

// query is a parsed query. It is reused: parse overwrites all fields.
type query struct {
	id, flags uint16
	// question is the question as the client sent it, in the packet. Responses repeat it with the client's upper and lower case.
	question []byte
	// name is the queried name in wire format and lower case, labels the offsets of its labels.
	name       [maxNameSize]byte
	nameSize   int
	labels     [maxLabels]uint8
	labelCount int

	qtype, class uint16
	// hasOPT is set for a query with EDNS. udpSize is the size of a response that the client accepts.
	hasOPT  bool
	version uint8
	dnssec  bool
	udpSize int
}

// errDrop is the error of a packet that is not answered: a response, or too short to have an ID.
var errDrop = errors.New("not a query")

// parse parses a packet. The packet must not change while the query is in use. It returns the response code for a query that
// cannot be answered.
func (q *query) parse(packet []byte) (rcode int, err error) {
	if len(packet) < headerSize {
		return 0, errDrop
	}
	q.id, q.flags = binary.BigEndian.Uint16(packet), binary.BigEndian.Uint16(packet[2:])
	q.question, q.nameSize, q.labelCount, q.qtype, q.class = nil, 0, 0, 0, 0
	q.hasOPT, q.version, q.dnssec, q.udpSize = false, 0, false, minUDPSize
	if q.flags&flagResponse != 0 {
		return 0, errDrop
	}
	if q.flags&opcodeMask != 0 {
		return dns.RcodeNotImplemented, nil
	}
	if binary.BigEndian.Uint16(packet[4:]) != 1 {
		return dns.RcodeFormatError, nil
	}
	rest, ok := q.parseQuestion(packet[headerSize:])
	if !ok {
		return dns.RcodeFormatError, nil
	}
	// A request for a zone transfer may have an authority section. It is refused in any case.
	if q.qtype == dns.TypeANY || q.qtype == dns.TypeAXFR || q.qtype == dns.TypeIXFR || q.class != dns.ClassINET {
		return dns.RcodeRefused, nil
	}
	if binary.BigEndian.Uint32(packet[6:]) != 0 || !q.parseAdditional(rest, int(binary.BigEndian.Uint16(packet[10:]))) {
		return dns.RcodeFormatError, nil
	}
	if q.version != 0 {
		return dns.RcodeBadVers, nil
	}
	return dns.RcodeSuccess, nil
}

// parseQuestion parses the question and returns what follows it.
func (q *query) parseQuestion(b []byte) (rest []byte, ok bool) {
	at := 0
	for {
		if at >= len(b) {
			return nil, false
		}
		size := int(b[at])
		// Names in a question are not compressed: there is nothing before them to refer to.
		if size > maxLabelSize || at+1+size >= len(b) || at+1+size+1 > maxNameSize && size != 0 {
			return nil, false
		}
		q.name[at] = b[at]
		if size == 0 {
			break
		}
		q.labels[q.labelCount] = uint8(at)
		q.labelCount++
		for i := at + 1; i <= at+size; i++ {
			q.name[i] = lower(b[i])
		}
		at += 1 + size
	}
	q.nameSize = at + 1
	end := q.nameSize + 4
	if end > len(b) {
		return nil, false
	}
	q.qtype, q.class = binary.BigEndian.Uint16(b[q.nameSize:]), binary.BigEndian.Uint16(b[q.nameSize+2:])
	q.question = b[:end:end]
	return b[end:], true
}

// parseAdditional reads the OPT record of the additional section.
func (q *query) parseAdditional(b []byte, count int) bool {
	if count > maxAdditional {
		return false
	}
	for range count {
		size, ok := skipName(b)
		if !ok || size+10 > len(b) {
			return false
		}
		isRoot := size == 1
		rdataSize := int(binary.BigEndian.Uint16(b[size+8:]))
		if size+10+rdataSize > len(b) {
			return false
		}
		if binary.BigEndian.Uint16(b[size:]) == dns.TypeOPT {
			if q.hasOPT || !isRoot {
				return false
			}
			q.hasOPT = true
			q.udpSize = max(minUDPSize, int(binary.BigEndian.Uint16(b[size+2:])))
			q.version = b[size+5]
			q.dnssec = binary.BigEndian.Uint16(b[size+6:])&flagDNSSEC != 0
		}
		b = b[size+10+rdataSize:]
	}
	return true
}

// skipName returns the size of a name in a message, which may be compressed.
func skipName(b []byte) (size int, ok bool) {
	for size < len(b) {
		switch label := int(b[size]); {
		case label == 0:
			return size + 1, true
		case label&0xc0 == 0xc0:
			return size + 2, size+2 <= len(b)
		case label > maxLabelSize:
			return 0, false
		default:
			size += 1 + label
		}
	}
	return 0, false
}

// label returns a label of the name, in lower case.
func (q *query) label(i int) []byte {
	at := int(q.labels[i])
	return q.name[at+1 : at+1+int(q.name[at])]
}

// suffix returns the name from a label on; the root if i is the number of labels.
func (q *query) suffix(i int) []byte {
	if i == q.labelCount {
		return q.name[q.nameSize-1 : q.nameSize]
	}
	return q.name[q.labels[i]:q.nameSize]
}

// isBelow reports whether the name is the domain or below it.
func (q *query) isBelow(d domain) bool {
	i := q.labelCount - d.labels
	return i >= 0 && string(q.suffix(i)) == d.wire
}

// setName makes the query one for another name, for following CNAMEs. The question stays that of the client.
func (q *query) setName(wire string) {
	q.nameSize, q.labelCount = len(wire), 0
	for at := 0; wire[at] != 0; at += 1 + int(wire[at]) {
		q.labels[q.labelCount] = uint8(at)
		q.labelCount++
	}
	copy(q.name[:], wire)
}

// lower is a letter in lower case. Other bytes are not changed, in names they have no case.
func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

// domain is a name in wire format and lower case.
type domain struct {
	wire   string
	labels int
}

// parseDomain parses a domain name, with or without the dot at its end.
func parseDomain(text string) (domain, error) {
	text = strings.ToLower(strings.TrimSuffix(text, "."))
	if text == "" {
		return domain{}, errors.New("the name is empty")
	}
	var d domain
	wire := make([]byte, 0, len(text)+2)
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > maxLabelSize {
			return domain{}, fmt.Errorf("%q has a label that is empty or longer than %d bytes", text, maxLabelSize)
		}
		wire = append(append(wire, byte(len(label))), label...)
		d.labels++
	}
	d.wire = string(append(wire, 0))
	if len(d.wire) > maxNameSize {
		return domain{}, fmt.Errorf("%q is longer than %d bytes", text, maxNameSize)
	}
	return d, nil
}

// isBelow reports whether d is the domain or below it.
func (d domain) isBelow(parent domain) bool {
	rest, ok := strings.CutSuffix(d.wire, parent.wire)
	if !ok {
		return false
	}
	// The suffix must begin with a label of d.
	for rest != "" {
		size := 1 + int(rest[0])
		if size > len(rest) {
			return false
		}
		rest = rest[size:]
	}
	return true
}

// String is the name as text, with a dot at its end.
func (d domain) String() string {
	name, _, err := dns.UnpackDomainName([]byte(d.wire), 0)
	if err != nil {
		return fmt.Sprintf("%q", d.wire)
	}
	return name
}
