package config

import (
	"flag"
	"io"
	"strings"
	"testing"
)

type flagged interface {
	Flags(*flag.FlagSet)
	Validate() error
}

func parse(c flagged, args string) error {
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c.Flags(fs)
	if err := fs.Parse(strings.Fields(args)); err != nil {
		return err
	}
	return c.Validate()
}

func TestSchedulerAndQuestions(t *testing.T) {
	scheduler := func() flagged { c := DefaultScheduler(); return &c }
	why := func() flagged { c := DefaultWhy(); return &c }
	whatIf := func() flagged { c := DefaultWhatIf(); return &c }
	for _, test := range []struct {
		what, args string
		make       func() flagged
		fails      string
	}{
		{"a scheduler needs to know where the API server is", "", scheduler, "--kubeconfig"},
		{"by a kubeconfig", "--kubeconfig=x", scheduler, ""},
		{"or by a file that says", "--config=x", scheduler, ""},
		{"upstream's flags", "--kubeconfig=x --bind-address=127.0.0.1 --secure-port=10259 --leader-elect=false --authentication-kubeconfig=x --authorization-kubeconfig=x", scheduler, ""},
		{"a port that is none", "--kubeconfig=x --secure-port=70000", scheduler, "--secure-port"},
		{"half a certificate", "--kubeconfig=x --tls-cert-file=y", scheduler, "--tls-cert-file"},
		{"why needs nothing", "", why, ""},
		{"why, with all", "--kubeconfig=x --context=y -n z -o json --scheduler=https://localhost:10259 --scheduler-ca=ca.crt", why, ""},
		{"an unknown form", "-o xml", why, "-o"},
		{"an authority of nobody", "--scheduler-ca=ca.crt", why, "--scheduler-ca"},
		{"why has no manifest", "-f x", why, "not defined"},
		{"what-if needs one", "", whatIf, "-f"},
		{"what-if, with one", "-f - --nodes --namespace x", whatIf, ""},
	} {
		err := parse(test.make(), test.args)
		if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %v, want %q", test.what, err, test.fails)
		}
	}
	if c := DefaultScheduler(); c.SecurePort != 10259 || !c.LeaderElect {
		t.Errorf("%+v", c)
	}
}
