package upgrade

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// observed is a cluster of one minor version before v0.2.0: three servers, the first of which is the leader, and their nodes and agents.
func observed(t *testing.T) Observed {
	old := release(t, "v0.1.3 v1.37.1")
	server := func(name, host string) ObservedServer { return ObservedServer{Server: Server{name, old}, Host: host} }
	o := Observed{
		Dir: "/var/lib/skiff", Data: &Record{Release: old, Layout: 1}, HasData: true, HasObjects: true, URL: "https://10.0.0.1:6443", API: old,
		Servers: []ObservedServer{server("a", "10.0.0.1"), server("b", "10.0.0.2"), server("c", "10.0.0.3")},
		Nodes: []ObservedNode{
			{"worker", old, []string{"10.0.0.9"}}, {"b", old, []string{"10.0.0.2"}}, {"another", old, []string{"10.0.0.8"}},
		},
		Definitions: []Definition{{"widgets.example.com", "v1", []string{"v1"}}},
		Snapshot:    now.Add(-time.Hour),
	}
	o.Servers[0].IsLeader = true
	return o
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestPlan(t *testing.T) {
	for what, test := range map[string]struct {
		change func(o *Observed)
		to     string // default: v0.2.0 v1.38.0
		// want are words of findings, with their states. Findings that are not ok and not wanted are mistakes.
		want []string
		// not is in no finding, unless it is empty.
		not string
		err string
	}{
		"one minor version up": {
			want: []string{"ok data directory: /var/lib/skiff was written by v0.1.3 (Kubernetes v1.37.1) in layout 1", "ok servers: 3, the oldest has v0.1.3", "ok nodes: 3, all close",
				"ok deprecated APIs: none", "ok custom resources: 1 definitions", "ok snapshot: the newest is 1h0m0s old", "ok migration: nothing is rewritten; objects are stored in newer"},
		},
		"a patch": {to: "v0.1.9 v1.37.2", want: []string{"ok migration: nothing is rewritten"}},
		"two minor versions up": {
			to: "v0.3.0 v1.38.0", err: "start v0.2 on it first",
			want: []string{"refused data directory: skiff v0.3.0 cannot use /var/lib/skiff of v0.1.3: start v0.2", "refused servers: this server has skiff v0.3.0, and a, b, c have v0.1.3",
				"refused node: worker has v0.1.3 (Kubernetes v1.37.1): upgrade it to v0.2 first", "refused node: b", "refused node: another"},
		},
		"down": {
			to: "v0.0.9 v1.37.1", err: "restore a snapshot of v0.0",
			want: []string{"refused data directory", "refused servers: this server has skiff v0.0.9, and all of its cluster was upgraded to v0.1"},
		},
		"an agent was left behind": {
			change: func(o *Observed) { o.Nodes[0].Release = release(t, "v0.0.1 v1.37.1") },
			want:   []string{"refused node: worker has v0.0.1 (Kubernetes v1.37.1): upgrade it to v0.1 first, because nodes may be one minor"}, err: "worker",
		},
		"kubelets of upstream": {
			change: func(o *Observed) {
				o.Nodes[0].Release, o.Nodes[1].Release, o.Nodes[2].Release = release(t, "- v1.35.0"), release(t, "- v1.34.9"), release(t, "- v1.39.0")
			},
			want: []string{"refused node: b has Kubernetes v1.34.9: upgrade it to v1.35 first, because a kubelet may be three", "refused node: another has Kubernetes v1.39.0: it is too new"}, err: "b has",
		},
		"deprecated APIs": {
			change: func(o *Observed) {
				o.DeprecatedAPIs = []DeprecatedAPI{{"", "v1", "endpoints", ""}, {"example.k8s.io", "v1beta1", "things", "1.38"}, {"example.k8s.io", "v1beta2", "things", "1.41"}}
			},
			want: []string{"ok deprecated API: v1 endpoints is requested by clients; no release", "warning removed API: example.k8s.io/v1beta1 things is requested by clients, and Kubernetes v1.38.0 does not",
				"warning deprecated API: example.k8s.io/v1beta2 things is requested by clients, and Kubernetes 1.41 removes it"},
		},
		"old custom resources": {
			change: func(o *Observed) { o.Definitions[0].Stored = []string{"v1beta1", "v1"} },
			want:   []string{"warning custom resource: widgets.example.com: objects may be stored in v1beta1; write them again, so that they are stored in v1"},
		},
		"an old snapshot": {
			change: func(o *Observed) { o.Snapshot = now.Add(-50 * time.Hour) },
			want:   []string{"warning snapshot: the newest is 50h0m0s old: 'skiff snapshot save --name before-upgrade'"},
		},
		"no snapshot": {change: func(o *Observed) { o.Snapshot = time.Time{} }, want: []string{"warning snapshot: none was found, and only a snapshot leads back"}},
		"a server that has not started": {
			change: func(o *Observed) { o.Servers[2].Release = Release{} },
			want:   []string{"warning server: c: its version is not known", "ok servers: 2"},
		},
		"offline": {
			change: func(o *Observed) {
				*o = Observed{Dir: o.Dir, Data: o.Data, HasData: true, HasObjects: true, Unknown: []string{"the cluster: connection refused"}}
			},
			want: []string{"ok data directory", "warning not examined: the cluster: connection refused", "warning snapshot: none"},
		},
		"down without etcd": {
			change: func(o *Observed) { *o = Observed{Dir: o.Dir, Data: o.Data, HasData: true, Snapshot: now} }, to: "v0.0.9 v1.37.1",
			want: []string{"ok data directory"},
		},
		"a newer layout": {
			change: func(o *Observed) {
				*o = Observed{Dir: o.Dir, Data: o.Data, HasData: true, Snapshot: now}
				o.Data.Layout = 9
			},
			want: []string{"refused data directory: skiff v0.2.0 reads layouts up to 1"}, err: "layout 9",
		},
		"data without a record": {
			change: func(o *Observed) { *o = Observed{Dir: o.Dir, HasData: true, Snapshot: now} },
			want:   []string{"warning data directory: /var/lib/skiff has no version.json"},
		},
		"an agent": {
			change: func(o *Observed) {
				*o = Observed{Dir: o.Dir, Data: o.Data, HasData: true, IsAgent: true, URL: "https://127.0.0.1:1", API: release(t, "v0.2.0 v1.38.0")}
			},
			want: []string{"ok data directory", "ok server: https://127.0.0.1:1 has v0.2.0 (Kubernetes v1.38.0)"},
		},
		"an agent far from its server": {
			change: func(o *Observed) {
				*o = Observed{Dir: o.Dir, Data: o.Data, HasData: true, IsAgent: true, URL: "https://127.0.0.1:1", API: release(t, "v0.4.0 v1.38.0")}
			},
			want: []string{"refused server: this agent has skiff v0.2.0"}, err: "upgrade the agent",
		},
		"another implementation": {
			change: func(o *Observed) {
				*o = Observed{URL: "https://10.0.0.1:6443", API: release(t, "- v1.37.1"), Snapshot: now}
			},
			want: []string{"warning server: https://10.0.0.1:6443 is another implementation of Kubernetes"},
		},
		"APIs that are not known": {
			change: func(o *Observed) { o.UnknownAPIs, o.Unknown = true, []string{"the deprecated APIs: no response"} },
			want:   []string{"warning not examined: the deprecated APIs: no response"}, not: "none was requested",
		},
	} {
		o := observed(t)
		if test.change != nil {
			test.change(&o)
		}
		to := Record{Release: release(t, "v0.2.0 v1.38.0"), Layout: 1}
		if test.to != "" {
			to.Release = release(t, test.to)
		}
		plan := NewPlan(to, o, now)
		var got []string
		for _, f := range plan.Findings {
			got = append(got, string(f.State)+" "+f.Subject+": "+f.Text)
		}
		matches := func(words, finding string) bool { return strings.HasPrefix(finding, words) }
		for _, words := range test.want {
			if !slices.ContainsFunc(got, func(finding string) bool { return matches(words, finding) }) {
				t.Errorf("%s: no %q in\n%s", what, words, strings.Join(got, "\n"))
			}
		}
		for _, finding := range got {
			if test.not != "" && strings.Contains(finding, test.not) {
				t.Errorf("%s: %s", what, finding)
			}
			if !strings.HasPrefix(finding, "ok ") && !slices.ContainsFunc(test.want, func(words string) bool { return matches(words, finding) }) {
				t.Errorf("%s: %s", what, finding)
			}
		}
		if err := plan.Err(); test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: %v, want %q", what, err, test.err)
		}
	}
}

// Servers are upgraded before nodes, the leader of etcd last, and the node of a server with it.
func TestPlanOrder(t *testing.T) {
	o := observed(t)
	plan := NewPlan(Record{Release: release(t, "v0.2.0 v1.38.0"), Layout: 1}, o, now)
	if want := []string{"server b", "server c", "server a", "node another", "node worker"}; !slices.Equal(plan.Order, want) {
		t.Errorf("%v, want %v", plan.Order, want)
	}
	var out strings.Builder
	if err := plan.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"from:   v0.1.3 (Kubernetes v1.37.1)\n", "to:     v0.2.0 (Kubernetes v1.38.0)\n", "\n  1. server b\n", "\n  5. node worker\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	// What was upgraded already is left out.
	o.Servers[1].Release, o.Nodes[1].Release = release(t, "v0.2.0 v1.38.0"), release(t, "v0.2.0 v1.38.0")
	plan = NewPlan(Record{Release: release(t, "v0.2.0 v1.38.0"), Layout: 1}, o, now)
	if want := []string{"server c", "server a", "node another", "node worker"}; !slices.Equal(plan.Order, want) || plan.Err() != nil {
		t.Errorf("half of the servers: %v, %v", plan.Order, plan.Err())
	}
}
