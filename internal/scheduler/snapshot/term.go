package snapshot

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Term is a pod affinity term, or the selector of a topology spread constraint: it matches pods of some namespaces by label.
type Term struct {
	namespaces        []string // sorted
	namespaceSelector labels.Selector
	selector          labels.Selector
	TopologyKey       string
	// key is equal for terms that match the same pods. The topology key is not part of it.
	key string
}

type weightedTerm struct {
	Term
	Weight int64
}

func termsOf(pod *corev1.Pod, terms []corev1.PodAffinityTerm) ([]Term, error) {
	var all []Term
	for i := range terms {
		t, err := termOf(pod, &terms[i])
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

func weightedTermsOf(pod *corev1.Pod, terms []corev1.WeightedPodAffinityTerm) ([]weightedTerm, error) {
	var all []weightedTerm
	for i := range terms {
		t, err := termOf(pod, &terms[i].PodAffinityTerm)
		if err != nil {
			return nil, err
		}
		all = append(all, weightedTerm{Term: t, Weight: int64(terms[i].Weight)})
	}
	return all, nil
}

func termOf(pod *corev1.Pod, t *corev1.PodAffinityTerm) (Term, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return Term{}, err
	}
	namespaceSelector, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	if err != nil {
		return Term{}, err
	}
	namespaces := slices.Clone(t.Namespaces)
	if len(namespaces) == 0 && t.NamespaceSelector == nil {
		namespaces = []string{pod.Namespace}
	}
	slices.Sort(namespaces)
	return NewTerm(slices.Compact(namespaces), namespaceSelector, selector, t.TopologyKey), nil
}

// NewTerm makes a term. namespaces must be sorted.
func NewTerm(namespaces []string, namespaceSelector, selector labels.Selector, topologyKey string) Term {
	return Term{
		namespaces: namespaces, namespaceSelector: namespaceSelector, selector: selector, TopologyKey: topologyKey,
		key: strings.Join(namespaces, ",") + "|" + selectorKey(namespaceSelector) + "|" + selectorKey(selector),
	}
}

// selectorKey distinguishes a selector that matches nothing from one that matches everything: String is empty for both.
func selectorKey(s labels.Selector) string {
	if MatchesNothing(s) {
		return "!"
	}
	return s.String()
}

// MatchesNothing reports whether a selector can match nothing at all.
func MatchesNothing(s labels.Selector) bool {
	_, selectable := s.Requirements()
	return !selectable
}

// allNamespaces reports whether the term applies to all namespaces.
func (t *Term) allNamespaces() bool { return t.namespaceSelector.Empty() }

// ResolveNamespaces returns the term with its namespace selector replaced by the namespaces it selects now.
func (s *Snapshot) ResolveNamespaces(t Term) Term {
	if t.allNamespaces() || MatchesNothing(t.namespaceSelector) {
		return t
	}
	namespaces := slices.Clone(t.namespaces)
	for name, set := range s.Namespaces {
		if t.namespaceSelector.Matches(set) {
			namespaces = append(namespaces, name)
		}
	}
	slices.Sort(namespaces)
	return NewTerm(slices.Compact(namespaces), labels.Nothing(), t.selector, t.TopologyKey)
}

// Matches reports whether a term matches a pod.
func (s *Snapshot) Matches(t *Term, pod *corev1.Pod) bool {
	if _, found := slices.BinarySearch(t.namespaces, pod.Namespace); !found && !t.namespaceSelector.Matches(s.Namespaces[pod.Namespace]) {
		return false
	}
	return t.selector.Matches(labels.Set(pod.Labels))
}

// MatchesAll reports whether there are terms and all match a pod.
func (s *Snapshot) MatchesAll(terms []Term, pod *corev1.Pod) bool {
	if len(terms) == 0 {
		return false
	}
	for i := range terms {
		if !s.Matches(&terms[i], pod) {
			return false
		}
	}
	return true
}

// MatchesAny reports whether any term matches a pod.
func (s *Snapshot) MatchesAny(terms []Term, pod *corev1.Pod) bool {
	for i := range terms {
		if s.Matches(&terms[i], pod) {
			return true
		}
	}
	return false
}

// termIndex finds, among many terms, those that may match a pod, by one label value that the term requires.
type termIndex[T comparable] struct {
	byPair map[termPair][]T
	// places has the place of each item in byPair.
	places map[T]termPlace
}

// termPair is a required label value in a namespace. The namespace is empty for terms of several namespaces, the key for terms that require no
// particular label value.
type termPair struct{ namespace, key, value string }

type termPlace struct {
	pair  termPair
	index int
}

func newTermIndex[T comparable]() termIndex[T] {
	return termIndex[T]{byPair: map[termPair][]T{}, places: map[T]termPlace{}}
}

// indexPairs returns the pairs of which a term can be found by any.
func (t *Term) indexPairs() (pairs []termPair) {
	var pair termPair
	if len(t.namespaces) == 1 && MatchesNothing(t.namespaceSelector) {
		pair.namespace = t.namespaces[0]
	}
	requirements, _ := t.selector.Requirements()
	for i := range requirements {
		r := &requirements[i]
		if o := r.Operator(); (o == selection.Equals || o == selection.DoubleEquals || o == selection.In) && r.Values().Len() == 1 {
			pair.key, pair.value = r.Key(), r.ValuesUnsorted()[0]
			pairs = append(pairs, pair)
		}
	}
	if pairs == nil {
		pairs = []termPair{pair}
	}
	return pairs
}

// add adds an item. Of the labels that its term requires the rarest is used: thousands of terms may require the same application besides
// an instance of their own.
func (x *termIndex[T]) add(t *Term, item T) {
	pairs := t.indexPairs()
	rarest := pairs[0]
	for _, pair := range pairs[1:] {
		if len(x.byPair[pair]) < len(x.byPair[rarest]) {
			rarest = pair
		}
	}
	x.places[item] = termPlace{rarest, len(x.byPair[rarest])}
	x.byPair[rarest] = append(x.byPair[rarest], item)
}

// remove removes an item.
func (x *termIndex[T]) remove(item T) {
	place, ok := x.places[item]
	if !ok {
		return
	}
	delete(x.places, item)
	items := x.byPair[place.pair]
	last := len(items) - 1
	if last == 0 {
		delete(x.byPair, place.pair)
		return
	}
	if place.index != last {
		items[place.index] = items[last]
		x.places[items[place.index]] = place
	}
	var none T
	items[last] = none
	x.byPair[place.pair] = items[:last]
}

// Candidates calls visit for every item whose term may match the pod. The caller must still check the term.
func (x *termIndex[T]) Candidates(pod *corev1.Pod, visit func(T)) {
	if len(x.byPair) == 0 {
		return
	}
	for key, value := range pod.Labels {
		x.visit(termPair{pod.Namespace, key, value}, visit)
		x.visit(termPair{"", key, value}, visit)
	}
	x.visit(termPair{namespace: pod.Namespace}, visit)
	x.visit(termPair{}, visit)
}

func (x *termIndex[T]) visit(pair termPair, visit func(T)) {
	for _, item := range x.byPair[pair] {
		visit(item)
	}
}
