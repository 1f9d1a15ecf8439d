package upgrade

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func release(t *testing.T, text string) Release {
	t.Helper()
	skiff, kubernetes, _ := strings.Cut(text, " ")
	r := Release{Skiff: skiff, Kubernetes: kubernetes}
	if kubernetes == "" {
		r.Kubernetes = "v1.37.1"
	}
	if skiff == "-" {
		r.Skiff = ""
	}
	if err := r.validate(); err != nil {
		t.Fatal(err)
	}
	return r
}

// expect checks that a rule refuses with words, or does not if they are empty.
func expect(t *testing.T, what string, err error, want string) {
	t.Helper()
	_, isRefused := errors.AsType[*Refusal](err)
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case want != "" && (!isRefused || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: %v, want %q", what, err, want)
	case err != nil && strings.Contains(err.Error(), "\n"):
		t.Errorf("%s: not one sentence: %v", what, err)
	}
}

func TestAhead(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"v0.1.0", "v0.1.0", 0},
		{"v0.1.5", "v0.1.0-dev", 0},
		{"v0.1.0-12-gabcdef0-dirty", "v0.1.9", 0},
		{"v0.2.0", "v0.1.7", 1},
		{"v0.1.0", "v0.3.0", -2},
		{"v0.10.0", "v0.9.0", 1},
		{"v1.0.0", "v0.9.0", far},
		{"v0.9.0", "v2.0.0", -2 * far},
		{"v0.1.1 v1.39.0", "v0.1.0 v1.37.0", 2},
		{"v0.2.0 v1.38.0", "v0.1.0 v1.37.9", 1},
		{"v0.1.0 v1.37.0", "v0.1.0 v1.37.5", 0},
		{"v0.5.0 v1.38.0", "- v1.37.0", 1},
		{"- v1.37.0", "v0.1.0 v1.40.0", -3},
	} {
		if got := release(t, test.a).Ahead(release(t, test.b)); got != test.want {
			t.Errorf("%s is %d ahead of %s, want %d", test.a, got, test.b, test.want)
		}
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"v1.37.1+skiff.0.1.0-3-gabc": "v0.1.0-3-gabc (Kubernetes v1.37.1)", "v1.36.4": "Kubernetes v1.36.4", "v1.36.4+k3s1": "Kubernetes v1.36.4+k3s1",
		"": "", "latest": "", "v1.37.1+skiff.new": "",
	} {
		r, err := ParseGitVersion(text)
		if want == "" && err == nil || want != "" && (err != nil || r.String() != want) {
			t.Errorf("%q: %v, %v, want %q", text, r, err, want)
		}
	}
	for text, want := range map[string]string{
		"v0.2.0 (Kubernetes v1.38.0, commit abc, go1.26, linux/amd64)": "v0.2.0 (Kubernetes v1.38.0)", "": "", "v0.2.0": "", "x (Kubernetes v1.38.0,": "",
	} {
		r, err := ParseVersion(text)
		if want == "" && err == nil || want != "" && (err != nil || r.String() != want) {
			t.Errorf("%q: %v, %v, want %q", text, r, err, want)
		}
	}
}

// A data directory goes one minor version up at a time. One with objects never goes down; another goes one down if the layout is the same.
func TestCheckData(t *testing.T) {
	for _, test := range []struct {
		have          string
		layout        int
		own           string
		server, agent string
	}{
		{"v0.2.0", 1, "v0.2.0", "", ""},
		{"v0.2.0", 1, "v0.2.3", "", ""},
		{"v0.2.3", 1, "v0.2.0", "", ""},
		{"v0.2.0", 1, "v0.3.0", "", ""},
		{"v0.2.0", 1, "v0.4.0", "start v0.3 on it first", "start v0.3 on it first"},
		{"v0.2.0 v1.37.0", 1, "v0.2.1 v1.39.0", "start v0.3 on it first", "start v0.3 on it first"},
		{"v0.2.0", 1, "v0.1.0", "start v0.2 again, or restore a snapshot of v0.1", ""},
		{"v0.3.0", 1, "v0.1.0", "start v0.3 again", "drain the node"},
		{"v0.2.0", 2, "v0.2.0", "layout 2 of v0.2.0: start v0.2 again", "layout 2 of v0.2.0: start v0.2 again, or drain the node"},
		{"v0.2.0", 2, "v0.1.0", "reads layouts up to 1", "reads layouts up to 1"},
	} {
		have := &Record{Release: release(t, test.have), Layout: test.layout}
		own := Record{Release: release(t, test.own), Layout: 1}
		what := test.own + " on data of " + test.have
		expect(t, what, own.CheckData("/var/lib/skiff", have, true), test.server)
		expect(t, what+", without objects", own.CheckData("/var/lib/skiff", have, false), test.agent)
	}
	expect(t, "a new directory", Current().CheckData("/d", nil, true), "")
}

// Servers run one minor version apart, and not below the level.
func TestCheckServers(t *testing.T) {
	others := []Server{{"b", release(t, "v0.2.0")}, {"a", release(t, "v0.2.1")}, {"c", release(t, "v0.3.0")}}
	for own, want := range map[string]string{
		"v0.2.0": "", "v0.2.9": "", "v0.3.0": "", "v0.2.0 v1.38.0": "",
		"v0.1.0": "all of its cluster was upgraded to v0.2: start v0.2 on it",
		"v0.4.0": "a, b have v0.2.0: start v0.3 on all servers first",
	} {
		expect(t, own, release(t, own).CheckServers(release(t, "v0.2.0"), others), want)
	}
	expect(t, "one", release(t, "v0.4.0").CheckServers(release(t, "v0.2.0"), others[:1]), "and b has v0.2.0")
}

func TestCheckAgent(t *testing.T) {
	for _, test := range []struct{ own, server, want string }{
		{"v0.2.0", "v0.2.0", ""},
		{"v0.1.0", "v0.2.0", ""},
		{"v0.3.0", "v0.2.0", ""},
		{"v0.4.0", "v0.2.0", "upgrade the servers first"},
		{"v0.1.0", "v0.3.0", "upgrade the agent"},
		{"v0.1.0 v1.37.0", "- v1.36.2", ""},
		{"v0.1.0 v1.37.0", "- v1.39.0", "upgrade the agent"},
	} {
		expect(t, test.own+" with "+test.server, release(t, test.own).CheckAgent(release(t, test.server)), test.want)
	}
}

func TestCheckSnapshot(t *testing.T) {
	for own, want := range map[string]string{
		"v0.2.0": "", "v0.2.5": "", "v0.3.0": "", "v0.1.0": "restore it with v0.2", "v0.4.0": "restore it with v0.3",
	} {
		expect(t, own, release(t, own).CheckSnapshot(release(t, "v0.2.0")), want)
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	if r, err := ReadRecord(dir); r != nil || err != nil {
		t.Errorf("a new directory: %v, %v", r, err)
	}
	want := Record{Release: release(t, "v0.2.0-5-gabc v1.38.1"), Layout: 3}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	if r, err := ReadRecord(dir); err != nil || *r != want {
		t.Errorf("%v, %v, want %v", r, err, want)
	}
	if err := (Record{Release: Release{Skiff: "vnext", Kubernetes: "v1.37.1"}}).Write(dir); err == nil {
		t.Error("a version that cannot be compared is written")
	}
	for _, text := range []string{"", "{", `{"layout":1}`, `{"skiff":"x","kubernetes":"v1.37.1","layout":1}`, `{"skiff":"v0.1.0","kubernetes":"v1.37.1"}`} {
		if err := os.WriteFile(filepath.Join(dir, File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadRecord(dir)
		expect(t, text, err, filepath.Join(dir, File)+" is damaged")
	}
	if err := Current().validate(); err != nil {
		t.Errorf("this program: %v", err)
	}
}

// Every layout says what changes when a data directory gets it.
func TestMigrations(t *testing.T) {
	for layout := 2; layout <= Layout; layout++ {
		if migrations[layout] == "" {
			t.Errorf("layout %d", layout)
		}
	}
}
