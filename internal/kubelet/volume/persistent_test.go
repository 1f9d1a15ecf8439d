package volume

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/kind"
)

func put[T kind.Object](t *testing.T, v *Volumes, object T) T {
	t.Helper()
	created, err := client.For[T](v.Client).Create(t.Context(), object, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// bound creates a claim that is bound to a volume with the given source, and a pod that uses it.
func bound(t *testing.T, v *Volumes, name string, source corev1.PersistentVolumeSource, change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)) *corev1.Pod {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name, AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}, Resources: corev1.VolumeResourceRequirements{Requests: size}, StorageClassName: pointer("")},
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name, Annotations: map[string]string{groupAnnotation: "777"}},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source, Capacity: size, AccessModes: claim.Spec.AccessModes, NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "never", Operator: corev1.NodeSelectorOpDoesNotExist}}}}}}},
	}
	if change != nil {
		change(pv, claim)
	}
	phase := claim.Status.Phase
	claim = put(t, v, claim).DeepCopy()
	if pv.Spec.ClaimRef == nil {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: claim.UID}
	}
	put(t, v, pv)
	claim.Status.Capacity = size
	if claim.Status.Phase = corev1.ClaimBound; phase != "" {
		claim.Status.Phase = phase
	}
	if _, err := client.For[*corev1.PersistentVolumeClaim](v.Client).UpdateStatus(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	pod := testPod(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	pod.Namespace, pod.UID = "default", claim.UID
	return pod
}
