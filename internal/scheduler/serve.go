package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/snapshot"
)

// GroupVersion is the API that serves queries to a scheduler:
//
//	GET  /apis/scheduling.skiff.io/v1/namespaces/{namespace}/pods/{name}/why   an Explanation
//	POST /apis/scheduling.skiff.io/v1/[namespaces/{namespace}/]whatifs         a WhatIf, returned with its results
//
// To an authorizer that is `get` of pods/why and `create` of whatifs, in the API group scheduling.skiff.io.
var GroupVersion = schema.GroupVersion{Group: "scheduling.skiff.io", Version: "v1"}

// Root is the prefix of all paths of the API.
const Root = "/apis/scheduling.skiff.io/"

const (
	// maxQueryBytes bounds the body of a query, and maxQueryPods the pods in it.
	maxQueryBytes = 3 << 20
	maxQueryPods  = 20000
)

// WhatIf is a query where pods would be scheduled if they were created one after another.
type WhatIf struct {
	metav1.TypeMeta `json:",inline"`
	Pods            []HypotheticalPod `json:"pods"`
	// Verdicts requests the result of every node.
	Verdicts bool                   `json:"verdicts,omitempty"`
	Results  []decision.Explanation `json:"results,omitempty"`
}

// HypotheticalPod is a number of equal pods that do not exist.
type HypotheticalPod struct {
	Pod corev1.Pod `json:"pod"`
	// Copies is the number of pods. Their names get an index as suffix. 0 means one.
	Copies int `json:"copies,omitempty"`
	// EveryNode means one pod for each node, as a DaemonSet creates them.
	EveryNode bool `json:"everyNode,omitempty"`
	// Owner is the controller of the pods. Default topology spread constraints depend on it.
	Owner *HypotheticalOwner `json:"owner,omitempty"`
}

// HypotheticalOwner is a controller of pods that does not exist.
type HypotheticalOwner struct {
	APIVersion string               `json:"apiVersion"`
	Kind       string               `json:"kind"`
	Selector   metav1.LabelSelector `json:"selector"`
}

// Handler serves queries. Requests must be authorized before they reach it.
func (s *Scheduler) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response, err := s.serve(w, r)
		code := http.StatusOK
		if err != nil {
			var status apierrors.APIStatus
			if !errors.As(err, &status) {
				status = apierrors.NewInternalError(err)
			}
			failure := status.Status()
			failure.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			if failure.Details != nil && failure.Details.RetryAfterSeconds > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(failure.Details.RetryAfterSeconds)))
			}
			response, code = failure, int(failure.Code)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		// The client may have closed the connection.
		_ = json.NewEncoder(w).Encode(response)
	})
}

// serve parses a path just as authorizers do: by its segments, whatever they contain.
func (s *Scheduler) serve(w http.ResponseWriter, r *http.Request) (any, error) {
	path, below := strings.CutPrefix(strings.Trim(r.URL.Path, "/"), "apis/"+GroupVersion.String())
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case !below:
	case path == "" && r.Method == http.MethodGet:
		return resources, nil
	case slices.Contains(parts, ""):
	case len(parts) == 5 && parts[0] == "namespaces" && parts[2] == "pods" && parts[4] == "why":
		if r.Method != http.MethodGet {
			return nil, apierrors.NewMethodNotSupported(podResource, r.Method)
		}
		return s.serveWhy(r.Context(), parts[1], parts[3])
	case len(parts) == 1 && parts[0] == "whatifs":
		return s.serveWhatIf(w, r, "")
	case len(parts) == 3 && parts[0] == "namespaces" && parts[2] == "whatifs":
		return s.serveWhatIf(w, r, parts[1])
	}
	return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{}, "", "the server could not find the requested resource", 0, false)
}

var podResource = schema.GroupResource{Group: GroupVersion.Group, Resource: "pods"}

// resources is the discovery document of the API.
var resources = metav1.APIResourceList{
	TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: GroupVersion.String(),
	APIResources: []metav1.APIResource{
		{Name: "pods/why", Namespaced: true, Kind: "Explanation", Verbs: metav1.Verbs{"get"}},
		{Name: "whatifs", SingularName: "whatif", Namespaced: true, Kind: "WhatIf", Verbs: metav1.Verbs{"create"}},
	},
}

func (s *Scheduler) serveWhy(ctx context.Context, namespace, name string) (any, error) {
	if !s.lists.synced() {
		return nil, apierrors.NewServiceUnavailable("the scheduler's informers have not synced yet")
	}
	release, err := s.queries.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	e, err := s.Why(namespace, name)
	switch {
	case errors.Is(err, decision.ErrPodNotFound):
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	case errors.Is(err, decision.ErrOtherScheduler):
		return nil, apierrors.NewBadRequest(err.Error())
	case err != nil:
		return nil, err
	}
	e.TypeMeta = metav1.TypeMeta{Kind: "Explanation", APIVersion: GroupVersion.String()}
	return e, nil
}

// serveWhatIf takes pods of one namespace only when the path names it: the sender is authorized for no other.
func (s *Scheduler) serveWhatIf(w http.ResponseWriter, r *http.Request, namespace string) (any, error) {
	if r.Method != http.MethodPost {
		return nil, apierrors.NewMethodNotSupported(GroupVersion.WithResource("whatifs").GroupResource(), r.Method)
	}
	if !s.lists.synced() {
		return nil, apierrors.NewServiceUnavailable("the scheduler's informers have not synced yet")
	}
	var query WhatIf
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxQueryBytes))
	if err := decoder.Decode(&query); err != nil {
		return nil, apierrors.NewBadRequest("decode request: " + err.Error())
	}
	// The body has been read: a slow client does not keep others waiting.
	release, err := s.queries.acquire(r.Context())
	if err != nil {
		return nil, err
	}
	defer release()
	pods, owners, err := s.hypotheticalPods(&query, namespace)
	if err != nil {
		return nil, err
	}
	cluster := s.fork()
	for _, o := range owners {
		cluster.SetOwner(o.key, o.selector)
	}
	results, err := s.whatIf(r.Context(), cluster, pods, query.Verdicts)
	switch {
	case r.Context().Err() != nil:
		return nil, errQueryEnded(r.Context())
	case err != nil:
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return &WhatIf{TypeMeta: metav1.TypeMeta{Kind: "WhatIf", APIVersion: GroupVersion.String()}, Results: results}, nil
}

// hypotheticalPods makes the pods of a query and their owners. All must be in the namespace, unless it is empty.
func (s *Scheduler) hypotheticalPods(query *WhatIf, namespace string) (pods []*corev1.Pod, owners []owner, err error) {
	for i := range query.Pods {
		hypothetical := &query.Pods[i]
		if hypothetical.Pod.Namespace == "" {
			hypothetical.Pod.Namespace = namespace
		}
		if hypothetical.Pod.Namespace == "" || namespace != "" && hypothetical.Pod.Namespace != namespace {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("pods[%d]: namespace %q is not that of the request", i, hypothetical.Pod.Namespace))
		}
		if max(hypothetical.Copies, 1) > maxQueryPods-len(pods) {
			return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("at most %d pods at a time", maxQueryPods))
		}
		if hypothetical.Owner != nil {
			o, err := hypothetical.owner(i)
			if err != nil {
				return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("pods[%d].owner.selector: %v", i, err))
			}
			owners = append(owners, o)
		}
		pods = append(pods, s.expand(hypothetical)...)
	}
	if len(pods) > maxQueryPods {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("at most %d pods at a time", maxQueryPods))
	}
	return pods, owners, nil
}

// owner makes the hypothetical controller the owner of the pod, under a name no object can have.
func (x *HypotheticalPod) owner(i int) (owner, error) {
	selector, err := metav1.LabelSelectorAsSelector(&x.Owner.Selector)
	name, controls := fmt.Sprintf("what-if/%d", i), true
	x.Pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: x.Owner.APIVersion, Kind: x.Owner.Kind, Name: name, Controller: &controls}}
	return owner{snapshot.OwnerKey{APIVersion: x.Owner.APIVersion, Kind: x.Owner.Kind, Namespace: x.Pod.Namespace, Name: name}, selector}, err
}

// owner is a controller of pods and which pods it selects.
type owner struct {
	key      snapshot.OwnerKey
	selector labels.Selector
}

// expand makes the pods that a HypotheticalPod stands for.
func (s *Scheduler) expand(hypothetical *HypotheticalPod) (pods []*corev1.Pod) {
	if hypothetical.EveryNode {
		for _, node := range s.nodeNames() {
			pod := hypothetical.Pod.DeepCopy()
			pod.Name += "-" + node
			requireNode(pod, node)
			pods = append(pods, pod)
		}
		return pods
	}
	if hypothetical.Copies <= 1 {
		return []*corev1.Pod{&hypothetical.Pod}
	}
	for i := range hypothetical.Copies {
		// WhatIf changes only copies of its own, so a shallow copy suffices.
		pod := hypothetical.Pod
		pod.Name = fmt.Sprintf("%s-%d", pod.Name, i)
		pods = append(pods, &pod)
	}
	return pods
}

func (s *Scheduler) nodeNames() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.snapshot.NodeInfos {
		if s.snapshot.NodeInfos[i].Node != nil {
			names = append(names, s.snapshot.NodeInfos[i].Name)
		}
	}
	return names
}

// requireNode sets the node affinity that the DaemonSet controller sets.
func requireNode(pod *corev1.Pod, node string) {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	named := corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	required := &pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if *required == nil || len((*required).NodeSelectorTerms) == 0 {
		*required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{named}}}}
		return
	}
	for i := range (*required).NodeSelectorTerms {
		// An empty term matches nothing, and must stay empty.
		if term := &(*required).NodeSelectorTerms[i]; len(term.MatchExpressions)+len(term.MatchFields) > 0 {
			term.MatchFields = append(term.MatchFields, named)
		}
	}
}
