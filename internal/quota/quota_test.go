package quota

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var now = time.Unix(1_000_000, 0)

func amounts(text string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, part := range strings.Fields(text) {
		name, value, _ := strings.Cut(part, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return l
}

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func asks(requests, limits string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amounts(requests), Limits: amounts(limits)}
	}
}

func initAsks(requests string, always bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := corev1.Container{Name: "i", Resources: corev1.ResourceRequirements{Requests: amounts(requests)}}
		if always {
			policy := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &policy
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
}

// is compares a quantity by its value.
func is(l corev1.ResourceList, name corev1.ResourceName, value string) bool {
	got, ok := l[name]
	return ok && got.Cmp(resource.MustParse(value)) == 0
}

func ptr[T any](v T) *T { return &v }

func TestPodUsage(t *testing.T) {
	deleted := func(ago, grace int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(-time.Duration(ago) * time.Second)}, &grace
		}
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"nothing":                    {pod(), "count/pods=1,pods=1"},
		"everything":                 {pod(asks("cpu=1 memory=1Gi ephemeral-storage=2Gi hugepages-2Mi=4Mi example.com/gpu=2", "cpu=2 memory=2Gi ephemeral-storage=3Gi")), "count/pods=1,cpu=1,ephemeral-storage=2Gi,hugepages-2Mi=4Mi,limits.cpu=2,limits.ephemeral-storage=3Gi,limits.memory=2Gi,memory=1Gi,pods=1,requests.cpu=1,requests.ephemeral-storage=2Gi,requests.example.com/gpu=2,requests.hugepages-2Mi=4Mi,requests.memory=1Gi"},
		"init container, the larger": {pod(asks("cpu=1", ""), initAsks("cpu=3", false)), "count/pods=1,cpu=3,pods=1,requests.cpu=3"},
		"sidecar, added":             {pod(asks("cpu=1", ""), initAsks("cpu=3", true)), "count/pods=1,cpu=4,pods=1,requests.cpu=4"},
		"overhead":                   {pod(asks("cpu=1", ""), func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu=250m") }), "count/pods=1,cpu=1250m,pods=1,requests.cpu=1250m"},
		"pod as a whole": {pod(asks("cpu=1", ""), func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu=5"), Limits: amounts("memory=1Gi")}
		}), "count/pods=1,cpu=5,limits.memory=1Gi,pods=1,requests.cpu=5"},
		"device class":     {pod(asks("deviceclass.resource.kubernetes.io/gpu=1", "")), "count/pods=1,pods=1,requests.deviceclass.resource.kubernetes.io/gpu=1"},
		"a native unknown": {pod(asks("kubernetes.io/batman=1", "")), "count/pods=1,pods=1"},
		"succeeded":        {pod(asks("cpu=1", ""), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), "count/pods=1"},
		"failed":           {pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), "count/pods=1"},
		"leaving":          {pod(deleted(10, 30)), "count/pods=1,pods=1"},
		"should be gone":   {pod(deleted(40, 30)), "count/pods=1"},
		"debug containers ask nothing": {pod(func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 1)
		}), "count/pods=1,pods=1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Format(PodUsage(c.pod, now)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestPodScopes(t *testing.T) {
	beyond := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{PodAffinityTerm: corev1.PodAffinityTerm{NamespaceSelector: &metav1.LabelSelector{}}},
		}}}
	}
	within := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: make([]corev1.PodAffinityTerm, 1)}}
	}
	class := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.PriorityClassName = name }
	}
	deadline := func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr(int64(0)) }
	scope := func(name, op string, values ...string) corev1.ScopedResourceSelectorRequirement {
		return corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScope(name), Operator: corev1.ScopeSelectorOperator(op), Values: values}
	}
	for name, c := range map[string]struct {
		scope corev1.ScopedResourceSelectorRequirement
		pod   *corev1.Pod
		want  bool
	}{
		"terminating":               {scope("Terminating", "Exists"), pod(deadline), true},
		"not terminating":           {scope("NotTerminating", "Exists"), pod(deadline), false},
		"no deadline":               {scope("NotTerminating", "Exists"), pod(), true},
		"best effort":               {scope("BestEffort", "Exists"), pod(), true},
		"extended only":             {scope("BestEffort", "Exists"), pod(asks("example.com/gpu=1", "")), true},
		"zero":                      {scope("BestEffort", "Exists"), pod(asks("cpu=0", "")), true},
		"asks":                      {scope("BestEffort", "Exists"), pod(asks("cpu=1", "")), false},
		"init container asks":       {scope("BestEffort", "Exists"), pod(initAsks("memory=1", false)), false},
		"limits":                    {scope("NotBestEffort", "Exists"), pod(asks("", "memory=1")), true},
		"asks as a whole":           {scope("NotBestEffort", "Exists"), pod(func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu=1")} }), true},
		"priority exists":           {scope("PriorityClass", "Exists"), pod(class("a")), true},
		"priority exists not":       {scope("PriorityClass", "Exists"), pod(), false},
		"priority does not exist":   {scope("PriorityClass", "DoesNotExist"), pod(), true},
		"priority in":               {scope("PriorityClass", "In", "a", "b"), pod(class("b")), true},
		"priority in, none":         {scope("PriorityClass", "In", "a", "b"), pod(), false},
		"priority not in":           {scope("PriorityClass", "NotIn", "a"), pod(class("b")), true},
		"priority not in, but is":   {scope("PriorityClass", "NotIn", "a"), pod(class("a")), false},
		"priority not in, none":     {scope("PriorityClass", "NotIn", "a"), pod(), true},
		"across namespaces":         {scope("CrossNamespacePodAffinity", "Exists"), pod(beyond), true},
		"within the namespace":      {scope("CrossNamespacePodAffinity", "Exists"), pod(within), false},
		"a scope of something else": {scope("VolumeAttributesClass", "Exists"), pod(), false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := podInScope(c.scope, c.pod)
			if err != nil || got != c.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	if _, err := podInScope(scope("PriorityClass", "Near"), pod()); err == nil {
		t.Error("an unknown operator selects")
	}
	if _, err := podInScope(scope("PriorityClass", "Exists"), &corev1.Service{}); err == nil {
		t.Error("a service is a pod")
	}
}

func TestServiceUsage(t *testing.T) {
	service := func(kind corev1.ServiceType, allocate *bool, nodePorts ...int32) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, AllocateLoadBalancerNodePorts: allocate}}
		for _, p := range nodePorts {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{NodePort: p})
		}
		return s
	}
	for want, s := range map[string]*corev1.Service{
		"count/services=1,services=1,services.loadbalancers=0,services.nodeports=0": service("ClusterIP", nil, 0, 0),
		"count/services=1,services=1,services.loadbalancers=0,services.nodeports=2": service("NodePort", nil, 0, 0),
		"count/services=1,services=1,services.loadbalancers=1,services.nodeports=3": service("LoadBalancer", nil, 0, 0, 0),
		"count/services=1,services=1,services.loadbalancers=1,services.nodeports=1": service("LoadBalancer", ptr(false), 0, 30000),
	} {
		if got := Format(serviceUsage(s)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestVolumeClaims(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr("gold"), Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage=1500m")},
	}}
	want := "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/requests.storage=2,persistentvolumeclaims=1,requests.storage=2"
	if got := Format(volumeClaimUsage(claim)); got != want {
		t.Errorf("got %s", got)
	}
	claim.Status.AllocatedResources = amounts("storage=5")
	claim.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "tin"}
	if got := volumeClaimUsage(claim); !is(got, "tin.storageclass.storage.k8s.io/requests.storage", "5") {
		t.Errorf("got %s", Format(got))
	}
	e := volumeClaimEvaluator()
	for name, counts := range map[corev1.ResourceName]bool{
		"requests.storage": true, "persistentvolumeclaims": true, "count/persistentvolumeclaims": true, "x.storageclass.storage.k8s.io/requests.storage": true,
		"x.storageclass.storage.k8s.io/persistentvolumeclaims": true, "x.storageclass.storage.k8s.io/other": false, "count/pods": false, "storage": false,
	} {
		if e.counts(name) != counts {
			t.Errorf("%s: %v", name, !counts)
		}
	}
	// While a claim changes from one class to another it is in the scope of both.
	claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName = ptr("fast"), ptr("slow")
	for _, class := range []string{"fast", "slow"} {
		in, err := e.inScope(corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopeVolumeAttributesClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{class}}, claim)
		if err != nil || !in {
			t.Errorf("%s: %v, %v", class, in, err)
		}
	}
	old := claim.DeepCopy()
	if e.AffectsUsage(Write{Subresource: "status", Object: claim, Old: old}) {
		t.Error("a status that does not change concerns quotas")
	}
	old.Status.CurrentVolumeAttributesClassName = nil
	if !e.AffectsUsage(Write{Subresource: "status", Object: claim, Old: old}) || !ReducesUsage(claim, old, now) {
		t.Error("a class that changes concerns no quota")
	}
}

// fixed are devices that do not change.
type fixed struct {
	classes []*resourcev1.DeviceClass
	pod     *corev1.Pod
	claims  []*resourcev1.ResourceClaim
}

func (f fixed) DeviceClasses() ([]*resourcev1.DeviceClass, error)               { return f.classes, nil }
func (f fixed) Pod(string, string) *corev1.Pod                                  { return f.pod }
func (f fixed) ExtendedClaims(*corev1.Pod) ([]*resourcev1.ResourceClaim, error) { return f.claims, nil }

func TestResourceClaims(t *testing.T) {
	exactly := func(class string, mode resourcev1.DeviceAllocationMode, n int64) resourcev1.DeviceRequest {
		return resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: mode, Count: n}}
	}
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n"}}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{
		exactly("gpu", resourcev1.DeviceAllocationModeExactCount, 2), exactly("nic", resourcev1.DeviceAllocationModeAll, 0),
		{FirstAvailable: []resourcev1.DeviceSubRequest{
			{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
			{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 3},
		}},
	}
	want := "count/resourceclaims.resource.k8s.io=1,gpu.deviceclass.resource.k8s.io/devices=5,nic.deviceclass.resource.k8s.io/devices=32"
	if got := Format(resourceClaimUsage(claim)); got != want {
		t.Errorf("got %s", got)
	}
	gpu := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr("example.com/gpu")}}
	owner := pod(asks("example.com/gpu=4", ""), func(p *corev1.Pod) { p.UID = "u" })
	devices := fixed{classes: []*resourcev1.DeviceClass{gpu}, pod: owner, claims: []*resourcev1.ResourceClaim{claim}}
	e := resourceClaimEvaluator(devices)
	used, err := e.Usage(claim, now)
	if err != nil || !is(used, "requests.example.com/gpu", "5") || !is(used, "requests.deviceclass.resource.kubernetes.io/nic", "32") {
		t.Errorf("got %s, %v", Format(used), err)
	}
	// What the pod is charged with already is not charged again, for one claim.
	claim.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u", Controller: ptr(true)}}
	if used, _ = e.Usage(claim, now); !is(used, "requests.example.com/gpu", "1") {
		t.Errorf("got %s", Format(used))
	}
	second := claim.DeepCopy()
	second.Name = "d"
	if used, _ = e.Usage(second, now); !is(used, "requests.example.com/gpu", "5") {
		t.Errorf("a second claim is charged with the same pod: %s", Format(used))
	}
	for name, counts := range map[corev1.ResourceName]bool{
		"gpu.deviceclass.resource.k8s.io/devices": true, "count/resourceclaims.resource.k8s.io": true, "requests.example.com/gpu": true,
		"requests.example.com/fpga": false, "requests.deviceclass.resource.kubernetes.io/gpu": true, "requests.deviceclass.resource.kubernetes.io/x": false, "pods": false,
	} {
		if e.counts(name) != counts {
			t.Errorf("%s: %v", name, !counts)
		}
	}
}

func quotaOf(hard, used string, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "n"}}
	q.Spec.Hard, q.Spec.Scopes = amounts(hard), scopes
	q.Status.Hard, q.Status.Used = amounts(hard), amounts(used)
	return q
}

// TestChargeByScope: an update is charged with the difference where it was counted before, in full where it was not, and
// not at all where it is no longer.
func TestChargeByScope(t *testing.T) {
	r := NewRegistry(nil)
	quotas := []*corev1.ResourceQuota{
		quotaOf("pods=9 requests.cpu=9", "pods=0 requests.cpu=0", corev1.ResourceQuotaScopeTerminating),
		quotaOf("pods=9 requests.cpu=9", "pods=0 requests.cpu=0", corev1.ResourceQuotaScopeNotTerminating),
		quotaOf("pods=9 requests.cpu=9", "pods=0 requests.cpu=0"),
		quotaOf("services=9", "services=0"),
	}
	old := pod(asks("cpu=1", ""))
	obj := pod(asks("cpu=3", ""), func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr(int64(9)) })
	charges, err := r.For(podsResource).Charge(quotas, Write{Object: obj, Old: old}, nil, now)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range charges {
		got = append(got, Format(c))
	}
	if strings.Join(got, " ") != "pods=1,requests.cpu=3  requests.cpu=2 " {
		t.Errorf("got %q", got)
	}
}

func TestFit(t *testing.T) {
	q := quotaOf("pods=3 cpu=2", "pods=3 cpu=1")
	if err := CheckFits(q, amounts("cpu=1")); err != nil {
		t.Error(err)
	}
	err := CheckFits(q, amounts("pods=1 cpu=1500m memory=1"))
	var refusal *ForbiddenError
	if !errors.As(err, &refusal) || err.Error() != "exceeded quota: q, requested: cpu=1500m,pods=1, used: cpu=1,pods=3, limited: cpu=2,pods=3" {
		t.Errorf("got %v", err)
	}
}

// TestUsed: adding up everything gives what charging one by one gives.
func TestUsed(t *testing.T) {
	r := NewRegistry(nil)
	objects := map[schema.GroupResource][]runtime.Object{
		podsResource: {pod(asks("cpu=1", "")), pod(asks("cpu=500m", "")), pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
			pod(asks("cpu=8", ""), func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr(int64(1)) })},
		{Group: "apps", Resource: "deployments"}: {pod(), pod()},
	}
	list := func(gr schema.GroupResource) ([]runtime.Object, error) {
		if gr.Resource == "services" {
			return nil, errors.New("no")
		}
		return objects[gr], nil
	}
	used, err := r.Used(quotaOf("pods=9 requests.cpu=9 count/pods=9 limits.cpu=1 count/deployments.apps=5 secrets=1 services=3", ""), list, now)
	if err == nil || !strings.Contains(err.Error(), "sum up usage of services: no") {
		t.Errorf("got %v", err)
	}
	if got := Format(used); got != "count/deployments.apps=2,count/pods=4,limits.cpu=0,pods=3,requests.cpu=9500m,secrets=0" {
		t.Errorf("got %s", got)
	}
	if used, err = r.Used(quotaOf("pods=9 requests.cpu=9", "", corev1.ResourceQuotaScopeTerminating), list, now); err != nil || Format(used) != "pods=1,requests.cpu=8" {
		t.Errorf("got %s, %v", Format(used), err)
	}
}

func TestIgnored(t *testing.T) {
	r := NewRegistry(nil)
	for _, gr := range []schema.GroupResource{{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}, {Resource: "bindings"}, {Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}} {
		if r.For(gr) != nil {
			t.Errorf("%s is counted", gr)
		}
	}
	gr := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	e := r.For(gr)
	if e == nil || e != r.For(gr) || !e.counts("count/widgets.example.com") || e.counts("count/widgets") {
		t.Errorf("custom resources are not counted: %+v", e)
	}
	if e.AffectsUsage(Write{Object: pod(), Old: pod()}) || e.AffectsUsage(Write{Subresource: "status", Object: pod()}) || !e.AffectsUsage(Write{Object: pod()}) {
		t.Error("counts change by creation only")
	}
}

func TestFrees(t *testing.T) {
	ended := pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	resized := pod(func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Resources: &corev1.ResourceRequirements{Requests: amounts("cpu=1")}}}
	})
	started := pod(func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c"}} })
	balancer := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	for name, c := range map[string]struct {
		obj, old runtime.Object
		want     bool
	}{
		"a pod ends": {ended, pod(), true}, "it had ended": {ended, ended, false}, "it runs on": {pod(), pod(), false},
		"it gets a deadline": {pod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr(int64(1)) }), pod(), true},
		"it is resized":      {resized, started, true}, "a service": {&corev1.Service{}, balancer, true}, "not a service": {&corev1.Service{}, &corev1.Service{}, false},
		"something else": {&corev1.Secret{}, &corev1.Secret{}, false},
	} {
		if got := ReducesUsage(c.obj, c.old, now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestArithmeticLeavesItsArguments(t *testing.T) {
	a, b := amounts("x=1 y=2"), amounts("y=3 z=4")
	if Format(Add(a, b)) != "x=1,y=5,z=4" || Format(Subtract(a, b)) != "x=1,y=0" || Equal(a, b) || !Equal(a, amounts("y=2 x=1000m")) {
		t.Error("wrong sums")
	}
	if Format(a) != "x=1,y=2" || Format(b) != "y=3,z=4" {
		t.Errorf("arguments are now %s and %s", Format(a), Format(b))
	}
}
