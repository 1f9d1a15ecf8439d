package volume

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// Ephemeral creates the claims of pods with ephemeral volumes. A claim is owned by its pod.
var Ephemeral = controller.Definition{
	Name: "ephemeral-volume-controller", Aliases: []string{"ephemeral-volume"}, Component: "ephemeral_volume", Queue: "ephemeral_volume", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &ephemeral{pods: client.InformerFor[*corev1.Pod](s.Informers), claims: client.InformerFor[*corev1.PersistentVolumeClaim](s.Informers)}
		if err := indexPods(c.pods); err != nil {
			return nil, err
		}
		enqueue := func(pod *corev1.Pod) {
			if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil }) {
				s.Enqueue(controller.KeyOf(pod))
			}
		}
		if err := c.pods.AddEventHandler(enqueue, nil, nil); err != nil {
			return nil, fmt.Errorf("watch pods: %w", err)
		}
		onDelete := func(claim *corev1.PersistentVolumeClaim) {
			for _, pod := range podsUsing(c.pods, claim.Namespace, claim.Name) {
				enqueue(pod)
			}
		}
		if err := c.claims.AddEventHandler(nil, nil, onDelete); err != nil {
			return nil, fmt.Errorf("watch claims: %w", err)
		}
		return controller.NewSyncer(s, c), nil
	},
}

type ephemeral struct {
	pods   client.Informer[*corev1.Pod]
	claims client.Informer[*corev1.PersistentVolumeClaim]
}

type ephemeralView struct {
	pod    *corev1.Pod
	claims map[string]*corev1.PersistentVolumeClaim // the existing ones, by name
}

// Observe gathers a pod and its claims.
func (c *ephemeral) Observe(key controller.Key) (ephemeralView, bool) {
	pod, ok := c.pods.Get(key.Namespace, key.Name)
	if !ok || pod.DeletionTimestamp != nil {
		return ephemeralView{}, false
	}
	v := ephemeralView{pod: pod, claims: map[string]*corev1.PersistentVolumeClaim{}}
	for i := range pod.Spec.Volumes {
		name := claimName(pod, &pod.Spec.Volumes[i])
		if claim, ok := c.claims.Get(pod.Namespace, name); ok {
			v.claims[name] = claim
		}
	}
	return v, true
}

// Reconcile creates the missing claims. If a claim of that name has another owner, it records an event.
func (c *ephemeral) Reconcile(v ephemeralView) (plan controller.Plan) {
	for i := range v.pod.Spec.Volumes {
		volume := &v.pod.Spec.Volumes[i]
		if volume.Ephemeral == nil {
			continue
		}
		name := claimName(v.pod, volume)
		if claim, there := v.claims[name]; there {
			if !metav1.IsControlledBy(claim, v.pod) {
				plan.Events = append(plan.Events, warning(v.pod, "FailedBinding", fmt.Sprintf("ephemeral volume %s: PVC %s/%s was not created for pod %s/%s (pod is not owner)",
					volume.Name, claim.Namespace, claim.Name, v.pod.Namespace, v.pod.Name)))
			}
			continue
		}
		template := volume.Ephemeral.VolumeClaimTemplate
		plan.AddStep(controller.NewCreate(&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: v.pod.Namespace, Name: name, Labels: template.Labels, Annotations: template.Annotations,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(v.pod, podKind)},
			},
			Spec: *template.Spec.DeepCopy(),
		}).OnFailure(warning(v.pod, "FailedBinding", fmt.Sprintf("ephemeral volume %s: create PVC %s: %%s", volume.Name, name))))
	}
	return plan
}
