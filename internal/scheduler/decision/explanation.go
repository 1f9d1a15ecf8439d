package decision

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Explanation tells why a pod is where it is, or nowhere.
type Explanation struct {
	metav1.TypeMeta `json:",inline"`
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	// Node is where the pod was put, empty when it has no place.
	Node string `json:"node,omitempty"`
	// Message is what the pod's condition says.
	Message string `json:"message,omitempty"`
	// Decided is when the decision was made that Verdicts are of. Without it they are what would be said now.
	Decided *metav1.Time `json:"decided,omitempty"`
	// Feasible nodes could take the pod, out of Nodes.
	Feasible int `json:"feasible"`
	Nodes    int `json:"nodes"`
	// Verdicts are about every node, the best first.
	Verdicts []Verdict `json:"verdicts,omitempty"`
	// Changes are the smallest ones that would let a pending pod run, the smallest first.
	Changes []Suggestion `json:"changes,omitempty"`
	// Preemption is how the pod would get room for itself.
	Preemption *PreemptionPreview `json:"preemption,omitempty"`
}

// PreemptionPreview is what a pod would get by moving pods of lower priority away. Their names are not told: they may be anybody's.
type PreemptionPreview struct {
	Node    string `json:"node"`
	Victims int    `json:"victims"`
}

// Suggestion is what would have to be different for a pod to run on a node. All steps are needed.
type Suggestion struct {
	Node string `json:"node,omitempty"`
	// Others is how many other nodes would take the pod after a change of the same kind, though maybe a larger one.
	Others int      `json:"others,omitempty"`
	Steps  []string `json:"steps"`
}

// ErrOtherScheduler says that another scheduler looks after a pod.
var ErrOtherScheduler = errors.New("another scheduler looks after the pod")

// ErrPodNotFound says that there is no such pod.
var ErrPodNotFound = errors.New("pod not found")

func (e *Explanation) Describe(d *Decision, err error) {
	e.Node, e.Message, e.Feasible, e.Nodes = d.Node, "", d.Feasible, d.Nodes
	if err != nil {
		e.Message = err.Error()
	}
}
