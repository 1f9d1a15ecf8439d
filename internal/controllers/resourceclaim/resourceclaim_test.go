package resourceclaim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/controller"
	"skiff/test/world"
)

func newPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-p"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers:                    []corev1.Container{{Name: "c", Image: "image:1"}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func fromTemplate(name, template string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &template})
	}
}

func byName(name, claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &claim})
	}
}

// recorded adds the name of a claim to the pod's status; without a name, none is needed.
func recorded(name string, claim *string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: claim})
	}
}

func onNode(p *corev1.Pod) { p.Spec.NodeName = "n0" }

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func newTestClaim(name string, changes ...func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: devices("gpu")}
	for _, change := range changes {
		change(claim)
	}
	return claim
}

func devices(request string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "class", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
	}}}}
}

func ownedBy(uid types.UID, podClaim string) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		c.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: podClaim}
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: uid, Controller: ptr.To(true)}}
	}
}

func allocated(c *resourceapi.ResourceClaim) {
	c.Finalizers = []string{resourceapi.Finalizer}
	c.Status.Allocation = &resourceapi.AllocationResult{}
}

func withFinalizer(c *resourceapi.ResourceClaim) { c.Finalizers = []string{resourceapi.Finalizer} }

func deleted(c *resourceapi.ResourceClaim) { c.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) }

func reservedFor(uids ...types.UID) func(*resourceapi.ResourceClaim) {
	return func(c *resourceapi.ResourceClaim) {
		for _, uid := range uids {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: strings.TrimPrefix(string(uid), "uid-"), UID: uid})
		}
	}
}

func newTemplate(name string) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "1"}, Annotations: map[string]string{"b": "2"}}, Spec: devices("gpu"),
		},
	}
}

// TestReconcilePod: claims are created from templates, then named in the pod's status, then reserved for a pod that has a node.
func TestReconcilePod(t *testing.T) {
	const missing = `event PodResourceClaim gpu: resource claim template "t": resourceclaimtemplate.resource.k8s.io "t" not found`
	for _, test := range []struct {
		what      string
		pod       *corev1.Pod
		claims    []*resourceapi.ResourceClaim
		noneThere bool // the template is missing
		want      []string
	}{
		{what: "a user's claim is not created", pod: newPod(byName("gpu", "mine"))},
		{what: "create", pod: newPod(fromTemplate("gpu", "t")), want: []string{"create p-gpu- for gpu"}},
		{what: "create two", pod: newPod(fromTemplate("gpu", "t"), fromTemplate("nic", "t")), want: []string{"create p-gpu- for gpu", "create p-nic- for nic"}},
		{what: "no template", pod: newPod(fromTemplate("gpu", "t")), noneThere: true, want: []string{missing}},
		{what: "none of the supported fields", pod: newPod(func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} }),
			want: []string{`event PodResourceClaim gpu: checking for claim before creating it: pod "default/p", spec.resourceClaim "gpu": none of the supported fields are set`}},
		{what: "no claim needed", pod: newPod(fromTemplate("gpu", "t"), recorded("gpu", nil))},
		{what: "created, not recorded", pod: newPod(fromTemplate("gpu", "t")), claims: []*resourceapi.ResourceClaim{newTestClaim("p-gpu-1", ownedBy("uid-p", "gpu"))},
			want: []string{"record gpu=p-gpu-1"}},
		{what: "created without its template", pod: newPod(fromTemplate("gpu", "t")), noneThere: true, claims: []*resourceapi.ResourceClaim{newTestClaim("p-gpu-1", ownedBy("uid-p", "gpu"))},
			want: []string{"record gpu=p-gpu-1"}},
		{what: "another claim of the pod", pod: newPod(fromTemplate("gpu", "t")), claims: []*resourceapi.ResourceClaim{newTestClaim("p-nic-1", ownedBy("uid-p", "nic"))},
			want: []string{"create p-gpu- for gpu"}},
		{what: "no annotation", pod: newPod(fromTemplate("gpu", "t")), claims: []*resourceapi.ResourceClaim{newTestClaim("x", ownedBy("uid-p", "gpu"), func(c *resourceapi.ResourceClaim) { c.Annotations = nil })},
			want: []string{"create p-gpu- for gpu"}},
		{what: "recorded", pod: newPod(fromTemplate("gpu", "t"), recorded("gpu", ptr.To("p-gpu-1"))), claims: []*resourceapi.ResourceClaim{newTestClaim("p-gpu-1", ownedBy("uid-p", "gpu"))}},
		{what: "recorded names are kept", pod: newPod(fromTemplate("gpu", "t"), fromTemplate("nic", "t"), recorded("gpu", ptr.To("p-gpu-1"))),
			claims: []*resourceapi.ResourceClaim{newTestClaim("p-gpu-1", ownedBy("uid-p", "gpu")), newTestClaim("p-nic-1", ownedBy("uid-p", "nic"))}, want: []string{"record gpu=p-gpu-1", "record nic=p-nic-1"}},
		{what: "deleted by accident", pod: newPod(fromTemplate("gpu", "t"), recorded("gpu", ptr.To("p-gpu-1"))), want: []string{"create p-gpu- for gpu"}},
		{what: "replaced by another's claim", pod: newPod(fromTemplate("gpu", "t"), recorded("gpu", ptr.To("p-gpu-1"))), claims: []*resourceapi.ResourceClaim{newTestClaim("p-gpu-1", ownedBy("uid-other", "gpu"))},
			want: []string{"create p-gpu- for gpu"}},
		{what: "the scheduler reserves", pod: newPod(byName("gpu", "mine")), claims: []*resourceapi.ResourceClaim{newTestClaim("mine", allocated)}},
		{what: "bound without the scheduler", pod: newPod(byName("gpu", "mine"), onNode), claims: []*resourceapi.ResourceClaim{newTestClaim("mine", allocated, reservedFor("uid-q"))},
			want: []string{"reserve mine for q,p"}},
		{what: "not allocated", pod: newPod(byName("gpu", "mine"), onNode), claims: []*resourceapi.ResourceClaim{newTestClaim("mine")}},
		{what: "reserved already", pod: newPod(byName("gpu", "mine"), onNode), claims: []*resourceapi.ResourceClaim{newTestClaim("mine", allocated, reservedFor("uid-p"))}},
		{what: "a name that is too long", pod: newPod(fromTemplate(strings.Repeat("c", 20), "t"), func(p *corev1.Pod) { p.Name = strings.Repeat("p", 60) }),
			want: []string{"create " + strings.Repeat("p", 41) + "-" + strings.Repeat("c", 13) + " for " + strings.Repeat("c", 20)}},
	} {
		t.Run(test.what, func(t *testing.T) {
			template := newTemplate("t")
			v := podView{pod: test.pod, claims: map[string]*resourceapi.ResourceClaim{}, templates: map[string]*resourceapi.ResourceClaimTemplate{"t": template}}
			if test.noneThere {
				v.templates = nil
			}
			for _, c := range test.claims {
				v.claims[c.Name] = c
				if o := podOwner(c); o != nil && o.UID == test.pod.UID {
					v.generated = append(v.generated, c)
				}
			}
			p := v.reconcile()
			if got := describePlan(p); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			for _, c := range p.creates {
				o := c.OwnerReferences[0]
				if c.Labels["a"] != "1" || c.Annotations["b"] != "2" || o.UID != test.pod.UID || o.Name != test.pod.Name || !*o.Controller || o.BlockOwnerDeletion != nil || c.Spec.Devices.Requests[0].Name != "gpu" {
					t.Errorf("created %+v", c)
				}
				c.Spec.Devices.Requests[0].Name, c.Labels["a"] = "changed", "changed"
			}
			if template.Spec.Annotations[resourceapi.PodResourceClaimAnnotation] != "" || template.Spec.Spec.Devices.Requests[0].Name != "gpu" || template.Spec.Labels["a"] != "1" {
				t.Error("the template was changed")
			}
		})
	}
}

func describePlan(p podPlan) (lines []string) {
	for _, c := range p.creates {
		lines = append(lines, "create "+c.GenerateName+" for "+c.Annotations[resourceapi.PodResourceClaimAnnotation])
	}
	if p.failed != nil {
		lines = append(lines, "event "+p.failed.Message)
	}
	for name, claim := range p.names {
		lines = append(lines, "record "+name+"="+claim)
	}
	slices.Sort(lines)
	for _, c := range p.reserves {
		var pods []string
		for _, r := range c.Status.ReservedFor {
			pods = append(pods, r.Name)
		}
		lines = append(lines, "reserve "+c.Name+" for "+strings.Join(pods, ","))
	}
	return lines
}

// TestReconcileClaim: reservations of pods that are done end, the last one deallocates, and the claims of pods that are done are deleted.
func TestReconcileClaim(t *testing.T) {
	group := resourceapi.ResourceClaimConsumerReference{APIGroup: "example.com", Resource: "gangs", Name: "g", UID: "uid-g"}
	for _, test := range []struct {
		what      string
		claim     *resourceapi.ResourceClaim
		consumers int // how many of the reservations are left
		owner     *corev1.Pod
		want      string
	}{
		{what: "never used", claim: newTestClaim("c")},
		{what: "allocated, never reserved", claim: newTestClaim("c", allocated)},
		{what: "in use", claim: newTestClaim("c", allocated, reservedFor("uid-p")), consumers: 1},
		{what: "one of two is done", claim: newTestClaim("c", allocated, reservedFor("uid-p", "uid-q")), consumers: 1, want: "1 allocated"},
		{what: "the last is done", claim: newTestClaim("c", allocated, reservedFor("uid-p")), want: "0 deallocated unlock"},
		{what: "reserved, but not allocated by the scheduler", claim: newTestClaim("c", allocated, reservedFor("uid-p"), func(c *resourceapi.ResourceClaim) { c.Finalizers = nil }), want: "0 allocated"},
		{what: "other consumers are kept", claim: newTestClaim("c", allocated, reservedFor("uid-p"), func(c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor = append([]resourceapi.ResourceClaimConsumerReference{group}, c.Status.ReservedFor...)
		}), consumers: 1, want: "1 allocated"},
		{what: "deleted while in use", claim: newTestClaim("c", allocated, reservedFor("uid-p"), deleted), consumers: 1},
		{what: "deleted after use", claim: newTestClaim("c", allocated, reservedFor("uid-p"), deleted), want: "0 deallocated unlock"},
		{what: "deleted, allocated, never reserved", claim: newTestClaim("c", allocated, deleted), want: "0 deallocated unlock"},
		{what: "deleted with the finalizer only", claim: newTestClaim("c", withFinalizer, deleted), want: "unlock"},
		{what: "the scheduler is about to allocate", claim: newTestClaim("c", withFinalizer)},
		{what: "owner runs", claim: newTestClaim("c", ownedBy("uid-p", "gpu")), owner: newPod()},
		{what: "owner is done", claim: newTestClaim("c", ownedBy("uid-p", "gpu")), owner: newPod(inPhase(corev1.PodSucceeded)), want: "delete"},
		{what: "owner is done, another uses the claim", claim: newTestClaim("c", ownedBy("uid-p", "gpu"), allocated, reservedFor("uid-q")), consumers: 1, owner: newPod(inPhase(corev1.PodSucceeded))},
		{what: "owner is done and was its last user", claim: newTestClaim("c", ownedBy("uid-p", "gpu"), allocated, reservedFor("uid-p")), owner: newPod(inPhase(corev1.PodFailed)), want: "0 deallocated unlock delete"},
		{what: "owner was deleted before it was scheduled", claim: newTestClaim("c", ownedBy("uid-p", "gpu")), owner: newPod(func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) }), want: "delete"},
		{what: "owner terminates on its node", claim: newTestClaim("c", ownedBy("uid-p", "gpu")), owner: newPod(onNode, func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) })},
		{what: "owner was replaced", claim: newTestClaim("c", ownedBy("uid-before", "gpu")), owner: newPod(), want: "delete"},
		{what: "owner is not known", claim: newTestClaim("c", ownedBy("uid-p", "gpu"))},
	} {
		t.Run(test.what, func(t *testing.T) {
			before := test.claim.DeepCopy()
			v := claimView{claim: test.claim, consumers: test.claim.Status.ReservedFor[:test.consumers], owner: test.owner}
			var got []string
			current := test.claim
			if released := v.released(); released != nil {
				got = append(got, fmt.Sprint(len(released.Status.ReservedFor), map[bool]string{true: " allocated", false: " deallocated"}[released.Status.Allocation != nil]))
				current = released
			}
			if unlocked := v.withoutFinalizer(current); unlocked != nil {
				got = append(got, "unlock")
				if hasFinalizer(unlocked) {
					t.Error("the finalizer is still there")
				}
			}
			if v.isUnneeded() {
				got = append(got, "delete")
			}
			if s := strings.Join(got, " "); s != test.want {
				t.Errorf("got %q, want %q", s, test.want)
			}
			if !apiequality.Semantic.DeepEqual(before, test.claim) {
				t.Error("the cached claim was changed")
			}
		})
	}
}

// claimsIn lists the claims: name without its generated end, allocation, number of reservations, finalizers.
func claimsIn(w *world.World) (list []string) {
	w.Pass(time.Second)
	for _, c := range world.List[*resourceapi.ResourceClaim](w) {
		name := c.Name
		if c.GenerateName != "" {
			name = c.GenerateName
		}
		list = append(list, fmt.Sprint(name, " ", c.Status.Allocation != nil, " ", len(c.Status.ReservedFor), " ", len(c.Finalizers)))
	}
	slices.Sort(list)
	return list
}

// allocate does what the scheduler does with a claim.
func allocate(w *world.World, name string, pods ...*corev1.Pod) {
	world.Edit(w, "default", name, func(c *resourceapi.ResourceClaim) { c.Finalizers = []string{resourceapi.Finalizer} })
	world.EditStatus(w, "default", name, func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.example.com", Pool: "n0", Device: "gpu0"}}}}
		for _, pod := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		}
	})
}

// TestResourceClaimInAWorld follows a generated claim from its template to its deletion, and a shared one from pod to pod.
func TestResourceClaimInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		registry := prometheus.NewRegistry()
		var err error
		if w.Metrics, err = controller.NewMetrics(registry); err != nil {
			t.Fatal(err)
		}
		defer w.Run(ResourceClaim)()
		pod := newPod(fromTemplate("gpu", "t"), byName("shared", "shared"))
		pod.UID = ""
		world.Create(w, pod)
		if got := claimsIn(w); len(got) > 0 {
			t.Errorf("claims without a template: %q", got)
		}
		if events := w.Events("p"); !slices.Contains(events, `FailedResourceClaimCreation: PodResourceClaim gpu: resource claim template "t": resourceclaimtemplate.resource.k8s.io "t" not found`) {
			t.Errorf("events %q", events)
		}
		world.Create(w, newTemplate("t"))
		if got := fmt.Sprint(claimsIn(w)); got != "[p-gpu- false 0 0]" {
			t.Fatalf("claims %s", got)
		}
		pod = world.Get[*corev1.Pod](w, "default", "p")
		statuses := pod.Status.ResourceClaimStatuses
		if len(statuses) != 1 || statuses[0].Name != "gpu" || !strings.HasPrefix(*statuses[0].ResourceClaimName, "p-gpu-") {
			t.Fatalf("statuses %+v", statuses)
		}
		if !slices.ContainsFunc(pod.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == fieldManager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "status"
		}) {
			t.Errorf("managed fields %+v", pod.ManagedFields)
		}

		// A user deletes the claim: it is created again, under a new name.
		first := *statuses[0].ResourceClaimName
		w.Remove(world.Get[*resourceapi.ResourceClaim](w, "default", first))
		if got := fmt.Sprint(claimsIn(w)); got != "[p-gpu- false 0 0]" {
			t.Fatalf("claims %s", got)
		}
		generated := *world.Get[*corev1.Pod](w, "default", "p").Status.ResourceClaimStatuses[0].ResourceClaimName
		if generated == first {
			t.Error("the status names the deleted claim")
		}

		// The scheduler allocates both; the pod succeeds: the generated claim is deleted, the shared one is released.
		shared := newTestClaim("shared")
		world.Create(w, shared)
		allocate(w, generated, pod)
		allocate(w, "shared", pod)
		if got := fmt.Sprint(claimsIn(w)); got != "[p-gpu- true 1 1 shared true 1 1]" {
			t.Errorf("in use: %s", got)
		}
		world.EditStatus(w, "default", "p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		if got := fmt.Sprint(claimsIn(w)); got != "[shared false 0 0]" {
			t.Errorf("the pod has succeeded: %s", got)
		}

		// A deleted pod releases the claim too. A pod that was bound without the scheduler gets its reservation.
		bound := newPod(byName("shared", "shared"), onNode)
		bound.Name, bound.UID = "bound", ""
		bound = world.Create(w, bound)
		allocate(w, "shared")
		if got := fmt.Sprint(claimsIn(w)); got != "[shared true 1 1]" {
			t.Errorf("bound: %s", got)
		}
		w.Remove(bound)
		if got := fmt.Sprint(claimsIn(w)); got != "[shared false 0 0]" {
			t.Errorf("deleted: %s", got)
		}

		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var metrics []string
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), "dynamic_resource_allocation_") {
				for _, m := range f.Metric {
					var labels []string
					for _, l := range m.Label {
						labels = append(labels, l.GetName()+"="+l.GetValue())
					}
					metrics = append(metrics, fmt.Sprintf("%s{%s} %v", strings.TrimPrefix(f.GetName(), "dynamic_resource_allocation_"), strings.Join(labels, ","), m.GetCounter().GetValue()+m.GetGauge().GetValue()))
				}
			}
		}
		slices.Sort(metrics)
		if got, want := strings.Join(metrics, "\n"), "resource_claims{admin_access=false,allocated=false,source=} 1\nresourceclaim_creates_total{admin_access=false,owner_api_group=,owner_api_kind=Pod,status=success} 2"; got != want {
			t.Errorf("metrics:\n%s", got)
		}
	})
}

// TestExtendedResourceClaim: the claim that the scheduler made of a pod's extended resources is deleted when the pod is done.
func TestExtendedResourceClaim(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(ResourceClaim)()
		pod := newPod()
		pod.UID = ""
		gpus := corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: gpus, Limits: gpus}
		pod = world.Create(w, pod)
		claim := newTestClaim("p-extended-resources", ownedBy(pod.UID, ""))
		claim.Annotations = map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
		world.Create(w, claim)
		allocate(w, claim.Name, pod)
		world.EditStatus(w, "default", "p", func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim.Name,
				RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "gpu"}}}
		})
		if got := fmt.Sprint(claimsIn(w)); got != "[p-extended-resources true 1 1]" {
			t.Errorf("in use: %s", got)
		}
		world.EditStatus(w, "default", "p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		if got := claimsIn(w); len(got) > 0 {
			t.Errorf("the pod has failed: %q", got)
		}
	})
}
