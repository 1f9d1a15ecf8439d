package cleanup

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// The words for all being well, by type.
var well = map[corev1.NamespaceConditionType]string{
	corev1.NamespaceDeletionDiscoveryFailure: "ResourcesDiscovered: All resources successfully discovered",
	corev1.NamespaceDeletionGVParsingFailure: "ParsedGroupVersions: All legacy kube types successfully parsed",
	corev1.NamespaceDeletionContentFailure:   "ContentDeleted: All content successfully deleted, may be waiting on finalization",
	corev1.NamespaceContentRemaining:         "ContentRemoved: All content successfully removed",
	corev1.NamespaceFinalizersRemaining:      "ContentHasNoFinalizers: All content-preserving finalizers finished",
}

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

func TestNamespaceConditions(t *testing.T) {
	const discovered, parsed, content, remaining, finalizers = corev1.NamespaceDeletionDiscoveryFailure, corev1.NamespaceDeletionGVParsingFailure, corev1.NamespaceDeletionContentFailure,
		corev1.NamespaceContentRemaining, corev1.NamespaceFinalizersRemaining
	order := []corev1.NamespaceConditionType{discovered, parsed, content, remaining, finalizers}
	away := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "metrics.k8s.io", Version: "v1"}: errors.New("away")}}
	two := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "a", Version: "v1"}: errors.New("x"), {Group: "b", Version: "v1"}: errors.New("y")}}
	strange := &parseError{errors.New("unexpected GroupVersion string: a/b/c")}
	type wrong = map[corev1.NamespaceConditionType]string
	for _, test := range []struct {
		what  string
		found func(*namespaceContent)
		want  wrong
	}{
		{"nothing", func(*namespaceContent) {}, nil},
		{"a group is away", func(c *namespaceContent) { c.recordDiscovery(away) }, wrong{discovered: "DiscoveryFailed: Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: metrics.k8s.io/v1: away"}},
		{"two groups are away", func(c *namespaceContent) { c.recordDiscovery(two) }, wrong{discovered: "DiscoveryFailed: Discovery failed for some groups, 2 failing: unable to retrieve the complete list of server APIs: a/v1: x, b/v1: y"}},
		{"discovery fails", func(c *namespaceContent) { c.recordDiscovery(errors.New("no route")) }, wrong{discovered: "DiscoveryFailed: no route"}},
		{"a strange version", func(c *namespaceContent) { c.recordDiscovery(strange) }, wrong{parsed: "GroupVersionParsingFailed: unexpected GroupVersion string: a/b/c"}},
		{"all is known", func(c *namespaceContent) { c.recordDiscovery(nil) }, nil},
		{"a failure", func(c *namespaceContent) { c.add(widgets, remainingContent{}, errors.New("forbidden")) }, wrong{content: "ContentDeletionFailed: Failed to delete all resource types, 1 remaining: forbidden"}},
		{"failures in order", func(c *namespaceContent) {
			c.add(widgets, remainingContent{}, errors.New("z"))
			c.add(podResource, remainingContent{}, errors.New("a"))
		}, wrong{content: "ContentDeletionFailed: Failed to delete all resource types, 2 remaining: a, z"}},
		{"a failure twice counts twice", func(c *namespaceContent) {
			c.add(widgets, remainingContent{}, errors.New("z"))
			c.add(podResource, remainingContent{}, errors.New("z"))
		}, wrong{content: "ContentDeletionFailed: Failed to delete all resource types, 2 remaining: z, z"}},
		{"objects without finalizers", func(c *namespaceContent) { c.add(widgets, remainingContent{objects: 2}, nil) }, wrong{remaining: "SomeResourcesRemain: Some resources are remaining: widgets.example.com has 2 resource instances"}},
		{"the core group has no name", func(c *namespaceContent) { c.add(podResource, remainingContent{objects: 1}, nil) }, wrong{remaining: "SomeResourcesRemain: Some resources are remaining: pods. has 1 resource instances"}},
		{"objects and finalizers of several resources", func(c *namespaceContent) {
			c.add(widgets, remainingContent{objects: 2, finalizers: map[string]int{"f": 2, "e": 1}}, nil)
			c.add(podResource, remainingContent{objects: 1, finalizers: map[string]int{"f": 1}}, nil)
		}, wrong{remaining: "SomeResourcesRemain: Some resources are remaining: pods. has 1 resource instances, widgets.example.com has 2 resource instances",
			finalizers: "SomeFinalizersRemain: Some content in the namespace has finalizers remaining: e in 1 resource instances, f in 3 resource instances"}},
		{"nothing is left of a resource", func(c *namespaceContent) {
			c.add(widgets, remainingContent{finalizers: map[string]int{"f": 1}, delay: time.Second}, nil)
		}, nil},
		{"everything at once", func(c *namespaceContent) {
			c.recordDiscovery(errors.Join(away, strange))
			c.add(widgets, remainingContent{objects: 1, finalizers: map[string]int{"f": 1}}, errors.New("z"))
		}, wrong{discovered: "DiscoveryFailed: Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: metrics.k8s.io/v1: away",
			parsed: "GroupVersionParsingFailed: unexpected GroupVersion string: a/b/c", content: "ContentDeletionFailed: Failed to delete all resource types, 1 remaining: z",
			remaining: "SomeResourcesRemain: Some resources are remaining: widgets.example.com has 1 resource instances", finalizers: "SomeFinalizersRemain: Some content in the namespace has finalizers remaining: f in 1 resource instances"}},
	} {
		var found namespaceContent
		test.found(&found)
		now, later := metav1.NewTime(noon), metav1.NewTime(noon.Add(time.Minute))
		conditions, changed := found.conditions(nil, now)
		if !changed || len(conditions) != 5 {
			t.Errorf("%s: changed %v, %d conditions", test.what, changed, len(conditions))
		}
		for i, c := range conditions {
			status, text := corev1.ConditionFalse, well[order[i]]
			if test.want[order[i]] != "" {
				status, text = corev1.ConditionTrue, test.want[order[i]]
			}
			if got := c.Reason + ": " + c.Message; c.Type != order[i] || c.Status != status || got != text || c.LastTransitionTime != now {
				t.Errorf("%s: %d is %s %s %s at %v\nwant %s %s", test.what, i, c.Type, c.Status, got, c.LastTransitionTime, order[i], text)
			}
		}
		if again, changed := found.conditions(conditions, later); changed || !slices.Equal(again, conditions) {
			t.Errorf("%s: a second report changes %v", test.what, again)
		}
		// When all is well again, only what was wrong has changed.
		after, changed := new(namespaceContent).conditions(conditions, later)
		if changed != (len(test.want) > 0) {
			t.Errorf("%s: all is well again: changed %v", test.what, changed)
		}
		for i, c := range after {
			if wasWrong := test.want[order[i]] != ""; c.Status != corev1.ConditionFalse || (c.LastTransitionTime == later) != wasWrong {
				t.Errorf("%s: all is well again: %+v", test.what, c)
			}
		}
		if (found.err() == nil) != (test.want[discovered] == "" && test.want[parsed] == "" && test.want[content] == "") {
			t.Errorf("%s: as an error: %v", test.what, found.err())
		}
	}
}

// TestOtherConditionsStay, and a text that changes is no transition.
func TestOtherConditionsStay(t *testing.T) {
	now, later := metav1.NewTime(noon), metav1.NewTime(noon.Add(time.Minute))
	others := []corev1.NamespaceCondition{{Type: "Mine", Status: "True", LastTransitionTime: now}}
	var two, one namespaceContent
	two.add(widgets, remainingContent{objects: 2}, nil)
	one.add(widgets, remainingContent{objects: 1}, nil)
	before, _ := two.conditions(others, now)
	after, changed := one.conditions(before, later)
	if !changed || len(after) != 6 || after[0] != others[0] || len(others) != 1 {
		t.Errorf("changed %v: %+v", changed, after)
	}
	i := slices.IndexFunc(after, func(c corev1.NamespaceCondition) bool { return c.Type == corev1.NamespaceContentRemaining })
	if after[i].LastTransitionTime != now || after[i].Message != "Some resources are remaining: widgets.example.com has 1 resource instances" {
		t.Errorf("%+v", after[i])
	}
}

func TestContentsAddUp(t *testing.T) {
	var found namespaceContent
	for i, wait := range []time.Duration{0, 15 * time.Second, 5 * time.Second} {
		found.add(schema.GroupVersionResource{Resource: fmt.Sprint("r", i)}, remainingContent{objects: i, finalizers: map[string]int{"f": i}, delay: wait}, nil)
	}
	if found.delay != 15*time.Second || len(found.objects) != 2 || found.finalizers["f"] != 3 || found.err() != nil {
		t.Errorf("%+v", found)
	}
}
