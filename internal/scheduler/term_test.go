package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func termRequirement(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

func termOfPod(t testing.TB, namespaceName string, x corev1.PodAffinityTerm) term {
	t.Helper()
	read, err := termOf(testPod("p", namespace(namespaceName)), &x)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func TestTermOf(t *testing.T) {
	everything := &metav1.LabelSelector{}
	red := matching("team", "red")
	for _, test := range []struct {
		what       string
		given      corev1.PodAffinityTerm
		namespaces string
		key        string // equal for terms about the same pods
		everywhere bool
	}{
		{"neither names nor selector: the pod's own namespace", aboutPods("zone", "app", "db"), "mine", "mine|!|app=db", false},
		{"names", aboutPods("zone", "app", "db", ofNamespaces("b", "a")), "a b", "a,b|!|app=db", false},
		{"names are put in order, and each counts once", aboutPods("zone", "app", "db", ofNamespaces("b", "a", "b")), "a b", "a,b|!|app=db", false},
		{"a selector: not the pod's own namespace", aboutPods("zone", "app", "db", ofNamespacesLike(red)), "", "|team=red|app=db", false},
		{"an empty selector is all namespaces", aboutPods("zone", "app", "db", ofNamespacesLike(everything)), "", "||app=db", true},
		{"a selector and names", aboutPods("zone", "app", "db", ofNamespacesLike(red), ofNamespaces("a")), "a", "a|team=red|app=db", false},
		{"an empty selector and names", aboutPods("zone", "app", "db", ofNamespacesLike(everything), ofNamespaces("a")), "a", "a||app=db", true},
		{"empty names are none", aboutPods("zone", "app", "db", ofNamespaces()), "mine", "mine|!|app=db", false},
		{"another topology key, the same pods", aboutPods("host", "app", "db"), "mine", "mine|!|app=db", false},
		{"no selector of pods: nobody", aboutPods("zone", "", "", withSelector(nil)), "mine", "mine|!|!", false},
		{"an empty selector of pods: everybody", aboutPods("zone", "", "", withSelector(everything)), "mine", "mine|!|", false},
		{"labels and expressions in any order", aboutPods("zone", "", "", withSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"b": "1", "a": "2"}, MatchExpressions: termRequirement("c", metav1.LabelSelectorOpExists).MatchExpressions})), "mine", "mine|!|a=2,b=1,c", false},
	} {
		got := termOfPod(t, "mine", test.given)
		if strings.Join(got.namespaces, " ") != test.namespaces || got.key != test.key || got.everywhere() != test.everywhere || got.topologyKey != test.given.TopologyKey {
			t.Errorf("%s: %v, %q, everywhere is %t, of %s", test.what, got.namespaces, got.key, got.everywhere(), got.topologyKey)
		}
	}
	given := aboutPods("zone", "app", "db", ofNamespaces("b", "a"))
	termOfPod(t, "mine", given)
	if !slices.Equal(given.Namespaces, []string{"b", "a"}) {
		t.Errorf("reading a term has changed it: %v", given.Namespaces)
	}
	odd := termRequirement("a", "Odd")
	for what, x := range map[string]corev1.PodAffinityTerm{"of pods": aboutPods("zone", "", "", withSelector(odd)), "of namespaces": aboutPods("zone", "a", "b", ofNamespacesLike(odd))} {
		if _, err := termOf(testPod("p"), &x); err == nil || !strings.Contains(err.Error(), "Odd") {
			t.Errorf("a selector %s that cannot be read: %v", what, err)
		}
	}
}

// Of a pod's terms, the first that cannot be read is told of, and which kind it is.
func TestTermErrorsNameTheirKind(t *testing.T) {
	bad, good := aboutPods("zone", "", "", withSelector(termRequirement("a", "Odd"))), aboutPods("zone", "a", "b")
	for want, o := range map[string]podOption{
		"requiredAffinityTerms": nearTerm(bad), "preferredAffinityTerms": likesTerm(1, bad), "requiredAntiAffinityTerms": awayTerm(bad), "preferredAntiAffinityTerms": dislikesTerm(1, bad),
	} {
		_, err := NewPodInfo(testPod("p", nearTerm(good), awayTerm(good), likesTerm(1, good), dislikesTerm(1, good), o))
		if err == nil || !strings.HasPrefix(err.Error(), "parsing pod: "+want+": ") {
			t.Errorf("%s: %v", want, err)
		}
	}
	info := infoOf(t, testPod("p", nearTerm(good), awayTerm(good), awayTerm(good), likesTerm(3, good), dislikesTerm(4, good), dislikesTerm(5, good)))
	if len(info.affinity) != 1 || len(info.antiAffinity) != 2 || len(info.preferredAffinity) != 1 || len(info.preferredAntiAffinity) != 2 {
		t.Errorf("read %d, %d, %d and %d terms", len(info.affinity), len(info.antiAffinity), len(info.preferredAffinity), len(info.preferredAntiAffinity))
	}
	if info.preferredAffinity[0].weight != 3 || info.preferredAntiAffinity[0].weight != 4 || info.preferredAntiAffinity[1].weight != 5 {
		t.Errorf("weights %d, %d, %d", info.preferredAffinity[0].weight, info.preferredAntiAffinity[0].weight, info.preferredAntiAffinity[1].weight)
	}
}

func TestSelectorKeyTellsNothingFromEverything(t *testing.T) {
	if selectorKey(labels.Nothing()) == selectorKey(labels.Everything()) || !nothing(labels.Nothing()) || nothing(labels.Everything()) || nothing(labels.NewSelector()) {
		t.Error("nothing and everything are the same")
	}
	some, err := labels.Parse("a in (1,2),!b,c")
	if err != nil {
		t.Fatal(err)
	}
	if got := selectorKey(some); got != "a in (1,2),!b,c" || nothing(some) {
		t.Errorf("key %q", got)
	}
}

func TestResolvedTerms(t *testing.T) {
	s := NewSnapshot()
	for name, set := range map[string]map[string]string{"red-1": {"team": "red"}, "red-2": {"team": "red"}, "blue": {"team": "blue"}, "bare": nil} {
		s.SetNamespace(affinityNamespace(name, set))
	}
	for _, test := range []struct {
		what  string
		given corev1.PodAffinityTerm
		want  string
	}{
		{"names stay", aboutPods("z", "app", "db", ofNamespaces("x", "blue")), "blue,x|!|app=db"},
		{"its own stays", aboutPods("z", "app", "db"), "mine|!|app=db"},
		{"all stays all", aboutPods("z", "app", "db", ofNamespacesLike(&metav1.LabelSelector{})), "||app=db"},
		{"all stays all, with names", aboutPods("z", "app", "db", ofNamespacesLike(&metav1.LabelSelector{}), ofNamespaces("x")), "x||app=db"},
		{"a selector becomes names", aboutPods("z", "app", "db", ofNamespacesLike(matching("team", "red"))), "red-1,red-2|!|app=db"},
		{"a selector and names, each once", aboutPods("z", "app", "db", ofNamespacesLike(matching("team", "red")), ofNamespaces("x", "red-2")), "red-1,red-2,x|!|app=db"},
		{"a selector nobody meets", aboutPods("z", "app", "db", ofNamespacesLike(matching("team", "green"))), "|!|app=db"},
		{"a selector of what is not there", aboutPods("z", "app", "db", ofNamespacesLike(termRequirement("team", metav1.LabelSelectorOpDoesNotExist))), "bare|!|app=db"},
	} {
		given := termOfPod(t, "mine", test.given)
		before := slices.Clone(given.namespaces)
		got := s.resolved(given)
		if got.key != test.want || got.topologyKey != "z" {
			t.Errorf("%s: %q of %s, want %q", test.what, got.key, got.topologyKey, test.want)
		}
		if !slices.Equal(given.namespaces, before) {
			t.Errorf("%s: the term itself has changed", test.what)
		}
	}
}

func TestTermMatches(t *testing.T) {
	s := NewSnapshot()
	s.SetNamespace(affinityNamespace("red", map[string]string{"team": "red"}))
	s.SetNamespace(affinityNamespace("bare", nil))
	for _, test := range []struct {
		what  string
		given corev1.PodAffinityTerm
		pod   *corev1.Pod
		want  bool
	}{
		{"label and namespace", aboutPods("z", "app", "db"), testPod("p", labelled("app", "db"), namespace("mine")), true},
		{"another value", aboutPods("z", "app", "db"), testPod("p", labelled("app", "web"), namespace("mine")), false},
		{"no label", aboutPods("z", "app", "db"), testPod("p", namespace("mine")), false},
		{"another namespace", aboutPods("z", "app", "db"), testPod("p", labelled("app", "db"), namespace("other")), false},
		{"the second of its names", aboutPods("z", "app", "db", ofNamespaces("c", "b", "a")), testPod("p", labelled("app", "db"), namespace("b")), true},
		{"between its names", aboutPods("z", "app", "db", ofNamespaces("c", "a")), testPod("p", labelled("app", "db"), namespace("b")), false},
		{"a namespace of the kind", aboutPods("z", "app", "db", ofNamespacesLike(matching("team", "red"))), testPod("p", labelled("app", "db"), namespace("red")), true},
		{"a namespace of no kind", aboutPods("z", "app", "db", ofNamespacesLike(matching("team", "red"))), testPod("p", labelled("app", "db"), namespace("bare")), false},
		{"a namespace nobody knows", aboutPods("z", "app", "db", ofNamespacesLike(matching("team", "red"))), testPod("p", labelled("app", "db"), namespace("gone")), false},
		{"all namespaces, known or not", aboutPods("z", "app", "db", ofNamespacesLike(&metav1.LabelSelector{})), testPod("p", labelled("app", "db"), namespace("gone")), true},
		{"everybody", aboutPods("z", "", "", withSelector(&metav1.LabelSelector{})), testPod("p", namespace("mine")), true},
		{"nobody", aboutPods("z", "", "", withSelector(nil)), testPod("p", namespace("mine")), false},
		{"who does not have a label", aboutPods("z", "", "", withSelector(termRequirement("app", metav1.LabelSelectorOpNotIn, "db"))), testPod("p", namespace("mine")), true},
		{"who has a label not in", aboutPods("z", "", "", withSelector(termRequirement("app", metav1.LabelSelectorOpNotIn, "db"))), testPod("p", labelled("app", "db"), namespace("mine")), false},
	} {
		x := termOfPod(t, "mine", test.given)
		if got := s.matches(&x, test.pod); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
	db, tier := termOfPod(t, "default", aboutPods("z", "app", "db")), termOfPod(t, "default", aboutPods("z", "tier", "x"))
	both, one, other := testPod("p", labelled("app", "db"), labelled("tier", "x")), testPod("p", labelled("app", "db")), testPod("p", labelled("app", "web"))
	for _, test := range []struct {
		what     string
		terms    []term
		pod      *corev1.Pod
		all, any bool
	}{
		{"no terms", nil, both, false, false}, {"one of one", []term{db}, one, true, true}, {"none of one", []term{db}, other, false, false},
		{"both of two", []term{db, tier}, both, true, true}, {"the first of two", []term{db, tier}, one, false, true}, {"the second of two", []term{tier, db}, one, false, true}, {"none of two", []term{tier, db}, other, false, false},
	} {
		if all, some := s.matchesAll(test.terms, test.pod), s.matchesAny(test.terms, test.pod); all != test.all || some != test.any {
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
		{"a label in one namespace", aboutPods("z", "app", "db"), termPair{"mine", "app", "db"}, false},
		{"the first of two labels", aboutPods("z", "", "", withSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"b": "2", "a": "1"}})), termPair{"mine", "a", "1"}, false},
		{"one value of In", aboutPods("z", "", "", withSelector(termRequirement("app", in, "db"))), termPair{"mine", "app", "db"}, false},
		{"two values of In demand none", aboutPods("z", "", "", withSelector(termRequirement("app", in, "db", "web"))), termPair{namespace: "mine"}, true},
		{"one value of NotIn demands none", aboutPods("z", "", "", withSelector(termRequirement("app", metav1.LabelSelectorOpNotIn, "db"))), termPair{namespace: "mine"}, true},
		{"existence demands no value", aboutPods("z", "", "", withSelector(termRequirement("app", exists))), termPair{namespace: "mine"}, true},
		{"absence demands none", aboutPods("z", "", "", withSelector(termRequirement("app", absent))), termPair{namespace: "mine"}, true},
		{"a label behind an existence", aboutPods("z", "", "", withSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"z": "1"}, MatchExpressions: termRequirement("a", exists).MatchExpressions})), termPair{"mine", "z", "1"}, false},
		{"the empty value is a value", aboutPods("z", "app", ""), termPair{"mine", "app", ""}, false},
		{"everybody", aboutPods("z", "", "", withSelector(&metav1.LabelSelector{})), termPair{namespace: "mine"}, true},
		{"nobody", aboutPods("z", "", "", withSelector(nil)), termPair{namespace: "mine"}, true},
		{"two namespaces", aboutPods("z", "app", "db", ofNamespaces("a", "b")), termPair{"", "app", "db"}, false},
		{"one namespace by name", aboutPods("z", "app", "db", ofNamespaces("a")), termPair{"a", "app", "db"}, false},
		{"one namespace twice", aboutPods("z", "app", "db", ofNamespaces("a", "a")), termPair{"a", "app", "db"}, false},
		{"one namespace and a kind", aboutPods("z", "app", "db", ofNamespaces("a"), ofNamespacesLike(matching("team", "red"))), termPair{"", "app", "db"}, false},
		{"all namespaces", aboutPods("z", "app", "db", ofNamespacesLike(&metav1.LabelSelector{})), termPair{"", "app", "db"}, false},
		{"everybody of all namespaces", aboutPods("z", "", "", withSelector(&metav1.LabelSelector{}), ofNamespacesLike(&metav1.LabelSelector{})), termPair{}, true},
	} {
		x := termOfPod(t, "mine", test.given)
		if pair, loose := x.place(); pair != test.pair || loose != test.loose {
			t.Errorf("%s: %v, loose is %t, want %v, %t", test.what, pair, loose, test.pair, test.loose)
		}
	}
}

// The index finds every term that is about a pod, each once, and forgets those that were taken out.
func TestTermIndexLeavesOutNobody(t *testing.T) {
	const seed = 51
	r := rand.New(rand.NewPCG(seed, 1))
	s := NewSnapshot()
	s.SetNamespace(affinityNamespace("a", map[string]string{"team": "red"}))
	s.SetNamespace(affinityNamespace("b", nil))
	draw := func() term {
		x := aboutPods("z", oneOf(r, "k", "l"), oneOf(r, "1", "2", ""))
		switch r.IntN(6) {
		case 0:
			x.LabelSelector = &metav1.LabelSelector{}
		case 1:
			x.LabelSelector = nil
		case 2:
			x.LabelSelector = termRequirement(oneOf(r, "k", "l"), oneOf(r, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), oneOf(r, []string{"1"}, []string{"1", "2"})...)
		case 3:
			x.LabelSelector.MatchExpressions = termRequirement("l", oneOf(r, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)).MatchExpressions
		}
		switch r.IntN(4) {
		case 0:
			x.Namespaces = oneOf(r, []string{"a"}, []string{"a", "b"}, []string{"b", "b"})
		case 1:
			x.NamespaceSelector = oneOf(r, matching("team", "red"), &metav1.LabelSelector{})
		}
		return termOfPod(t, oneOf(r, "a", "b"), x)
	}
	index := newTermIndex[int]()
	terms := map[int]term{}
	found := 0
	for step := range 2000 {
		if chance(r, 3) && len(terms) > 20 {
			for i, x := range terms {
				index.remove(&x, func(other int) bool { return other == i })
				delete(terms, i)
				break
			}
		} else if len(terms) < 60 {
			x := draw()
			terms[step] = x
			index.add(&x, step)
		}
		pod := testPod("p", namespace(oneOf(r, "a", "b", "c")), func(p *corev1.Pod) { p.Labels = randomLabels(r, []string{"k", "l"}, "1", "2", "") })
		seen := map[int]int{}
		index.candidates(pod, func(i int) { seen[i]++ })
		for i, n := range seen {
			if _, there := terms[i]; !there || n != 1 {
				t.Fatalf("seed %d, step %d: term %d is found %d times", seed, step, i, n)
			}
		}
		for i, x := range terms {
			if s.matches(&x, pod) {
				if found++; seen[i] == 0 {
					t.Fatalf("seed %d, step %d: term %s is about %s/%v and is not found", seed, step, x.key, pod.Namespace, pod.Labels)
				}
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d terms were about a pod", found)
	}
	for i, x := range terms {
		index.remove(&x, func(other int) bool { return other == i })
	}
	if len(index.byPair) > 0 {
		t.Errorf("pairs are remembered that no term has: %v", index.byPair)
	}
	for name, left := range index.loose {
		if len(left) > 0 {
			t.Errorf("loose terms of %q are remembered: %v", name, left)
		}
	}
}

// Two terms have one key exactly when they are about the same pods, as far as a selector's text can tell.
func TestTermKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(52, 1))
	s := NewSnapshot()
	s.SetNamespace(affinityNamespace("a", map[string]string{"team": "red"}))
	var pods []*corev1.Pod
	for _, ns := range []string{"a", "b", "c"} {
		for _, value := range []string{"none", "1", "2"} {
			p := testPod("p", namespace(ns))
			if value != "none" {
				labelled("k", value)(p)
			}
			pods = append(pods, p)
		}
	}
	about := func(x *term) string {
		var matched []string
		for i, p := range pods {
			if s.matches(x, p) {
				matched = append(matched, fmt.Sprint(i))
			}
		}
		return strings.Join(matched, " ")
	}
	byKey := map[string]string{}
	for range 800 {
		x := aboutPods(oneOf(r, "z", "y"), "k", oneOf(r, "1", "2"))
		switch r.IntN(5) {
		case 0:
			x.LabelSelector = nil
		case 1:
			x.LabelSelector = &metav1.LabelSelector{}
		case 2:
			x.LabelSelector = termRequirement("k", metav1.LabelSelectorOpIn, "1", "2")
		}
		x.Namespaces = someOf(r, 3, func() string { return oneOf(r, "a", "b", "c") })
		if chance(r, 3) {
			x.NamespaceSelector = oneOf(r, matching("team", "red"), &metav1.LabelSelector{})
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
