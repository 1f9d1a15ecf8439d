package plugins

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func TestInterPodAffinityFilter(t *testing.T) {
	host, zoneKey := corev1.LabelHostname, corev1.LabelTopologyZone
	db, web := schedulertest.Labelled("app", "db"), schedulertest.Labelled("app", "web")
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2")), schedulertest.TestNode("d")}
	refused := func(reason, names string) map[string]string {
		all := map[string]string{}
		for _, name := range strings.Fields(names) {
			all[name] = reason
		}
		return all
	}
	everything := &metav1.LabelSelector{}
	checkNeighbours(t, InterPodAffinityName, []spreadRow{
		{"no terms, no say", nodes, schedulertest.PodsOn("a b", db), schedulertest.TestPod("p", db), refused("", "")},
		{"affinity one on its host", nodes, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db")), refused(schedulertest.PodAffinityReason, "b c d")},
		{"affinity one in its zone", nodes, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.WithAffinity(zoneKey, "app", "db")), refused(schedulertest.PodAffinityReason, "c d")},
		{"affinity nobody who is there", nodes, schedulertest.PodsOn("a", web), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db")), refused(schedulertest.PodAffinityReason, "a b c d")},
		{"affinity one on a node without the key", nodes, schedulertest.PodsOn("d", db), schedulertest.TestPod("p", schedulertest.WithAffinity(zoneKey, "app", "db")), refused(schedulertest.PodAffinityReason, "a b c d")},
		{"affinity one of another namespace", nodes, schedulertest.PodsOn("a", db, schedulertest.Namespace("other")), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db")), refused(schedulertest.PodAffinityReason, "a b c d")},
		{"affinity one of its own namespace", nodes, schedulertest.PodsOn("a", db, schedulertest.Namespace("other")), schedulertest.TestPod("p", schedulertest.Namespace("other"), schedulertest.WithAffinity(host, "app", "db")), refused(schedulertest.PodAffinityReason, "b c d")},
		{"affinity one who is on its way out", nodes, schedulertest.PodsOn("a", db, schedulertest.Terminating), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db")), refused(schedulertest.PodAffinityReason, "b c d")},
		{"affinity one who has ended", nodes, schedulertest.PodsOn("a", db, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db")), refused(schedulertest.PodAffinityReason, "a b c d")},
		{"affinity two kinds: one pod must be both", nodes, slices.Concat(schedulertest.PodsOn("a", db), schedulertest.PodsOn("a", schedulertest.Labelled("tier", "x"))), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db"), schedulertest.WithAffinity(host, "tier", "x")), refused(schedulertest.PodAffinityReason, "a b c d")},
		{"affinity two kinds: one pod is both", nodes, schedulertest.PodsOn("a", db, schedulertest.Labelled("tier", "x")), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db"), schedulertest.WithAffinity(zoneKey, "tier", "x")), refused(schedulertest.PodAffinityReason, "b c d")},
		{"affinity two kinds in two domains: each must have one that is both", nodes, schedulertest.PodsOn("a c", db, schedulertest.Labelled("tier", "x")), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "db"), schedulertest.WithAffinity(zoneKey, "tier", "x")), refused(schedulertest.PodAffinityReason, "b d")},
		{"affinity, by a key nobody has", nodes, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.WithAffinity("rack", "app", "db")), refused(schedulertest.PodAffinityReason, "a b c d")},
		{"the first of its kind may go where the key is", nodes, nil, schedulertest.TestPod("p", db, schedulertest.WithAffinity(zoneKey, "app", "db")), refused(schedulertest.PodAffinityReason, "d")},
		{"the first of its kind, all keys", nodes, nil, schedulertest.TestPod("p", db, schedulertest.WithAffinity(zoneKey, "app", "db"), schedulertest.WithAffinity(host, "app", "db")), refused(schedulertest.PodAffinityReason, "d")},
		{"the second of its kind may not", nodes, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", db, schedulertest.WithAffinity(zoneKey, "app", "db")), refused(schedulertest.PodAffinityReason, "c d")},
		{"the first that is counted: another is on a node without the key", nodes, schedulertest.PodsOn("d", db), schedulertest.TestPod("p", db, schedulertest.WithAffinity(zoneKey, "app", "db")), refused(schedulertest.PodAffinityReason, "d")},
		{"who does not match itself is not the first of its kind", nodes, nil, schedulertest.TestPod("p", web, schedulertest.WithAffinity(zoneKey, "app", "db")), refused(schedulertest.PodAffinityReason, "a b c d")},
		{"who matches one of its two terms is not", nodes, nil, schedulertest.TestPod("p", db, schedulertest.WithAffinity(zoneKey, "app", "db"), schedulertest.WithAffinity(zoneKey, "tier", "x")), refused(schedulertest.PodAffinityReason, "a b c d")},
		{"one matches one term only: the pod is the first", nodes, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", db, schedulertest.Labelled("tier", "x"), schedulertest.WithAffinity(zoneKey, "app", "db"), schedulertest.WithAffinity(zoneKey, "tier", "x")), refused(schedulertest.PodAffinityReason, "d")},

		{"antiAffinity from one on its host", nodes, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "app", "db")), refused(schedulertest.PodAntiAffinityReason, "a")},
		{"antiAffinity from one in its zone", nodes, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(zoneKey, "app", "db")), refused(schedulertest.PodAntiAffinityReason, "a b")},
		{"antiAffinity from one on a node without the key", nodes, schedulertest.PodsOn("d", db), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(zoneKey, "app", "db")), refused("", "")},
		{"antiAffinity from nobody who is there", nodes, schedulertest.PodsOn("a", web), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "app", "db")), refused("", "")},
		{"antiAffinity from its own kind, of which there is none", nodes, nil, schedulertest.TestPod("p", db, schedulertest.WithAntiAffinity(host, "app", "db")), refused("", "")},
		{"antiAffinity from two kinds: either keeps it antiAffinity", nodes, slices.Concat(schedulertest.PodsOn("a", db), schedulertest.PodsOn("c", schedulertest.Labelled("tier", "x"))), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "app", "db"), schedulertest.WithAntiAffinity(host, "tier", "x")), refused(schedulertest.PodAntiAffinityReason, "a c")},
		{"antiAffinity from two kinds in two domains", nodes, slices.Concat(schedulertest.PodsOn("a", db), schedulertest.PodsOn("c", schedulertest.Labelled("tier", "x"))), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "tier", "x"), schedulertest.WithAntiAffinity(zoneKey, "app", "db")), refused(schedulertest.PodAntiAffinityReason, "a b c")},
		{"antiAffinity from one of another namespace", nodes, schedulertest.PodsOn("a", db, schedulertest.Namespace("other")), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "app", "db")), refused("", "")},
		{"antiAffinity from one who is on its way out", nodes, schedulertest.PodsOn("a", db, schedulertest.Terminating), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "app", "db")), refused(schedulertest.PodAntiAffinityReason, "a")},
		{"antiAffinity by a key nobody has", nodes, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.WithAntiAffinity("rack", "app", "db")), refused("", "")},

		{"one there wants none of it", nodes, schedulertest.PodsOn("a", schedulertest.WithAntiAffinity(host, "app", "db")), schedulertest.TestPod("p", db), refused(schedulertest.ExistingAntiAffinityReason, "a")},
		{"one there wants none of it in its zone", nodes, schedulertest.PodsOn("a", schedulertest.WithAntiAffinity(zoneKey, "app", "db")), schedulertest.TestPod("p", db), refused(schedulertest.ExistingAntiAffinityReason, "a b")},
		{"one there wants none of others", nodes, schedulertest.PodsOn("a", schedulertest.WithAntiAffinity(host, "app", "web")), schedulertest.TestPod("p", db), refused("", "")},
		{"one there of another namespace wants none of its own", nodes, schedulertest.PodsOn("a", schedulertest.WithAntiAffinity(host, "app", "db"), schedulertest.Namespace("other")), schedulertest.TestPod("p", db), refused("", "")},
		{"one there without the key wants none of it", nodes, schedulertest.PodsOn("d", schedulertest.WithAntiAffinity(zoneKey, "app", "db")), schedulertest.TestPod("p", db), refused("", "")},
		{"two there want none of it", nodes, schedulertest.PodsOn("a c", schedulertest.WithAntiAffinity(host, "app", "db")), schedulertest.TestPod("p", db), refused(schedulertest.ExistingAntiAffinityReason, "a c")},
		{"one there has two terms", nodes, schedulertest.PodsOn("a", schedulertest.WithAntiAffinity(host, "app", "web"), schedulertest.WithAntiAffinity(zoneKey, "app", "db")), schedulertest.TestPod("p", db), refused(schedulertest.ExistingAntiAffinityReason, "a b")},
		{"one there wants to be affinity it: nobody is refused", nodes, schedulertest.PodsOn("a", schedulertest.WithAffinity(host, "app", "db")), schedulertest.TestPod("p", db), refused("", "")},
		{"its own wish is named before others'", nodes, schedulertest.PodsOn("a", db, schedulertest.WithAntiAffinity(zoneKey, "app", "db")), schedulertest.TestPod("p", db, schedulertest.WithAntiAffinity(host, "app", "db")), map[string]string{"a": schedulertest.PodAntiAffinityReason, "b": schedulertest.ExistingAntiAffinityReason}},
		{"what it wants to be affinity is named before what it wants antiAffinity from", nodes, slices.Concat(schedulertest.PodsOn("a", web), schedulertest.PodsOn("c", db)), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "web"), schedulertest.WithAntiAffinity(host, "app", "db")), refused(schedulertest.PodAffinityReason, "b c d")},
		{"affinity and antiAffinity on one node", nodes, slices.Concat(schedulertest.PodsOn("a", web), schedulertest.PodsOn("a", db)), schedulertest.TestPod("p", schedulertest.WithAffinity(host, "app", "web"), schedulertest.WithAntiAffinity(host, "app", "db")), map[string]string{"a": schedulertest.PodAntiAffinityReason, "b": schedulertest.PodAffinityReason, "c": schedulertest.PodAffinityReason, "d": schedulertest.PodAffinityReason}},

		{"an empty selector is about all pods of the namespace", nodes, schedulertest.PodsOn("a", web), schedulertest.TestPod("p", schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "", "", schedulertest.WithSelector(everything)))), refused(schedulertest.PodAntiAffinityReason, "a")},
		{"an empty selector is not about pods of others", nodes, schedulertest.PodsOn("a", web, schedulertest.Namespace("other")), schedulertest.TestPod("p", schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "", "", schedulertest.WithSelector(everything)))), refused("", "")},
		{"no selector is about nobody", nodes, schedulertest.PodsOn("a", web), schedulertest.TestPod("p", schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "", "", schedulertest.WithSelector(nil)))), refused("", "")},
		{"affinity nobody at all", nodes, schedulertest.PodsOn("a", web), schedulertest.TestPod("p", web, schedulertest.RequiredAffinity(schedulertest.PodTerm(host, "", "", schedulertest.WithSelector(nil)))), refused(schedulertest.PodAffinityReason, "a b c d")},
		{"one there wants to be alone", nodes, schedulertest.PodsOn("a", web, schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "", "", schedulertest.WithSelector(everything)))), schedulertest.TestPod("p"), refused(schedulertest.ExistingAntiAffinityReason, "a")},
		{"soft wishes refuse nobody", nodes, schedulertest.PodsOn("a", db, schedulertest.PreferredAntiAffinity(100, schedulertest.PodTerm(host, "app", "web"))), schedulertest.TestPod("p", web, schedulertest.PreferredAntiAffinity(100, schedulertest.PodTerm(host, "app", "db")), schedulertest.PreferredAffinity(100, schedulertest.PodTerm(host, "app", "none"))), refused("", "")},
		{"an empty value is a domain", []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("")), schedulertest.TestNode("b", schedulertest.Zone("")), schedulertest.TestNode("c")}, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(zoneKey, "app", "db")), refused(schedulertest.PodAntiAffinityReason, "a b")},
		{"two nodes of one host name are one domain", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel(host, "h")), schedulertest.TestNode("b", schedulertest.NodeLabel(host, "h")), schedulertest.TestNode("c")}, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.WithAntiAffinity(host, "app", "db")), refused(schedulertest.PodAntiAffinityReason, "a b")},
	})
}

func TestInterPodAffinityNamespaces(t *testing.T) {
	host := corev1.LabelHostname
	db := schedulertest.Labelled("app", "db")
	nodes := []*corev1.Node{schedulertest.TestNode("own"), schedulertest.TestNode("red1"), schedulertest.TestNode("red2"), schedulertest.TestNode("blue"), schedulertest.TestNode("bare"), schedulertest.TestNode("unknown")}
	running := []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("own"), db), schedulertest.TestPod("2", schedulertest.OnNode("red1"), db, schedulertest.Namespace("red-1")), schedulertest.TestPod("3", schedulertest.OnNode("red2"), db, schedulertest.Namespace("red-2")),
		schedulertest.TestPod("4", schedulertest.OnNode("blue"), db, schedulertest.Namespace("blue")), schedulertest.TestPod("5", schedulertest.OnNode("bare"), db, schedulertest.Namespace("bare")), schedulertest.TestPod("6", schedulertest.OnNode("unknown"), db, schedulertest.Namespace("unknown"))}
	namespaces := []*corev1.Namespace{schedulertest.AffinityNamespace("default", nil), schedulertest.AffinityNamespace("red-1", map[string]string{"team": "red"}), schedulertest.AffinityNamespace("red-2", map[string]string{"team": "red", "old": "yes"}), schedulertest.AffinityNamespace("blue", map[string]string{"team": "blue"}), schedulertest.AffinityNamespace("bare", nil)}
	red := schedulertest.Matching("team", "red")
	expr := func(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	for _, test := range []struct {
		what string
		more []func(*corev1.PodAffinityTerm)
		want string // nodes with pods the term is about
		// others lists the namespaces whose pods, newly arrived, the same term of a pod there is about.
		others string
	}{
		{"its own namespace", nil, "own", "default"},
		{"a named one", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespaces("blue")}, "blue", "blue"},
		{"two named ones", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespaces("red-2", "blue")}, "blue red2", "blue red-2"},
		{"one named twice is one", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespaces("blue", "blue")}, "blue", "blue"},
		{"a named one that does not exist", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespaces("gone")}, "", ""},
		{"those with a label", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespacesLike(red)}, "red1 red2", "red-1 red-2"},
		{"those with a label and a named one", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespacesLike(red), schedulertest.OfNamespaces("blue")}, "blue red1 red2", "blue red-1 red-2"},
		{"those with a label, one of them named too", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespacesLike(red), schedulertest.OfNamespaces("red-1")}, "red1 red2", "red-1 red-2"},
		{"those with two labels", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespacesLike(&metav1.LabelSelector{MatchLabels: map[string]string{"team": "red", "old": "yes"}})}, "red2", "red-2"},
		{"those without a label", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespacesLike(expr("team", metav1.LabelSelectorOpDoesNotExist))}, "bare own", "bare default unknown"},
		{"those with a label, whatever it is", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespacesLike(expr("team", metav1.LabelSelectorOpExists))}, "blue red1 red2", "blue red-1 red-2"},
		{"those with a label nobody has", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespacesLike(schedulertest.Matching("team", "green"))}, "", ""},
		{"all", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespacesLike(&metav1.LabelSelector{})}, "bare blue own red1 red2 unknown", "bare blue default red-1 red-2 unknown"},
		{"all, and a named one", []func(*corev1.PodAffinityTerm){schedulertest.OfNamespacesLike(&metav1.LabelSelector{}), schedulertest.OfNamespaces("blue")}, "bare blue own red1 red2 unknown", "bare blue default red-1 red-2 unknown"},
	} {
		t.Run(test.what, func(t *testing.T) {
			profile := DefaultProfile()
			pod := schedulertest.TestPod("p", schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "app", "db", test.more...)))
			make := func() *snapshot.Snapshot {
				s := snapshottest.New(t, nodes)
				for _, n := range namespaces {
					s.SetNamespace(n)
				}
				return s
			}
			check := func(how string, s *snapshot.Snapshot) {
				t.Helper()
				if got := strings.Join(slices.Sorted(maps.Keys(neighbourRefusals(t, s, pod, profile, InterPodAffinityName))), " "); got != test.want {
					t.Errorf("%s: about those on %q, want %q", how, got, test.want)
				}
			}
			s := make()
			for _, p := range running {
				s.SetPod(snapshottest.PodInfo(t, p))
			}
			check("at first sight", s)
			s = make()
			neighbourRefusals(t, s, pod, profile, InterPodAffinityName)
			for _, p := range running {
				s.SetPod(snapshottest.PodInfo(t, p))
			}
			check("with pods that came later", s)
			// The same term of a pod that is there: whom of all namespaces it does not want.
			s = make()
			there := pod.DeepCopy()
			there.Spec.NodeName = "own"
			s.SetPod(snapshottest.PodInfo(t, there))
			var unwelcome []string
			for _, name := range []string{"bare", "blue", "default", "gone", "red-1", "red-2", "unknown"} {
				if neighbourRefusals(t, s, schedulertest.TestPod("q", db, schedulertest.Namespace(name)), profile, InterPodAffinityName)["own"] == schedulertest.ExistingAntiAffinityReason {
					unwelcome = append(unwelcome, name)
				}
			}
			want := test.others
			switch test.what {
			case "a named one that does not exist":
				want = "gone"
			case "those without a label":
				want = "bare default gone unknown"
			case "all", "all, and a named one":
				want = "bare blue default gone red-1 red-2 unknown"
			}
			if got := strings.Join(unwelcome, " "); got != want {
				t.Errorf("of a pod there: about those of %q, want %q", got, want)
			}
		})
	}
}

// A namespace's labels are read when they are needed, as they are then.
func TestInterPodAffinityFollowsNamespaces(t *testing.T) {
	host := corev1.LabelHostname
	profile := DefaultProfile()
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Labelled("app", "db"), schedulertest.Namespace("team")))
	own := schedulertest.TestPod("p", schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "app", "db", schedulertest.OfNamespacesLike(schedulertest.Matching("team", "red")))))
	theirs := schedulertest.TestPod("2", schedulertest.OnNode("b"), schedulertest.RequiredAntiAffinity(schedulertest.PodTerm(host, "app", "web", schedulertest.OfNamespacesLike(schedulertest.Matching("team", "red")))))
	s.SetPod(snapshottest.PodInfo(t, theirs))
	newcomer := schedulertest.TestPod("q", schedulertest.Labelled("app", "web"), schedulertest.Namespace("team"))
	for _, step := range []struct {
		what       string
		do         func()
		applies    bool
		unwelcomes bool
	}{
		{"the namespace is not known", func() {}, false, false},
		{"it has another label", func() { s.SetNamespace(schedulertest.AffinityNamespace("team", map[string]string{"team": "blue"})) }, false, false},
		{"it has the label", func() { s.SetNamespace(schedulertest.AffinityNamespace("team", map[string]string{"team": "red"})) }, true, true},
		{"it is told again", func() { s.SetNamespace(schedulertest.AffinityNamespace("team", map[string]string{"team": "red"})) }, true, true},
		{"it has one label more", func() {
			s.SetNamespace(schedulertest.AffinityNamespace("team", map[string]string{"team": "red", "x": "y"}))
		}, true, true},
		{"it lost the label", func() { s.SetNamespace(schedulertest.AffinityNamespace("team", nil)) }, false, false},
		{"it has the label again", func() { s.SetNamespace(schedulertest.AffinityNamespace("team", map[string]string{"team": "red"})) }, true, true},
		{"it is gone", func() { s.DeleteNamespace("team") }, false, false},
	} {
		step.do()
		if got := neighbourRefusals(t, s, own, profile, InterPodAffinityName)["a"] == schedulertest.PodAntiAffinityReason; got != step.applies {
			t.Errorf("%s: the pod's term applies: %t", step.what, got)
		}
		if got := neighbourRefusals(t, s, newcomer, profile, InterPodAffinityName)["b"] == schedulertest.ExistingAntiAffinityReason; got != step.unwelcomes {
			t.Errorf("%s: the other pod's term applies: %t", step.what, got)
		}
	}
}

func TestInterPodAffinityScore(t *testing.T) {
	host, zoneKey := corev1.LabelHostname, corev1.LabelTopologyZone
	db, web := schedulertest.Labelled("app", "db"), schedulertest.Labelled("app", "web")
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("2")), schedulertest.TestNode("d")}
	dbHost, dbZone, webHost := schedulertest.PodTerm(host, "app", "db"), schedulertest.PodTerm(zoneKey, "app", "db"), schedulertest.PodTerm(host, "app", "web")
	const defaults, ignoring, noHard, hardTen = "", `{"ignorePreferredTermsOfExistingPods":true}`, `{"hardPodAffinityWeight":0}`, `{"hardPodAffinityWeight":10}`
	allZero := map[string]int64{"a": 0, "b": 0, "c": 0, "d": 0}
	for _, test := range []struct {
		what, arguments string
		running         []*corev1.Pod
		pod             *corev1.Pod
		want            map[string]int64
	}{
		{"no wishes, no say", defaults, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", web), nil},
		{"nobody who is liked is there", defaults, schedulertest.PodsOn("a", web), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbHost)), nil},
		{"nobody who is liked is there, though spreading has a say", defaults, schedulertest.PodsOn("a", web), schedulertest.TestPod("p", web, schedulertest.PreferredAffinity(5, dbHost), schedulertest.Spread(host, 1, schedulertest.SpreadSoft, "app=web")), nil},
		{"one who is liked", defaults, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbHost)), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"one who is liked, in its zone", defaults, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbZone)), map[string]int64{"a": 100, "b": 100, "c": 0, "d": 0}},
		{"two and one", defaults, schedulertest.PodsOn("a a c", db), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbHost)), map[string]int64{"a": 100, "b": 0, "c": 50, "d": 0}},
		{"three and one is cut off", defaults, schedulertest.PodsOn("a a a c", db), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbHost)), map[string]int64{"a": 100, "b": 0, "c": 33, "d": 0}},
		{"one who is liked where the key is not", defaults, schedulertest.PodsOn("d", db), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbZone)), nil},
		{"one who is disliked", defaults, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.PreferredAntiAffinity(5, dbHost)), map[string]int64{"a": 0, "b": 100, "c": 100, "d": 100}},
		{"one who is disliked more", defaults, schedulertest.PodsOn("a a c", db), schedulertest.TestPod("p", schedulertest.PreferredAntiAffinity(5, dbHost)), map[string]int64{"a": 0, "b": 100, "c": 50, "d": 100}},
		{"liked and disliked", defaults, slices.Concat(schedulertest.PodsOn("a", db), schedulertest.PodsOn("c", web)), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbHost), schedulertest.PreferredAntiAffinity(5, webHost)), map[string]int64{"a": 100, "b": 50, "c": 0, "d": 50}},
		{"weights", defaults, slices.Concat(schedulertest.PodsOn("a", db), schedulertest.PodsOn("c", web)), schedulertest.TestPod("p", schedulertest.PreferredAffinity(8, dbHost), schedulertest.PreferredAffinity(2, webHost)), map[string]int64{"a": 100, "b": 0, "c": 25, "d": 0}},
		{"two terms about one pod add up", defaults, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.PreferredAffinity(2, dbHost), schedulertest.PreferredAffinity(2, dbZone)), map[string]int64{"a": 100, "b": 50, "c": 0, "d": 0}},
		{"what is everywhere alike says nothing, but is said", defaults, schedulertest.PodsOn("a b c d", db), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbHost)), allZero},
		{"liked and disliked alike", defaults, schedulertest.PodsOn("a", db), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbHost), schedulertest.PreferredAntiAffinity(5, dbHost)), allZero},
		{"one of another namespace is not meant", defaults, schedulertest.PodsOn("a", db, schedulertest.Namespace("other")), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbHost)), nil},
		{"one of a namespace that is named is", defaults, schedulertest.PodsOn("a", db, schedulertest.Namespace("other")), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, schedulertest.PodTerm(host, "app", "db", schedulertest.OfNamespaces("other")))), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"a namespace that is named twice counts once", defaults, slices.Concat(schedulertest.PodsOn("a", db, schedulertest.Namespace("other")), schedulertest.PodsOn("c", web)), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, schedulertest.PodTerm(host, "app", "db", schedulertest.OfNamespaces("other", "other"))), schedulertest.PreferredAffinity(10, webHost)), map[string]int64{"a": 50, "b": 0, "c": 100, "d": 0}},
		{"one of all namespaces is", defaults, schedulertest.PodsOn("a", db, schedulertest.Namespace("other")), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, schedulertest.PodTerm(host, "app", "db", schedulertest.OfNamespacesLike(&metav1.LabelSelector{})))), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"one who is on its way out still counts", defaults, schedulertest.PodsOn("a", db, schedulertest.Terminating), schedulertest.TestPod("p", schedulertest.PreferredAffinity(5, dbHost)), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},

		{"one there preferred it", defaults, schedulertest.PodsOn("a", schedulertest.PreferredAffinity(7, dbHost)), schedulertest.TestPod("p", db), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"two there like it, by weight", defaults, slices.Concat(schedulertest.PodsOn("a", schedulertest.PreferredAffinity(8, dbHost)), schedulertest.PodsOn("c", schedulertest.PreferredAffinity(4, dbHost))), schedulertest.TestPod("p", db), map[string]int64{"a": 100, "b": 0, "c": 50, "d": 0}},
		{"one there preferredAnti it", defaults, schedulertest.PodsOn("a", schedulertest.PreferredAntiAffinity(7, dbZone)), schedulertest.TestPod("p", db), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 100}},
		{"one there preferred others", defaults, schedulertest.PodsOn("a", schedulertest.PreferredAffinity(7, webHost)), schedulertest.TestPod("p", db), nil},
		{"one there of another namespace preferred its own", defaults, schedulertest.PodsOn("a", schedulertest.PreferredAffinity(7, dbHost), schedulertest.Namespace("other")), schedulertest.TestPod("p", db), nil},
		{"one there needs it: worth 1", defaults, slices.Concat(schedulertest.PodsOn("a", schedulertest.WithAffinity(host, "app", "db"), db), schedulertest.PodsOn("c", schedulertest.PreferredAffinity(4, dbHost))), schedulertest.TestPod("p", db), map[string]int64{"a": 25, "b": 0, "c": 100, "d": 0}},
		{"one there needs it: worth 10", hardTen, slices.Concat(schedulertest.PodsOn("a", schedulertest.WithAffinity(host, "app", "db"), db), schedulertest.PodsOn("c", schedulertest.PreferredAffinity(4, dbHost))), schedulertest.TestPod("p", db), map[string]int64{"a": 100, "b": 0, "c": 40, "d": 0}},
		{"one there needs it: worth nothing", noHard, schedulertest.PodsOn("a", schedulertest.WithAffinity(host, "app", "db"), db), schedulertest.TestPod("p", db), nil},
		{"one there needs it and another: each term by itself", defaults, schedulertest.PodsOn("a", schedulertest.WithAffinity(host, "app", "db"), schedulertest.WithAffinity(host, "tier", "x"), db), schedulertest.TestPod("p", db), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"its wishes and those of others add up", defaults, slices.Concat(schedulertest.PodsOn("a", db), schedulertest.PodsOn("c", schedulertest.PreferredAffinity(10, webHost))), schedulertest.TestPod("p", web, schedulertest.PreferredAffinity(5, dbHost)), map[string]int64{"a": 50, "b": 0, "c": 100, "d": 0}},
		{"one liked and disliked by others", defaults, slices.Concat(schedulertest.PodsOn("a", schedulertest.PreferredAffinity(5, dbHost)), schedulertest.PodsOn("a", schedulertest.PreferredAntiAffinity(5, dbHost)), schedulertest.PodsOn("c", schedulertest.PreferredAffinity(5, dbHost))), schedulertest.TestPod("p", db), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 0}},

		{"others' wishes are ignored by who has none", ignoring, schedulertest.PodsOn("a", schedulertest.PreferredAffinity(7, dbHost)), schedulertest.TestPod("p", db), nil},
		{"others' needs, too", ignoring, schedulertest.PodsOn("a", schedulertest.WithAffinity(host, "app", "db"), db), schedulertest.TestPod("p", db), nil},
		{"others' wishes count for who has one", ignoring, slices.Concat(schedulertest.PodsOn("a", web), schedulertest.PodsOn("c", schedulertest.PreferredAffinity(10, dbHost))), schedulertest.TestPod("p", db, schedulertest.PreferredAffinity(5, webHost)), map[string]int64{"a": 50, "b": 0, "c": 100, "d": 0}},
		{"others' wishes count for who preferredAnti somebody who is not there", ignoring, schedulertest.PodsOn("c", schedulertest.PreferredAffinity(10, dbHost)), schedulertest.TestPod("p", db, schedulertest.PreferredAntiAffinity(5, webHost)), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 0}},
		{"needs of its own are no wishes", ignoring, slices.Concat(schedulertest.PodsOn("a b c d", web), schedulertest.PodsOn("c", schedulertest.PreferredAffinity(10, dbHost))), schedulertest.TestPod("p", db, schedulertest.WithAffinity(host, "app", "web")), nil},
	} {
		t.Run(test.what, func(t *testing.T) {
			profile, err := NewProfile(ptr.To(schedulertest.ProfileWith(InterPodAffinityName, test.arguments)))
			if err != nil {
				t.Fatal(err)
			}
			check := func(how string, s *snapshot.Snapshot) {
				t.Helper()
				if got := neighbourScores(t, s, test.pod, profile, InterPodAffinityName, 2); !maps.Equal(got, test.want) {
					t.Errorf("%s: scores %v, want %v", how, got, test.want)
				}
			}
			s := snapshottest.New(t, nodes, test.running...)
			check("at first sight", s)
			check("the second time", s)
			late := snapshottest.New(t, nodes)
			if affinity, _, _, _ := affinityTerms(test.pod); len(affinity) == 0 {
				if got := neighbourScores(t, late, test.pod, profile, InterPodAffinityName, 2); got != nil {
					t.Errorf("with nobody there: %v", got)
				}
			}
			for _, p := range test.running {
				late.SetPod(snapshottest.PodInfo(t, p))
			}
			check("with pods that came later", late)
			for _, p := range test.running {
				s.DeletePod(p.UID)
			}
			for _, p := range slices.Backward(test.running) {
				s.SetPod(snapshottest.PodInfo(t, p))
			}
			check("after they went and came again", s)
		})
	}
}

func TestInterPodAffinityArguments(t *testing.T) {
	for arguments, want := range map[string]interPodAffinity{
		"": {hardWeight: 1}, `{"hardPodAffinityWeight":0}`: {}, `{"hardPodAffinityWeight":7,"ignorePreferredTermsOfExistingPods":true}`: {hardWeight: 7, ignoreExistingPreferred: true},
	} {
		if got := mustRule[*interPodAffinity](t, InterPodAffinityName, arguments); *got != want {
			t.Errorf("%s: %+v, want %+v", arguments, *got, want)
		}
	}
}

func TestInterPodAffinityHints(t *testing.T) {
	host, zoneKey := corev1.LabelHostname, corev1.LabelTopologyZone
	db, web, tier := schedulertest.Labelled("app", "db"), schedulertest.Labelled("app", "web"), schedulertest.Labelled("tier", "x")
	wants := schedulertest.TestPod("p", schedulertest.WithAffinity(zoneKey, "app", "db"))
	wantsBoth := schedulertest.TestPod("p", schedulertest.WithAffinity(zoneKey, "app", "db"), schedulertest.WithAffinity(host, "tier", "x"))
	fears := schedulertest.TestPod("p", schedulertest.WithAntiAffinity(zoneKey, "app", "db"))
	plain := schedulertest.TestPod("p", db)
	other := func(options ...schedulertest.PodOption) *corev1.Pod {
		return schedulertest.TestPod("other", append([]schedulertest.PodOption{schedulertest.OnNode("n")}, options...)...)
	}
	reds := schedulertest.PodTerm(host, "app", "db", schedulertest.OfNamespacesLike(schedulertest.Matching("team", "red")))
	s := snapshottest.New(t, nil)
	s.SetNamespace(schedulertest.AffinityNamespace("red", map[string]string{"team": "red"}))
	s.SetNamespace(schedulertest.AffinityNamespace("blue", map[string]string{"team": "blue"}))
	checkHints(t, DefaultProfile(), InterPodAffinityName, s, []ruleHint{
		{"who is wanted came", wants, rulePodCame(other(db)), true},
		{"who is not wanted came", wants, rulePodCame(other(web)), false},
		{"who is wanted came to another namespace", wants, rulePodCame(other(db, schedulertest.Namespace("other"))), false},
		{"who is wanted is nominated", wants, rulePodCame(schedulertest.TestPod("other", db, schedulertest.NominatedTo("n"))), true},
		{"who is wanted came, but has no place", wants, rulePodCame(schedulertest.TestPod("other", db)), false},
		{"who is wanted went", wants, rulePodWent(other(db)), false},
		{"who is wanted in one way only came", wantsBoth, rulePodCame(other(db)), false},
		{"who is wanted in both ways came", wantsBoth, rulePodCame(other(db, tier)), true},
		{"who is wanted in one way is now in both", wantsBoth, rulePodIs(other(db), other(db, tier)), true},
		{"who was wanted in both ways is now in one", wantsBoth, rulePodIs(other(db, tier), other(db)), false},
		{"one has become who is wanted", wants, rulePodIs(other(web), other(db)), true},
		{"one has ceased to be who is wanted", wants, rulePodIs(other(db), other(web)), false},
		{"who is wanted has another label", wants, rulePodIs(other(db), other(db, tier)), false},
		{"who is wanted asks for less", wants, rulePodIs(other(db, schedulertest.RequestingCPU("2")), other(db, schedulertest.RequestingCPU("1"))), false},

		{"who is feared went", fears, rulePodWent(other(db)), true},
		{"who is not feared went", fears, rulePodWent(other(web)), false},
		{"who is feared came", fears, rulePodCame(other(db)), false},
		{"who is feared went from another namespace", fears, rulePodWent(other(db, schedulertest.Namespace("other"))), false},
		{"who was feared, without a place, went", fears, rulePodWent(schedulertest.TestPod("other", db)), false},
		{"who was feared, and nominated, went", fears, rulePodWent(schedulertest.TestPod("other", db, schedulertest.NominatedTo("n"))), true},
		{"who was feared is somebody else now", fears, rulePodIs(other(db), other(web)), true},
		{"somebody has become who is feared", fears, rulePodIs(other(web), other(db)), false},
		{"who is feared has another label", fears, rulePodIs(other(db), other(db, tier)), false},

		{"who feared it went", plain, rulePodWent(other(schedulertest.WithAntiAffinity(host, "app", "db"))), true},
		{"who feared others went", plain, rulePodWent(other(schedulertest.WithAntiAffinity(host, "app", "web"))), false},
		{"who feared it from another namespace went", plain, rulePodWent(other(schedulertest.WithAntiAffinity(host, "app", "db"), schedulertest.Namespace("other"))), false},
		{"who feared it among others went", plain, rulePodWent(other(schedulertest.WithAntiAffinity(host, "app", "web"), schedulertest.WithAntiAffinity(zoneKey, "app", "db"))), true},
		{"who disliked it went", plain, rulePodWent(other(schedulertest.PreferredAntiAffinity(100, schedulertest.PodTerm(host, "app", "db")))), false},
		{"who feared it has other labels", plain, rulePodIs(other(schedulertest.WithAntiAffinity(host, "app", "db")), other(web, schedulertest.WithAntiAffinity(host, "app", "db"))), false},

		{"who is wanted of a kind of namespaces came", schedulertest.TestPod("p", schedulertest.RequiredAffinity(reds)), rulePodCame(other(db, schedulertest.Namespace("red"))), true},
		{"who is wanted of another kind came", schedulertest.TestPod("p", schedulertest.RequiredAffinity(reds)), rulePodCame(other(db, schedulertest.Namespace("blue"))), false},
		{"who is feared of a kind of namespaces went", schedulertest.TestPod("p", schedulertest.RequiredAntiAffinity(reds)), rulePodWent(other(db, schedulertest.Namespace("red"))), true},
		{"who feared a kind of namespaces went", schedulertest.TestPod("p", db, schedulertest.Namespace("red")), rulePodWent(other(schedulertest.RequiredAntiAffinity(reds))), true},
		{"who feared another kind went", schedulertest.TestPod("p", db, schedulertest.Namespace("blue")), rulePodWent(other(schedulertest.RequiredAntiAffinity(reds))), false},

		{"its own labels changed", plain, ruleItselfIs(schedulertest.TestPod("p"), plain), true},
		{"it tolerates more", plain, ruleItselfIs(plain, schedulertest.TestPod("p", db, schedulertest.Toleration("k", schedulertest.TolExists, "", ""))), false},

		{"a node with the key came for who wants", wants, ruleNodeCame(schedulertest.TestNode("n", schedulertest.Zone("1"))), true},
		{"a node without came for who wants", wants, ruleNodeCame(schedulertest.TestNode("n")), false},
		{"a node with one of two keys came", wantsBoth, ruleNodeCame(schedulertest.TestNode("n")), true},
		{"a node got the key", wants, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.Zone("1"))), true},
		{"a node moved", wants, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.Zone("2"))), true},
		{"a node lost the key", wants, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n")), false},
		{"a node has another label", wants, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.Zone("1"), schedulertest.NodeLabel("x", "y"))), false},
		{"a node has more free resources", wants, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.Zone("1"), schedulertest.NodeHas(corev1.ResourceCPU, "9"))), false},
		{"any node came for who fears", fears, ruleNodeCame(schedulertest.TestNode("n")), true},
		{"a node lost the key for who fears", fears, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n")), true},
		{"a node lost the key, of no value, for who fears", fears, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("")), schedulertest.TestNode("n")), true},
		{"a node moved for who fears", fears, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.Zone("2"))), true},
		{"a node got the key for who fears", fears, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.Zone("1"))), false},
		{"a node has another label for who fears", fears, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.Zone("1"), schedulertest.NodeLabel("x", "y"))), false},
		{"any node came for who neither wants nor fears", plain, ruleNodeCame(schedulertest.TestNode("n", schedulertest.Zone("1"))), false},
		{"a node went", fears, ruleNodeWent(schedulertest.TestNode("n", schedulertest.Zone("1"))), false},
	})
}

// affinityModel answers by asking every pod about every other.
type affinityModel struct {
	nodes      []*corev1.Node
	pods       []*corev1.Pod
	namespaces map[string]labels.Set
	pod        *corev1.Pod
}

// about reports whether a term of one pod is about another. Namespaces a newcomer selects are those that are known; a pod that is there
// asks the newcomer's namespace, known or not.
func (m *affinityModel) about(owner *corev1.Pod, t *corev1.PodAffinityTerm, other *corev1.Pod) bool {
	selector, _ := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if !selector.Matches(labels.Set(other.Labels)) {
		return false
	}
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		return other.Namespace == owner.Namespace
	}
	if slices.Contains(t.Namespaces, other.Namespace) {
		return true
	}
	if t.NamespaceSelector == nil {
		return false
	}
	set, known := m.namespaces[other.Namespace]
	wanted, _ := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	return (known || owner != m.pod || wanted.Empty()) && wanted.Matches(set)
}

func affinityTerms(p *corev1.Pod) (affinity, antiAffinity []corev1.PodAffinityTerm, preferred, preferredAnti []corev1.WeightedPodAffinityTerm) {
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
		affinity, preferred = a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		antiAffinity, preferredAnti = a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	return affinity, antiAffinity, preferred, preferredAnti
}

// together reports whether two nodes are in one domain of a key.
func (m *affinityModel) together(key string, a, b *corev1.Node) bool {
	x, has := a.Labels[key]
	y, hasToo := b.Labels[key]
	return has && hasToo && x == y
}

func (m *affinityModel) nodeOf(p *corev1.Pod) *corev1.Node {
	return m.nodes[slices.IndexFunc(m.nodes, func(n *corev1.Node) bool { return n.Name == p.Spec.NodeName })]
}

func (m *affinityModel) refusal(n *corev1.Node) string {
	affinity, antiAffinity, _, _ := affinityTerms(m.pod)
	all := func(p *corev1.Pod) bool {
		return len(affinity) > 0 && !slices.ContainsFunc(affinity, func(t corev1.PodAffinityTerm) bool { return !m.about(m.pod, &t, p) })
	}
	present, keyed, anywhere := true, true, false
	for _, t := range affinity {
		if _, has := n.Labels[t.TopologyKey]; !has {
			keyed = false
		}
		there := false
		for _, p := range m.pods {
			if all(p) {
				there = there || m.together(t.TopologyKey, n, m.nodeOf(p))
				_, counted := m.nodeOf(p).Labels[t.TopologyKey]
				anywhere = anywhere || counted
			}
		}
		present = present && there
	}
	if len(affinity) > 0 && (!keyed || !present && (anywhere || !all(m.pod))) {
		return schedulertest.PodAffinityReason
	}
	for _, t := range antiAffinity {
		for _, p := range m.pods {
			if m.about(m.pod, &t, p) && m.together(t.TopologyKey, n, m.nodeOf(p)) {
				return schedulertest.PodAntiAffinityReason
			}
		}
	}
	for _, p := range m.pods {
		_, theirs, _, _ := affinityTerms(p)
		for _, t := range theirs {
			if m.about(p, &t, m.pod) && m.together(t.TopologyKey, n, m.nodeOf(p)) {
				return schedulertest.ExistingAntiAffinityReason
			}
		}
	}
	return ""
}

// scores are nil when nothing is said of any node at all.
func (m *affinityModel) scores(feasible []*corev1.Node, hardWeight int64) map[string]int64 {
	_, _, preferred, preferredAnti := affinityTerms(m.pod)
	raw, said := map[string]int64{}, false
	add := func(about bool, t *corev1.PodAffinityTerm, p *corev1.Pod, weight int64) {
		at := m.nodeOf(p)
		if _, has := at.Labels[t.TopologyKey]; !about || !has {
			return
		}
		said = true
		for _, n := range feasible {
			if m.together(t.TopologyKey, n, at) {
				raw[n.Name] += weight
			}
		}
	}
	for _, p := range m.pods {
		for _, x := range preferred {
			add(m.about(m.pod, &x.PodAffinityTerm, p), &x.PodAffinityTerm, p, int64(x.Weight))
		}
		for _, x := range preferredAnti {
			add(m.about(m.pod, &x.PodAffinityTerm, p), &x.PodAffinityTerm, p, -int64(x.Weight))
		}
		theirNear, _, theirLikes, theirDislikes := affinityTerms(p)
		for _, t := range theirNear {
			add(m.about(p, &t, m.pod), &t, p, hardWeight)
		}
		for _, x := range theirLikes {
			add(m.about(p, &x.PodAffinityTerm, m.pod), &x.PodAffinityTerm, p, int64(x.Weight))
		}
		for _, x := range theirDislikes {
			add(m.about(p, &x.PodAffinityTerm, m.pod), &x.PodAffinityTerm, p, -int64(x.Weight))
		}
	}
	if !said {
		return nil
	}
	least, most := raw[feasible[0].Name], raw[feasible[0].Name]
	for _, n := range feasible {
		least, most = min(least, raw[n.Name]), max(most, raw[n.Name])
	}
	scores := map[string]int64{}
	for _, n := range feasible {
		scores[n.Name] = 0
		if most > least {
			scores[n.Name] = int64(100 * (float64(raw[n.Name]-least) / float64(most-least)))
		}
	}
	return scores
}

// Random clusters that change under the snapshot's feet: what affinity says is what the model says, each time.
func TestInterPodAffinityEqualsModel(t *testing.T) {
	profile := DefaultProfile()
	count := map[string]int{}
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 41))
		nodeOf := func(i int) *corev1.Node {
			return schedulertest.TestNode(fmt.Sprint("n", i), func(n *corev1.Node) {
				maps.Copy(n.Labels, schedulertest.RandomLabels(r, []string{corev1.LabelTopologyZone, "rack"}, "1", "2"))
				if schedulertest.OneIn(r, 6) {
					delete(n.Labels, corev1.LabelHostname)
				}
			})
		}
		termOf := func() corev1.PodAffinityTerm {
			x := schedulertest.PodTerm(schedulertest.OneOf(r, corev1.LabelHostname, corev1.LabelTopologyZone, "rack"), "app", schedulertest.OneOf(r, "x", "y", "z"))
			switch r.IntN(10) {
			case 0:
				x.LabelSelector = nil
			case 1:
				x.LabelSelector = &metav1.LabelSelector{}
			case 2:
				x.LabelSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpExists}}}
			}
			switch r.IntN(6) {
			case 0:
				x.Namespaces = []string{schedulertest.OneOf(r, "default", "other"), "other"}
			case 1:
				x.NamespaceSelector = schedulertest.Matching("team", schedulertest.OneOf(r, "red", "blue"))
			case 2:
				x.NamespaceSelector = &metav1.LabelSelector{}
			}
			return x
		}
		podOf := func(name string, wishes int) *corev1.Pod {
			p := schedulertest.TestPod(name, schedulertest.Namespace(schedulertest.OneOf(r, "default", "default", "other", "unknown")), func(p *corev1.Pod) { p.Labels = schedulertest.RandomLabels(r, []string{"app", "tier"}, "x", "y", "z") })
			for range r.IntN(wishes + 1) {
				switch x := termOf(); r.IntN(5) {
				case 0:
					schedulertest.RequiredAffinity(x)(p)
				case 1:
					schedulertest.RequiredAntiAffinity(x)(p)
				case 2, 3:
					schedulertest.PreferredAffinity(int32(1+r.IntN(9)), x)(p)
				default:
					schedulertest.PreferredAntiAffinity(int32(1+r.IntN(9)), x)(p)
				}
			}
			return p
		}
		m := &affinityModel{namespaces: map[string]labels.Set{"default": {"team": "red"}, "other": {"team": "blue"}}}
		for i := range 5 {
			m.nodes = append(m.nodes, nodeOf(i))
		}
		s := snapshottest.New(t, m.nodes)
		for name, set := range m.namespaces {
			s.SetNamespace(schedulertest.AffinityNamespace(name, set))
		}
		askers := []*corev1.Pod{podOf("asker0", 0), podOf("asker1", 3), podOf("asker2", 3), podOf("asker3", 4)}
		for step := range 60 {
			switch r.IntN(8) {
			case 0:
				i := r.IntN(len(m.nodes))
				m.nodes[i] = nodeOf(i)
				s.SetNode(m.nodes[i])
			case 1, 2:
				if i := r.IntN(len(m.pods) + 1); i < len(m.pods) {
					s.DeletePod(m.pods[i].UID)
					m.pods = slices.Delete(m.pods, i, i+1)
				}
			case 3:
				name, set := schedulertest.OneOf(r, "default", "other"), labels.Set{"team": schedulertest.OneOf(r, "red", "blue", "green")}
				m.namespaces[name] = set
				s.SetNamespace(schedulertest.AffinityNamespace(name, set))
			default:
				p := podOf(fmt.Sprint("pod", step), 2)
				p.Spec.NodeName = schedulertest.OneOf(r, m.nodes...).Name
				m.pods = append(m.pods, p)
				s.SetPod(snapshottest.PodInfo(t, p))
			}
			m.pod = schedulertest.OneOf(r, askers...)
			want := map[string]string{}
			var feasible []*corev1.Node
			for _, n := range m.nodes {
				if why := m.refusal(n); why != "" {
					want[n.Name] = why
					count[why]++
				} else {
					feasible = append(feasible, n)
				}
			}
			if got := neighbourRefusals(t, s, m.pod, profile, InterPodAffinityName); !maps.Equal(got, want) {
				t.Fatalf("seed %d, step %d: pod %+v: refused %v, want %v", seed, step, m.pod.Spec.Affinity, got, want)
			}
			if len(feasible) == 0 {
				continue
			}
			got, scores := neighbourScores(t, s, m.pod, profile, InterPodAffinityName, 2), m.scores(feasible, 1)
			if len(feasible) == 1 && got == nil {
				continue // nobody to compare with
			}
			if scores == nil && got != nil && slices.Max(slices.Collect(maps.Values(got))) == 0 {
				continue // a wish of pods that are in no domain is heard, and worth nothing
			}
			if !maps.Equal(got, scores) {
				t.Fatalf("seed %d, step %d: pod %+v: scores %v, want %v", seed, step, m.pod.Spec.Affinity, got, scores)
			}
			count["scored"]++
		}
	}
	for _, what := range []string{schedulertest.PodAffinityReason, schedulertest.PodAntiAffinityReason, schedulertest.ExistingAntiAffinityReason, "scored"} {
		if count[what] < 200 {
			t.Errorf("%s: only %d times, too few to tell anything", what, count[what])
		}
	}
}
