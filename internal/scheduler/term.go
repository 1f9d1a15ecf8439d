package scheduler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// term is a wish about other pods: those of some namespaces that a selector matches, in one kind of domain.
type term struct {
	namespaces        []string // sorted
	namespaceSelector labels.Selector
	selector          labels.Selector
	topologyKey       string
	// key is equal for terms that speak of the same pods. The topology key is not part of it.
	key string
}

type weightedTerm struct {
	term
	weight int64
}

func termsOf(pod *corev1.Pod, terms []corev1.PodAffinityTerm) ([]term, error) {
	var all []term
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
		all = append(all, weightedTerm{term: t, weight: int64(terms[i].Weight)})
	}
	return all, nil
}

func termOf(pod *corev1.Pod, t *corev1.PodAffinityTerm) (term, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return term{}, err
	}
	namespaceSelector, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	if err != nil {
		return term{}, err
	}
	namespaces := slices.Clone(t.Namespaces)
	if len(namespaces) == 0 && t.NamespaceSelector == nil {
		namespaces = []string{pod.Namespace}
	}
	slices.Sort(namespaces)
	return newTerm(slices.Compact(namespaces), namespaceSelector, selector, t.TopologyKey), nil
}

func newTerm(namespaces []string, namespaceSelector, selector labels.Selector, topologyKey string) term {
	return term{
		namespaces: namespaces, namespaceSelector: namespaceSelector, selector: selector, topologyKey: topologyKey,
		key: strings.Join(namespaces, ",") + "|" + selectorKey(namespaceSelector) + "|" + selectorKey(selector),
	}
}

// selectorKey tells a selector that matches nothing from one that matches everything, which read the same.
func selectorKey(s labels.Selector) string {
	if nothing(s) {
		return "!"
	}
	return s.String()
}

// nothing reports whether a selector can match nothing at all.
func nothing(s labels.Selector) bool {
	_, selectable := s.Requirements()
	return !selectable
}

// everywhere reports whether the term speaks of all namespaces.
func (t *term) everywhere() bool { return t.namespaceSelector.Empty() }

// resolved returns the term with its namespace selector replaced by the namespaces it selects now.
func (s *Snapshot) resolved(t term) term {
	if t.everywhere() || nothing(t.namespaceSelector) {
		return t
	}
	namespaces := slices.Clone(t.namespaces)
	for name, set := range s.namespaces {
		if t.namespaceSelector.Matches(set) {
			namespaces = append(namespaces, name)
		}
	}
	slices.Sort(namespaces)
	return newTerm(slices.Compact(namespaces), labels.Nothing(), t.selector, t.topologyKey)
}

// matches reports whether a pod is one the term speaks of.
func (s *Snapshot) matches(t *term, pod *corev1.Pod) bool {
	if _, found := slices.BinarySearch(t.namespaces, pod.Namespace); !found && !t.namespaceSelector.Matches(s.namespaces[pod.Namespace]) {
		return false
	}
	return t.selector.Matches(labels.Set(pod.Labels))
}

func (s *Snapshot) matchesAll(terms []term, pod *corev1.Pod) bool {
	if len(terms) == 0 {
		return false
	}
	for i := range terms {
		if !s.matches(&terms[i], pod) {
			return false
		}
	}
	return true
}

func (s *Snapshot) matchesAny(terms []term, pod *corev1.Pod) bool {
	for i := range terms {
		if s.matches(&terms[i], pod) {
			return true
		}
	}
	return false
}

// termIndex finds, among many terms, those that may speak of a pod, by one label value each of them demands.
type termIndex[T any] struct {
	byPair map[termPair][]T
	// loose are terms that demand no particular label value, by namespace.
	loose map[string][]T
}

// termPair is a demanded label value in a namespace; the namespace is empty for terms that speak of several.
type termPair struct{ namespace, key, value string }

func newTermIndex[T any]() termIndex[T] {
	return termIndex[T]{byPair: map[termPair][]T{}, loose: map[string][]T{}}
}

// place is where a term stands in the index.
func (t *term) place() (pair termPair, loose bool) {
	if len(t.namespaces) == 1 && nothing(t.namespaceSelector) {
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

func (x *termIndex[T]) add(t *term, item T) {
	pair, loose := t.place()
	if loose {
		x.loose[pair.namespace] = append(x.loose[pair.namespace], item)
	} else {
		x.byPair[pair] = append(x.byPair[pair], item)
	}
}

func (x *termIndex[T]) remove(t *term, is func(T) bool) {
	pair, loose := t.place()
	if loose {
		x.loose[pair.namespace] = slices.DeleteFunc(x.loose[pair.namespace], is)
	} else if left := slices.DeleteFunc(x.byPair[pair], is); len(left) > 0 {
		x.byPair[pair] = left
	} else {
		delete(x.byPair, pair)
	}
}

// candidates calls visit for every item whose term may speak of the pod. The caller still has to ask the term itself.
func (x *termIndex[T]) candidates(pod *corev1.Pod, visit func(T)) {
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
	for _, item := range x.loose[pod.Namespace] {
		visit(item)
	}
	for _, item := range x.loose[""] {
		visit(item)
	}
}
