package decision

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Explanation is the response to a query why a pod is on its node, or pending.
type Explanation struct {
	metav1.TypeMeta `json:",inline"`
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	// Node is the pod's node, empty if it is pending.
	Node string `json:"node,omitempty"`
	// Message is the message of the pod's PodScheduled condition.
	Message string `json:"message,omitempty"`
	// Decided is the time of the decision that Verdicts belong to. Without it they are those of the present state.
	Decided *metav1.Time `json:"decided,omitempty"`
	// Feasible is the number of feasible nodes, out of Nodes.
	Feasible int `json:"feasible"`
	Nodes    int `json:"nodes"`
	// Verdicts of all nodes, the best first.
	Verdicts []Verdict `json:"verdicts,omitempty"`
	// Changes are the smallest ones that would let a pending pod run, the smallest first.
	Changes []Suggestion `json:"changes,omitempty"`
	// Preemption is the preemption that would make the pod schedulable.
	Preemption *PreemptionPreview `json:"preemption,omitempty"`
}

// PreemptionPreview is a preemption that has not been done. The victims' names are left out: the user may not have access to them.
type PreemptionPreview struct {
	Node    string `json:"node"`
	Victims int    `json:"victims"`
}

// Suggestion is a change that would make a pod schedulable on a node. All steps are needed.
type Suggestion struct {
	Node string `json:"node,omitempty"`
	// Others is the number of other nodes where the same kind of change would help, though maybe a larger one.
	Others int      `json:"others,omitempty"`
	Steps  []string `json:"steps"`
}

// ErrOtherScheduler is returned for a pod of another scheduler.
var ErrOtherScheduler = errors.New("another scheduler looks after the pod")

// ErrPodNotFound is returned if there is no such pod.
var ErrPodNotFound = errors.New("pod not found")

// Describe sets the outcome of a decision.
func (e *Explanation) Describe(d *Decision, err error) {
	e.Node, e.Message, e.Feasible, e.Nodes = d.Node, "", d.Feasible, d.Nodes
	if err != nil {
		e.Message = err.Error()
	}
}
