package authz

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

func node(name string) authn.User {
	return user("system:node:"+name, "system:nodes", "system:authenticated")
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func local(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

// fullPod has every kind of reference.
func fullPod() *corev1.Pod {
	env := func(name string) []corev1.EnvVar {
		return []corev1.EnvVar{
			{Name: "plain", Value: "x"},
			{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: local(name + "-secret-env")}}},
			{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: local(name + "-map-env")}}},
		}
	}
	from := []corev1.EnvFromSource{
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: local("secret-from")}},
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: local("map-from")}},
	}
	volume := func(name string, source corev1.VolumeSource) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: source}
	}
	ref := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	return &corev1.Pod{
		ObjectMeta: named("ns", "pod"),
		Spec: corev1.PodSpec{
			NodeName: "n1", ServiceAccountName: "account", ImagePullSecrets: []corev1.LocalObjectReference{local("pull")},
			InitContainers:      []corev1.Container{{Env: env("init")}},
			Containers:          []corev1.Container{{Env: env("main"), EnvFrom: from}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Env: env("debug")}}},
			Volumes: []corev1.Volume{
				volume("a", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret-volume"}}),
				volume("b", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: local("map-volume")}}),
				volume("c", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}),
				volume("d", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}),
				volume("e", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{Secret: &corev1.SecretProjection{LocalObjectReference: local("secret-projected")}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: local("map-projected")}},
				}}}),
				volume("f", corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "azure"}}),
				volume("g", corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{SecretRef: ref("ceph")}}),
				volume("h", corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{SecretRef: ref("cinder")}}),
				volume("i", corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{SecretRef: ref("flex")}}),
				volume("j", corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{SecretRef: ref("rbd")}}),
				volume("k", corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: ref("scaleio")}}),
				volume("l", corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: ref("iscsi")}}),
				volume("m", corev1.VolumeSource{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: ref("storageos")}}),
				volume("n", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: ref("csi")}}),
			},
			ResourceClaims: []corev1.PodResourceClaim{
				{Name: "x", ResourceClaimName: ptr.To("device")}, {Name: "y", ResourceClaimTemplateName: ptr.To("t")}, {Name: "z", ResourceClaimTemplateName: ptr.To("t")},
			},
		},
		Status: corev1.PodStatus{
			ResourceClaimStatuses:       []corev1.PodResourceClaimStatus{{Name: "y", ResourceClaimName: ptr.To("device-made")}, {Name: "z"}},
			ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "device-extended"},
		},
	}
}

func testGraph() *NodeGraph {
	g := NewNodeGraph()
	mirror := &corev1.Pod{ObjectMeta: named("ns", "mirror"), Spec: corev1.PodSpec{
		NodeName: "n1", ServiceAccountName: "other", ImagePullSecrets: []corev1.LocalObjectReference{local("other")},
	}}
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	for _, obj := range []kind.Object{
		fullPod(), mirror,
		&corev1.Pod{ObjectMeta: named("ns", "unbound"), Spec: corev1.PodSpec{ServiceAccountName: "other"}},
		&corev1.PersistentVolume{ObjectMeta: named("", "pv"), Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "claim"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				NodeStageSecretRef: &corev1.SecretReference{Namespace: "csi", Name: "stage"}, NodePublishSecretRef: &corev1.SecretReference{Namespace: "csi", Name: "publish"},
				NodeExpandSecretRef:        &corev1.SecretReference{Namespace: "csi", Name: "expand"},
				ControllerPublishSecretRef: &corev1.SecretReference{Namespace: "csi", Name: "controller"},
			}},
		}},
		&corev1.PersistentVolume{ObjectMeta: named("", "ceph"), Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: "ns", Name: "pod-d"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CephFS: &corev1.CephFSPersistentVolumeSource{SecretRef: &corev1.SecretReference{Name: "in-claims-namespace"}}},
		}},
		&corev1.PersistentVolume{ObjectMeta: named("", "unbound"), Spec: corev1.PersistentVolumeSpec{}},
		&storagev1.VolumeAttachment{ObjectMeta: named("", "va"), Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}},
		&resourcev1.ResourceSlice{ObjectMeta: named("", "slice"), Spec: resourcev1.ResourceSliceSpec{NodeName: ptr.To("n1")}},
		&resourcev1.ResourceSlice{ObjectMeta: named("", "shared")},
		&certificatesv1.PodCertificateRequest{ObjectMeta: named("ns", "pcr"), Spec: certificatesv1.PodCertificateRequestSpec{NodeName: types.NodeName("n1")}},
	} {
		g.Set(obj)
	}
	return g
}

func TestNode(t *testing.T) {
	authorizer := NewNode(testGraph())
	n1 := node("n1")
	unrelated := "no relationship found between node 'n1' and this object"
	with := func(a *Attributes, selector string) *Attributes {
		a.FieldSelector = selector
		return a
	}
	tests := []struct {
		ask  *Attributes
		want Decision
		why  string
	}{
		{on(user("jane"), "get", "secrets pull", "ns"), NoOpinion, ""},
		{on(user("system:node:n1"), "get", "secrets pull", "ns"), NoOpinion, ""},
		{on(node(""), "get", "secrets pull", "ns"), NoOpinion, `unknown node for user "system:node:"`},
		{on(n1, "list", "secrets pull", "ns"), Allow, ""},
		{on(n1, "watch", "configmaps map-from", "ns"), Allow, ""},
		{on(n1, "list", "secrets", "ns"), NoOpinion, "No Object name found"},
		{on(n1, "update", "secrets pull", "ns"), NoOpinion, "can only read resources of this type"},
		{on(n1, "get", "secrets/x pull", "ns"), NoOpinion, "cannot read subresource"},
		{on(n1, "get", "secrets pull", ""), NoOpinion, "can only read namespaced object of this type"},
		{on(n1, "get", "secrets pull", "other"), NoOpinion, unrelated},
		{on(n1, "get", "secrets other", "ns"), NoOpinion, unrelated},
		{on(node("n2"), "get", "secrets pull", "ns"), NoOpinion, "no relationship found between node 'n2' and this object"},
		{on(n1, "get", "secrets controller", "csi"), NoOpinion, unrelated},
		{on(n1, "get", "persistentvolumes pv", ""), Allow, ""},
		{on(n1, "get", "persistentvolumes pv", "ns"), NoOpinion, unrelated},
		{on(n1, "get", "persistentvolumes unbound", ""), NoOpinion, unrelated},
		{on(n1, "list", "persistentvolumes pv", ""), NoOpinion, "can only get individual resources of this type"},
		{on(n1, "get", "persistentvolumes/status pv", ""), NoOpinion, "cannot get subresource"},
		{on(n1, "get", "persistentvolumeclaims claim", "ns"), Allow, ""},
		{on(n1, "patch", "persistentvolumeclaims/status claim", "ns"), Allow, ""},
		{on(n1, "get", "persistentvolumeclaims/status claim", "ns"), NoOpinion, "can only get/update/patch this type"},
		{on(n1, "update", "persistentvolumeclaims/status none", "ns"), NoOpinion, unrelated},
		{on(n1, "get", "resource.k8s.io:resourceclaims device", "ns"), Allow, ""},
		{on(n1, "get", "storage.k8s.io:volumeattachments va", ""), Allow, ""},
		{on(node("n2"), "get", "storage.k8s.io:volumeattachments va", ""), NoOpinion, "no relationship found between node 'n2' and this object"},
		{on(n1, "get", "serviceaccounts account", "ns"), Allow, ""},
		{on(n1, "get", "serviceaccounts other", "ns"), NoOpinion, unrelated},
		{on(n1, "create", "serviceaccounts/token account", "ns"), Allow, ""},
		{on(n1, "create", "serviceaccounts/token other", "ns"), NoOpinion, unrelated},
		{on(n1, "create", "serviceaccounts/token", "ns"), NoOpinion, "can only create tokens for individual service accounts"},
		{on(n1, "create", "serviceaccounts/x account", "ns"), NoOpinion, "can only create token subresource of serviceaccount"},
		{on(n1, "list", "serviceaccounts account", "ns"), NoOpinion, "can only create tokens for individual service accounts"},
		{on(n1, "update", "coordination.k8s.io:leases n1", "kube-node-lease"), Allow, ""},
		{on(n1, "create", "coordination.k8s.io:leases", "kube-node-lease"), Allow, ""},
		{on(n1, "list", "coordination.k8s.io:leases", "kube-node-lease"), NoOpinion, "can only get, create, update, patch, or delete a node lease"},
		{on(n1, "update", "coordination.k8s.io:leases n1", "kube-system"), NoOpinion, `can only access leases in the "kube-node-lease" system namespace`},
		{on(n1, "update", "coordination.k8s.io:leases n2", "kube-node-lease"), NoOpinion, "can only access node lease with the same name as the requesting node"},
		{on(n1, "patch", "storage.k8s.io:csinodes n1", ""), Allow, ""},
		{on(n1, "create", "storage.k8s.io:csinodes", ""), Allow, ""},
		{on(n1, "get", "storage.k8s.io:csinodes n2", ""), NoOpinion, "can only access CSINode with the same name as the requesting node"},
		{on(n1, "list", "storage.k8s.io:csinodes", ""), NoOpinion, "can only get, create, update, patch, or delete a CSINode"},
		{on(n1, "get", "storage.k8s.io:csinodes/status n1", ""), NoOpinion, "CSINode status access requires CSIVolumeHealth feature"},
		{on(n1, "get", "storage.k8s.io:csinodes/x n1", ""), NoOpinion, "cannot authorize CSINode subresources"},
		{on(n1, "create", "resource.k8s.io:resourceslices", ""), Allow, ""},
		{on(n1, "delete", "resource.k8s.io:resourceslices slice", ""), Allow, ""},
		{on(n1, "get", "resource.k8s.io:resourceslices shared", ""), NoOpinion, unrelated},
		{on(n1, "list", "resource.k8s.io:resourceslices", ""), NoOpinion, "can only list/watch/deletecollection resourceslices with nodeName field selector"},
		{with(on(n1, "deletecollection", "resource.k8s.io:resourceslices", ""), "spec.nodeName=n1"), Allow, ""},
		{with(on(n1, "list", "resource.k8s.io:resourceslices", ""), "spec.nodeName=n2"), NoOpinion, "can only list/watch/deletecollection resourceslices with nodeName field selector"},
		{on(n1, "use", "resource.k8s.io:resourceslices slice", ""), NoOpinion, "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"},
		{on(n1, "get", "resource.k8s.io:resourceslices/x slice", ""), NoOpinion, "cannot authorize ResourceSlice subresources"},
		{on(n1, "get", "certificates.k8s.io:podcertificaterequests pcr", "ns"), Allow, ""},
		{on(n1, "create", "certificates.k8s.io:podcertificaterequests", "ns"), Allow, ""},
		{on(n1, "get", "certificates.k8s.io:podcertificaterequests x", "ns"), NoOpinion, unrelated},
		{with(on(n1, "watch", "certificates.k8s.io:podcertificaterequests", ""), "spec.nodeName=n1"), Allow, ""},
		{on(n1, "watch", "certificates.k8s.io:podcertificaterequests", ""), NoOpinion, "can only list/watch podcertificaterequests with nodeName field selector"},
		{on(n1, "delete", "certificates.k8s.io:podcertificaterequests pcr", "ns"), NoOpinion, "nodes may not delete podcertificaterequests"},
		{on(n1, "update", "certificates.k8s.io:podcertificaterequests/status pcr", "ns"), NoOpinion, "nodes may not access the status subresource of PodCertificateRequests"},
		{on(n1, "get", "nodes n1", ""), Allow, ""},
		{on(n1, "get", "nodes n2", ""), NoOpinion, "node 'n1' cannot read 'n2', only its own Node object"},
		{on(n1, "list", "nodes", ""), NoOpinion, "node 'n1' cannot read all nodes, only its own Node object"},
		{on(n1, "create", "nodes", ""), Allow, ""},
		{on(n1, "patch", "nodes/status n1", ""), Allow, ""},
		{on(n1, "get", "nodes/status n1", ""), NoOpinion, ""},
		{on(n1, "delete", "nodes n1", ""), NoOpinion, ""},
		{on(n1, "get", "nodes/proxy n1", ""), NoOpinion, ""},
		{on(n1, "get", "pods pod", "ns"), Allow, ""},
		{on(n1, "get", "pods mirror", "ns"), Allow, ""},
		{on(n1, "get", "pods unbound", "ns"), NoOpinion, unrelated},
		{on(n1, "watch", "pods pod", "ns"), Allow, ""},
		{on(n1, "list", "pods", ""), NoOpinion, "can only list/watch pods with spec.nodeName field selector"},
		{with(on(n1, "list", "pods", ""), "spec.nodeName=n1,status.phase!=Failed"), Allow, ""},
		{with(on(n1, "list", "pods", ""), "spec.nodeName!=n1"), NoOpinion, "can only list/watch pods with spec.nodeName field selector"},
		{with(on(n1, "list", "pods", ""), "spec.nodeName=n1,bad"), NoOpinion, "can only list/watch pods with spec.nodeName field selector"},
		{on(n1, "create", "pods", "ns"), Allow, ""},
		{on(n1, "delete", "pods x", "ns"), Allow, ""},
		{on(n1, "update", "pods pod", "ns"), NoOpinion, ""},
		{on(n1, "patch", "pods/status pod", "ns"), Allow, ""},
		{on(n1, "create", "pods/eviction pod", "ns"), Allow, ""},
		{on(n1, "get", "pods/log pod", "ns"), NoOpinion, ""},
		// Resources that are the same for all nodes.
		{on(n1, "list", "services", ""), Allow, ""},
		{on(n1, "create", "events", "ns"), Allow, ""},
		{on(n1, "delete", "services s", "ns"), NoOpinion, ""},
		{on(n1, "list", "node.k8s.io:runtimeclasses", ""), Allow, ""},
		{at(n1, "get", "/healthz"), NoOpinion, ""},
	}
	for _, secret := range []string{
		"pull", "init-secret-env", "main-secret-env", "debug-secret-env", "secret-from", "secret-volume", "secret-projected", "azure", "ceph",
		"cinder", "flex", "rbd", "scaleio", "iscsi", "storageos", "csi", "in-claims-namespace",
	} {
		tests = append(tests, struct {
			ask  *Attributes
			want Decision
			why  string
		}{on(n1, "get", "secrets "+secret, "ns"), Allow, ""})
	}
	for what, namespace := range map[string]string{
		"secrets stage": "csi", "secrets publish": "csi", "secrets expand": "csi", "persistentvolumes ceph": "",
		"configmaps init-map-env": "ns", "configmaps main-map-env": "ns", "configmaps debug-map-env": "ns", "configmaps map-from": "ns",
		"configmaps map-volume": "ns", "configmaps map-projected": "ns", "persistentvolumeclaims pod-d": "ns",
		"resource.k8s.io:resourceclaims device-made": "ns", "resource.k8s.io:resourceclaims device-extended": "ns",
	} {
		tests = append(tests, struct {
			ask  *Attributes
			want Decision
			why  string
		}{on(n1, "get", what, namespace), Allow, ""})
	}
	for _, test := range tests {
		got, why, err := authorizer.Authorize(context.Background(), test.ask)
		if got != test.want || why != test.why || err != nil {
			t.Errorf("%s %s %s/%s %q in %q: %v %q %v, want %v %q", test.ask.User.Username, test.ask.Verb, test.ask.Resource, test.ask.Subresource,
				test.ask.Name, test.ask.Namespace, got, why, err, test.want, test.why)
		}
	}
	if rules, err := authorizer.RulesFor(context.Background(), n1, "ns"); err == nil || !rules.Incomplete {
		t.Error("the rules of a node are not incomplete")
	}
	if rules, err := authorizer.RulesFor(context.Background(), user("jane"), "ns"); err != nil || rules.Incomplete {
		t.Error("there are rules for a user that is not a node")
	}
}

func TestNodeGraphDelete(t *testing.T) {
	g := testGraph()
	for _, obj := range []kind.Object{
		fullPod(), &corev1.Pod{ObjectMeta: named("ns", "mirror")}, &corev1.PersistentVolume{ObjectMeta: named("", "pv")}, &corev1.PersistentVolume{ObjectMeta: named("", "ceph")},
		&storagev1.VolumeAttachment{ObjectMeta: named("", "va")}, &resourcev1.ResourceSlice{ObjectMeta: named("", "slice")},
		&certificatesv1.PodCertificateRequest{ObjectMeta: named("ns", "pcr")},
	} {
		g.Delete(obj)
		g.Delete(obj)
	}
	if left := len(g.nodes) + len(g.references) + len(g.pods) + len(g.volumes) + len(g.volumesByClaim); left > 0 {
		t.Errorf("left: %+v", g)
	}
}

// TestNodeGraphAgainstRebuild adds, changes and deletes objects at random and compares with a new graph of the remaining ones.
func TestNodeGraphAgainstRebuild(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	name := func(prefix string, n int) string { return fmt.Sprint(prefix, r.IntN(n)) }
	g := NewNodeGraph()
	objects := make(map[string]kind.Object)
	for range 5000 {
		var obj kind.Object
		if r.IntN(2) == 0 {
			pod := &corev1.Pod{ObjectMeta: named("ns", name("pod", 8)), Spec: corev1.PodSpec{NodeName: name("node", 3), ServiceAccountName: name("account", 2)}}
			for range r.IntN(3) {
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name("claim", 3)},
				}})
				pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, local(name("secret", 3)))
			}
			obj = pod
		} else {
			volume := &corev1.PersistentVolume{ObjectMeta: named("", name("pv", 4))}
			if r.IntN(4) > 0 {
				volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name("claim", 3)}
			}
			volume.Spec.ISCSI = &corev1.ISCSIPersistentVolumeSource{SecretRef: &corev1.SecretReference{Name: name("secret", 3)}}
			obj = volume
		}
		key := fmt.Sprintf("%T %s", obj, obj.GetName())
		if r.IntN(3) == 0 {
			delete(objects, key)
			g.Delete(obj)
		} else {
			objects[key] = obj
			g.Set(obj)
		}
	}
	fresh := NewNodeGraph()
	for _, obj := range objects {
		fresh.Set(obj)
	}
	if got, want := fmt.Sprint(g.references, g.nodes, len(g.pods), len(g.volumes), len(g.volumesByClaim)), fmt.Sprint(fresh.references, fresh.nodes, len(fresh.pods), len(fresh.volumes), len(fresh.volumesByClaim)); got != want {
		t.Errorf("after many changes:\n%s\nrebuilt:\n%s", got, want)
	}
}

func BenchmarkNode(b *testing.B) {
	g := testGraph()
	for i := range 10000 {
		pod := fullPod()
		pod.Name, pod.Spec.NodeName = fmt.Sprint("pod-", i), fmt.Sprint("node-", i%100)
		g.Set(pod)
	}
	authorizer := NewNode(g)
	n := node("node-7")
	for name, a := range map[string]*Attributes{
		"secret": on(n, "get", "secrets pull", "ns"), "volume": on(n, "get", "persistentvolumes pv", ""),
		"status": on(n, "patch", "pods/status pod-7", "ns"), "services": on(n, "list", "services", ""),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d, _, _ := authorizer.Authorize(context.Background(), a); d != Allow {
					b.Fatal("refused")
				}
			}
		})
	}
	b.Run("pod comes", func(b *testing.B) {
		pod := fullPod()
		for i := 0; b.Loop(); i++ {
			pod.Spec.NodeName = fmt.Sprint("node-", i%2)
			g.Set(pod)
		}
	})
	b.Run("pod changes", func(b *testing.B) {
		pod := fullPod()
		for b.Loop() {
			g.Set(pod)
		}
	})
}
