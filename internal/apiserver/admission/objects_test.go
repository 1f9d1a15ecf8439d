package admission

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

func TestTaintNodesByCondition(t *testing.T) {
	n := node("n1")
	want(t, try(taintNodesByCondition{}, creating(n)), "")
	want(t, try(taintNodesByCondition{}, creating(n)), "")
	same(t, n.Spec.Taints, []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}})
	want(t, try(taintNodesByCondition{}, updating(n, n)), unhandled)
	want(t, try(taintNodesByCondition{}, creating(n, sub("status"))), unhandled)
}

// class makes a storage class of an age in seconds.
func class(name string, age int, annotations ...string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: cluster(name)}
	c.CreationTimestamp = metav1.Unix(1000000-int64(age), 0)
	c.Annotations = map[string]string{}
	for _, a := range annotations {
		c.Annotations[a] = "true"
	}
	return c
}

func TestDefaultStorageClass(t *testing.T) {
	const is, was = "storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"
	annotated := claim("", "1Gi")
	annotated.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "x"}
	empty := claim("", "1Gi")
	empty.Spec.StorageClassName = ptr("")
	for name, c := range map[string]struct {
		w     *world
		claim *corev1.PersistentVolumeClaim
		want  any
	}{
		"default":        {newWorld(class("a", 1), class("b", 1, is)), claim("", "1Gi"), "b"},
		"old annotation": {newWorld(class("a", 1, was)), claim("", "1Gi"), "a"},
		"newest":         {newWorld(class("a", 9, is), class("b", 1, is), class("c", 5, is)), claim("", "1Gi"), "b"},
		"equally new":    {newWorld(class("b", 1, is), class("a", 1, is)), claim("", "1Gi"), "a"},
		"no default":     {newWorld(class("a", 1)), claim("", "1Gi"), nil},
		"asked for":      {newWorld(class("a", 1, is)), claim("mine", "1Gi"), "mine"},
		"asked for none": {newWorld(class("a", 1, is)), empty, ""},
		"annotated":      {newWorld(class("a", 1, is)), annotated, nil},
	} {
		t.Run(name, func(t *testing.T) {
			want(t, try(&defaultStorageClass{c.w.env}, creating(c.claim)), "")
			same(t, c.claim.Spec.StorageClassName, c.want)
		})
	}
	want(t, try(&defaultStorageClass{newWorld().env}, updating(claim("", "1Gi"), claim("", "1Gi"))), unhandled)
}

func TestStorageObjectInUseProtection(t *testing.T) {
	for finalizer, obj := range map[string]kind.Object{
		"kubernetes.io/pvc-protection": claim("", "1Gi"),
		"kubernetes.io/pv-protection":  &corev1.PersistentVolume{ObjectMeta: cluster("v")},
		"kubernetes.io/vac-protection": &storagev1.VolumeAttributesClass{ObjectMeta: cluster("c")},
	} {
		obj.SetFinalizers([]string{"own/one"})
		want(t, try(storageObjectInUseProtection{}, creating(obj)), "")
		want(t, try(storageObjectInUseProtection{}, creating(obj)), "")
		same(t, obj.GetFinalizers(), []string{"own/one", finalizer})
		want(t, try(storageObjectInUseProtection{}, updating(obj, obj)), unhandled)
	}
}

func TestPersistentVolumeClaimResize(t *testing.T) {
	grows, fixed := class("grows", 1), class("fixed", 1)
	grows.AllowVolumeExpansion = ptr(true)
	r := &persistentVolumeClaimResize{newWorld(grows, fixed).env}
	bound := func(class, size string) *corev1.PersistentVolumeClaim {
		c := claim(class, size)
		c.Status.Phase = corev1.ClaimBound
		return c
	}
	cannot := "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
	for name, c := range map[string]struct {
		old, claim *corev1.PersistentVolumeClaim
		want       string
	}{
		"grows":         {bound("grows", "1Gi"), bound("grows", "2Gi"), ""},
		"shrinks":       {bound("fixed", "2Gi"), bound("fixed", "1Gi"), ""},
		"stays":         {bound("fixed", "1Gi"), bound("fixed", "1024Mi"), ""},
		"fixed":         {bound("fixed", "1Gi"), bound("fixed", "2Gi"), cannot},
		"no class":      {bound("", "1Gi"), bound("", "2Gi"), cannot},
		"unknown class": {bound("x", "1Gi"), bound("x", "2Gi"), cannot},
		"changes class": {bound("fixed", "1Gi"), bound("grows", "2Gi"), cannot},
		"not bound":     {claim("grows", "1Gi"), bound("grows", "2Gi"), `persistentvolumeclaims "data" is forbidden: Only bound persistent volume claims can be expanded`},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(r, updating(c.old, c.claim)), c.want) })
	}
	want(t, try(r, updating(bound("fixed", "1Gi"), bound("fixed", "2Gi"), sub("status"))), unhandled)
	want(t, try(r, creating(bound("fixed", "2Gi"))), unhandled)
}

func TestDefaultIngressClass(t *testing.T) {
	ingressClass := func(name string, age int, isDefault bool) *networkingv1.IngressClass {
		c := &networkingv1.IngressClass{ObjectMeta: cluster(name)}
		c.CreationTimestamp = metav1.NewTime(time.Unix(1000000-int64(age), 0))
		if isDefault {
			c.Annotations = map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}
		}
		return c
	}
	ingress := func() *networkingv1.Ingress { return &networkingv1.Ingress{ObjectMeta: named("i")} }
	r := &defaultIngressClass{newWorld(ingressClass("a", 9, true), ingressClass("b", 1, true), ingressClass("c", 0, false)).env}
	i := ingress()
	want(t, try(r, creating(i)), "")
	same(t, i.Spec.IngressClassName, "b")
	i = ingress()
	i.Annotations = map[string]string{ingressClassAnnotation: "x"}
	want(t, try(r, creating(i)), "")
	same(t, i.Spec.IngressClassName, nil)
	i = ingress()
	i.Spec.IngressClassName = ptr("mine")
	want(t, try(r, creating(i)), "")
	same(t, i.Spec.IngressClassName, "mine")
	want(t, try(r, updating(ingress(), ingress())), unhandled)
	i = ingress()
	want(t, try(&defaultIngressClass{newWorld().env}, creating(i)), "")
	same(t, i.Spec.IngressClassName, nil)
}

func TestDenyServiceExternalIPs(t *testing.T) {
	with := func(addresses ...string) *corev1.Service {
		s := service("ClusterIP", 1)
		s.Spec.ExternalIPs = addresses
		return s
	}
	denied := `services "svc" is forbidden: Use of external IPs is denied by admission control`
	for name, c := range map[string]struct {
		a    *Attributes
		want string
	}{
		"none":    {creating(with()), ""},
		"new":     {creating(with("192.0.2.1")), denied},
		"kept":    {updating(with("192.0.2.1"), with("192.0.2.1")), ""},
		"fewer":   {updating(with("192.0.2.1", "192.0.2.2"), with("192.0.2.2")), ""},
		"another": {updating(with("192.0.2.1"), with("192.0.2.2")), denied},
		"more":    {updating(with("192.0.2.1"), with("192.0.2.1", "192.0.2.2")), denied},
		"status":  {updating(with(), with("192.0.2.1"), sub("status")), unhandled},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(denyServiceExternalIPs{}, c.a), c.want) })
	}
}

func TestOwnerReferences(t *testing.T) {
	resources := func(gvk schema.GroupVersionKind) (schema.GroupVersionResource, bool, bool) {
		return gvk.GroupVersion().WithResource("replicasets"), true, gvk.Kind == "ReplicaSet"
	}
	owned := func(blocks bool, kind string) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "rs", UID: "u", BlockOwnerDeletion: &blocks}}
		})
	}
	for name, c := range map[string]struct {
		may  allow
		a    *Attributes
		want string
	}{
		"no owner":                 {nil, creating(pod()), ""},
		"created with an owner":    {nil, creating(owned(false, "ReplicaSet")), ""},
		"given an owner":           {nil, updating(pod(), owned(false, "ReplicaSet")), "cannot set an ownerRef on a resource you can't delete: because, <nil>"},
		"freed":                    {nil, updating(owned(false, "ReplicaSet"), pod()), "cannot set an ownerRef on a resource you can't delete"},
		"given, may delete":        {allow{"delete pods web"}, updating(pod(), owned(false, "ReplicaSet")), ""},
		"blocks":                   {nil, creating(owned(true, "ReplicaSet")), "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on"},
		"blocks, may finalize":     {allow{"update replicasets/finalizers rs"}, creating(owned(true, "ReplicaSet")), ""},
		"blocks, may everything":   {allow{"update */finalizers *"}, creating(owned(true, "Strange")), ""},
		"blocks something strange": {nil, creating(owned(true, "Strange")), "cannot find RESTMapping for APIVersion apps/v1 Kind Strange"},
		"starts to block":          {allow{"delete pods web"}, updating(owned(false, "ReplicaSet"), owned(true, "ReplicaSet")), "cannot set blockOwnerDeletion"},
		"blocked before":           {allow{"delete pods web"}, updating(owned(true, "ReplicaSet"), owned(true, "ReplicaSet")), ""},
		"pod status":               {nil, updating(pod(), owned(true, "ReplicaSet"), sub("status")), unhandled},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(&ownerReferencesPermissionEnforcement{c.may, resources}, c.a), c.want) })
	}
}

func TestEventRateLimit(t *testing.T) {
	limits := func(kind string) *eventRateLimit {
		c := &eventLimitConfig{}
		c.Limits = append(c.Limits, struct {
			Type      string `json:"type"`
			QPS       int32  `json:"qps"`
			Burst     int32  `json:"burst"`
			CacheSize int32  `json:"cacheSize,omitempty"`
		}{Type: kind, QPS: 1, Burst: 2})
		r, err := newEventRateLimit(c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	event := func(namespace, about string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: namespace}, InvolvedObject: corev1.ObjectReference{Name: about}}
	}
	newer := func(a *Attributes) { a.Resource.Group = "events.k8s.io" }
	for _, kind := range []string{"Server", "Namespace", "User", "SourceAndObject"} {
		r := limits(kind)
		want(t, try(r, creating(event("a", "x"))), "")
		want(t, try(r, creating(event("a", "x"), newer)), "")
		want(t, try(r, creating(event("a", "x"))), "limit reached on type "+kind)
		want(t, try(r, updating(event("a", "x"), event("a", "x"), newer)), "limit reached on type "+kind)
		others := map[string]string{"Server": "limit reached"}
		want(t, try(r, creating(event("b", "y"), by("joe"))), others[kind])
		want(t, try(r, creating(event("a", "x"), func(a *Attributes) { a.DryRun = true })), unhandled)
		want(t, try(r, creating(pod())), unhandled)
	}
}
