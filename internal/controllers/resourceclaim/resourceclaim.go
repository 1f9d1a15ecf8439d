// Package resourceclaim contains the controllers of dynamic resource allocation. ResourceClaim creates the claims of pods from templates,
// records their names in the pods' status, and releases claims that no pod uses any more. The scheduler allocates claims, the kubelet
// prepares their devices.
package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

const (
	// podKeyPrefix marks keys of pods; all others are of claims. Object names contain no slash.
	podKeyPrefix = "pod/"
	// podsByClaim is the index of pods by the names of their claims, podsByTemplate by those of the templates.
	podsByClaim    = "podResourceClaim"
	podsByTemplate = "podResourceClaimTemplate"
	// claimsByPod is the index of claims by the UID of the pod that controls them.
	claimsByPod = "claimPodOwner"
)

// ResourceClaim creates claims from templates, reserves allocated claims for pods that were bound without the scheduler, and releases
// the claims of pods that are done.
var ResourceClaim = controller.Definition{
	Name: "resourceclaim-controller", Aliases: []string{"resource-claim-controller"}, Component: "resource_claim", Queue: "resource_claim", Workers: 50,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		metrics, err := newClaimMetrics(s)
		if err != nil {
			return nil, err
		}
		c := &claims{
			setup:     s,
			pods:      client.InformerFor[*corev1.Pod](s.Informers),
			claims:    client.InformerFor[*resourceapi.ResourceClaim](s.Informers),
			templates: client.InformerFor[*resourceapi.ResourceClaimTemplate](s.Informers),
			metrics:   metrics,
		}
		if err := c.addIndexes(); err != nil {
			return nil, err
		}
		return c, c.watch()
	},
}

type claims struct {
	setup     *controller.Setup
	pods      client.Informer[*corev1.Pod]
	claims    client.Informer[*resourceapi.ResourceClaim]
	templates client.Informer[*resourceapi.ResourceClaimTemplate]
	metrics   *claimMetrics
}

// addIndexes adds the indexes that connect pods, claims and templates.
func (c *claims) addIndexes() error {
	return errors.Join(
		c.pods.EnsureIndex(podsByClaim, func(pod *corev1.Pod) (keys []string) {
			for _, name := range claimNames(pod) {
				keys = append(keys, pod.Namespace+"/"+name)
			}
			return keys
		}),
		c.pods.EnsureIndex(podsByTemplate, func(pod *corev1.Pod) (keys []string) {
			for _, podClaim := range pod.Spec.ResourceClaims {
				if podClaim.ResourceClaimTemplateName != nil {
					keys = append(keys, pod.Namespace+"/"+*podClaim.ResourceClaimTemplateName)
				}
			}
			return keys
		}),
		c.claims.EnsureIndex(claimsByPod, func(claim *resourceapi.ResourceClaim) []string {
			if owner := podOwner(claim); owner != nil {
				return []string{string(owner.UID)}
			}
			return nil
		}),
	)
}

// watch registers the event handlers.
func (c *claims) watch() error {
	if err := c.pods.AddEventHandler(c.enqueuePod, func(_, pod *corev1.Pod) { c.enqueuePod(pod) }, c.enqueueClaimsOf); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	added := func(claim *resourceapi.ResourceClaim) {
		c.metrics.counts.add(claim, 1)
		c.setup.Enqueue(controller.KeyOf(claim))
		c.enqueuePodsOf(claim)
	}
	updated := func(old, claim *resourceapi.ResourceClaim) {
		c.metrics.counts.add(old, -1)
		added(claim)
	}
	deleted := func(claim *resourceapi.ResourceClaim) {
		c.metrics.counts.add(claim, -1)
		c.enqueuePodsOf(claim)
	}
	if err := c.claims.AddEventHandler(added, updated, deleted); err != nil {
		return fmt.Errorf("watch resource claims: %w", err)
	}
	templateChanged := func(template *resourceapi.ResourceClaimTemplate) {
		c.enqueueIndexed(podsByTemplate, template.Namespace+"/"+template.Name)
	}
	if err := c.templates.AddEventHandler(templateChanged, func(_, template *resourceapi.ResourceClaimTemplate) { templateChanged(template) }, nil); err != nil {
		return fmt.Errorf("watch resource claim templates: %w", err)
	}
	return nil
}

// enqueuePod enqueues a pod that may run, and otherwise the claims it no longer needs.
func (c *claims) enqueuePod(pod *corev1.Pod) {
	if isDone(pod) {
		c.enqueueClaimsOf(pod)
	} else if pod.DeletionTimestamp == nil && len(pod.Spec.ResourceClaims) > 0 {
		c.setup.Enqueue(controller.Key{Namespace: pod.Namespace, Name: podKeyPrefix + pod.Name})
	}
}

// enqueueClaimsOf enqueues the claims of a pod.
func (c *claims) enqueueClaimsOf(pod *corev1.Pod) {
	for _, name := range claimNames(pod) {
		c.setup.Enqueue(controller.Key{Namespace: pod.Namespace, Name: name})
	}
}

// enqueuePodsOf enqueues the pods that use a claim, and the pod it was created for, whose status may not name it yet.
func (c *claims) enqueuePodsOf(claim *resourceapi.ResourceClaim) {
	c.enqueueIndexed(podsByClaim, claim.Namespace+"/"+claim.Name)
	if owner := podOwner(claim); owner != nil {
		if pod, ok := c.pods.Get(claim.Namespace, owner.Name); ok && pod.UID == owner.UID {
			c.enqueuePod(pod)
		}
	}
}

func (c *claims) enqueueIndexed(index, value string) {
	pods, err := c.pods.ByIndex(index, value)
	if err != nil {
		c.setup.Log.Error("failed to find pods by index", "index", index, "error", err)
	}
	for _, pod := range pods {
		c.enqueuePod(pod)
	}
}

// Sync reconciles a claim, or a pod with claims.
func (c *claims) Sync(ctx context.Context, key controller.Key) error {
	if name, isPod := strings.CutPrefix(key.Name, podKeyPrefix); isPod {
		return c.syncPod(ctx, key, name)
	}
	return c.syncClaim(ctx, key)
}

// claimNames returns the names of the claims that a pod refers to and of those that were created for it.
func claimNames(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != nil {
			names = append(names, *name)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	return names
}

// isDone reports whether no container of a pod runs or will run.
func isDone(pod *corev1.Pod) bool {
	return podstate.IsTerminal(pod) || pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// capture applies a write and returns the object the server returned, nil if its error was ignored.
func (c *claims) capture(ctx context.Context, key controller.Key, write controller.Write) (written *resourceapi.ResourceClaim, err error) {
	plan := controller.Plan{OnWrite: func(obj kind.Object) { written = obj.(*resourceapi.ResourceClaim) }}
	plan.AddStep(write)
	err = c.setup.Apply(ctx, key, plan)
	return written, err
}
