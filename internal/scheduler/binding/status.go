package binding

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionPatch is a patch that sets a condition in a pod's status, and the nominated node unless it is nil. It returns nil when nothing changes.
func ConditionPatch(pod *corev1.Pod, c corev1.PodCondition, nominated *string) []byte {
	c.ObservedGeneration = pod.Generation
	status := map[string]any{}
	i := slices.IndexFunc(pod.Status.Conditions, func(old corev1.PodCondition) bool { return old.Type == c.Type })
	c.LastTransitionTime = metav1.Now()
	if i >= 0 && pod.Status.Conditions[i].Status == c.Status {
		c.LastTransitionTime = pod.Status.Conditions[i].LastTransitionTime
	}
	same := i >= 0 && pod.Status.Conditions[i].Status == c.Status && pod.Status.Conditions[i].Reason == c.Reason &&
		pod.Status.Conditions[i].Message == c.Message
	if !same {
		status["conditions"] = []corev1.PodCondition{c}
	}
	if nominated != nil && *nominated != pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = orNull(*nominated)
	}
	if len(status) == 0 {
		return nil
	}
	return statusPatch(pod, status)
}

// statusPatch is a patch of status. It contains the UID, so that a new pod of the same name is not changed.
func statusPatch(pod *corev1.Pod, status map[string]any) []byte {
	// Maps of strings and API types always encode.
	data, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	return data
}

func orNull(name string) any {
	if name == "" {
		return nil
	}
	return name
}
