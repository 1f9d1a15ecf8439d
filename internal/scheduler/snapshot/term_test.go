package snapshot

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"skiff/internal/scheduler/schedulertest"
)

func termRequirement(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

func termOfPod(t testing.TB, namespaceName string, x corev1.PodAffinityTerm) Term {
	t.Helper()
	read, err := termOf(schedulertest.TestPod("p", schedulertest.Namespace(namespaceName)), &x)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func TestTermOf(t *testing.T) {
	everything := &metav1.LabelSelector{}
	red := schedulertest.Matching("team", "red")
	for _, test := range []struct {
		what       string
		given      corev1.PodAffinityTerm
		namespaces string
		key        string // equal for terms about the same pods
		everywhere bool
	}{
		{"neither names nor selector: the pod's own namespace", schedulertest.PodTerm("zone", "app", "db"), "mine", "mine|!|app=db", false},
		{"names", schedulertest.PodTerm("zone", "app", "db", schedulertest.OfNamespaces("b", "a")), "a b", "a,b|!|app=db", false},
		{"names are put in order, and each counts once", schedulertest.PodTerm("zone", "app", "db", schedulertest.OfNamespaces("b", "a", "b")), "a b", "a,b|!|app=db", false},
		{"a selector: not the pod's own namespace", schedulertest.PodTerm("zone", "app", "db", schedulertest.OfNamespacesLike(red)), "", "|team=red|app=db", false},
		{"an empty selector is all namespaces", schedulertest.PodTerm("zone", "app", "db", schedulertest.OfNamespacesLike(everything)), "", "||app=db", true},
		{"a selector and names", schedulertest.PodTerm("zone", "app", "db", schedulertest.OfNamespacesLike(red), schedulertest.OfNamespaces("a")), "a", "a|team=red|app=db", false},
		{"an empty selector and names", schedulertest.PodTerm("zone", "app", "db", schedulertest.OfNamespacesLike(everything), schedulertest.OfNamespaces("a")), "a", "a||app=db", true},
		{"empty names are none", schedulertest.PodTerm("zone", "app", "db", schedulertest.OfNamespaces()), "mine", "mine|!|app=db", false},
		{"another topology key, the same pods", schedulertest.PodTerm("host", "app", "db"), "mine", "mine|!|app=db", false},
		{"no selector of pods: nobody", schedulertest.PodTerm("zone", "", "", schedulertest.WithSelector(nil)), "mine", "mine|!|!", false},
		{"an empty selector of pods: everybody", schedulertest.PodTerm("zone", "", "", schedulertest.WithSelector(everything)), "mine", "mine|!|", false},
		{"labels and expressions in any order", schedulertest.PodTerm("zone", "", "", schedulertest.WithSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"b": "1", "a": "2"}, MatchExpressions: termRequirement("c", metav1.LabelSelectorOpExists).MatchExpressions})), "mine", "mine|!|a=2,b=1,c", false},
	} {
		got := termOfPod(t, "mine", test.given)
		if strings.Join(got.namespaces, " ") != test.namespaces || got.key != test.key || got.allNamespaces() != test.everywhere || got.TopologyKey != test.given.TopologyKey {
			t.Errorf("%s: %v, %q, everywhere is %t, of %s", test.what, got.namespaces, got.key, got.allNamespaces(), got.TopologyKey)
		}
	}
	given := schedulertest.PodTerm("zone", "app", "db", schedulertest.OfNamespaces("b", "a"))
	termOfPod(t, "mine", given)
	if !slices.Equal(given.Namespaces, []string{"b", "a"}) {
		t.Errorf("reading a term has changed it: %v", given.Namespaces)
	}
	odd := termRequirement("a", "Odd")
	for what, x := range map[string]corev1.PodAffinityTerm{"of pods": schedulertest.PodTerm("zone", "", "", schedulertest.WithSelector(odd)), "of namespaces": schedulertest.PodTerm("zone", "a", "b", schedulertest.OfNamespacesLike(odd))} {
		if _, err := termOf(schedulertest.TestPod("p"), &x); err == nil || !strings.Contains(err.Error(), "Odd") {
			t.Errorf("a selector %s that cannot be read: %v", what, err)
		}
	}
}

// Of a pod's terms, the first that cannot be read is told of, and which kind it is.
func TestTermErrorsNameTheirKind(t *testing.T) {
	bad, good := schedulertest.PodTerm("zone", "", "", schedulertest.WithSelector(termRequirement("a", "Odd"))), schedulertest.PodTerm("zone", "a", "b")
	for want, o := range map[string]schedulertest.PodOption{
		"requiredAffinityTerms": schedulertest.RequiredAffinity(bad), "preferredAffinityTerms": schedulertest.PreferredAffinity(1, bad), "requiredAntiAffinityTerms": schedulertest.RequiredAntiAffinity(bad), "preferredAntiAffinityTerms": schedulertest.PreferredAntiAffinity(1, bad),
	} {
		_, err := NewPodInfo(schedulertest.TestPod("p", schedulertest.RequiredAffinity(good), schedulertest.RequiredAntiAffinity(good), schedulertest.PreferredAffinity(1, good), schedulertest.PreferredAntiAffinity(1, good), o))
		if err == nil || !strings.HasPrefix(err.Error(), "parsing pod: "+want+": ") {
			t.Errorf("%s: %v", want, err)
		}
	}
	info := infoOf(t, schedulertest.TestPod("p", schedulertest.RequiredAffinity(good), schedulertest.RequiredAntiAffinity(good), schedulertest.RequiredAntiAffinity(good), schedulertest.PreferredAffinity(3, good), schedulertest.PreferredAntiAffinity(4, good), schedulertest.PreferredAntiAffinity(5, good)))
	if len(info.Affinity) != 1 || len(info.AntiAffinity) != 2 || len(info.PreferredAffinity) != 1 || len(info.PreferredAntiAffinity) != 2 {
		t.Errorf("read %d, %d, %d and %d terms", len(info.Affinity), len(info.AntiAffinity), len(info.PreferredAffinity), len(info.PreferredAntiAffinity))
	}
	if info.PreferredAffinity[0].Weight != 3 || info.PreferredAntiAffinity[0].Weight != 4 || info.PreferredAntiAffinity[1].Weight != 5 {
		t.Errorf("weights %d, %d, %d", info.PreferredAffinity[0].Weight, info.PreferredAntiAffinity[0].Weight, info.PreferredAntiAffinity[1].Weight)
	}
}

func TestSelectorKeyTellsNothingFromEverything(t *testing.T) {
	if selectorKey(labels.Nothing()) == selectorKey(labels.Everything()) || !MatchesNothing(labels.Nothing()) || MatchesNothing(labels.Everything()) || MatchesNothing(labels.NewSelector()) {
		t.Error("nothing and everything are the same")
	}
	some, err := labels.Parse("a in (1,2),!b,c")
	if err != nil {
		t.Fatal(err)
	}
	if got := selectorKey(some); got != "a in (1,2),!b,c" || MatchesNothing(some) {
		t.Errorf("key %q", got)
	}
}

func TestResolvedTerms(t *testing.T) {
	s := NewSnapshot()
	for name, set := range map[string]map[string]string{"red-1": {"team": "red"}, "red-2": {"team": "red"}, "blue": {"team": "blue"}, "bare": nil} {
		s.SetNamespace(schedulertest.AffinityNamespace(name, set))
	}
	for _, test := range []struct {
		what  string
		given corev1.PodAffinityTerm
		want  string
	}{
		{"names stay", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespaces("x", "blue")), "blue,x|!|app=db"},
		{"its own stays", schedulertest.PodTerm("z", "app", "db"), "mine|!|app=db"},
		{"all stays all", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(&metav1.LabelSelector{})), "||app=db"},
		{"all stays all, with names", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(&metav1.LabelSelector{}), schedulertest.OfNamespaces("x")), "x||app=db"},
		{"a selector becomes names", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(schedulertest.Matching("team", "red"))), "red-1,red-2|!|app=db"},
		{"a selector and names, each once", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(schedulertest.Matching("team", "red")), schedulertest.OfNamespaces("x", "red-2")), "red-1,red-2,x|!|app=db"},
		{"a selector nobody meets", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(schedulertest.Matching("team", "green"))), "|!|app=db"},
		{"a selector of what is not there", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(termRequirement("team", metav1.LabelSelectorOpDoesNotExist))), "bare|!|app=db"},
	} {
		given := termOfPod(t, "mine", test.given)
		before := slices.Clone(given.namespaces)
		got := s.ResolveNamespaces(given)
		if got.key != test.want || got.TopologyKey != "z" {
			t.Errorf("%s: %q of %s, want %q", test.what, got.key, got.TopologyKey, test.want)
		}
		if !slices.Equal(given.namespaces, before) {
			t.Errorf("%s: the term itself has changed", test.what)
		}
	}
}

func TestTermMatches(t *testing.T) {
	s := NewSnapshot()
	s.SetNamespace(schedulertest.AffinityNamespace("red", map[string]string{"team": "red"}))
	s.SetNamespace(schedulertest.AffinityNamespace("bare", nil))
	for _, test := range []struct {
		what  string
		given corev1.PodAffinityTerm
		pod   *corev1.Pod
		want  bool
	}{
		{"label and namespace", schedulertest.PodTerm("z", "app", "db"), schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Namespace("mine")), true},
		{"another value", schedulertest.PodTerm("z", "app", "db"), schedulertest.TestPod("p", schedulertest.Labelled("app", "web"), schedulertest.Namespace("mine")), false},
		{"no label", schedulertest.PodTerm("z", "app", "db"), schedulertest.TestPod("p", schedulertest.Namespace("mine")), false},
		{"another namespace", schedulertest.PodTerm("z", "app", "db"), schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Namespace("other")), false},
		{"the second of its names", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespaces("c", "b", "a")), schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Namespace("b")), true},
		{"between its names", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespaces("c", "a")), schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Namespace("b")), false},
		{"a namespace of the kind", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(schedulertest.Matching("team", "red"))), schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Namespace("red")), true},
		{"a namespace of no kind", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(schedulertest.Matching("team", "red"))), schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Namespace("bare")), false},
		{"a namespace nobody knows", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(schedulertest.Matching("team", "red"))), schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Namespace("gone")), false},
		{"all namespaces, known or not", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(&metav1.LabelSelector{})), schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Namespace("gone")), true},
		{"everybody", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(&metav1.LabelSelector{})), schedulertest.TestPod("p", schedulertest.Namespace("mine")), true},
		{"nobody", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(nil)), schedulertest.TestPod("p", schedulertest.Namespace("mine")), false},
		{"who does not have a label", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(termRequirement("app", metav1.LabelSelectorOpNotIn, "db"))), schedulertest.TestPod("p", schedulertest.Namespace("mine")), true},
		{"who has a label not in", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(termRequirement("app", metav1.LabelSelectorOpNotIn, "db"))), schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Namespace("mine")), false},
	} {
		x := termOfPod(t, "mine", test.given)
		if got := s.Matches(&x, test.pod); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
	db, tier := termOfPod(t, "default", schedulertest.PodTerm("z", "app", "db")), termOfPod(t, "default", schedulertest.PodTerm("z", "tier", "x"))
	both, one, other := schedulertest.TestPod("p", schedulertest.Labelled("app", "db"), schedulertest.Labelled("tier", "x")), schedulertest.TestPod("p", schedulertest.Labelled("app", "db")), schedulertest.TestPod("p", schedulertest.Labelled("app", "web"))
	for _, test := range []struct {
		what     string
		terms    []Term
		pod      *corev1.Pod
		all, any bool
	}{
		{"no terms", nil, both, false, false}, {"one of one", []Term{db}, one, true, true}, {"none of one", []Term{db}, other, false, false},
		{"both of two", []Term{db, tier}, both, true, true}, {"the first of two", []Term{db, tier}, one, false, true}, {"the second of two", []Term{tier, db}, one, false, true}, {"none of two", []Term{tier, db}, other, false, false},
	} {
		if all, some := s.MatchesAll(test.terms, test.pod), s.MatchesAny(test.terms, test.pod); all != test.all || some != test.any {
			t.Errorf("%s: all is %t, any is %t", test.what, all, some)
		}
	}
}

func TestTermPlaces(t *testing.T) {
	in, exists, absent := metav1.LabelSelectorOpIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist
	for _, test := range []struct {
		what  string
		given corev1.PodAffinityTerm
		pair  termPair
		loose bool
	}{
		{"a label in one namespace", schedulertest.PodTerm("z", "app", "db"), termPair{"mine", "app", "db"}, false},
		{"the first of two labels", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"b": "2", "a": "1"}})), termPair{"mine", "a", "1"}, false},
		{"one value of In", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(termRequirement("app", in, "db"))), termPair{"mine", "app", "db"}, false},
		{"two values of In demand none", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(termRequirement("app", in, "db", "web"))), termPair{namespace: "mine"}, true},
		{"one value of NotIn demands none", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(termRequirement("app", metav1.LabelSelectorOpNotIn, "db"))), termPair{namespace: "mine"}, true},
		{"existence demands no value", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(termRequirement("app", exists))), termPair{namespace: "mine"}, true},
		{"absence demands none", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(termRequirement("app", absent))), termPair{namespace: "mine"}, true},
		{"a label behind an existence", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"z": "1"}, MatchExpressions: termRequirement("a", exists).MatchExpressions})), termPair{"mine", "z", "1"}, false},
		{"the empty value is a value", schedulertest.PodTerm("z", "app", ""), termPair{"mine", "app", ""}, false},
		{"everybody", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(&metav1.LabelSelector{})), termPair{namespace: "mine"}, true},
		{"nobody", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(nil)), termPair{namespace: "mine"}, true},
		{"two namespaces", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespaces("a", "b")), termPair{"", "app", "db"}, false},
		{"one namespace by name", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespaces("a")), termPair{"a", "app", "db"}, false},
		{"one namespace twice", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespaces("a", "a")), termPair{"a", "app", "db"}, false},
		{"one namespace and a kind", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespaces("a"), schedulertest.OfNamespacesLike(schedulertest.Matching("team", "red"))), termPair{"", "app", "db"}, false},
		{"all namespaces", schedulertest.PodTerm("z", "app", "db", schedulertest.OfNamespacesLike(&metav1.LabelSelector{})), termPair{"", "app", "db"}, false},
		{"everybody of all namespaces", schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(&metav1.LabelSelector{}), schedulertest.OfNamespacesLike(&metav1.LabelSelector{})), termPair{}, true},
	} {
		x := termOfPod(t, "mine", test.given)
		if pairs := x.indexPairs(); pairs[0] != test.pair || (pairs[0].key == "") != test.loose {
			t.Errorf("%s: %v, want %v, %t", test.what, pairs, test.pair, test.loose)
		}
	}
}

// The index finds every term that is about a pod, each once, and forgets those that were taken out.
func TestTermIndexLeavesOutNobody(t *testing.T) {
	const seed = 51
	r := rand.New(rand.NewPCG(seed, 1))
	s := NewSnapshot()
	s.SetNamespace(schedulertest.AffinityNamespace("a", map[string]string{"team": "red"}))
	s.SetNamespace(schedulertest.AffinityNamespace("b", nil))
	draw := func() Term {
		x := schedulertest.PodTerm("z", schedulertest.OneOf(r, "k", "l"), schedulertest.OneOf(r, "1", "2", ""))
		switch r.IntN(6) {
		case 0:
			x.LabelSelector = &metav1.LabelSelector{}
		case 1:
			x.LabelSelector = nil
		case 2:
			x.LabelSelector = termRequirement(schedulertest.OneOf(r, "k", "l"), schedulertest.OneOf(r, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), schedulertest.OneOf(r, []string{"1"}, []string{"1", "2"})...)
		case 3:
			x.LabelSelector.MatchExpressions = termRequirement("l", schedulertest.OneOf(r, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)).MatchExpressions
		}
		switch r.IntN(4) {
		case 0:
			x.Namespaces = schedulertest.OneOf(r, []string{"a"}, []string{"a", "b"}, []string{"b", "b"})
		case 1:
			x.NamespaceSelector = schedulertest.OneOf(r, schedulertest.Matching("team", "red"), &metav1.LabelSelector{})
		}
		return termOfPod(t, schedulertest.OneOf(r, "a", "b"), x)
	}
	index := newTermIndex[int]()
	terms := map[int]Term{}
	found := 0
	for step := range 2000 {
		if schedulertest.OneIn(r, 3) && len(terms) > 20 {
			for i := range terms {
				index.remove(i)
				delete(terms, i)
				break
			}
		} else if len(terms) < 60 {
			x := draw()
			terms[step] = x
			index.add(&x, step)
		}
		pod := schedulertest.TestPod("p", schedulertest.Namespace(schedulertest.OneOf(r, "a", "b", "c")), func(p *corev1.Pod) { p.Labels = schedulertest.RandomLabels(r, []string{"k", "l"}, "1", "2", "") })
		seen := map[int]int{}
		index.Candidates(pod, func(i int) { seen[i]++ })
		for i, n := range seen {
			if _, there := terms[i]; !there || n != 1 {
				t.Fatalf("seed %d, step %d: term %d is found %d times", seed, step, i, n)
			}
		}
		for i, x := range terms {
			if s.Matches(&x, pod) {
				if found++; seen[i] == 0 {
					t.Fatalf("seed %d, step %d: term %s is about %s/%v and is not found", seed, step, x.key, pod.Namespace, pod.Labels)
				}
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d terms were about a pod", found)
	}
	for i := range terms {
		index.remove(i)
	}
	if len(index.byPair)+len(index.places) > 0 {
		t.Errorf("pairs are remembered that no term has: %v, %v", index.byPair, index.places)
	}
}

// Terms that require a common label besides one of their own are found by the latter: a pod visits as many however many there are.
func TestTermsVisitedPerPod(t *testing.T) {
	const small, factor = 50, 4
	var visited [2]int
	for i, n := range []int{small, small * factor} {
		index := newTermIndex[int]()
		for shard := range n {
			x := schedulertest.PodTerm("z", "", "", schedulertest.WithSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "shard": fmt.Sprint(shard)}}))
			term := termOfPod(t, "default", x)
			index.add(&term, shard)
		}
		index.Candidates(schedulertest.TestPod("p", schedulertest.Labelled("app", "web"), schedulertest.Labelled("shard", "7")), func(int) { visited[i]++ })
	}
	// The first of them are found by the common label, while that is as rare.
	if visited[0] != visited[1] || visited[0] > 2 {
		t.Errorf("a pod visits %d of %d terms, and %d of %d", visited[0], small, visited[1], small*factor)
	}
}

// Two terms have one key exactly when they are about the same pods, as far as a selector's text can tell.
func TestTermKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(52, 1))
	s := NewSnapshot()
	s.SetNamespace(schedulertest.AffinityNamespace("a", map[string]string{"team": "red"}))
	var pods []*corev1.Pod
	for _, ns := range []string{"a", "b", "c"} {
		for _, value := range []string{"none", "1", "2"} {
			p := schedulertest.TestPod("p", schedulertest.Namespace(ns))
			if value != "none" {
				schedulertest.Labelled("k", value)(p)
			}
			pods = append(pods, p)
		}
	}
	about := func(x *Term) string {
		var matched []string
		for i, p := range pods {
			if s.Matches(x, p) {
				matched = append(matched, fmt.Sprint(i))
			}
		}
		return strings.Join(matched, " ")
	}
	byKey := map[string]string{}
	for range 800 {
		x := schedulertest.PodTerm(schedulertest.OneOf(r, "z", "y"), "k", schedulertest.OneOf(r, "1", "2"))
		switch r.IntN(5) {
		case 0:
			x.LabelSelector = nil
		case 1:
			x.LabelSelector = &metav1.LabelSelector{}
		case 2:
			x.LabelSelector = termRequirement("k", metav1.LabelSelectorOpIn, "1", "2")
		}
		x.Namespaces = schedulertest.SomeOf(r, 3, func() string { return schedulertest.OneOf(r, "a", "b", "c") })
		if schedulertest.OneIn(r, 3) {
			x.NamespaceSelector = schedulertest.OneOf(r, schedulertest.Matching("team", "red"), &metav1.LabelSelector{})
		}
		read := termOfPod(t, "b", x)
		pods := about(&read)
		if before, known := byKey[read.key]; known && before != pods {
			t.Fatalf("key %q is about pods %q and %q", read.key, before, pods)
		}
		byKey[read.key] = pods
	}
	if len(byKey) < 20 {
		t.Errorf("only %d keys", len(byKey))
	}
}
