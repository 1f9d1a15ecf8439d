package proxy

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skiff/internal/network/nft"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// compileShape computes the model of a shape, with or without the base.
func compileShape(s shape, withBase bool) *nft.Model {
	settings, node := testSettings(), testNode()
	if s.settings != nil {
		s.settings(&settings)
	}
	if s.node != nil {
		s.node(&node)
	}
	m := nft.NewModel(settings.Table)
	part := base(settings, node)
	if !withBase {
		// The sets and the chains that elements refer to, without what is always the same.
		part.Chains, part.Elements = nil, nil
	}
	m.Replace(baseOwner, part)
	for _, o := range s.objects {
		m.Replace(keyOf(o.service).String(), Compile(settings, node, o.service, o.slices).Part)
	}
	return m
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

// withoutEmpty removes sets without elements from the text of a model.
func withoutEmpty(text string) string {
	var kept []string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		if isSet := strings.HasPrefix(lines[i], "set ") || strings.HasPrefix(lines[i], "map "); isSet && lines[i+1] == "}" && !strings.Contains(lines[i], "dynamic") {
			i++
			continue
		}
		kept = append(kept, lines[i])
	}
	return strings.Join(kept, "\n")
}

func TestShapes(t *testing.T) {
	all := shapes()
	if len(all) < 40 {
		t.Fatalf("only %d shapes", len(all))
	}
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) { checkGolden(t, "shape "+s.name, withoutEmpty(compileShape(s, false).String())) })
	}
}

func TestBase(t *testing.T) {
	node := testNode()
	node.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16"), netip.MustParsePrefix("fd00:43::/112")}
	for name, change := range map[string]func(*Settings, *Node){
		"base":                   func(*Settings, *Node) {},
		"base all addresses":     func(_ *Settings, n *Node) { n.AllIPv4NodePorts, n.AllIPv6NodePorts = true, true },
		"base masquerade all":    func(s *Settings, _ *Node) { s.MasqueradeAll = true },
		"base interface":         func(s *Settings, _ *Node) { s.Local = LocalTraffic{Interface: "skiff0"} },
		"base interface prefix":  func(s *Settings, _ *Node) { s.Local = LocalTraffic{InterfacePrefix: "veth"} },
		"base without detection": func(s *Settings, _ *Node) { s.Local = LocalTraffic{} },
	} {
		t.Run(name, func(t *testing.T) {
			settings, n := testSettings(), node
			change(&settings, &n)
			m := nft.NewModel(settings.Table)
			m.Replace(baseOwner, base(settings, n))
			checkGolden(t, name, m.String())
		})
	}
}

// One endpoint more or less changes a few elements, however many Services there are.
func TestOneEndpointIsAFewElements(t *testing.T) {
	settings, node := testSettings(), testNode()
	m := nft.NewModel(settings.Table)
	m.Replace(baseOwner, base(settings, node))
	for i := range 1000 {
		o := service(clusterIPs(netip.AddrFrom4([4]byte{10, 43, byte(i >> 8), byte(i)}).String()), endpoints("a", "b", "c"))
		m.Replace("default/"+o.service.Spec.ClusterIP, Compile(settings, node, o.service, o.slices).Part)
	}
	m.Commit()
	before := service(clusterIPs("10.43.0.7"), endpoints("a", "b", "c", "d"))
	m.Replace("default/10.43.0.7", Compile(settings, node, before.service, before.slices).Part)
	checkGolden(t, "change one endpoint", m.Text(m.Changes()))
}
