package environment

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestHosts(t *testing.T) {
	managed := "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
	aliases := "\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n5.6.7.8\tc\n"
	for name, test := range map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"plain":     {corev1.PodSpec{}, managed + "10.0.0.1\tpod\nfd00::1\tpod\n"},
		"subdomain": {corev1.PodSpec{Hostname: "h", Subdomain: "s"}, managed + "10.0.0.1\th.s.space.svc.cluster.local\th\nfd00::1\th.s.space.svc.cluster.local\th\n"},
		"aliases": {corev1.PodSpec{HostAliases: []corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}, {IP: "5.6.7.8", Hostnames: []string{"c"}}}},
			managed + "10.0.0.1\tpod\nfd00::1\tpod\n" + aliases},
		"host network": {corev1.PodSpec{HostNetwork: true, HostAliases: []corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}, {IP: "5.6.7.8", Hostnames: []string{"c"}}}},
			"# Kubernetes-managed hosts file (host network).\n127.0.0.1 node\n" + aliases},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "space"}, Spec: test.spec}
		got, err := Hosts(pod, []string{"10.0.0.1", "fd00::1"}, "cluster.local", []byte("127.0.0.1 node\n"))
		if err != nil || string(got) != test.want {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
}

func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 62) + "-" + strings.Repeat("b", 20)
	for name, test := range map[string]struct {
		pod                      string
		spec                     corev1.PodSpec
		hostname, domain, kernel string
		err                      string
	}{
		"plain":                  {pod: "pod", hostname: "pod", kernel: "pod"},
		"own":                    {pod: "pod", spec: corev1.PodSpec{Hostname: "h"}, hostname: "h", kernel: "h"},
		"subdomain":              {pod: "pod", spec: corev1.PodSpec{Subdomain: "s"}, hostname: "pod", domain: "s.space.svc.cluster.local", kernel: "pod"},
		"whole name":             {pod: "pod", spec: corev1.PodSpec{Subdomain: "s", SetHostnameAsFQDN: pointer(true)}, hostname: "pod", domain: "s.space.svc.cluster.local", kernel: "pod.s.space.svc.cluster.local"},
		"whole name, no domain":  {pod: "pod", spec: corev1.PodSpec{SetHostnameAsFQDN: pointer(true)}, hostname: "pod", kernel: "pod"},
		"too long":               {pod: long, hostname: strings.Repeat("a", 62), kernel: strings.Repeat("a", 62)},
		"override":               {pod: "pod", spec: corev1.PodSpec{Hostname: "h", Subdomain: "s", HostnameOverride: pointer("o.example.com")}, hostname: "o.example.com", kernel: "o.example.com"},
		"host network":           {pod: "pod", spec: corev1.PodSpec{HostNetwork: true}, hostname: "pod", kernel: ""},
		"not a label":            {pod: "pod", spec: corev1.PodSpec{Hostname: "a.b"}, err: `pod Hostname "a.b" is not a valid DNS label: `},
		"subdomain not a label":  {pod: "pod", spec: corev1.PodSpec{Subdomain: "A"}, err: `pod Subdomain "A" is not a valid DNS label: `},
		"override not a domain":  {pod: "pod", spec: corev1.PodSpec{HostnameOverride: pointer("A_")}, err: `pod HostnameOverride "A_" is not a valid DNS subdomain: `},
		"whole name is too long": {pod: strings.Repeat("a", 60), spec: corev1.PodSpec{Subdomain: "s", SetHostnameAsFQDN: pointer(true)}, err: "failed to construct FQDN from pod hostname and cluster domain, FQDN "},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: test.pod, Namespace: "space"}, Spec: test.spec}
		kernel, err := KernelHostname(pod, "cluster.local")
		if test.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		hostname, domain, _ := Hostname(pod, "cluster.local")
		if err != nil || kernel != test.kernel || hostname != test.hostname || domain != test.domain {
			t.Errorf("%s: %q %q %q, %v", name, hostname, domain, kernel, err)
		}
	}
}

func TestDNS(t *testing.T) {
	host := &DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"example.com", "svc.cluster.local"}, Options: []string{"timeout:2"}}
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("s%d.example", i))
	}
	long := strings.Repeat("x", 254)
	cluster := "space.svc.cluster.local svc.cluster.local cluster.local"
	for name, test := range map[string]struct {
		spec     corev1.PodSpec
		settings func(*DNSSettings)
		servers  string
		searches string
		options  string
		warns    string
	}{
		"cluster first":                     {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, nil, "10.96.0.10", cluster + " example.com", "ndots:5", ""},
		"unknown policy":                    {corev1.PodSpec{DNSPolicy: "Odd"}, nil, "10.96.0.10", cluster + " example.com", "ndots:5", ""},
		"cluster first on the host network": {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: true}, nil, "192.0.2.53", "example.com svc.cluster.local", "timeout:2", ""},
		"cluster first even so":             {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet, HostNetwork: true}, nil, "10.96.0.10", cluster + " example.com", "ndots:5", ""},
		"default":                           {corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, nil, "192.0.2.53", "example.com svc.cluster.local", "timeout:2", ""},
		"none": {corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{"a"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: pointer("2")}, {Name: "edns0"}}}}, nil,
			"1.1.1.1", "a", "ndots:2 edns0", ""},
		"own added": {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "10.96.0.10"}, Searches: []string{"a", "cluster.local"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: pointer("1")}}}}, nil,
			"10.96.0.10 1.1.1.1", cluster + " example.com a", "ndots:1", ""},
		"no cluster DNS": {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, func(s *DNSSettings) { s.ClusterDNS = nil }, "192.0.2.53", "example.com svc.cluster.local", "timeout:2",
			`kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`},
		"no cluster domain": {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, func(s *DNSSettings) { s.ClusterDomain = "" }, "10.96.0.10", "example.com svc.cluster.local", "ndots:5", ""},
		"no resolver":       {corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, func(s *DNSSettings) { s.Host, s.NodeIPs = nil, []string{"10.1.1.1", "fd00::2"} }, "127.0.0.1 ::1", ".", "", ""},
		"too many servers": {corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"}}}, nil, "1.1.1.1 1.1.1.2 1.1.1.3", "", "",
			"Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 1.1.1.2 1.1.1.3"},
		"too many searches": {corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: many}}, nil, "1.1.1.1", strings.Join(many[:32], " "), "",
			"Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " + strings.Join(many[:32], " ")},
		"a search too long": {corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{long, "a"}}}, nil, "1.1.1.1", "a", "",
			"Search Line limits were exceeded, some search paths have been omitted, the applied search line is: a"},
	} {
		warned := ""
		s := DNSSettings{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local", Host: host, Warn: func(_, message string, _ bool) { warned += message + "\n" }}
		if test.settings != nil {
			test.settings(&s)
		}
		got, err := DNS(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "space"}, Spec: test.spec}, s)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Join(got.Servers, " ") != test.servers || strings.Join(got.Searches, " ") != test.searches || strings.Join(got.Options, " ") != test.options {
			t.Errorf("%s: %v", name, got)
		}
		if (warned == "") != (test.warns == "") || !strings.Contains(warned, test.warns) {
			t.Errorf("%s: warned %q", name, warned)
		}
	}
	if strings.Join(host.Searches, " ") != "example.com svc.cluster.local" || host.Options[0] != "timeout:2" {
		t.Error("the node's own configuration was changed")
	}
}

func TestLongSearchLine(t *testing.T) {
	var searches []string
	for i := range 20 {
		searches = append(searches, fmt.Sprintf("%d%s", i, strings.Repeat("y", 200)))
	}
	got, err := DNS(&corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Searches: searches}}}, DNSSettings{})
	if err != nil {
		t.Fatal(err)
	}
	if line := strings.Join(got.Searches, " "); len(line) > maxSearchLine || len(got.Searches) != 10 {
		t.Errorf("%d searches, %d characters", len(got.Searches), len(line))
	}
}

func TestResolver(t *testing.T) {
	got, err := ParseResolver("# comment\nnameserver 1.1.1.1\nnameserver 2.2.2.2\nsearch old\nsearch a.example. . b.example\noptions ndots:1 rotate\noptions ndots:2\nodd line\n")
	if err != nil || strings.Join(got.Servers, " ") != "1.1.1.1 2.2.2.2" || strings.Join(got.Searches, " ") != "a.example b.example" || strings.Join(got.Options, " ") != "ndots:2 rotate" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ParseResolver("nameserver\n"); err == nil {
		t.Error("a name server without an address is taken")
	}
	many := &DNSConfig{Searches: make([]string, 30)}
	for _, test := range []struct {
		host *DNSConfig
		want string
	}{
		{&DNSConfig{Searches: []string{"a"}}, ""},
		{many, "consisting of more than 29 domains!"},
		{&DNSConfig{Searches: []string{strings.Repeat("x", 254)}}, "a search path which length is more than allowed 253 chars!"},
	} {
		if got := CheckResolver("/r", test.host, "cluster.local"); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%q", got)
		}
	}
}
