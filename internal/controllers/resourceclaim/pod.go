package resourceclaim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

const (
	// fieldManager owns the names of claims in the status of pods.
	fieldManager = "ResourceClaimController"
	// maxGenerateName leaves space for a hyphen and five random characters in a name of 63 characters.
	maxGenerateName = 57
)

// podView is the observed state of a pod that may run.
type podView struct {
	pod *corev1.Pod
	// claims are the existing ones of those that the pod refers to, by name.
	claims map[string]*resourceapi.ResourceClaim
	// generated are the claims the pod controls.
	generated []*resourceapi.ResourceClaim
	templates map[string]*resourceapi.ResourceClaimTemplate
}

// podPlan is what a pod needs next. Each of its parts presupposes the state that the previous one leads to, so only the first that is
// not empty is carried out; the writes lead to another sync.
type podPlan struct {
	creates []*resourceapi.ResourceClaim
	// failed is the event about a claim that cannot be created before something else changes.
	failed *controller.Event
	// names are the names of all generated claims by the names in the pod's spec, nil if the status has them already.
	names    map[string]string
	reserves []*resourceapi.ResourceClaim
}

// syncPod creates the missing claims of a pod, records their names in its status, and reserves allocated claims for a pod that has a node.
func (c *claims) syncPod(ctx context.Context, key controller.Key, name string) error {
	pod, ok := c.pods.Get(key.Namespace, name)
	if !ok || isDone(pod) || pod.DeletionTimestamp != nil {
		return nil
	}
	if group := pod.Spec.SchedulingGroup; group != nil && group.PodGroupName != nil {
		c.setup.Log.Warn("claims of a pod in a PodGroup are not created: the feature GenericWorkload is disabled", "pod", pod.Namespace+"/"+pod.Name, "podGroup", *group.PodGroupName)
		return nil
	}
	v, err := c.observePod(ctx, pod)
	if err != nil {
		return err
	}
	p := v.reconcile()
	if len(p.creates) > 0 || p.failed != nil {
		return c.createClaims(ctx, key, pod, p)
	}
	if p.names != nil {
		return c.recordNames(ctx, key, pod, p.names)
	}
	var plan controller.Plan
	for _, claim := range p.reserves {
		plan.AddStep(controller.NewUpdateStatus(claim))
	}
	return c.setup.Apply(ctx, key, plan)
}

// observePod gathers the claims and templates of a pod. A claim that the pod's status names and the cache does not have is read from the
// server: the pod may be newer than the cached claims, and a second claim must not be created.
func (c *claims) observePod(ctx context.Context, pod *corev1.Pod) (podView, error) {
	v := podView{pod: pod, claims: map[string]*resourceapi.ResourceClaim{}, templates: map[string]*resourceapi.ResourceClaimTemplate{}}
	for i := range pod.Spec.ResourceClaims {
		podClaim := &pod.Spec.ResourceClaims[i]
		if templateName := podClaim.ResourceClaimTemplateName; templateName != nil {
			if template, ok := c.templates.Get(pod.Namespace, *templateName); ok {
				v.templates[*templateName] = template
			}
		}
		name, generated, err := resourceclaim.Name(pod, podClaim)
		if err != nil || name == nil {
			continue
		}
		if claim, ok := c.claims.Get(pod.Namespace, *name); ok {
			v.claims[*name] = claim
		} else if generated {
			claim, err := client.For[*resourceapi.ResourceClaim](c.setup.Client).Get(ctx, pod.Namespace, *name)
			if err == nil {
				v.claims[*name] = claim
			} else if !apierrors.IsNotFound(err) {
				return podView{}, fmt.Errorf("read resource claim %s/%s: %w", pod.Namespace, *name, err)
			}
		}
	}
	var err error
	v.generated, err = c.claims.ByIndex(claimsByPod, string(pod.UID))
	return v, err
}

// reconcile decides what the pod needs next.
func (v podView) reconcile() (p podPlan) {
	names := map[string]string{}
	for i := range v.pod.Spec.ResourceClaims {
		podClaim := &v.pod.Spec.ResourceClaims[i]
		name, isGenerated, err := resourceclaim.Name(v.pod, podClaim)
		if err != nil && !errors.Is(err, resourceclaim.ErrClaimNotFound) {
			p.failed = v.failure(podClaim, fmt.Errorf("checking for claim before creating it: %w", err))
			return p
		}
		if err == nil && (name == nil || v.usable(*name, isGenerated)) || podClaim.ResourceClaimTemplateName == nil {
			continue
		}
		if claim := v.generatedFor(podClaim.Name); claim != nil {
			names[podClaim.Name] = claim.Name
			continue
		}
		templateName := *podClaim.ResourceClaimTemplateName
		template, ok := v.templates[templateName]
		if !ok {
			p.failed = v.failure(podClaim, fmt.Errorf("resource claim template %q: %w", templateName, apierrors.NewNotFound(resourceapi.Resource("resourceclaimtemplate"), templateName)))
			return p
		}
		p.creates = append(p.creates, newClaim(v.pod, podClaim.Name, template))
	}
	if len(names) > 0 {
		p.names = v.recordedNames()
		maps.Copy(p.names, names)
	}
	p.reserves = v.reservations()
	return p
}

// usable reports whether a claim exists that the pod may use. One that was created for the pod must still be owned by it.
func (v podView) usable(name string, isGenerated bool) bool {
	claim := v.claims[name]
	return claim != nil && (!isGenerated || resourceclaim.IsForPod(v.pod, claim, false) == nil)
}

// generatedFor returns the claim that was created for one in the pod's spec, or nil.
func (v podView) generatedFor(podClaimName string) *resourceapi.ResourceClaim {
	for _, claim := range v.generated {
		if name, ok := claim.Annotations[resourceapi.PodResourceClaimAnnotation]; ok && name == podClaimName && claim.DeletionTimestamp == nil {
			return claim
		}
	}
	return nil
}

// recordedNames returns the names of claims in the pod's status.
func (v podView) recordedNames() map[string]string {
	names := map[string]string{}
	for _, s := range v.pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names[s.Name] = *s.ResourceClaimName
		}
	}
	return names
}

// reservations returns the allocated claims of a pod with a node, reserved for it. The scheduler reserves the claims of the pods it
// binds; this is for pods that were bound without it.
func (v podView) reservations() (reserved []*resourceapi.ResourceClaim) {
	if v.pod.Spec.NodeName == "" {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(v.claims)) {
		claim := v.claims[name]
		if claim.Status.Allocation == nil || resourceclaim.IsReservedForPod(v.pod, claim, false) {
			continue
		}
		claim = claim.DeepCopy()
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: v.pod.Name, UID: v.pod.UID})
		reserved = append(reserved, claim)
	}
	return reserved
}

func (v podView) failure(podClaim *corev1.PodResourceClaim, err error) *controller.Event {
	return &controller.Event{Object: v.pod, Type: corev1.EventTypeWarning, Reason: "FailedResourceClaimCreation", Message: fmt.Sprintf("PodResourceClaim %s: %v", podClaim.Name, err)}
}

// newClaim returns the claim of a pod from a template. Its name is generated from those of the pod and of the claim in the pod's spec.
func newClaim(pod *corev1.Pod, podClaimName string, template *resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaim {
	annotations := maps.Clone(template.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourceapi.PodResourceClaimAnnotation] = podClaimName
	generateName := pod.Name + "-" + podClaimName + "-"
	if n := len(generateName); n > maxGenerateName {
		// The server would cut the end off, and with it the name of the claim.
		generateName = pod.Name[:len(pod.Name)*maxGenerateName/n] + "-" + podClaimName[:len(podClaimName)*maxGenerateName/n]
	}
	isController := true
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: generateName, Annotations: annotations, Labels: maps.Clone(template.Spec.Labels),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &isController}},
		},
		Spec: *template.Spec.Spec.DeepCopy(),
	}
}

// createClaims creates claims and records the failure, if there is one. The new claims lead to another sync of the pod.
func (c *claims) createClaims(ctx context.Context, key controller.Key, pod *corev1.Pod, p podPlan) error {
	plan := controller.Plan{OnWrite: func(obj kind.Object) { c.metrics.creates.Count(obj.(*resourceapi.ResourceClaim), nil) }}
	for _, claim := range p.creates {
		plan.AddStep(controller.NewCreate(claim).OnFailure(controller.Event{Object: pod, Type: corev1.EventTypeWarning, Reason: "FailedResourceClaimCreation",
			Message: fmt.Sprintf("PodResourceClaim %s: create ResourceClaim %s: %%s", claim.Annotations[resourceapi.PodResourceClaimAnnotation], claim.Name)}))
	}
	if p.failed != nil {
		plan.Events = append(plan.Events, *p.failed)
	}
	err := c.setup.Apply(ctx, key, plan)
	var failed *controller.WriteError
	if errors.As(err, &failed) && failed.Verb == controller.Create {
		c.metrics.creates.Count(failed.Object.(*resourceapi.ResourceClaim), err)
	}
	return err
}

// recordNames writes the names of the generated claims into the status of a pod.
func (c *claims) recordNames(ctx context.Context, key controller.Key, pod *corev1.Pod, names map[string]string) error {
	statuses := make([]corev1.PodResourceClaimStatus, 0, len(names))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		claimName := names[name]
		statuses = append(statuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: &claimName})
	}
	// Marshalling strings cannot fail.
	patch, _ := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": pod.Namespace, "name": pod.Name, "uid": pod.UID},
		"status": map[string]any{"resourceClaimStatuses": statuses},
	})
	written, err := client.For[*corev1.Pod](c.setup.Client).Patch(ctx, pod.Namespace, pod.Name, client.RawPatch(client.ApplyPatch, patch),
		client.WriteOptions{Subresource: "status", FieldManager: fieldManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("update pod %s/%s ResourceClaimStatuses: %w", pod.Namespace, pod.Name, err)
	}
	c.setup.RecordWrite(key, written)
	return nil
}
