package volume

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLocalPath(t *testing.T) {
	lazy := aClass(LocalPathClass, LocalPathProvisioner, storagev1.VolumeBindingWaitForFirstConsumer)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelHostname: "host-n"}}}
	for _, test := range []struct {
		what string
		view localPathView
		want string
	}{
		{"no node yet", localPathView{claim: aClaim(), class: lazy}, ""},
		{"a node", localPathView{claim: aClaim(), class: lazy, nodeName: "n", node: node}, "create PV pvc-uid-data"},
		{"a node that is gone", localPathView{claim: aClaim(), class: lazy, nodeName: "n"}, "tell ProvisioningFailed"},
		{"a class that does not wait", localPathView{claim: aClaim(), class: aClass("x", LocalPathProvisioner, storagev1.VolumeBindingImmediate)}, "tell ProvisioningFailed"},
		{"for many nodes", localPathView{claim: aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = corev1.ReadWriteMany }), class: lazy, nodeName: "n", node: node}, "tell ProvisioningFailed"},
		{"a block device", localPathView{claim: aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }), class: lazy, nodeName: "n", node: node}, "tell ProvisioningFailed"},
	} {
		if got := words(test.view.reconcile()); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
	v := localPathView{claim: aClaim(), class: lazy, nodeName: "n", node: node, settings: LocalPathSettings{Folder: "/data", Cleaned: true}}.volume()
	if v.Spec.HostPath.Path != "/data/pvc-uid-data_default_data" || *v.Spec.HostPath.Type != corev1.HostPathDirectoryOrCreate ||
		v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "host-n" || v.Finalizers[0] != localPathFinalizer {
		t.Errorf("volume %+v", v)
	}
}

func TestRemoveFolder(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	at := func(path string) *corev1.PersistentVolume {
		return aVolume("pvc-1", func(v *corev1.PersistentVolume) { v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: path} })
	}
	inside := filepath.Join(folder, "pvc-1_default_data")
	for _, dir := range []string{filepath.Join(inside, "deep"), filepath.Join(outside, "pvc-1_x")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(inside, "link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(outside, "pvc-1_x"), folder, folder + "/../" + filepath.Base(outside) + "/pvc-1_x", filepath.Join(folder, "other")} {
		if err := removeFolder(folder, at(path)); err == nil {
			t.Errorf("%s was removed", path)
		}
	}
	if err := removeFolder(folder, at(inside)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(inside); !os.IsNotExist(err) {
		t.Error("the folder is still there")
	}
	if _, err := os.Stat(filepath.Join(outside, "pvc-1_x")); err != nil {
		t.Error("what a link led to is gone")
	}
	if err := removeFolder(folder, at(inside)); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// TestStorageInAWorld follows claims from their creation to their end.
