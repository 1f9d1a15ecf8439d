package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/world"
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
	v := localPathView{claim: aClaim(), class: lazy, nodeName: "n", node: node, settings: LocalPathSettings{Dir: "/data", Cleaned: true}}.volume()
	if v.Spec.HostPath.Path != "/data/pvc-uid-data_default_data" || *v.Spec.HostPath.Type != corev1.HostPathDirectoryOrCreate ||
		v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "host-n" || v.Finalizers[0] != localPathFinalizer {
		t.Errorf("volume %+v", v)
	}
}

func TestRemoveDir(t *testing.T) {
	directory, outside := t.TempDir(), t.TempDir()
	at := func(path string) *corev1.PersistentVolume {
		return aVolume("pvc-1", func(v *corev1.PersistentVolume) { v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: path} })
	}
	inside := filepath.Join(directory, "pvc-1_default_data")
	for _, dir := range []string{filepath.Join(inside, "deep"), filepath.Join(outside, "pvc-1_x")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(inside, "link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(outside, "pvc-1_x"), directory, directory + "/../" + filepath.Base(outside) + "/pvc-1_x", filepath.Join(directory, "other")} {
		if err := removeDir(directory, at(path)); err == nil {
			t.Errorf("%s was removed", path)
		}
	}
	if err := removeDir(directory, at(inside)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(inside); !os.IsNotExist(err) {
		t.Error("the directory is still there")
	}
	if _, err := os.Stat(filepath.Join(outside, "pvc-1_x")); err != nil {
		t.Error("what a link led to is gone")
	}
	if err := removeDir(directory, at(inside)); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// TestStorageInAWorld follows claims from their creation to their end.

func TestLocalPathRefusals(t *testing.T) {
	lazy := aClass(LocalPathClass, LocalPathProvisioner, storagev1.VolumeBindingWaitForFirstConsumer)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	source := &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
	for _, test := range []struct {
		what  string
		claim *corev1.PersistentVolumeClaim
		class *storagev1.StorageClass
		node  *corev1.Node
		want  string
	}{
		{"one node", aClaim(), lazy, node, ""},
		{"one pod", aClaim(wanting(corev1.ReadWriteOncePod)), lazy, node, ""},
		{"no modes", aClaim(wanting()), lazy, node, ""},
		{"a filesystem, explicitly", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeFilesystem) }), lazy, node, ""},
		{"many readers", aClaim(wanting(corev1.ReadWriteOnce, corev1.ReadOnlyMany)), lazy, node, "only access modes ReadWriteOnce and ReadWriteOncePod are supported"},
		{"many writers", aClaim(wanting(corev1.ReadWriteMany)), lazy, node, "only access modes ReadWriteOnce and ReadWriteOncePod are supported"},
		{"blocks", aClaim(wantsBlocks), lazy, node, "volumeMode Block is not supported"},
		{"at once", aClaim(), aClass("x", LocalPathProvisioner, storagev1.VolumeBindingImmediate), node, "the storage class must have volumeBindingMode WaitForFirstConsumer"},
		{"no binding mode", aClaim(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, node, "the storage class must have volumeBindingMode WaitForFirstConsumer"},
		{"a selector", aClaim(selecting("a", metav1.LabelSelectorOpExists)), lazy, node, "claim Selector is not supported"},
		{"a source", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSource = source }), lazy, node, "data sources are not supported"},
		{"a source by reference", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "X"} }), lazy, node, "data sources are not supported"},
		{"a node that is gone", aClaim(), lazy, nil, `node "n" not found`},
	} {
		v := localPathView{claim: test.claim, class: test.class, nodeName: "n", node: test.node}
		if got := v.refuse(); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
		plan := v.reconcile()
		told := fully(controller.Plan{Events: plan.Events})
		want := fmt.Sprintf("tell data Warning ProvisioningFailed: failed to provision volume with StorageClass %q: %s", test.class.Name, test.want)
		if (test.want == "") != (len(plan.Steps) == 1) || test.want != "" && told != want {
			t.Errorf("%s: %s", test.what, fully(plan))
		}
	}
}

// TestLocalPathVolume: the volume as it is made.
func TestLocalPathVolume(t *testing.T) {
	class := func(changes ...change[*storagev1.StorageClass]) *storagev1.StorageClass {
		return with(aClass(LocalPathClass, LocalPathProvisioner, storagev1.VolumeBindingWaitForFirstConsumer), changes...)
	}
	retaining := func(c *storagev1.StorageClass) { c.ReclaimPolicy = new(corev1.PersistentVolumeReclaimRetain) }
	node := func(host string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		if host != "" {
			n.Labels = map[string]string{corev1.LabelHostname: host}
		}
		return n
	}
	long := strings.Repeat("x", 250)
	for _, test := range []struct {
		what     string
		claim    *corev1.PersistentVolumeClaim
		class    *storagev1.StorageClass
		node     *corev1.Node
		settings LocalPathSettings
		want     string
	}{
		{"by default", aClaim(), class(), node("host-n"), LocalPathSettings{Dir: "/data"}, "pvc-uid-data 1Gi [ReadWriteOnce] local-path Delete /data/pvc-uid-data_default_data on host-n [] []"},
		{"cleaned by the nodes", aClaim(), class(), node("host-n"), LocalPathSettings{Dir: "/data", Cleaned: true}, "pvc-uid-data 1Gi [ReadWriteOnce] local-path Delete /data/pvc-uid-data_default_data on host-n [skiff.io/local-path] []"},
		{"kept: nobody need clean", aClaim(), class(retaining), node("host-n"), LocalPathSettings{Dir: "/data", Cleaned: true}, "pvc-uid-data 1Gi [ReadWriteOnce] local-path Retain /data/pvc-uid-data_default_data on host-n [] []"},
		{"a node without a host name", aClaim(), class(), node(""), LocalPathSettings{Dir: "/data"}, "pvc-uid-data 1Gi [ReadWriteOnce] local-path Delete /data/pvc-uid-data_default_data on n [] []"},
		{"mount options of the class", aClaim(asking("3Gi"), wanting(corev1.ReadWriteOncePod)), class(func(c *storagev1.StorageClass) { c.Name, c.MountOptions = "mine", []string{"noatime"} }), node("h"), LocalPathSettings{Dir: "/a/b/"},
			"pvc-uid-data 3Gi [ReadWriteOncePod] mine Delete /a/b/pvc-uid-data_default_data on h [] [noatime]"},
		{"a name that is too long for a directory", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Name = long }), class(), node("h"), LocalPathSettings{Dir: "/d"},
			"pvc-uid-data 1Gi [ReadWriteOnce] local-path Delete /d/" + ("pvc-uid-data_default_" + long)[:255] + " on h [] []"},
	} {
		v := localPathView{claim: test.claim, class: test.class, nodeName: "n", node: test.node, settings: test.settings}.volume()
		term := v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
		size := v.Spec.Capacity[corev1.ResourceStorage]
		got := fmt.Sprintf("%s %s %v %s %s %s on %s %v %v", v.Name, size.String(), v.Spec.AccessModes, v.Spec.StorageClassName, v.Spec.PersistentVolumeReclaimPolicy, v.Spec.HostPath.Path, term.Values[0], v.Finalizers, v.Spec.MountOptions)
		if got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.what, got, test.want)
		}
		ref := v.Spec.ClaimRef
		if term.Key != corev1.LabelHostname || term.Operator != corev1.NodeSelectorOpIn || ref.UID != "uid-data" || ref.Namespace != "default" || ref.Name != test.claim.Name || ref.Kind != "PersistentVolumeClaim" ||
			mapWords(v.Annotations) != "pv.kubernetes.io/provisioned-by=skiff.io/local-path skiff.io/local-path-node=n" || *v.Spec.VolumeMode != corev1.PersistentVolumeFilesystem || *v.Spec.HostPath.Type != corev1.HostPathDirectoryOrCreate {
			t.Errorf("%s: %+v", test.what, v)
		}
	}
}

// TestLocalPathReclaim: what becomes of a volume whose claim is gone.
func TestLocalPathReclaim(t *testing.T) {
	remove := reclaims(corev1.PersistentVolumeReclaimDelete)
	released := inPhase(corev1.VolumeReleased)
	held := func(v *corev1.PersistentVolume) { v.Finalizers = []string{volumeFinalizer, localPathFinalizer} }
	for _, test := range []struct {
		what   string
		volume *corev1.PersistentVolume
		there  bool
		want   string
	}{
		{"in use", aVolume("v", remove, inPhase(corev1.VolumeBound)), true, ""},
		{"released", aVolume("v", remove, released), true, "delete PV v"},
		{"released, kept", aVolume("v", released), true, ""},
		{"failed", aVolume("v", remove, inPhase(corev1.VolumeFailed)), true, ""},
		{"leaving: its node cleans", aVolume("v", remove, released, leavingVolume, held), true, ""},
		{"leaving, its node is gone", aVolume("v", remove, released, leavingVolume, held), false, "patch PV v"},
		{"leaving, its node is gone, nothing is held", aVolume("v", remove, released, leavingVolume), false, ""},
		{"its node is gone, but it stays", aVolume("v", remove, inPhase(corev1.VolumeBound), held), false, ""},
	} {
		if got := words(reclaimLocalPath(test.volume, test.there)); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
}

// TestNewLocalPathClass: the class that comes along is the default, unless there is one.
func TestNewLocalPathClass(t *testing.T) {
	other := func(annotation, is string) *storagev1.StorageClass {
		c := aClass("other", "example.com/disk", storagev1.VolumeBindingImmediate)
		c.Annotations = map[string]string{annotation: is}
		return c
	}
	for _, test := range []struct {
		what   string
		others []*storagev1.StorageClass
		want   string
	}{
		{"alone", nil, "storageclass.kubernetes.io/is-default-class=true"},
		{"beside one that is not the default", []*storagev1.StorageClass{other(defaultClass, "false")}, "storageclass.kubernetes.io/is-default-class=true"},
		{"beside the default", []*storagev1.StorageClass{other("x", ""), other(defaultClass, "true")}, ""},
		{"beside the default by the older annotation", []*storagev1.StorageClass{other(oldDefaultClass, "true")}, ""},
	} {
		c := newLocalPathClass(test.others)
		if mapWords(c.Annotations) != test.want || c.Name != "local-path" || c.Provisioner != "skiff.io/local-path" || *c.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete || !waitsForFirstConsumer(c) {
			t.Errorf("%s: %+v", test.what, c)
		}
	}
}

// TestRemoveDirectoryRefusals: nothing outside is ever removed.
func TestRemoveDirRefusals(t *testing.T) {
	directory := t.TempDir()
	for _, path := range []string{
		"/", "", directory, filepath.Dir(directory), filepath.Join(directory, "other"), filepath.Join(directory, "pvc-1", "deep"), directory + "/../pvc-1", filepath.Join(directory, "..", "pvc-1"), "pvc-1", directory + "pvc-1",
	} {
		v := aVolume("pvc-1", func(v *corev1.PersistentVolume) { v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: path} })
		if err := removeDir(directory, v); err == nil {
			t.Errorf("%q: it was removed", path)
		}
	}
	if err := removeDir(directory, aVolume("pvc-1", csi)); err == nil {
		t.Error("a volume that is no directory")
	}
	gone := aVolume("pvc-1", func(v *corev1.PersistentVolume) {
		v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: filepath.Join(directory, "pvc-1_x")}
	})
	if err := removeDir(directory, gone); err != nil {
		t.Errorf("what is gone is gone: %v", err)
	}
	if err := removeDir(filepath.Join(directory, "none"), aVolume("pvc-1", func(v *corev1.PersistentVolume) {
		v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: filepath.Join(directory, "none", "pvc-1_x")}
	})); err != nil {
		t.Errorf("nothing was ever made there: %v", err)
	}
}

// TestLocalPathInAWorld: a claim, its pod's node, the volume; and after the claim the directory.
func TestLocalPathInAWorld(t *testing.T) {
	directory := t.TempDir()
	world.In(t, func(w *world.World) {
		settings := LocalPathSettings{Dir: directory, Cleaned: true}
		defer w.Run(Binder, LocalPath(settings), LocalPathCleaner("n1", directory), ClaimProtection, VolumeProtection)()
		for _, name := range []string{"n1", "n2"} {
			world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		w.Pass(time.Second)
		if c := world.Get[*storagev1.StorageClass](w, "", LocalPathClass); !isDefault(c) {
			t.Errorf("class %+v", c)
		}
		claim := func(name, node string) *corev1.PersistentVolumeClaim {
			c := aClaim(ofClass(LocalPathClass))
			c.Name, c.UID, c.Status = name, "", corev1.PersistentVolumeClaimStatus{}
			made := world.Create(w, c)
			w.Pass(time.Second)
			if got := world.Get[*corev1.PersistentVolumeClaim](w, "default", name); got.Spec.VolumeName != "" {
				t.Errorf("%s has a volume before it has a node", name)
			}
			world.Edit(w, "default", name, func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, selectedNode, node) })
			w.Pass(time.Second)
			if got := world.Get[*corev1.PersistentVolumeClaim](w, "default", name); got.Status.Phase != corev1.ClaimBound || got.Spec.VolumeName != "pvc-"+string(made.UID) {
				t.Fatalf("%s: %+v", name, got.Status)
			}
			return made
		}
		first, second := claim("first", "n1"), claim("second", "n2")
		if told := w.Events("first"); !slices.Contains(told, "ProvisioningSucceeded: Successfully provisioned volume pvc-"+string(first.UID)) {
			t.Errorf("told %q", told)
		}
		path := filepath.Join(directory, "pvc-"+string(first.UID)+"_default_first")
		if err := os.MkdirAll(filepath.Join(path, "deep"), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*corev1.PersistentVolumeClaim{first, second} {
			w.Remove(world.Get[*corev1.PersistentVolumeClaim](w, "default", c.Name))
		}
		w.Pass(time.Minute)
		if !world.Gone[*corev1.PersistentVolume](w, "", "pvc-"+string(first.UID)) {
			t.Error("the first volume stays")
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("its directory stays: %v", err)
		}
		// The second node has no cleaner here; the volume waits for it until the node is gone.
		if world.Gone[*corev1.PersistentVolume](w, "", "pvc-"+string(second.UID)) {
			t.Error("the second volume went before its directory")
		}
		w.Remove(world.Get[*corev1.Node](w, "", "n2"))
		w.Pass(time.Second)
		if !world.Gone[*corev1.PersistentVolume](w, "", "pvc-"+string(second.UID)) {
			t.Error("the second volume waits for a node that is gone")
		}
	})
}

// TestCleanerKeepsItsHandsOff: what is not its node's, not to go, or held by others, stays.
func TestCleanerKeepsItsHandsOff(t *testing.T) {
	for _, test := range []struct {
		what       string
		node       string
		finalizers []string
		leaves     bool
		cleaned    bool
	}{
		{"its own, to go", "n1", []string{localPathFinalizer}, true, true},
		{"another node's", "n2", []string{localPathFinalizer}, true, false},
		{"not to go", "n1", []string{localPathFinalizer}, false, false},
		{"held by others, too", "n1", []string{"example.com/mine", localPathFinalizer}, true, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			directory := t.TempDir()
			path := filepath.Join(directory, "pvc-1_default_data")
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
			world.In(t, func(w *world.World) {
				defer w.Run(LocalPathCleaner("n1", directory))()
				v := aVolume("pvc-1", marked(localPathNode, test.node), func(v *corev1.PersistentVolume) {
					v.Finalizers, v.UID, v.Spec.HostPath = test.finalizers, "", &corev1.HostPathVolumeSource{Path: path}
				})
				made := world.Create(w, v)
				if test.leaves {
					w.Remove(made)
				}
				w.Pass(time.Second)
				_, err := os.Stat(path)
				if cleaned := os.IsNotExist(err); cleaned != test.cleaned || world.Gone[*corev1.PersistentVolume](w, "", "pvc-1") != test.cleaned {
					t.Errorf("cleaned %v", cleaned)
				}
			})
		})
	}
}
