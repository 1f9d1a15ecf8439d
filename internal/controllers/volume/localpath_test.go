package volume

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/internal/localpath"
	"skiff/test/world"
)

func TestLocalPath(t *testing.T) {
	lazy := aClass(LocalPathClass, localpath.Provisioner, storagev1.VolumeBindingWaitForFirstConsumer)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelHostname: "host-n"}}}
	for _, test := range []struct {
		what string
		view localPathView
		want string
	}{
		{"no node yet", localPathView{claim: aClaim(), class: lazy}, ""},
		{"a node", localPathView{claim: aClaim(), class: lazy, nodeName: "n", node: node}, "create PV pvc-uid-data"},
		{"a node that is gone", localPathView{claim: aClaim(), class: lazy, nodeName: "n"}, "tell ProvisioningFailed"},
		{"a class that does not wait", localPathView{claim: aClaim(), class: aClass("x", localpath.Provisioner, storagev1.VolumeBindingImmediate)}, "tell ProvisioningFailed"},
		{"for many nodes", localPathView{claim: aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = corev1.ReadWriteMany }), class: lazy, nodeName: "n", node: node}, "tell ProvisioningFailed"},
		{"a block device", localPathView{claim: aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }), class: lazy, nodeName: "n", node: node}, "tell ProvisioningFailed"},
	} {
		test.view.settings.Dir = "/data"
		if got := words(test.view.reconcile()); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
	node.Annotations = map[string]string{localpath.DirAnnotation: "/data"}
	v := localPathView{claim: aClaim(), class: lazy, nodeName: "n", node: node, settings: LocalPathSettings{Dir: "/other"}}.volume()
	if v.Spec.HostPath.Path != "/data/pvc-uid-data_default_data" || *v.Spec.HostPath.Type != corev1.HostPathDirectoryOrCreate ||
		v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "host-n" || v.Finalizers[0] != localpath.Finalizer {
		t.Errorf("volume %+v", v)
	}
}

func TestLocalPathRefusals(t *testing.T) {
	lazy := aClass(LocalPathClass, localpath.Provisioner, storagev1.VolumeBindingWaitForFirstConsumer)
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
		{"at once", aClaim(), aClass("x", localpath.Provisioner, storagev1.VolumeBindingImmediate), node, "the storage class must have volumeBindingMode WaitForFirstConsumer"},
		{"no binding mode", aClaim(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, node, "the storage class must have volumeBindingMode WaitForFirstConsumer"},
		{"a selector", aClaim(selecting("a", metav1.LabelSelectorOpExists)), lazy, node, "claim Selector is not supported"},
		{"a source", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSource = source }), lazy, node, "data sources are not supported"},
		{"a source by reference", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "X"} }), lazy, node, "data sources are not supported"},
		{"a node that is gone", aClaim(), lazy, nil, `node "n" not found`},
		{"a node with a relative directory", aClaim(), lazy, announcing("data"), `annotation skiff.io/local-path-dir of node "n" is not a normalized absolute path`},
		{"a node with a directory that is not normalized", aClaim(), lazy, announcing("/data/../etc"), `annotation skiff.io/local-path-dir of node "n" is not a normalized absolute path`},
	} {
		v := localPathView{claim: test.claim, class: test.class, nodeName: "n", node: test.node, settings: LocalPathSettings{Dir: "/data"}}
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

// announcing is a node that removes the directories of its volumes.
func announcing(dir string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node", Labels: map[string]string{corev1.LabelHostname: "host-n"}, Annotations: map[string]string{localpath.DirAnnotation: dir}}}
}

// TestLocalPathVolume: the volume as it is made.
func TestLocalPathVolume(t *testing.T) {
	class := func(changes ...change[*storagev1.StorageClass]) *storagev1.StorageClass {
		return with(aClass(LocalPathClass, localpath.Provisioner, storagev1.VolumeBindingWaitForFirstConsumer), changes...)
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
		{"on a node that removes directories", aClaim(), class(), announcing("/own"), LocalPathSettings{Dir: "/data"}, "pvc-uid-data 1Gi [ReadWriteOnce] local-path Delete /own/pvc-uid-data_default_data on host-n [skiff.io/local-path] []"},
		{"retained", aClaim(), class(retaining), announcing("/own"), LocalPathSettings{Dir: "/data"}, "pvc-uid-data 1Gi [ReadWriteOnce] local-path Retain /own/pvc-uid-data_default_data on host-n [] []"},
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
	held := func(v *corev1.PersistentVolume) { v.Finalizers = []string{volumeFinalizer, localpath.Finalizer} }
	for _, test := range []struct {
		what   string
		volume *corev1.PersistentVolume
		node   *corev1.Node
		want   string
	}{
		{"in use", aVolume("v", remove, inPhase(corev1.VolumeBound)), announcing("/data"), ""},
		{"released", aVolume("v", remove, released, held, inDir("/data")), announcing("/data"), "delete PV v"},
		{"released, retained", aVolume("v", released), announcing("/data"), ""},
		{"failed", aVolume("v", remove, inPhase(corev1.VolumeFailed)), announcing("/data"), ""},
		{"being deleted", aVolume("v", remove, released, leavingVolume, held), announcing("/data"), ""},
		{"from before its node could remove directories", aVolume("v", remove, released, inDir("/data")), announcing("/data"), "patch PV v, delete PV v"},
		{"elsewhere on its node", aVolume("v", remove, released, inDir("/other")), announcing("/data"), "delete PV v"},
		{"its node is deleted", aVolume("v", remove, released, inDir("/data")), nil, "delete PV v"},
	} {
		if got := words(reclaimLocalPath(test.volume, test.node)); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
	}
}

// inDir gives a volume a directory as the provisioner would.
func inDir(dir string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) {
		v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: dir + "/pvc-" + v.Name}
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

// TestLocalPathInAWorld: a claim, its pod's node, the volume; and after the claim the removal of the directory.
func TestLocalPathInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Binder, LocalPath(LocalPathSettings{Dir: "/data"}), LocalPathCleaner, ClaimProtection, VolumeProtection)()
		for _, name := range []string{"n1", "n2"} {
			world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{localpath.DirAnnotation: "/own"}}})
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
		for _, c := range []*corev1.PersistentVolumeClaim{first, second} {
			w.Remove(world.Get[*corev1.PersistentVolumeClaim](w, "default", c.Name))
		}
		w.Pass(time.Minute)
		removals := func(node string) string {
			return world.Get[*corev1.Node](w, "", node).Annotations[localpath.RemovalsAnnotation]
		}
		if got, want := removals("n1"), "pvc-"+string(first.UID)+"_default_first"; got != want {
			t.Errorf("the first node has to remove %q, want %q", got, want)
		}
		if world.Gone[*corev1.PersistentVolume](w, "", "pvc-"+string(first.UID)) {
			t.Error("the first volume was deleted before its directory")
		}
		playRemovals(w, "n1")
		w.Pass(time.Second)
		if !world.Gone[*corev1.PersistentVolume](w, "", "pvc-"+string(first.UID)) || removals("n1") != "" {
			t.Errorf("the first volume is still there, or still to be removed: %q", removals("n1"))
		}
		// The second node does not respond; the volume waits for it until the node is deleted.
		if world.Gone[*corev1.PersistentVolume](w, "", "pvc-"+string(second.UID)) {
			t.Error("the second volume was deleted before its directory")
		}
		w.Remove(world.Get[*corev1.Node](w, "", "n2"))
		w.Pass(time.Second)
		if !world.Gone[*corev1.PersistentVolume](w, "", "pvc-"+string(second.UID)) {
			t.Error("the second volume waits for a node that is deleted")
		}
	})
}

// playRemovals reports all directories as removed that a node has to remove, as its kubelet would.
func playRemovals(w *world.World, node string) {
	world.Edit(w, "", node, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, localpath.RemovedAnnotation, n.Annotations[localpath.RemovalsAnnotation])
	})
}

// TestReconcileRemovals: which directories a node has to remove, and which volumes are done.
func TestReconcileRemovals(t *testing.T) {
	remove := reclaims(corev1.PersistentVolumeReclaimDelete)
	held := func(finalizers ...string) change[*corev1.PersistentVolume] {
		return func(v *corev1.PersistentVolume) { v.Finalizers = finalizers }
	}
	node := func(removals, removed string) *corev1.Node {
		n := announcing("/data")
		for key, value := range map[string]string{localpath.RemovalsAnnotation: removals, localpath.RemovedAnnotation: removed} {
			if value != "" {
				n.Annotations[key] = value
			}
		}
		return n
	}
	deleted := func(name string, changes ...change[*corev1.PersistentVolume]) *corev1.PersistentVolume {
		return with(aVolume(name, remove, leavingVolume, held(localpath.Finalizer), inDir("/data")), changes...)
	}
	for _, test := range []struct {
		what    string
		node    *corev1.Node
		volumes []*corev1.PersistentVolume
		want    string
	}{
		{"nothing", node("", ""), nil, ""},
		{"in use", node("", ""), []*corev1.PersistentVolume{aVolume("v", remove, held(localpath.Finalizer), inDir("/data"))}, ""},
		{"still protected", node("", ""), []*corev1.PersistentVolume{deleted("v", held(volumeFinalizer, localpath.Finalizer))}, ""},
		{"held by others, too", node("", ""), []*corev1.PersistentVolume{deleted("v", held("example.com/x", localpath.Finalizer))}, ""},
		{"to remove", node("", ""), []*corev1.PersistentVolume{deleted("b"), deleted("a")}, `patch Node n {"metadata":{"annotations":{"skiff.io/local-path-removals":"pvc-a,pvc-b"},"uid":"node"}}`},
		{"requested", node("pvc-a,pvc-b", ""), []*corev1.PersistentVolume{deleted("b"), deleted("a")}, ""},
		{"one removed", node("pvc-a,pvc-b", "pvc-a"), []*corev1.PersistentVolume{deleted("b"), deleted("a")},
			`patch PersistentVolume a {"metadata":{"$deleteFromPrimitiveList/finalizers":["skiff.io/local-path"],"uid":"uid-a"}}; patch Node n {"metadata":{"annotations":{"skiff.io/local-path-removals":"pvc-b"},"uid":"node"}}`},
		{"all done", node("pvc-a", "pvc-a"), nil, `patch Node n {"metadata":{"annotations":{"skiff.io/local-path-removals":null},"uid":"node"}}`},
		{"removed, but not requested", node("", "pvc-a"), nil, ""},
		{"retained meanwhile", node("", ""), []*corev1.PersistentVolume{deleted("v", reclaims(corev1.PersistentVolumeReclaimRetain))},
			`patch PersistentVolume v {"metadata":{"$deleteFromPrimitiveList/finalizers":["skiff.io/local-path"],"uid":"uid-v"}}`},
		{"elsewhere", node("", ""), []*corev1.PersistentVolume{deleted("v", inDir("/other"))},
			`patch PersistentVolume v {"metadata":{"$deleteFromPrimitiveList/finalizers":["skiff.io/local-path"],"uid":"uid-v"}}`},
		{"the node is deleted", nil, []*corev1.PersistentVolume{deleted("v")},
			`patch PersistentVolume v {"metadata":{"$deleteFromPrimitiveList/finalizers":["skiff.io/local-path"],"uid":"uid-v"}}`},
	} {
		var got []string
		for _, step := range reconcileRemovals(test.node, test.volumes).Steps {
			for _, write := range step.Writes {
				got = append(got, fmt.Sprintf("patch %s %s %s", reflect.TypeOf(write.Object).Elem().Name(), write.Object.GetName(), write.Patch))
			}
		}
		if text := strings.Join(got, "; "); text != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.what, text, test.want)
		}
	}
	var many []*corev1.PersistentVolume
	for i := range 10 * localpath.MaxRemovals {
		many = append(many, deleted(fmt.Sprintf("%04d", i)))
	}
	plan := reconcileRemovals(node("", ""), many)
	if names := strings.Count(string(plan.Steps[0].Writes[0].Patch), "pvc-"); names != localpath.MaxRemovals {
		t.Errorf("%d directories at once, want %d", names, localpath.MaxRemovals)
	}
}
