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
type termIndex[T any] struct {
	byPair map[termPair][]T
	// unkeyed holds the terms that require no particular label value, by namespace.
	unkeyed map[string][]T
}

// termPair is a required label value in a namespace; the namespace is empty for terms of several namespaces.
type termPair struct{ namespace, key, value string }

func newTermIndex[T any]() termIndex[T] {
	return termIndex[T]{byPair: map[termPair][]T{}, unkeyed: map[string][]T{}}
}

// indexKey returns the key of a term in the index.
func (t *Term) indexKey() (pair termPair, unkeyed bool) {
	if len(t.namespaces) == 1 && MatchesNothing(t.namespaceSelector) {
		pair.namespace = t.namespaces[0]
	}
	requirements, selectable := t.selector.Requirements()
	if !selectable {
		return pair, true
	}
	for _, r := range requirements {
		if o := r.Operator(); (o == selection.Equals || o == selection.DoubleEquals || o == selection.In) && r.Values().Len() == 1 {
			pair.key, pair.value = r.Key(), r.ValuesUnsorted()[0]
			return pair, false
		}
	}
	return pair, true
}

func (x *termIndex[T]) add(t *Term, item T) {
	pair, unkeyed := t.indexKey()
	if unkeyed {
		x.unkeyed[pair.namespace] = append(x.unkeyed[pair.namespace], item)
	} else {
		x.byPair[pair] = append(x.byPair[pair], item)
	}
}

func (x *termIndex[T]) remove(t *Term, is func(T) bool) {
	pair, unkeyed := t.indexKey()
	if unkeyed {
		x.unkeyed[pair.namespace] = slices.DeleteFunc(x.unkeyed[pair.namespace], is)
	} else if left := slices.DeleteFunc(x.byPair[pair], is); len(left) > 0 {
		x.byPair[pair] = left
	} else {
		delete(x.byPair, pair)
	}
}

// Candidates calls visit for every item whose term may match the pod. The caller must still check the term.
func (x *termIndex[T]) Candidates(pod *corev1.Pod, visit func(T)) {
	if len(x.byPair) > 0 {
		for key, value := range pod.Labels {
			for _, item := range x.byPair[termPair{pod.Namespace, key, value}] {
				visit(item)
			}
			for _, item := range x.byPair[termPair{"", key, value}] {
				visit(item)
			}
		}
	}
	for _, item := range x.unkeyed[pod.Namespace] {
		visit(item)
	}
	for _, item := range x.unkeyed[""] {
		visit(item)
	}
}
