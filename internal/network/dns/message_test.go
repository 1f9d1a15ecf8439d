package dns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestHostilePackets has a row for each way in which a packet can be wrong. A negative code stands for no response.
func TestHostilePackets(t *testing.T) {
	const dropped = -1
	good := packQuery(t, new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA))
	withOPT := packQuery(t, new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA).SetEdns0(1232, false))
	change := func(packet []byte, at int, values ...byte) []byte {
		changed := bytes.Clone(packet)
		copy(changed[at:], values)
		return changed
	}
	header := func(counts ...byte) []byte { return append([]byte{1, 2, 1, 0}, counts...) }
	longLabel := append(header(0, 1, 0, 0, 0, 0, 0, 0), append([]byte{64}, bytes.Repeat([]byte("a"), 70)...)...)
	longName := append(header(0, 1, 0, 0, 0, 0, 0, 0), bytes.Repeat(append([]byte{63}, bytes.Repeat([]byte("a"), 63)...), 4)...)
	longName = append(longName, 0, 0, 1, 0, 1)
	tests := []struct {
		about  string
		packet []byte
		rcode  int
	}{
		{"good", good, dns.RcodeSuccess},
		{"empty", nil, dropped},
		{"shorter than a header", good[:11], dropped},
		{"a response", change(good, 2, 0x81), dropped},
		{"a header only", good[:12], dns.RcodeFormatError},
		{"no question", change(good, 4, 0, 0), dns.RcodeFormatError},
		{"two questions", change(good, 4, 0, 2), dns.RcodeFormatError},
		{"notify", change(good, 2, 4<<3), dns.RcodeNotImplemented},
		{"update", change(good, 2, 5<<3), dns.RcodeNotImplemented},
		{"answer in a query", change(good, 6, 0, 1), dns.RcodeFormatError},
		{"authority in a query", change(good, 8, 0, 1), dns.RcodeFormatError},
		{"missing additional record", change(good, 10, 0, 1), dns.RcodeFormatError},
		{"too many additional records", change(good, 10, 0xff, 0xff), dns.RcodeFormatError},
		{"name without end", good[:20], dns.RcodeFormatError},
		{"question without type", good[:len(good)-4], dns.RcodeFormatError},
		{"question without class", good[:len(good)-1], dns.RcodeFormatError},
		{"compressed question", append(header(0, 1, 0, 0, 0, 0, 0, 0), 0xc0, 12, 0, 1, 0, 1), dns.RcodeFormatError},
		{"label of 64 bytes", longLabel, dns.RcodeFormatError},
		{"name of 257 bytes", longName, dns.RcodeFormatError},
		{"class CHAOS", change(good, len(good)-2, 0, 3), dns.RcodeRefused},
		{"class ANY", change(good, len(good)-2, 0, 255), dns.RcodeRefused},
		{"type ANY", change(good, len(good)-4, 0, 255), dns.RcodeRefused},
		{"AXFR", change(good, len(good)-4, 0, 252), dns.RcodeRefused},
		{"IXFR", change(good, len(good)-4, 0, 251), dns.RcodeRefused},
		{"trailing bytes", append(bytes.Clone(good), 1, 2, 3), dns.RcodeSuccess},
		{"OPT", withOPT, dns.RcodeSuccess},
		{"OPT cut off", withOPT[:len(withOPT)-1], dns.RcodeFormatError},
		{"OPT with more data than there is", change(withOPT, len(withOPT)-2, 0xff, 0xff), dns.RcodeFormatError},
		{"OPT of version 1", change(withOPT, len(withOPT)-5, 1), dns.RcodeBadVers},
		{"two OPT", append(change(withOPT, 10, 0, 2), withOPT[len(withOPT)-11:]...), dns.RcodeFormatError},
		{"OPT that does not belong to the root", append(append(change(good, 10, 0, 1), 1, 'a'), withOPT[len(withOPT)-11:]...), dns.RcodeFormatError},
	}
	s := specServer(t)
	for _, test := range tests {
		t.Run(test.about, func(t *testing.T) {
			packet, result := s.newWorker().answer(request{packet: test.packet, client: netip.MustParseAddr("10.42.0.1")})
			if result == drop {
				if test.rcode != dropped {
					t.Fatalf("no response, want %s", dns.RcodeToString[test.rcode])
				}
				return
			}
			reply := new(dns.Msg)
			if err := reply.Unpack(packet); err != nil {
				t.Fatalf("decode response %x: %v", packet, err)
			}
			if reply.Rcode != test.rcode || !reply.Response || reply.Id != binary.BigEndian.Uint16(test.packet) {
				t.Errorf("response %v, want code %s", reply, dns.RcodeToString[test.rcode])
			}
		})
	}
}

// FuzzAnswer checks that no packet leads to a panic, to a response that is too long, or to one that cannot be decoded.
func FuzzAnswer(f *testing.F) {
	s := specServer(f)
	for _, name := range []string{"web.default.svc.cluster.local.", "_pg._tcp.db.default.svc.cluster.local.", "loop.default.svc.cluster.local.", "1.1.96.10.in-addr.arpa.", "example.com."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT} {
			f.Add(packQuery(f, new(dns.Msg).SetQuestion(name, qtype)), false)
			f.Add(packQuery(f, new(dns.Msg).SetQuestion(name, qtype).SetEdns0(4096, true)), true)
		}
	}
	w := s.newWorker()
	f.Fuzz(func(t *testing.T, packet []byte, isTCP bool) {
		req := request{packet: packet, client: netip.MustParseAddr("10.42.0.1"), isTCP: isTCP}
		response, result := w.answer(req)
		if result != respond {
			return
		}
		if limit := req.limit(&w.q); len(response) > limit {
			t.Fatalf("response of %d bytes, limit %d", len(response), limit)
		}
		if err := new(dns.Msg).Unpack(response); err != nil {
			t.Fatalf("decode response %x to %x: %v", response, packet, err)
		}
	})
}

// emptySignature is a response whose only record, in the given section, is a TSIG record without data. The library decodes it, but not what it
// encodes of it.
func emptySignature(t testing.TB, in section) []byte {
	wire := packQuery(t, new(dns.Msg).SetQuestion("example.com.", dns.TypeA))
	wire[2] |= 0x80 // a response
	wire[6+2*in+1] = 1
	return append(wire, 0, 0, byte(dns.TypeTSIG), 0, byte(dns.ClassANY), 0, 0, 0, 0, 0, 0)
}

// A signature of another name server is not passed on; a response that cannot be encoded is an error.
func TestEmptySignature(t *testing.T) {
	for in, passes := range map[section]bool{answerSection: false, additionalSection: true} {
		reply := new(dns.Msg)
		if err := reply.Unpack(emptySignature(t, in)); err != nil {
			t.Fatal(err)
		}
		m, err := newMessage(reply)
		if (err == nil) != passes {
			t.Errorf("section %d: error %v", in, err)
		}
		if err == nil && m.counts != [3]uint16{} {
			t.Errorf("section %d: the message has %v records, want none", in, m.counts)
		}
	}
}

// FuzzMessage checks that no response of another name server leads to a panic or to a response that cannot be decoded.
func FuzzMessage(f *testing.F) {
	reply := new(dns.Msg).SetQuestion("example.com.", dns.TypeA)
	reply.Response = true
	for _, text := range []string{"example.com. 60 A 192.0.2.1", "www.example.com. 60 CNAME example.com.", "example.com. 60 TXT \"a\" \"b\""} {
		rr, err := dns.NewRR(text)
		if err != nil {
			f.Fatal(err)
		}
		reply.Answer = append(reply.Answer, rr)
		f.Add(packQuery(f, reply), uint16(512))
	}
	for _, in := range []section{answerSection, additionalSection} {
		f.Add(emptySignature(f, in), uint16(512))
	}
	f.Fuzz(func(t *testing.T, packet []byte, limit uint16) {
		reply := new(dns.Msg)
		if reply.Unpack(packet) != nil || len(reply.Question) != 1 {
			return
		}
		m, err := newMessage(reply)
		if err != nil {
			return
		}
		question := new(dns.Msg)
		question.Question = reply.Question
		wire, err := question.Pack()
		if err != nil {
			return
		}
		var q query
		if rcode, err := q.parse(wire); rcode != 0 || err != nil {
			return
		}
		var r response
		r.begin(nil, &q, max(minUDPSize, int(limit)))
		m.write(&r, &q, 0)
		if err := new(dns.Msg).Unpack(r.finish(&q)); err != nil {
			t.Fatalf("decode response: %v", err)
		}
	})
}

// manyEndpoints is a server with a headless Service of n endpoints in slices of 100.
func manyEndpoints(t testing.TB, n int) *Server {
	s := specServer(t)
	addService(s, "default/many", []string{"None"}, "http/TCP/80")
	for first := 0; first < n; first += 100 {
		var endpoints []string
		for i := first; i < min(n, first+100); i++ {
			endpoints = append(endpoints, fmt.Sprintf("10.50.%d.%d pod-%d", i/250, i%250, i))
		}
		s.index.setEndpointSlice(newSlice(fmt.Sprintf("default/many/%d", first), []string{"http/TCP/80"}, endpoints...))
	}
	return s
}

func TestTruncation(t *testing.T) {
	s := manyEndpoints(t, 1000)
	tests := []struct {
		about     string
		qtype     uint16
		edns      uint16
		isTCP     bool
		maxSize   int
		truncated bool
		answers   int
	}{
		{"UDP", dns.TypeA, 0, false, 512, true, 29},
		{"UDP with a smaller size than all clients accept", dns.TypeA, 100, false, 512, true, 28},
		{"EDNS", dns.TypeA, 1000, false, 1000, true, 58},
		{"EDNS with a larger size than packets have", dns.TypeA, 65535, false, maxUDPSize, true, 73},
		{"TCP", dns.TypeA, 0, true, maxTCPSize, false, 1000},
		{"SRV over UDP", dns.TypeSRV, 0, false, 512, true, 8},
		{"SRV over TCP", dns.TypeSRV, 1232, true, maxTCPSize, false, 1000},
	}
	for _, test := range tests {
		t.Run(test.about, func(t *testing.T) {
			m := new(dns.Msg).SetQuestion("many.default.svc.cluster.local.", test.qtype)
			if test.edns != 0 {
				m.SetEdns0(test.edns, true)
			}
			packet, _ := s.newWorker().answer(request{packet: packQuery(t, m), isTCP: test.isTCP})
			reply := new(dns.Msg)
			if err := reply.Unpack(packet); err != nil {
				t.Fatal(err)
			}
			if len(packet) > test.maxSize || reply.Truncated != test.truncated || len(reply.Answer) < test.answers*9/10 || len(reply.Answer) > test.answers {
				t.Errorf("%d bytes, truncated %v, %d answers; want at most %d bytes, %v, about %d", len(packet), reply.Truncated, len(reply.Answer), test.maxSize, test.truncated, test.answers)
			}
			if opt := reply.IsEdns0(); (opt != nil) != (test.edns != 0) || opt != nil && (opt.UDPSize() != maxUDPSize || !opt.Do()) {
				t.Errorf("OPT %v", opt)
			}
		})
	}
}

// TestOrder checks that each endpoint is first sometimes.
func TestOrder(t *testing.T) {
	s := specServer(t)
	first := map[string]bool{}
	for range 1000 {
		reply := ask(t, s, new(dns.Msg).SetQuestion("db.default.svc.cluster.local.", dns.TypeA), false)
		first[reply.Answer[0].(*dns.A).A.String()] = true
	}
	if len(first) != 3 {
		t.Errorf("only %v were first", first)
	}
}

// TestNoAllocations checks that a query is answered without garbage.
func TestNoAllocations(t *testing.T) {
	s := specServer(t)
	w := s.newWorker()
	for _, name := range []string{"web.default.svc.cluster.local.", "db.default.svc.cluster.local.", "example.com.default.svc.cluster.local.", "db-0.db.default.svc.cluster.local."} {
		req := request{packet: packQuery(t, new(dns.Msg).SetQuestion(name, dns.TypeA)), client: netip.MustParseAddr("10.42.0.1")}
		if n := testing.AllocsPerRun(100, func() { w.answer(req) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestDomains(t *testing.T) {
	parse := func(text string) domain {
		d, err := parseDomain(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, test := range []struct {
		name, parent string
		want         bool
	}{
		{"example.com", "example.com.", true}, {"A.Example.COM", "example.com", true}, {"xexample.com", "example.com", false}, {"com", "example.com", false},
		{"example.com.x", "example.com", false},
	} {
		if got := parse(test.name).isBelow(parse(test.parent)); got != test.want {
			t.Errorf("%s below %s: %v", test.name, test.parent, got)
		}
	}
	for _, text := range []string{"", ".", "a..b", strings.Repeat("a", 64), strings.Repeat("a.", 128)} {
		if d, err := parseDomain(text); err == nil {
			t.Errorf("%q: %q, want an error", text, d.wire)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	s := specServer(b)
	for name, qtype := range map[string]uint16{
		"web.default.svc.cluster.local.": dns.TypeA, "db.default.svc.cluster.local.": dns.TypeA, "example.com.default.svc.cluster.local.": dns.TypeAAAA,
		"_pg._tcp.db.default.svc.cluster.local.": dns.TypeSRV, "1.1.96.10.in-addr.arpa.": dns.TypePTR,
	} {
		b.Run(dns.TypeToString[qtype]+"/"+name, func(b *testing.B) {
			w := s.newWorker()
			req := request{packet: packQuery(b, new(dns.Msg).SetQuestion(name, qtype)), client: netip.MustParseAddr("10.42.0.1")}
			b.ReportAllocs()
			for b.Loop() {
				w.answer(req)
			}
		})
	}
}
