package scheduler

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
)

const (
	nearReason      = lasting + "node(s) didn't match pod affinity rules"
	awayReason      = "node(s) didn't match pod anti-affinity rules"
	unwelcomeReason = "node(s) didn't satisfy existing pods anti-affinity rules"
)

// nearTerm, awayTerm and their soft forms add a term as it is.
func nearTerm(t corev1.PodAffinityTerm) podOption {
	return func(p *corev1.Pod) {
		a := affinityOf(p)
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
	}
}

func awayTerm(t corev1.PodAffinityTerm) podOption {
	return func(p *corev1.Pod) {
		a := affinityOf(p)
		if a.PodAntiAffinity == nil {
			a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
	}
}

func likesTerm(weight int32, t corev1.PodAffinityTerm) podOption {
	return func(p *corev1.Pod) {
		a := affinityOf(p)
		if a.PodAffinity == nil {
			a.PodAffinity = &corev1.PodAffinity{}
		}
		a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: t})
	}
}

func dislikesTerm(weight int32, t corev1.PodAffinityTerm) podOption {
	return func(p *corev1.Pod) {
		a := affinityOf(p)
		if a.PodAntiAffinity == nil {
			a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: t})
	}
}

// aboutPods is a term about pods with a label, in the domains of a key.
func aboutPods(topologyKey, key, value string, more ...func(*corev1.PodAffinityTerm)) corev1.PodAffinityTerm {
	t := podTermOf(topologyKey, map[string]string{key: value})
	for _, m := range more {
		m(&t)
	}
	return t
}

func ofNamespaces(names ...string) func(*corev1.PodAffinityTerm) {
	return func(t *corev1.PodAffinityTerm) { t.Namespaces = names }
}

func ofNamespacesLike(selector *metav1.LabelSelector) func(*corev1.PodAffinityTerm) {
	return func(t *corev1.PodAffinityTerm) { t.NamespaceSelector = selector }
}

func withSelector(selector *metav1.LabelSelector) func(*corev1.PodAffinityTerm) {
	return func(t *corev1.PodAffinityTerm) { t.LabelSelector = selector }
}

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func affinityNamespace(name string, set map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}}
}

func TestInterPodAffinityFilter(t *testing.T) {
	host, zoneKey := corev1.LabelHostname, corev1.LabelTopologyZone
	db, web := labelled("app", "db"), labelled("app", "web")
	nodes := []*corev1.Node{testNode("a", zone("1")), testNode("b", zone("1")), testNode("c", zone("2")), testNode("d")}
	refused := func(reason, names string) map[string]string {
		all := map[string]string{}
		for _, name := range strings.Fields(names) {
			all[name] = reason
		}
		return all
	}
	everything := &metav1.LabelSelector{}
	checkNeighbours(t, interPodAffinityName, []spreadRow{
		{"no terms, no say", nodes, podsOn("a b", db), testPod("p", db), refused("", "")},
		{"near one on its host", nodes, podsOn("a", db), testPod("p", near(host, "app", "db")), refused(nearReason, "b c d")},
		{"near one in its zone", nodes, podsOn("a", db), testPod("p", near(zoneKey, "app", "db")), refused(nearReason, "c d")},
		{"near nobody who is there", nodes, podsOn("a", web), testPod("p", near(host, "app", "db")), refused(nearReason, "a b c d")},
		{"near one on a node without the key", nodes, podsOn("d", db), testPod("p", near(zoneKey, "app", "db")), refused(nearReason, "a b c d")},
		{"near one of another namespace", nodes, podsOn("a", db, namespace("other")), testPod("p", near(host, "app", "db")), refused(nearReason, "a b c d")},
		{"near one of its own namespace", nodes, podsOn("a", db, namespace("other")), testPod("p", namespace("other"), near(host, "app", "db")), refused(nearReason, "b c d")},
		{"near one who is on its way out", nodes, podsOn("a", db, isGoing), testPod("p", near(host, "app", "db")), refused(nearReason, "b c d")},
		{"near one who has ended", nodes, podsOn("a", db, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), testPod("p", near(host, "app", "db")), refused(nearReason, "a b c d")},
		{"near two kinds: one pod must be both", nodes, slices.Concat(podsOn("a", db), podsOn("a", labelled("tier", "x"))), testPod("p", near(host, "app", "db"), near(host, "tier", "x")), refused(nearReason, "a b c d")},
		{"near two kinds: one pod is both", nodes, podsOn("a", db, labelled("tier", "x")), testPod("p", near(host, "app", "db"), near(zoneKey, "tier", "x")), refused(nearReason, "b c d")},
		{"near two kinds in two domains: each must have one that is both", nodes, podsOn("a c", db, labelled("tier", "x")), testPod("p", near(host, "app", "db"), near(zoneKey, "tier", "x")), refused(nearReason, "b d")},
		{"near, by a key nobody has", nodes, podsOn("a", db), testPod("p", near("rack", "app", "db")), refused(nearReason, "a b c d")},
		{"the first of its kind may go where the key is", nodes, nil, testPod("p", db, near(zoneKey, "app", "db")), refused(nearReason, "d")},
		{"the first of its kind, all keys", nodes, nil, testPod("p", db, near(zoneKey, "app", "db"), near(host, "app", "db")), refused(nearReason, "d")},
		{"the second of its kind may not", nodes, podsOn("a", db), testPod("p", db, near(zoneKey, "app", "db")), refused(nearReason, "c d")},
		{"the first that is counted: another is on a node without the key", nodes, podsOn("d", db), testPod("p", db, near(zoneKey, "app", "db")), refused(nearReason, "d")},
		{"who does not match itself is not the first of its kind", nodes, nil, testPod("p", web, near(zoneKey, "app", "db")), refused(nearReason, "a b c d")},
		{"who matches one of its two terms is not", nodes, nil, testPod("p", db, near(zoneKey, "app", "db"), near(zoneKey, "tier", "x")), refused(nearReason, "a b c d")},
		{"one matches one term only: the pod is the first", nodes, podsOn("a", db), testPod("p", db, labelled("tier", "x"), near(zoneKey, "app", "db"), near(zoneKey, "tier", "x")), refused(nearReason, "d")},

		{"away from one on its host", nodes, podsOn("a", db), testPod("p", away(host, "app", "db")), refused(awayReason, "a")},
		{"away from one in its zone", nodes, podsOn("a", db), testPod("p", away(zoneKey, "app", "db")), refused(awayReason, "a b")},
		{"away from one on a node without the key", nodes, podsOn("d", db), testPod("p", away(zoneKey, "app", "db")), refused("", "")},
		{"away from nobody who is there", nodes, podsOn("a", web), testPod("p", away(host, "app", "db")), refused("", "")},
		{"away from its own kind, of which there is none", nodes, nil, testPod("p", db, away(host, "app", "db")), refused("", "")},
		{"away from two kinds: either keeps it away", nodes, slices.Concat(podsOn("a", db), podsOn("c", labelled("tier", "x"))), testPod("p", away(host, "app", "db"), away(host, "tier", "x")), refused(awayReason, "a c")},
		{"away from two kinds in two domains", nodes, slices.Concat(podsOn("a", db), podsOn("c", labelled("tier", "x"))), testPod("p", away(host, "tier", "x"), away(zoneKey, "app", "db")), refused(awayReason, "a b c")},
		{"away from one of another namespace", nodes, podsOn("a", db, namespace("other")), testPod("p", away(host, "app", "db")), refused("", "")},
		{"away from one who is on its way out", nodes, podsOn("a", db, isGoing), testPod("p", away(host, "app", "db")), refused(awayReason, "a")},
		{"away by a key nobody has", nodes, podsOn("a", db), testPod("p", away("rack", "app", "db")), refused("", "")},

		{"one there wants none of it", nodes, podsOn("a", away(host, "app", "db")), testPod("p", db), refused(unwelcomeReason, "a")},
		{"one there wants none of it in its zone", nodes, podsOn("a", away(zoneKey, "app", "db")), testPod("p", db), refused(unwelcomeReason, "a b")},
		{"one there wants none of others", nodes, podsOn("a", away(host, "app", "web")), testPod("p", db), refused("", "")},
		{"one there of another namespace wants none of its own", nodes, podsOn("a", away(host, "app", "db"), namespace("other")), testPod("p", db), refused("", "")},
		{"one there without the key wants none of it", nodes, podsOn("d", away(zoneKey, "app", "db")), testPod("p", db), refused("", "")},
		{"two there want none of it", nodes, podsOn("a c", away(host, "app", "db")), testPod("p", db), refused(unwelcomeReason, "a c")},
		{"one there has two terms", nodes, podsOn("a", away(host, "app", "web"), away(zoneKey, "app", "db")), testPod("p", db), refused(unwelcomeReason, "a b")},
		{"one there wants to be near it: nobody is refused", nodes, podsOn("a", near(host, "app", "db")), testPod("p", db), refused("", "")},
		{"its own wish is named before others'", nodes, podsOn("a", db, away(zoneKey, "app", "db")), testPod("p", db, away(host, "app", "db")), map[string]string{"a": awayReason, "b": unwelcomeReason}},
		{"what it wants to be near is named before what it wants away from", nodes, slices.Concat(podsOn("a", web), podsOn("c", db)), testPod("p", near(host, "app", "web"), away(host, "app", "db")), refused(nearReason, "b c d")},
		{"near and away on one node", nodes, slices.Concat(podsOn("a", web), podsOn("a", db)), testPod("p", near(host, "app", "web"), away(host, "app", "db")), map[string]string{"a": awayReason, "b": nearReason, "c": nearReason, "d": nearReason}},

		{"an empty selector is about all pods of the namespace", nodes, podsOn("a", web), testPod("p", awayTerm(aboutPods(host, "", "", withSelector(everything)))), refused(awayReason, "a")},
		{"an empty selector is not about pods of others", nodes, podsOn("a", web, namespace("other")), testPod("p", awayTerm(aboutPods(host, "", "", withSelector(everything)))), refused("", "")},
		{"no selector is about nobody", nodes, podsOn("a", web), testPod("p", awayTerm(aboutPods(host, "", "", withSelector(nil)))), refused("", "")},
		{"near nobody at all", nodes, podsOn("a", web), testPod("p", web, nearTerm(aboutPods(host, "", "", withSelector(nil)))), refused(nearReason, "a b c d")},
		{"one there wants to be alone", nodes, podsOn("a", web, awayTerm(aboutPods(host, "", "", withSelector(everything)))), testPod("p"), refused(unwelcomeReason, "a")},
		{"soft wishes refuse nobody", nodes, podsOn("a", db, dislikesTerm(100, aboutPods(host, "app", "web"))), testPod("p", web, dislikesTerm(100, aboutPods(host, "app", "db")), likesTerm(100, aboutPods(host, "app", "none"))), refused("", "")},
		{"an empty value is a domain", []*corev1.Node{testNode("a", zone("")), testNode("b", zone("")), testNode("c")}, podsOn("a", db), testPod("p", away(zoneKey, "app", "db")), refused(awayReason, "a b")},
		{"two nodes of one host name are one domain", []*corev1.Node{testNode("a", nodeLabel(host, "h")), testNode("b", nodeLabel(host, "h")), testNode("c")}, podsOn("a", db), testPod("p", away(host, "app", "db")), refused(awayReason, "a b")},
	})
}

func TestInterPodAffinityNamespaces(t *testing.T) {
	host := corev1.LabelHostname
	db := labelled("app", "db")
	nodes := []*corev1.Node{testNode("own"), testNode("red1"), testNode("red2"), testNode("blue"), testNode("bare"), testNode("unknown")}
	running := []*corev1.Pod{testPod("1", on("own"), db), testPod("2", on("red1"), db, namespace("red-1")), testPod("3", on("red2"), db, namespace("red-2")),
		testPod("4", on("blue"), db, namespace("blue")), testPod("5", on("bare"), db, namespace("bare")), testPod("6", on("unknown"), db, namespace("unknown"))}
	namespaces := []*corev1.Namespace{affinityNamespace("default", nil), affinityNamespace("red-1", map[string]string{"team": "red"}), affinityNamespace("red-2", map[string]string{"team": "red", "old": "yes"}), affinityNamespace("blue", map[string]string{"team": "blue"}), affinityNamespace("bare", nil)}
	red := matching("team", "red")
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
		{"a named one", []func(*corev1.PodAffinityTerm){ofNamespaces("blue")}, "blue", "blue"},
		{"two named ones", []func(*corev1.PodAffinityTerm){ofNamespaces("red-2", "blue")}, "blue red2", "blue red-2"},
		{"one named twice is one", []func(*corev1.PodAffinityTerm){ofNamespaces("blue", "blue")}, "blue", "blue"},
		{"a named one that does not exist", []func(*corev1.PodAffinityTerm){ofNamespaces("gone")}, "", ""},
		{"those with a label", []func(*corev1.PodAffinityTerm){ofNamespacesLike(red)}, "red1 red2", "red-1 red-2"},
		{"those with a label and a named one", []func(*corev1.PodAffinityTerm){ofNamespacesLike(red), ofNamespaces("blue")}, "blue red1 red2", "blue red-1 red-2"},
		{"those with a label, one of them named too", []func(*corev1.PodAffinityTerm){ofNamespacesLike(red), ofNamespaces("red-1")}, "red1 red2", "red-1 red-2"},
		{"those with two labels", []func(*corev1.PodAffinityTerm){ofNamespacesLike(&metav1.LabelSelector{MatchLabels: map[string]string{"team": "red", "old": "yes"}})}, "red2", "red-2"},
		{"those without a label", []func(*corev1.PodAffinityTerm){ofNamespacesLike(expr("team", metav1.LabelSelectorOpDoesNotExist))}, "bare own", "bare default unknown"},
		{"those with a label, whatever it is", []func(*corev1.PodAffinityTerm){ofNamespacesLike(expr("team", metav1.LabelSelectorOpExists))}, "blue red1 red2", "blue red-1 red-2"},
		{"those with a label nobody has", []func(*corev1.PodAffinityTerm){ofNamespacesLike(matching("team", "green"))}, "", ""},
		{"all", []func(*corev1.PodAffinityTerm){ofNamespacesLike(&metav1.LabelSelector{})}, "bare blue own red1 red2 unknown", "bare blue default red-1 red-2 unknown"},
		{"all, and a named one", []func(*corev1.PodAffinityTerm){ofNamespacesLike(&metav1.LabelSelector{}), ofNamespaces("blue")}, "bare blue own red1 red2 unknown", "bare blue default red-1 red-2 unknown"},
	} {
		t.Run(test.what, func(t *testing.T) {
			profile := DefaultProfile()
			pod := testPod("p", awayTerm(aboutPods(host, "app", "db", test.more...)))
			make := func() *Snapshot {
				s := cluster(t, nodes)
				for _, n := range namespaces {
					s.SetNamespace(n)
				}
				return s
			}
			check := func(how string, s *Snapshot) {
				t.Helper()
				if got := strings.Join(slices.Sorted(maps.Keys(neighbourRefusals(t, s, pod, profile, interPodAffinityName))), " "); got != test.want {
					t.Errorf("%s: about those on %q, want %q", how, got, test.want)
				}
			}
			s := make()
			for _, p := range running {
				s.SetPod(infoOf(t, p))
			}
			check("at first sight", s)
			s = make()
			neighbourRefusals(t, s, pod, profile, interPodAffinityName)
			for _, p := range running {
				s.SetPod(infoOf(t, p))
			}
			check("with pods that came later", s)
			// The same term of a pod that is there: whom of all namespaces it does not want.
			s = make()
			there := pod.DeepCopy()
			there.Spec.NodeName = "own"
			s.SetPod(infoOf(t, there))
			var unwelcome []string
			for _, name := range []string{"bare", "blue", "default", "gone", "red-1", "red-2", "unknown"} {
				if neighbourRefusals(t, s, testPod("q", db, namespace(name)), profile, interPodAffinityName)["own"] == unwelcomeReason {
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
	s := cluster(t, []*corev1.Node{testNode("a"), testNode("b")}, testPod("1", on("a"), labelled("app", "db"), namespace("team")))
	own := testPod("p", awayTerm(aboutPods(host, "app", "db", ofNamespacesLike(matching("team", "red")))))
	theirs := testPod("2", on("b"), awayTerm(aboutPods(host, "app", "web", ofNamespacesLike(matching("team", "red")))))
	s.SetPod(infoOf(t, theirs))
	newcomer := testPod("q", labelled("app", "web"), namespace("team"))
	for _, step := range []struct {
		what       string
		do         func()
		applies    bool
		unwelcomes bool
	}{
		{"the namespace is not known", func() {}, false, false},
		{"it has another label", func() { s.SetNamespace(affinityNamespace("team", map[string]string{"team": "blue"})) }, false, false},
		{"it has the label", func() { s.SetNamespace(affinityNamespace("team", map[string]string{"team": "red"})) }, true, true},
		{"it is told again", func() { s.SetNamespace(affinityNamespace("team", map[string]string{"team": "red"})) }, true, true},
		{"it has one label more", func() { s.SetNamespace(affinityNamespace("team", map[string]string{"team": "red", "x": "y"})) }, true, true},
		{"it lost the label", func() { s.SetNamespace(affinityNamespace("team", nil)) }, false, false},
		{"it has the label again", func() { s.SetNamespace(affinityNamespace("team", map[string]string{"team": "red"})) }, true, true},
		{"it is gone", func() { s.DeleteNamespace("team") }, false, false},
	} {
		step.do()
		if got := neighbourRefusals(t, s, own, profile, interPodAffinityName)["a"] == awayReason; got != step.applies {
			t.Errorf("%s: the pod's term applies: %t", step.what, got)
		}
		if got := neighbourRefusals(t, s, newcomer, profile, interPodAffinityName)["b"] == unwelcomeReason; got != step.unwelcomes {
			t.Errorf("%s: the other pod's term applies: %t", step.what, got)
		}
	}
}

func TestInterPodAffinityScore(t *testing.T) {
	host, zoneKey := corev1.LabelHostname, corev1.LabelTopologyZone
	db, web := labelled("app", "db"), labelled("app", "web")
	nodes := []*corev1.Node{testNode("a", zone("1")), testNode("b", zone("1")), testNode("c", zone("2")), testNode("d")}
	dbHost, dbZone, webHost := aboutPods(host, "app", "db"), aboutPods(zoneKey, "app", "db"), aboutPods(host, "app", "web")
	const defaults, ignoring, noHard, hardTen = "", `{"ignorePreferredTermsOfExistingPods":true}`, `{"hardPodAffinityWeight":0}`, `{"hardPodAffinityWeight":10}`
	even := map[string]int64{"a": 0, "b": 0, "c": 0, "d": 0}
	for _, test := range []struct {
		what, arguments string
		running         []*corev1.Pod
		pod             *corev1.Pod
		want            map[string]int64
	}{
		{"no wishes, no say", defaults, podsOn("a", db), testPod("p", web), nil},
		{"nobody who is liked is there", defaults, podsOn("a", web), testPod("p", likesTerm(5, dbHost)), nil},
		{"nobody who is liked is there, though spreading has a say", defaults, podsOn("a", web), testPod("p", web, likesTerm(5, dbHost), spread(host, 1, spreadSoft, "app", "web")), nil},
		{"one who is liked", defaults, podsOn("a", db), testPod("p", likesTerm(5, dbHost)), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"one who is liked, in its zone", defaults, podsOn("a", db), testPod("p", likesTerm(5, dbZone)), map[string]int64{"a": 100, "b": 100, "c": 0, "d": 0}},
		{"two and one", defaults, podsOn("a a c", db), testPod("p", likesTerm(5, dbHost)), map[string]int64{"a": 100, "b": 0, "c": 50, "d": 0}},
		{"three and one is cut off", defaults, podsOn("a a a c", db), testPod("p", likesTerm(5, dbHost)), map[string]int64{"a": 100, "b": 0, "c": 33, "d": 0}},
		{"one who is liked where the key is not", defaults, podsOn("d", db), testPod("p", likesTerm(5, dbZone)), nil},
		{"one who is disliked", defaults, podsOn("a", db), testPod("p", dislikesTerm(5, dbHost)), map[string]int64{"a": 0, "b": 100, "c": 100, "d": 100}},
		{"one who is disliked more", defaults, podsOn("a a c", db), testPod("p", dislikesTerm(5, dbHost)), map[string]int64{"a": 0, "b": 100, "c": 50, "d": 100}},
		{"liked and disliked", defaults, slices.Concat(podsOn("a", db), podsOn("c", web)), testPod("p", likesTerm(5, dbHost), dislikesTerm(5, webHost)), map[string]int64{"a": 100, "b": 50, "c": 0, "d": 50}},
		{"weights", defaults, slices.Concat(podsOn("a", db), podsOn("c", web)), testPod("p", likesTerm(8, dbHost), likesTerm(2, webHost)), map[string]int64{"a": 100, "b": 0, "c": 25, "d": 0}},
		{"two terms about one pod add up", defaults, podsOn("a", db), testPod("p", likesTerm(2, dbHost), likesTerm(2, dbZone)), map[string]int64{"a": 100, "b": 50, "c": 0, "d": 0}},
		{"what is everywhere alike says nothing, but is said", defaults, podsOn("a b c d", db), testPod("p", likesTerm(5, dbHost)), even},
		{"liked and disliked alike", defaults, podsOn("a", db), testPod("p", likesTerm(5, dbHost), dislikesTerm(5, dbHost)), even},
		{"one of another namespace is not meant", defaults, podsOn("a", db, namespace("other")), testPod("p", likesTerm(5, dbHost)), nil},
		{"one of a namespace that is named is", defaults, podsOn("a", db, namespace("other")), testPod("p", likesTerm(5, aboutPods(host, "app", "db", ofNamespaces("other")))), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"a namespace that is named twice counts once", defaults, slices.Concat(podsOn("a", db, namespace("other")), podsOn("c", web)), testPod("p", likesTerm(5, aboutPods(host, "app", "db", ofNamespaces("other", "other"))), likesTerm(10, webHost)), map[string]int64{"a": 50, "b": 0, "c": 100, "d": 0}},
		{"one of all namespaces is", defaults, podsOn("a", db, namespace("other")), testPod("p", likesTerm(5, aboutPods(host, "app", "db", ofNamespacesLike(&metav1.LabelSelector{})))), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"one who is on its way out still counts", defaults, podsOn("a", db, isGoing), testPod("p", likesTerm(5, dbHost)), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},

		{"one there likes it", defaults, podsOn("a", likesTerm(7, dbHost)), testPod("p", db), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"two there like it, by weight", defaults, slices.Concat(podsOn("a", likesTerm(8, dbHost)), podsOn("c", likesTerm(4, dbHost))), testPod("p", db), map[string]int64{"a": 100, "b": 0, "c": 50, "d": 0}},
		{"one there dislikes it", defaults, podsOn("a", dislikesTerm(7, dbZone)), testPod("p", db), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 100}},
		{"one there likes others", defaults, podsOn("a", likesTerm(7, webHost)), testPod("p", db), nil},
		{"one there of another namespace likes its own", defaults, podsOn("a", likesTerm(7, dbHost), namespace("other")), testPod("p", db), nil},
		{"one there needs it: worth 1", defaults, slices.Concat(podsOn("a", near(host, "app", "db"), db), podsOn("c", likesTerm(4, dbHost))), testPod("p", db), map[string]int64{"a": 25, "b": 0, "c": 100, "d": 0}},
		{"one there needs it: worth 10", hardTen, slices.Concat(podsOn("a", near(host, "app", "db"), db), podsOn("c", likesTerm(4, dbHost))), testPod("p", db), map[string]int64{"a": 100, "b": 0, "c": 40, "d": 0}},
		{"one there needs it: worth nothing", noHard, podsOn("a", near(host, "app", "db"), db), testPod("p", db), nil},
		{"one there needs it and another: each term by itself", defaults, podsOn("a", near(host, "app", "db"), near(host, "tier", "x"), db), testPod("p", db), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"its wishes and those of others add up", defaults, slices.Concat(podsOn("a", db), podsOn("c", likesTerm(10, webHost))), testPod("p", web, likesTerm(5, dbHost)), map[string]int64{"a": 50, "b": 0, "c": 100, "d": 0}},
		{"one liked and disliked by others", defaults, slices.Concat(podsOn("a", likesTerm(5, dbHost)), podsOn("a", dislikesTerm(5, dbHost)), podsOn("c", likesTerm(5, dbHost))), testPod("p", db), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 0}},

		{"others' wishes are ignored by who has none", ignoring, podsOn("a", likesTerm(7, dbHost)), testPod("p", db), nil},
		{"others' needs, too", ignoring, podsOn("a", near(host, "app", "db"), db), testPod("p", db), nil},
		{"others' wishes count for who has one", ignoring, slices.Concat(podsOn("a", web), podsOn("c", likesTerm(10, dbHost))), testPod("p", db, likesTerm(5, webHost)), map[string]int64{"a": 50, "b": 0, "c": 100, "d": 0}},
		{"others' wishes count for who dislikes somebody who is not there", ignoring, podsOn("c", likesTerm(10, dbHost)), testPod("p", db, dislikesTerm(5, webHost)), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 0}},
		{"needs of its own are no wishes", ignoring, slices.Concat(podsOn("a b c d", web), podsOn("c", likesTerm(10, dbHost))), testPod("p", db, near(host, "app", "web")), nil},
	} {
		t.Run(test.what, func(t *testing.T) {
			profile, err := newProfile(ptr.To(profileWith(interPodAffinityName, test.arguments)))
			if err != nil {
				t.Fatal(err)
			}
			check := func(how string, s *Snapshot) {
				t.Helper()
				if got := neighbourScores(t, s, test.pod, profile, interPodAffinityName, 2); !maps.Equal(got, test.want) {
					t.Errorf("%s: scores %v, want %v", how, got, test.want)
				}
			}
			s := cluster(t, nodes, test.running...)
			check("at first sight", s)
			check("the second time", s)
			late := cluster(t, nodes)
			if near, _, _, _ := affinityTerms(test.pod); len(near) == 0 {
				if got := neighbourScores(t, late, test.pod, profile, interPodAffinityName, 2); got != nil {
					t.Errorf("with nobody there: %v", got)
				}
			}
			for _, p := range test.running {
				late.SetPod(infoOf(t, p))
			}
			check("with pods that came later", late)
			for _, p := range test.running {
				s.DeletePod(p.UID)
			}
			for _, p := range slices.Backward(test.running) {
				s.SetPod(infoOf(t, p))
			}
			check("after they went and came again", s)
		})
	}
}

func TestInterPodAffinityArguments(t *testing.T) {
	for arguments, want := range map[string]interPodAffinity{
		"": {hardWeight: 1}, `{"hardPodAffinityWeight":0}`: {}, `{"hardPodAffinityWeight":7,"ignorePreferredTermsOfExistingPods":true}`: {hardWeight: 7, ignoreOthers: true},
	} {
		if got := mustRule[*interPodAffinity](t, interPodAffinityName, arguments); *got != want {
			t.Errorf("%s: %+v, want %+v", arguments, *got, want)
		}
	}
}

func TestInterPodAffinityHints(t *testing.T) {
	host, zoneKey := corev1.LabelHostname, corev1.LabelTopologyZone
	db, web, tier := labelled("app", "db"), labelled("app", "web"), labelled("tier", "x")
	wants := testPod("p", near(zoneKey, "app", "db"))
	wantsBoth := testPod("p", near(zoneKey, "app", "db"), near(host, "tier", "x"))
	fears := testPod("p", away(zoneKey, "app", "db"))
	plain := testPod("p", db)
	other := func(options ...podOption) *corev1.Pod {
		return testPod("other", append([]podOption{on("n")}, options...)...)
	}
	reds := aboutPods(host, "app", "db", ofNamespacesLike(matching("team", "red")))
	s := cluster(t, nil)
	s.SetNamespace(affinityNamespace("red", map[string]string{"team": "red"}))
	s.SetNamespace(affinityNamespace("blue", map[string]string{"team": "blue"}))
	checkHints(t, DefaultProfile(), interPodAffinityName, s, []ruleHint{
		{"who is wanted came", wants, rulePodCame(other(db)), true},
		{"who is not wanted came", wants, rulePodCame(other(web)), false},
		{"who is wanted came to another namespace", wants, rulePodCame(other(db, namespace("other"))), false},
		{"who is wanted is nominated", wants, rulePodCame(testPod("other", db, nominatedTo("n"))), true},
		{"who is wanted came, but has no place", wants, rulePodCame(testPod("other", db)), false},
		{"who is wanted went", wants, rulePodWent(other(db)), false},
		{"who is wanted in one way only came", wantsBoth, rulePodCame(other(db)), false},
		{"who is wanted in both ways came", wantsBoth, rulePodCame(other(db, tier)), true},
		{"who is wanted in one way is now in both", wantsBoth, rulePodIs(other(db), other(db, tier)), true},
		{"who was wanted in both ways is now in one", wantsBoth, rulePodIs(other(db, tier), other(db)), false},
		{"one has become who is wanted", wants, rulePodIs(other(web), other(db)), true},
		{"one has ceased to be who is wanted", wants, rulePodIs(other(db), other(web)), false},
		{"who is wanted has another label", wants, rulePodIs(other(db), other(db, tier)), false},
		{"who is wanted asks for less", wants, rulePodIs(other(db, asksCPU("2")), other(db, asksCPU("1"))), false},

		{"who is feared went", fears, rulePodWent(other(db)), true},
		{"who is not feared went", fears, rulePodWent(other(web)), false},
		{"who is feared came", fears, rulePodCame(other(db)), false},
		{"who is feared went from another namespace", fears, rulePodWent(other(db, namespace("other"))), false},
		{"who was feared, without a place, went", fears, rulePodWent(testPod("other", db)), false},
		{"who was feared, and nominated, went", fears, rulePodWent(testPod("other", db, nominatedTo("n"))), true},
		{"who was feared is somebody else now", fears, rulePodIs(other(db), other(web)), true},
		{"somebody has become who is feared", fears, rulePodIs(other(web), other(db)), false},
		{"who is feared has another label", fears, rulePodIs(other(db), other(db, tier)), false},

		{"who feared it went", plain, rulePodWent(other(away(host, "app", "db"))), true},
		{"who feared others went", plain, rulePodWent(other(away(host, "app", "web"))), false},
		{"who feared it from another namespace went", plain, rulePodWent(other(away(host, "app", "db"), namespace("other"))), false},
		{"who feared it among others went", plain, rulePodWent(other(away(host, "app", "web"), away(zoneKey, "app", "db"))), true},
		{"who disliked it went", plain, rulePodWent(other(dislikesTerm(100, aboutPods(host, "app", "db")))), false},
		{"who feared it has other labels", plain, rulePodIs(other(away(host, "app", "db")), other(web, away(host, "app", "db"))), false},

		{"who is wanted of a kind of namespaces came", testPod("p", nearTerm(reds)), rulePodCame(other(db, namespace("red"))), true},
		{"who is wanted of another kind came", testPod("p", nearTerm(reds)), rulePodCame(other(db, namespace("blue"))), false},
		{"who is feared of a kind of namespaces went", testPod("p", awayTerm(reds)), rulePodWent(other(db, namespace("red"))), true},
		{"who feared a kind of namespaces went", testPod("p", db, namespace("red")), rulePodWent(other(awayTerm(reds))), true},
		{"who feared another kind went", testPod("p", db, namespace("blue")), rulePodWent(other(awayTerm(reds))), false},

		{"its own labels changed", plain, ruleItselfIs(testPod("p"), plain), true},
		{"it tolerates more", plain, ruleItselfIs(plain, testPod("p", db, toleration("k", tolExists, "", ""))), false},

		{"a node with the key came for who wants", wants, ruleNodeCame(testNode("n", zone("1"))), true},
		{"a node without came for who wants", wants, ruleNodeCame(testNode("n")), false},
		{"a node with one of two keys came", wantsBoth, ruleNodeCame(testNode("n")), true},
		{"a node got the key", wants, ruleNodeIs(testNode("n"), testNode("n", zone("1"))), true},
		{"a node moved", wants, ruleNodeIs(testNode("n", zone("1")), testNode("n", zone("2"))), true},
		{"a node lost the key", wants, ruleNodeIs(testNode("n", zone("1")), testNode("n")), false},
		{"a node has another label", wants, ruleNodeIs(testNode("n", zone("1")), testNode("n", zone("1"), nodeLabel("x", "y"))), false},
		{"a node has room", wants, ruleNodeIs(testNode("n", zone("1")), testNode("n", zone("1"), nodeHas(corev1.ResourceCPU, "9"))), false},
		{"any node came for who fears", fears, ruleNodeCame(testNode("n")), true},
		{"a node lost the key for who fears", fears, ruleNodeIs(testNode("n", zone("1")), testNode("n")), true},
		{"a node lost the key, of no value, for who fears", fears, ruleNodeIs(testNode("n", zone("")), testNode("n")), true},
		{"a node moved for who fears", fears, ruleNodeIs(testNode("n", zone("1")), testNode("n", zone("2"))), true},
		{"a node got the key for who fears", fears, ruleNodeIs(testNode("n"), testNode("n", zone("1"))), false},
		{"a node has another label for who fears", fears, ruleNodeIs(testNode("n", zone("1")), testNode("n", zone("1"), nodeLabel("x", "y"))), false},
		{"any node came for who neither wants nor fears", plain, ruleNodeCame(testNode("n", zone("1"))), false},
		{"a node went", fears, ruleNodeWent(testNode("n", zone("1"))), false},
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

func affinityTerms(p *corev1.Pod) (near, away []corev1.PodAffinityTerm, likes, dislikes []corev1.WeightedPodAffinityTerm) {
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
		near, likes = a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		away, dislikes = a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	return near, away, likes, dislikes
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
	near, away, _, _ := affinityTerms(m.pod)
	all := func(p *corev1.Pod) bool {
		return len(near) > 0 && !slices.ContainsFunc(near, func(t corev1.PodAffinityTerm) bool { return !m.about(m.pod, &t, p) })
	}
	present, keyed, anywhere := true, true, false
	for _, t := range near {
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
	if len(near) > 0 && (!keyed || !present && (anywhere || !all(m.pod))) {
		return nearReason
	}
	for _, t := range away {
		for _, p := range m.pods {
			if m.about(m.pod, &t, p) && m.together(t.TopologyKey, n, m.nodeOf(p)) {
				return awayReason
			}
		}
	}
	for _, p := range m.pods {
		_, theirs, _, _ := affinityTerms(p)
		for _, t := range theirs {
			if m.about(p, &t, m.pod) && m.together(t.TopologyKey, n, m.nodeOf(p)) {
				return unwelcomeReason
			}
		}
	}
	return ""
}

// scores are nil when nothing is said of any node at all.
func (m *affinityModel) scores(feasible []*corev1.Node, hardWeight int64) map[string]int64 {
	_, _, likes, dislikes := affinityTerms(m.pod)
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
		for _, x := range likes {
			add(m.about(m.pod, &x.PodAffinityTerm, p), &x.PodAffinityTerm, p, int64(x.Weight))
		}
		for _, x := range dislikes {
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
			return testNode(fmt.Sprint("n", i), func(n *corev1.Node) {
				maps.Copy(n.Labels, randomLabels(r, []string{corev1.LabelTopologyZone, "rack"}, "1", "2"))
				if chance(r, 6) {
					delete(n.Labels, corev1.LabelHostname)
				}
			})
		}
		termOf := func() corev1.PodAffinityTerm {
			x := aboutPods(oneOf(r, corev1.LabelHostname, corev1.LabelTopologyZone, "rack"), "app", oneOf(r, "x", "y", "z"))
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
				x.Namespaces = []string{oneOf(r, "default", "other"), "other"}
			case 1:
				x.NamespaceSelector = matching("team", oneOf(r, "red", "blue"))
			case 2:
				x.NamespaceSelector = &metav1.LabelSelector{}
			}
			return x
		}
		podOf := func(name string, wishes int) *corev1.Pod {
			p := testPod(name, namespace(oneOf(r, "default", "default", "other", "unknown")), func(p *corev1.Pod) { p.Labels = randomLabels(r, []string{"app", "tier"}, "x", "y", "z") })
			for range r.IntN(wishes + 1) {
				switch x := termOf(); r.IntN(5) {
				case 0:
					nearTerm(x)(p)
				case 1:
					awayTerm(x)(p)
				case 2, 3:
					likesTerm(int32(1+r.IntN(9)), x)(p)
				default:
					dislikesTerm(int32(1+r.IntN(9)), x)(p)
				}
			}
			return p
		}
		m := &affinityModel{namespaces: map[string]labels.Set{"default": {"team": "red"}, "other": {"team": "blue"}}}
		for i := range 5 {
			m.nodes = append(m.nodes, nodeOf(i))
		}
		s := cluster(t, m.nodes)
		for name, set := range m.namespaces {
			s.SetNamespace(affinityNamespace(name, set))
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
				name, set := oneOf(r, "default", "other"), labels.Set{"team": oneOf(r, "red", "blue", "green")}
				m.namespaces[name] = set
				s.SetNamespace(affinityNamespace(name, set))
			default:
				p := podOf(fmt.Sprint("pod", step), 2)
				p.Spec.NodeName = oneOf(r, m.nodes...).Name
				m.pods = append(m.pods, p)
				s.SetPod(infoOf(t, p))
			}
			m.pod = oneOf(r, askers...)
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
			if got := neighbourRefusals(t, s, m.pod, profile, interPodAffinityName); !maps.Equal(got, want) {
				t.Fatalf("seed %d, step %d: pod %+v: refused %v, want %v", seed, step, m.pod.Spec.Affinity, got, want)
			}
			if len(feasible) == 0 {
				continue
			}
			got, scores := neighbourScores(t, s, m.pod, profile, interPodAffinityName, 2), m.scores(feasible, 1)
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
	for _, what := range []string{nearReason, awayReason, unwelcomeReason, "scored"} {
		if count[what] < 200 {
			t.Errorf("%s: only %d times, too few to tell anything", what, count[what])
		}
	}
}
