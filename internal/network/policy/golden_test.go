package policy

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skiff/internal/network/nft"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const testTable = "test"

// compile computes the table of a cluster from nothing.
func (c *cluster) compile(t testing.TB) (*Compiler, *nft.Model) {
	t.Helper()
	m := nft.NewModel(testTable)
	compiler := NewCompiler(m)
	for _, n := range c.namespaces {
		compiler.SetNamespace(n.Name, n.Labels)
	}
	for _, p := range c.pods {
		setPod(compiler, c, p.Name)
	}
	for _, p := range c.policies {
		if err := compiler.SetPolicy(p); err != nil {
			t.Fatal(err)
		}
	}
	compiler.Flush()
	return compiler, m
}

// setPod gives a pod to a compiler.
func setPod(compiler *Compiler, c *cluster, name string) {
	p := c.pods[name]
	if pod, ok := NewPod(p, thisNode, nil); ok {
		compiler.SetPod(pod)
	} else {
		compiler.DeletePod(keyOf(p))
	}
}

// addressesOf are the addresses of a client.
func (c *cluster) addressesOf(name string) (all []netip.Addr) {
	switch name {
	case outside:
		return []netip.Addr{netip.MustParseAddr(outsideIP4), netip.MustParseAddr(outsideIP6)}
	case onHost:
		return []netip.Addr{netip.MustParseAddr(gateway4), netip.MustParseAddr(gateway6)}
	}
	for _, ip := range c.pods[name].Status.PodIPs {
		all = append(all, netip.MustParseAddr(ip.IP))
	}
	return all
}

// namedFlow is a connection between two ends of the test cluster.
type namedFlow struct {
	Flow
	from, to string
}

func (f namedFlow) String() string {
	return fmt.Sprintf("%s (%s) → %s (%s) %s %d", f.from, f.Source, f.to, f.Destination, f.Proto, f.Port)
}

// The ports on which the pods serve.
var serverPorts = []uint16{8080, 9090}

// flows lists the connections of all clients with all pods.
func (c *cluster) flows(protocols ...nft.Proto) (all []namedFlow) {
	for _, client := range []string{"a", "b", "c", "d", "e", outside} {
		for server := range c.pods {
			for _, source := range c.addressesOf(client) {
				for _, destination := range c.addressesOf(server) {
					if source.Is4() != destination.Is4() {
						continue
					}
					for _, proto := range protocols {
						for _, port := range serverPorts {
							all = append(all, namedFlow{Flow{source, destination, proto, port}, client, server})
						}
					}
				}
			}
		}
	}
	return all
}

// checkGolden compares text with a file in testdata.
func checkGolden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != text {
		t.Errorf("%s: have\n%s\nwant\n%s", path, text, want)
	}
}

// withoutBase removes what is always the same from the text of a model: chains of the base and sets without elements.
func withoutBase(text string) string {
	var kept []string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		if strings.HasPrefix(lines[i], "set ") || strings.HasPrefix(lines[i], "map ") {
			if lines[i+1] == "}" {
				i++
				continue
			}
		}
		name, isChain := strings.CutPrefix(lines[i], "chain ")
		name, _, _ = strings.Cut(name, " ")
		if isChain && !strings.Contains(name, "-") {
			for lines[i] != "}" {
				i++
			}
			continue
		}
		kept = append(kept, lines[i])
	}
	return strings.Join(kept, "\n")
}

func TestBase(t *testing.T) {
	_, m := newCluster().compile(t)
	checkGolden(t, "base", m.String())
}

func TestShapes(t *testing.T) {
	all := shapes()
	if len(all) < 40 {
		t.Fatalf("only %d shapes", len(all))
	}
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			c := s.cluster()
			compiler, m := c.compile(t)
			checkGolden(t, "shape "+s.name, withoutBase(m.String()))
			for d, want := range map[direction]bool{egress: compiler.hasTargets(), ingress: len(compiler.profiles[ingress]) > 0} {
				if have := strings.Contains(m.String(), "chain "+d.String()+" { type filter hook forward"); have != want {
					t.Errorf("packets pass the chain %s: %v, want %v", d, have, want)
				}
			}
			for _, f := range c.flows(nft.TCP, nft.UDP, nft.SCTP) {
				want := c.allows(f.Flow)
				if have := tableAllows(m, f.Flow); have != want {
					t.Errorf("%s: the table allows %v, want %v", f, have, want)
				}
				if have := compiler.Allows(f.Flow); have != want {
					t.Errorf("%s: the compiler allows %v, want %v", f, have, want)
				}
			}
		})
	}
}
