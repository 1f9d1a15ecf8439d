package health

import (
	"context"
	"errors"
	"net/http/httptest"
	"net/url"
	"testing"
)

func TestServe(t *testing.T) {
	well := Check{Name: "store", Check: func(context.Context) error { return nil }}
	ill := Check{Name: "leaderElection", Check: func(context.Context) error { return errors.New("the lease is old") }}
	warming := Check{Name: "informer-sync", ReadinessOnly: true, Check: func(context.Context) error { return errors.New("not yet") }}
	for _, test := range []struct {
		what       string
		checks     Checks
		query      string
		root, name string
		code       int
		body       string
	}{
		{"all well", Checks{Ping, well}, "", "healthz", "", 200, "ok"},
		{"verbose", Checks{Ping, well}, "verbose", "livez", "", 200, "[+]ping ok\n[+]store ok\nlivez check passed\n"},
		{"one fails: it is named, the reason is not", Checks{Ping, ill}, "", "readyz", "", 500, "[+]ping ok\n[-]leaderElection failed: reason withheld\nreadyz check failed\n"},
		{"the failing one is excluded", Checks{Ping, ill}, "exclude=leaderElection&verbose", "readyz", "", 200,
			"[+]ping ok\n[+]leaderElection excluded: ok\nreadyz check passed\n"},
		{"what is not there cannot be excluded", Checks{Ping}, "exclude=b&exclude=a&exclude=b&verbose", "readyz", "", 200,
			"[+]ping ok\nwarn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nreadyz check passed\n"},
		{"one fails for a reason that is public", Checks{Ping, {Name: "etcd", Check: func(context.Context) error { return Public(errors.New("no majority")) }}}, "", "readyz", "", 500,
			"[+]ping ok\n[-]etcd failed: no majority\nreadyz check failed\n"},
		{"one alone", Checks{Ping, ill}, "", "readyz", "ping", 200, "ok"},
		{"one alone tells why", Checks{Ping, ill}, "", "readyz", "leaderElection", 500, "internal server error: the lease is old\n"},
		{"unready is not dead", Live([]Check{Ping, warming}), "", "livez", "", 200, "ok"},
	} {
		t.Run(test.what, func(t *testing.T) {
			query, err := url.ParseQuery(test.query)
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			if !test.checks.Serve(t.Context(), w, query, test.root, test.name) {
				t.Fatal("no such check")
			}
			if w.Code != test.code || w.Body.String() != test.body {
				t.Errorf("%d %q, want %d %q", w.Code, w.Body.String(), test.code, test.body)
			}
		})
	}
	if (Checks{Ping}).Serve(t.Context(), httptest.NewRecorder(), nil, "healthz", "nobody") {
		t.Error("a check that does not exist was answered")
	}
}
