package system

import (
	"testing"

	"k8s.io/client-go/rest"

	"skiff/internal/config"
)

// A server has the address of its host, by which its node is known, although the administrator's kubeconfig has 127.0.0.1. Several are reached by their own.
func TestUpgradeEndpoints(t *testing.T) {
	const own = "https://127.0.0.1:6443"
	for _, test := range []struct {
		addresses      []string
		hosts, reached []string
	}{
		{nil, []string{"127.0.0.1"}, []string{own}},
		{[]string{"10.0.0.5:6443"}, []string{"10.0.0.5"}, []string{own}},
		{[]string{"[fd00::5]:6443"}, []string{"fd00::5"}, []string{own}},
		{[]string{"10.0.0.5:6443", "10.0.0.6:6443"}, []string{"10.0.0.5", "10.0.0.6"}, []string{"https://10.0.0.5:6443", "https://10.0.0.6:6443"}},
	} {
		x := &upgradeExamination{config: config.Upgrade{}, connection: &rest.Config{Host: own}}
		found := x.endpoints(test.addresses)
		if len(found) != len(test.hosts) {
			t.Fatalf("%v: %+v", test.addresses, found)
		}
		for i, e := range found {
			if e.host != test.hosts[i] || e.connection.Host != test.reached[i] {
				t.Errorf("%v: %s is reached at %s, want %s at %s", test.addresses, e.host, e.connection.Host, test.hosts[i], test.reached[i])
			}
		}
	}
}
