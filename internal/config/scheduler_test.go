package config

import (
	"strings"
	"testing"
)

func TestSchedulerAndQueries(t *testing.T) {
	scheduler := func() configurable { c := DefaultScheduler(); return &c }
	why := func() configurable { c := DefaultWhy(); return &c }
	whatIf := func() configurable { c := DefaultWhatIf(); return &c }
	for _, test := range []struct {
		what, args string
		make       func() configurable
		fails      string
	}{
		{"scheduler without API server", "", scheduler, "--kubeconfig"},
		{"scheduler with kubeconfig", "--kubeconfig=x", scheduler, ""},
		{"scheduler with configuration file", "--config=x", scheduler, ""},
		{"upstream's flags", "--kubeconfig=x --bind-address=127.0.0.1 --secure-port=10259 --leader-elect=false --authentication-kubeconfig=x --authorization-kubeconfig=x", scheduler, ""},
		{"invalid port", "--kubeconfig=x --secure-port=70000", scheduler, "--secure-port"},
		{"certificate without key", "--kubeconfig=x --tls-cert-file=y", scheduler, "--tls-cert-file"},
		{"why without flags", "", why, ""},
		{"why with all flags", "--kubeconfig=x --context=y -n z -o json --scheduler=https://localhost:10259 --scheduler-ca=ca.crt", why, ""},
		{"unknown output format", "-o xml", why, "--output"},
		{"CA without scheduler", "--scheduler-ca=ca.crt", why, "--scheduler-ca"},
		{"why with manifest", "-f x", why, "unknown shorthand flag"},
		{"what-if without manifest", "", whatIf, "--filename"},
		{"what-if with manifest", "-f - --nodes --namespace x", whatIf, ""},
	} {
		err := parse(test.make(), strings.Fields(test.args)...)
		if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %v, want %q", test.what, err, test.fails)
		}
	}
	if c := DefaultScheduler(); c.SecurePort != 10259 || !c.LeaderElect {
		t.Errorf("%+v", c)
	}
}
