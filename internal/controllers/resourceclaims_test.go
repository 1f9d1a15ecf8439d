package controllers_test

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/podstate"
	"skiff/test/world"
)

func deviceRequests() resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpus", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
	}}}}
}

func claimTemplate(name string) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: meta(name), Spec: resourceapi.ResourceClaimTemplateSpec{Spec: deviceRequests()}}
}

func deviceClaim(name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: meta(name), Spec: deviceRequests()}
}

// withTemplate adds a claim from a template to a pod, withClaim one by name.
func withTemplate(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "own", ResourceClaimTemplateName: &name})
	}
}

func withClaim(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "shared", ResourceClaimName: &name})
	}
}

// allocateClaim allocates a claim and reserves it for pods, as the scheduler would.
func allocateClaim(w *world.World, name string, pods ...*corev1.Pod) {
	world.Edit(w, "default", name, func(c *resourceapi.ResourceClaim) {
		if !slices.Contains(c.Finalizers, resourceapi.Finalizer) {
			c.Finalizers = append(c.Finalizers, resourceapi.Finalizer)
		}
	})
	world.EditStatus(w, "default", name, func(c *resourceapi.ResourceClaim) {
		if c.Status.Allocation == nil {
			c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.example.com", Pool: "n0", Device: "gpu0"}}}}
		}
		for _, p := range pods {
			if !slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == p.UID }) {
				c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
			}
		}
	})
}

func setPhase(w *world.World, name string, phase corev1.PodPhase) {
	world.EditStatus(w, "default", name, func(p *corev1.Pod) { p.Status.Phase = phase })
}

// playResourceClaims creates pods with claims of their own and a shared one, allocates those, and ends the pods in every way.
func playResourceClaims(w *world.World) {
	world.Create(w, claimTemplate("template"))
	world.Create(w, deviceClaim("shared"))
	finished := world.Create(w, pod("finished", withTemplate("template"), withClaim("shared")))
	world.Create(w, pod("waiting", withTemplate("template"), withTemplateNamed("second", "template")))
	w.Pass(10 * time.Second)
	allocateClaim(w, "shared", finished)
	for _, s := range world.Get[*corev1.Pod](w, "default", "finished").Status.ResourceClaimStatuses {
		allocateClaim(w, *s.ResourceClaimName, finished)
	}
	w.Pass(10 * time.Second)
	setPhase(w, "finished", corev1.PodSucceeded)
	w.Pass(10 * time.Second)
	w.Remove(finished)
	bound := world.Create(w, pod("bound", withClaim("shared"), func(p *corev1.Pod) { p.Spec.NodeName = "n0" }))
	allocateClaim(w, "shared")
	w.Pass(10 * time.Second)
	w.Remove(world.Get[*resourceapi.ResourceClaim](w, "default", "shared"))
	w.Pass(10 * time.Second)
	w.Remove(bound)
	w.Pass(10 * time.Second)
}

func withTemplateNamed(name, template string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &template})
	}
}

// taintRule taints all devices of the driver of allocateClaim.
func taintRule(name string, effect resourceapi.DeviceTaintEffect) *resourceapi.DeviceTaintRule {
	driver := "gpu.example.com"
	return &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &driver}, Taint: resourceapi.DeviceTaint{Key: "example.com/broken", Effect: effect},
	}}
}

// taintedSlice is a slice with a tainted device of the driver of allocateClaim.
func taintedSlice(name, pool string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &pool, Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "gpu0", Taints: []resourceapi.DeviceTaint{{Key: "example.com/hot", Effect: resourceapi.DeviceTaintEffectNoExecute}}}},
	}}
}

// playDeviceTaints evicts a pod because of a rule, and one because of a driver's taint.
func playDeviceTaints(w *world.World) {
	onNode := func(p *corev1.Pod) { p.Spec.NodeName = "n0" }
	for _, name := range []string{"first", "second"} {
		world.Create(w, deviceClaim(name))
		allocateClaim(w, name, world.Create(w, pod(name, withClaim(name), onNode)))
		if name == "first" {
			world.Create(w, taintRule("rule", resourceapi.DeviceTaintEffectNoExecute))
			w.Pass(30 * time.Second)
			w.Remove(world.Get[*resourceapi.DeviceTaintRule](w, "", "rule"))
			w.Pass(10 * time.Second)
		}
	}
	world.Create(w, taintRule("other", resourceapi.DeviceTaintEffectNoSchedule))
	w.Pass(10 * time.Second)
	world.Create(w, taintedSlice("devices", "n0"))
	w.Pass(30 * time.Second)
}

func actResourceClaims(w *world.World) {
	name := randomName(w, "p", 4)
	switch w.Random.IntN(9) {
	case 8:
		if world.Gone[*resourceapi.DeviceTaintRule](w, "", "rule") {
			world.Create(w, taintRule("rule", world.Pick(w, resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNone)))
		} else {
			removeAny[*resourceapi.DeviceTaintRule](w)
		}
	case 0:
		ensure(w, claimTemplate("template"), func(*resourceapi.ResourceClaimTemplate) {})
		if world.Gone[*resourceapi.ResourceClaim](w, "default", "shared") {
			world.Create(w, deviceClaim("shared"))
		}
	case 1, 2:
		if world.Gone[*corev1.Pod](w, "default", name) {
			world.Create(w, pod(name, world.Pick(w, withTemplate("template"), withClaim("shared")), func(p *corev1.Pod) {
				if w.Chance(0.3) {
					p.Spec.NodeName = "n0"
				}
			}))
		}
	case 3, 4: // as the scheduler would
		for _, c := range world.List[*resourceapi.ResourceClaim](w) {
			if c.DeletionTimestamp != nil {
				continue
			}
			var users []*corev1.Pod
			for _, p := range world.List[*corev1.Pod](w) {
				if slices.Contains(namesOfClaims(p), c.Name) && podstate.IsActive(p) {
					users = append(users, p)
				}
			}
			if len(users) > 0 {
				allocateClaim(w, c.Name, users...)
			}
		}
	case 5:
		if !world.Gone[*corev1.Pod](w, "default", name) {
			setPhase(w, name, world.Pick(w, corev1.PodSucceeded, corev1.PodFailed))
		}
	case 6:
		removeAny[*corev1.Pod](w)
	case 7:
		removeAny[*resourceapi.ResourceClaim](w)
	}
}

func namesOfClaims(p *corev1.Pod) (names []string) {
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names = append(names, *c.ResourceClaimName)
		}
	}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names = append(names, *s.ResourceClaimName)
		}
	}
	return names
}

// restResourceClaims makes the template exist, so that every pod gets its claim.
func restResourceClaims(w *world.World) {
	ensure(w, claimTemplate("template"), func(*resourceapi.ResourceClaimTemplate) {})
}

// checkResourceClaims: a pod that may run has exactly its own claim; reservations are of pods that may run; nothing else is allocated.
func checkResourceClaims(w *world.World) {
	live := map[string]*corev1.Pod{}
	for _, p := range world.List[*corev1.Pod](w) {
		if podstate.IsTerminal(p) {
			continue
		}
		live[string(p.UID)] = p
		if p.Spec.ResourceClaims[0].ResourceClaimTemplateName == nil {
			continue
		}
		names := namesOfClaims(p)
		if len(names) != 1 {
			w.T.Errorf("pod %s has the claims %q", p.Name, names)
			continue
		}
		if c := world.Get[*resourceapi.ResourceClaim](w, "default", names[0]); !metav1.IsControlledBy(c, p) {
			w.T.Errorf("pod %s does not own its claim %s", p.Name, c.Name)
		}
	}
	owned := map[string]int{}
	for _, c := range world.List[*resourceapi.ResourceClaim](w) {
		for _, r := range c.Status.ReservedFor {
			if live[string(r.UID)] == nil {
				w.T.Errorf("claim %s is reserved for pod %s, which is done", c.Name, r.Name)
			}
		}
		if c.DeletionTimestamp != nil && len(c.Status.ReservedFor) == 0 {
			w.T.Errorf("claim %s is unused and still being deleted: %v", c.Name, c.Finalizers)
		}
		if owner := metav1.GetControllerOf(c); owner != nil {
			if owned[string(owner.UID)]++; live[string(owner.UID)] == nil || owned[string(owner.UID)] > 1 {
				w.T.Errorf("claim %s of pod %s is not needed", c.Name, owner.Name)
			}
		}
	}
}
