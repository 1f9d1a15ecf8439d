package cleanup

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
)

// conditions returns all conditions of a terminating namespace, and whether they changed. Conditions of other controllers are
// kept.
func (c *namespaceContent) conditions(old []corev1.NamespaceCondition, now metav1.Time) ([]corev1.NamespaceCondition, bool) {
	result, changed := slices.Clone(old), false
	for _, want := range []corev1.NamespaceCondition{
		condition(corev1.NamespaceDeletionDiscoveryFailure, c.discoveryMessage(), "DiscoveryFailed", "ResourcesDiscovered", "All resources successfully discovered"),
		condition(corev1.NamespaceDeletionGVParsingFailure, message(c.parsing), "GroupVersionParsingFailed", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
		condition(corev1.NamespaceDeletionContentFailure, c.failureMessage(), "ContentDeletionFailed", "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		condition(corev1.NamespaceContentRemaining, c.objectsMessage(), "SomeResourcesRemain", "ContentRemoved", "All content successfully removed"),
		condition(corev1.NamespaceFinalizersRemaining, c.finalizersMessage(), "SomeFinalizersRemain", "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
	} {
		want.LastTransitionTime = now
		i := slices.IndexFunc(result, func(had corev1.NamespaceCondition) bool { return had.Type == want.Type })
		if i < 0 {
			result, changed = append(result, want), true
			continue
		}
		if had := result[i]; had.Status == want.Status {
			want.LastTransitionTime = had.LastTransitionTime
			changed = changed || had.Reason != want.Reason || had.Message != want.Message
		} else {
			changed = true
		}
		result[i] = want
	}
	return result, changed
}

// condition returns a true condition with the problem, or a false one with okReason and okMessage.
func condition(of corev1.NamespaceConditionType, problem, problemReason, okReason, okMessage string) corev1.NamespaceCondition {
	if problem == "" {
		return corev1.NamespaceCondition{Type: of, Status: corev1.ConditionFalse, Reason: okReason, Message: okMessage}
	}
	return corev1.NamespaceCondition{Type: of, Status: corev1.ConditionTrue, Reason: problemReason, Message: problem}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (c *namespaceContent) discoveryMessage() string {
	var failed *discovery.ErrGroupDiscoveryFailed
	if errors.As(c.discovery, &failed) {
		return fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(failed.Groups), failed)
	}
	return message(c.discovery)
}

func (c *namespaceContent) failureMessage() string {
	if len(c.failures) == 0 {
		return ""
	}
	var texts []string
	for _, err := range c.failures {
		texts = append(texts, err.Error())
	}
	slices.Sort(texts)
	return fmt.Sprintf("Failed to delete all resource types, %d remaining: %v", len(texts), strings.Join(texts, ", "))
}

func (c *namespaceContent) objectsMessage() string {
	var texts []string
	for gvr, count := range c.objects {
		texts = append(texts, fmt.Sprintf("%s.%s has %d resource instances", gvr.Resource, gvr.Group, count))
	}
	return sentence("Some resources are remaining: ", texts)
}

func (c *namespaceContent) finalizersMessage() string {
	var texts []string
	for finalizer, count := range c.finalizers {
		texts = append(texts, fmt.Sprintf("%s in %d resource instances", finalizer, count))
	}
	return sentence("Some content in the namespace has finalizers remaining: ", texts)
}

// sentence joins texts in sorted order; "" if there are none.
func sentence(beginning string, texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	slices.Sort(texts)
	return beginning + strings.Join(texts, ", ")
}
