package volume

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// fakeObjects are objects in memory.
type fakeObjects struct {
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
	bundles    []*certificatesv1.ClusterTrustBundle
}

func (f *fakeObjects) ConfigMap(_, name string) (*corev1.ConfigMap, error) {
	if m := f.configMaps[name]; m != nil {
		return m, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
}

func (f *fakeObjects) Secret(_, name string) (*corev1.Secret, error) {
	if s := f.secrets[name]; s != nil {
		return s, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
}

func (f *fakeObjects) TrustBundles() ([]*certificatesv1.ClusterTrustBundle, error) {
	return f.bundles, nil
}

func testVolumes(root string, o Objects) *Volumes {
	return New(Options{
		Root: root, Objects: o, NodeName: "node", Log: slog.New(slog.DiscardHandler),
		Node: func() *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node-uid"}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourceCPU: resource.MustParse("2"),
			}}}
		},
	})
}

// testPod is a pod whose one container mounts every volume at /<name>.
func testPod(volumes ...corev1.Volume) *corev1.Pod {
	c := corev1.Container{Name: "main"}
	for _, volume := range volumes {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume.Name, MountPath: "/" + volume.Name})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "space", UID: "uid-1", Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{Volumes: volumes, Containers: []corev1.Container{c}, ServiceAccountName: "default"},
	}
}

func pointer[T any](v T) *T { return &v }

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
