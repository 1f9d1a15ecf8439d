package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

// crowded is a world with n objects of each kind that grows with a cluster, in the namespace team and outside of it. Of classes there are
// few in any cluster, and a namespace has few quotas and limit ranges.
func crowded(n int) *world {
	w := newWorld(
		&corev1.Namespace{ObjectMeta: cluster("team")}, &corev1.ServiceAccount{ObjectMeta: named("default")},
		&corev1.LimitRange{ObjectMeta: named("limits")},
		&corev1.ResourceQuota{ObjectMeta: named("quota"), Spec: corev1.ResourceQuotaSpec{Hard: amounts("pods=100 count/services=100 count/configmaps=100 persistentvolumeclaims=100 count/resourceclaims.resource.k8s.io=100")},
			Status: corev1.ResourceQuotaStatus{Hard: amounts("pods=100 count/services=100 count/configmaps=100 persistentvolumeclaims=100 count/resourceclaims.resource.k8s.io=100"),
				Used: amounts("pods=1 count/services=1 count/configmaps=1 persistentvolumeclaims=1 count/resourceclaims.resource.k8s.io=1")}},
		&storagev1.StorageClass{ObjectMeta: cluster("fast"), AllowVolumeExpansion: ptr(true)}, &schedulingv1.PriorityClass{ObjectMeta: cluster("high")},
		&networkingv1.IngressClass{ObjectMeta: cluster("web")}, &resourcev1.DeviceClass{ObjectMeta: cluster("gpu")},
	)
	for i := range n {
		name, namespace := fmt.Sprint("object-", i), fmt.Sprint("namespace-", i)
		w.put(&corev1.Namespace{ObjectMeta: cluster(namespace)})
		w.put(&corev1.Node{ObjectMeta: cluster(name)})
		w.put(&corev1.PersistentVolume{ObjectMeta: cluster(name)})
		w.put(&storagev1.CSINode{ObjectMeta: cluster(name)})
		w.put(&storagev1.CSIDriver{ObjectMeta: cluster(name)})
		w.put(&resourcev1.ResourceSlice{ObjectMeta: cluster(name)})
		for _, meta := range []metav1.ObjectMeta{named(name), {Namespace: namespace, Name: name}} {
			pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "object-0", ServiceAccountName: "default"}}
			pod.UID = types.UID(name)
			w.put(pod)
			w.put(&corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr("fast")}})
			w.put(&corev1.ServiceAccount{ObjectMeta: meta})
			w.put(&corev1.Service{ObjectMeta: meta})
			w.put(&corev1.ConfigMap{ObjectMeta: meta})
			w.put(&corev1.Secret{ObjectMeta: meta})
			w.put(&resourcev1.ResourceClaim{ObjectMeta: meta})
		}
		w.put(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		w.put(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	}
	return w
}

// extendedClaim is a claim that was created for the extended resources of a pod.
func extendedClaim(name, pod string) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{ObjectMeta: named(name)}
	claim.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: ptr(true)}}
	return claim
}

// allowAll allows everything.
type allowAll struct{}

func (allowAll) Authorize(context.Context, *authz.Attributes) (authz.Decision, string, error) {
	return authz.Allow, "", nil
}

// The objects that all plugins together read for a write do not depend on how many there are. Those of a write of a namespace's labels do: its
// pods are checked against the new level, at most maxPodsChecked of them.
func TestReadsPerWrite(t *testing.T) {
	bound := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: named(name), Spec: corev1.PodSpec{NodeName: "object-0", ServiceAccountName: "default"}}
	}
	claim := func(size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: named("object-0"), Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr("fast"), Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage=" + size)},
		}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	}
	unbound := claim("1Gi")
	unbound.Name, unbound.Spec.StorageClassName = "new", nil
	node := &corev1.Node{ObjectMeta: cluster("object-0")}
	const restriction = "namespace, restricted"
	for name, newWrite := range map[string]func() *Attributes{
		"pod":            func() *Attributes { return creating(pod()) },
		"pod of a class": func() *Attributes { return creating(pod(func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })) },
		"pod, changed":   func() *Attributes { return updating(bound("object-0"), bound("object-0")) },
		"pod status of a node": func() *Attributes {
			return updating(bound("object-0"), bound("object-0"), sub("status"), byNode("object-0"))
		},
		"pod deleted by a node": func() *Attributes { return write(Delete, bound("object-0"), byNode("object-0")) },
		"pod bound to a node": func() *Attributes {
			return creating(bound("object-0"), other(pods, "binding", &corev1.Binding{Target: corev1.ObjectReference{Name: "object-0"}}))
		},
		"node status":    func() *Attributes { return updating(node, node, sub("status"), byNode("object-0")) },
		"claim":          func() *Attributes { return creating(unbound) },
		"claim, resized": func() *Attributes { return updating(claim("1Gi"), claim("2Gi")) },
		"service":        func() *Attributes { return creating(&corev1.Service{ObjectMeta: named("new")}) },
		"config map":     func() *Attributes { return creating(&corev1.ConfigMap{ObjectMeta: named("new")}) },
		"secret":         func() *Attributes { return creating(&corev1.Secret{ObjectMeta: named("new")}) },
		"event":          func() *Attributes { return creating(&corev1.Event{ObjectMeta: named("new")}) },
		"ingress":        func() *Attributes { return creating(&networkingv1.Ingress{ObjectMeta: named("new")}) },
		"resource claim": func() *Attributes { return creating(&resourcev1.ResourceClaim{ObjectMeta: named("new")}) },
		"resource claim of a pod's extended resources": func() *Attributes {
			return creating(extendedClaim("new", "object-0"))
		},
		"resource slice of node": func() *Attributes {
			return creating(&resourcev1.ResourceSlice{ObjectMeta: cluster("new"), Spec: resourcev1.ResourceSliceSpec{NodeName: ptr("object-0")}}, byNode("object-0"))
		},
		"volume":    func() *Attributes { return creating(&corev1.PersistentVolume{ObjectMeta: cluster("new")}) },
		"namespace": func() *Attributes { return creating(&corev1.Namespace{ObjectMeta: cluster("new")}) },
		restriction: func() *Attributes {
			restricted := &corev1.Namespace{ObjectMeta: cluster("team")}
			restricted.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
			return updating(&corev1.Namespace{ObjectMeta: cluster("team")}, restricted)
		},
		"priority class": func() *Attributes {
			return creating(&schedulingv1.PriorityClass{ObjectMeta: cluster("new"), GlobalDefault: true})
		},
	} {
		const small, factor = 10, 4
		var reads [2]int
		for i, n := range []int{small, small * factor} {
			w := crowded(n)
			chain := mustList(t, Options{Client: func() kind.Client { return w }, Authorizer: allowAll{}})
			a := newWrite()
			err := chain.Mutate(t.Context(), a)
			if err == nil {
				err = chain.Validate(t.Context(), a)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			reads[i] = w.reads
		}
		if (reads[0] != reads[1]) != (name == restriction) {
			t.Errorf("%s: %d objects are read among %d of each kind, and %d among %d", name, reads[0], small, reads[1], small*factor)
		}
	}
}

// mergeByComparison is mergeTolerations with every pair compared.
func mergeByComparison(all []corev1.Toleration) (merged []corev1.Toleration) {
	covers := func(wide, t *corev1.Toleration) bool {
		switch {
		case equality.Semantic.DeepEqual(wide, t):
			return true
		case t.Key != wide.Key && (wide.Key != "" || wide.Operator != corev1.TolerationOpExists):
			return false
		case t.Effect != wide.Effect && wide.Effect != "":
			return false
		case wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil &&
			(t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds):
			return false
		}
		switch wide.Operator {
		case corev1.TolerationOpEqual, "":
			return t.Operator == corev1.TolerationOpEqual && t.Value == wide.Value
		case corev1.TolerationOpExists:
			return true
		}
		return false
	}
	for i := range all {
		t := &all[i]
		covered := slices.ContainsFunc(merged, func(other corev1.Toleration) bool { return covers(&other, t) }) ||
			slices.ContainsFunc(all[i+1:], func(other corev1.Toleration) bool {
				return !equality.Semantic.DeepEqual(t, &other) && covers(&other, t)
			})
		if !covered {
			merged = append(merged, *t)
		}
	}
	return merged
}

// Random tolerations, of few values so that many cover each other, are merged as if all pairs were compared.
func TestMergeTolerations(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	for range 20_000 {
		var all []corev1.Toleration
		for range random.IntN(7) {
			one := corev1.Toleration{
				Key: pick("", "a", "b"), Value: pick("", "v"), Operator: corev1.TolerationOperator(pick("", "Exists", "Equal", "Lt")),
				Effect: corev1.TaintEffect(pick("", "NoSchedule", "NoExecute")),
			}
			if random.IntN(2) == 0 {
				one.TolerationSeconds = ptr(random.Int64N(3) - 1)
			}
			all = append(all, one)
		}
		split := 0
		if len(all) > 0 {
			split = random.IntN(len(all))
		}
		got, wanted := mergeTolerations(all[:split], all[split:]), mergeByComparison(all)
		if !equality.Semantic.DeepEqual(got, wanted) {
			t.Fatalf("seed %d: %+v\nare merged to %+v\nwant %+v", seed, all, got, wanted)
		}
	}
}

// BenchmarkMergeTolerations merges as many tolerations as a pod and a runtime class can have.
func BenchmarkMergeTolerations(b *testing.B) {
	var all []corev1.Toleration
	for i := range 10_000 {
		all = append(all, corev1.Toleration{Key: fmt.Sprint("key-", i), Operator: corev1.TolerationOpExists})
	}
	for b.Loop() {
		mergeTolerations(all, all)
	}
}
