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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/controller"
	"skiff/test/world"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

type change[T any] func(T)

func with[T any](obj T, changes ...change[T]) T {
	for _, c := range changes {
		c(obj)
	}
	return obj
}

func room(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// aClaim wants 1Gi of class "" for one node.
func aClaim(changes ...change[*corev1.PersistentVolumeClaim]) *corev1.PersistentVolumeClaim {
	return with(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "uid-data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: room("1Gi")},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}, changes...)
}

func ofClass(name string) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func names(volume string) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
}

func noted(key, value string) change[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, key, value) }
}

// aVolume is free and has 5Gi.
func aVolume(name string, changes ...change[*corev1.PersistentVolume]) *corev1.PersistentVolume {
	return with(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeSpec{Capacity: room("5Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}, changes...)
}

func sized(size string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Spec.Capacity = room(size) }
}

func claimedBy(name, uid string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: name, UID: types.UID(uid)}
	}
}

func inPhase(phase corev1.PersistentVolumePhase) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Status.Phase = phase }
}

func marked(key, value string) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { metav1.SetMetaDataAnnotation(&v.ObjectMeta, key, value) }
}

func reclaims(policy corev1.PersistentVolumeReclaimPolicy) change[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = policy }
}

func aClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
}

// words writes a plan down.
func words(plan controller.Plan) string {
	short := map[string]string{"PersistentVolume": "PV", "PersistentVolumeClaim": "PVC"}
	var all []string
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			kind := fmt.Sprintf("%T", w.Object)
			kind = kind[strings.LastIndexByte(kind, '.')+1:]
			if s := short[kind]; s != "" {
				kind = s
			}
			word := fmt.Sprintf("%s %s %s", w.Verb, kind, w.Object.GetName())
			if _, after, ok := strings.Cut(string(w.Patch), `"phase":"`); ok {
				phase, _, _ := strings.Cut(after, `"`)
				word += " " + phase
			}
			all = append(all, word)
		}
	}
	for _, e := range plan.Events {
		all = append(all, "tell "+e.Reason)
	}
	return strings.Join(all, ", ")
}

func TestMatch(t *testing.T) {
	wide := aVolume("wide", func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadWriteMany)
	}, sized("1Gi"))
	block := aVolume("block", func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) })
	labelled := aVolume("labelled", func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"a": "b"} })
	selecting := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	}
	for _, test := range []struct {
		what    string
		claim   *corev1.PersistentVolumeClaim
		volumes []*corev1.PersistentVolume
		delayed bool
		want    string
	}{
		{"none", aClaim(), nil, false, ""},
		{"the smallest", aClaim(), []*corev1.PersistentVolume{aVolume("5"), aVolume("2", sized("2Gi")), aVolume("3", sized("3Gi"))}, false, "2"},
		{"large enough", aClaim(), []*corev1.PersistentVolume{aVolume("small", sized("500Mi"))}, false, ""},
		{"with as few modes as possible", aClaim(), []*corev1.PersistentVolume{wide, aVolume("5")}, false, "5"},
		{"but with the modes", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = corev1.ReadWriteMany }), []*corev1.PersistentVolume{wide, aVolume("5")}, false, "wide"},
		{"of the mode", aClaim(), []*corev1.PersistentVolume{block}, false, ""},
		{"of the class", aClaim(ofClass("fast")), []*corev1.PersistentVolume{aVolume("5")}, false, ""},
		{"with the labels", aClaim(selecting), []*corev1.PersistentVolume{aVolume("a", sized("1Gi")), labelled}, false, "labelled"},
		{"not another's", aClaim(), []*corev1.PersistentVolume{aVolume("5", claimedBy("other", ""))}, false, ""},
		{"not one that was another's", aClaim(), []*corev1.PersistentVolume{aVolume("5", inPhase(corev1.VolumeReleased))}, false, ""},
		{"the reserved one first", aClaim(), []*corev1.PersistentVolume{aVolume("2", sized("2Gi")), aVolume("5", claimedBy("data", ""))}, false, "5"},
		{"reserved for an earlier claim", aClaim(), []*corev1.PersistentVolume{aVolume("5", claimedBy("data", "earlier"))}, false, ""},
		{"when binding waits, none", aClaim(), []*corev1.PersistentVolume{aVolume("5")}, true, ""},
		{"but the one the scheduler chose", aClaim(), []*corev1.PersistentVolume{aVolume("5", claimedBy("data", "uid-data"))}, true, "5"},
		{"not one that is leaving", aClaim(), []*corev1.PersistentVolume{aVolume("5", func(v *corev1.PersistentVolume) { v.DeletionTimestamp = new(ago(0)) })}, false, ""},
	} {
		volume, err := match(test.claim, test.volumes, test.delayed)
		got := ""
		if volume != nil {
			got = volume.Name
		}
		if err != nil || got != test.want {
			t.Errorf("%s: %q, want %q; %v", test.what, got, test.want, err)
		}
	}
}

func TestClaims(t *testing.T) {
	completed := noted(bindCompleted, "yes")
	fast := aClass("fast", "example.com/disk", storagev1.VolumeBindingImmediate)
	lazy := aClass("lazy", "example.com/disk", storagev1.VolumeBindingWaitForFirstConsumer)
	byDefault := aClass("default", "example.com/disk", storagev1.VolumeBindingImmediate)
	byDefault.Annotations = map[string]string{defaultClass: "true"}
	mine := aVolume("v", claimedBy("data", "uid-data"), inPhase(corev1.VolumeBound))
	const bind = "update PV v, patch status of PV v Bound, update PVC data, patch status of PVC data Bound"
	for _, test := range []struct {
		what    string
		claim   *corev1.PersistentVolumeClaim
		volume  *corev1.PersistentVolume
		waiting []string
		want    string
	}{
		{"a match", aClaim(), aVolume("v"), nil, bind},
		{"reserved by name", aClaim(), aVolume("v", claimedBy("data", "")), nil, bind},
		{"half bound", aClaim(), mine, nil, "update PVC data, patch status of PVC data Bound"},
		{"no class, no volume", aClaim(), nil, nil, "tell FailedBinding"},
		{"class unknown", aClaim(ofClass("slow")), nil, nil, "tell ProvisioningFailed"},
		{"to be provisioned", aClaim(ofClass("fast")), nil, nil, "update PVC data, tell ExternalProvisioning"},
		{"being provisioned", aClaim(ofClass("fast"), noted(storageProvisioner, "example.com/disk")), nil, nil, "tell ExternalProvisioning"},
		{"no consumer yet", aClaim(ofClass("lazy")), nil, nil, "tell WaitForFirstConsumer"},
		{"a consumer without a node", aClaim(ofClass("lazy")), nil, []string{"p"}, "tell WaitForPodScheduled"},
		{"a consumer with a node", aClaim(ofClass("lazy"), noted(selectedNode, "n")), nil, nil, "update PVC data, tell ExternalProvisioning"},
		{"no class said: the default", aClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }), nil, nil, "update PVC data"},
		{"asks for a volume that is not there", aClaim(names("v")), nil, nil, ""},
		{"asks for a free one", aClaim(names("v")), aVolume("v"), nil, bind},
		{"asks for one that is too small", aClaim(names("v")), aVolume("v", sized("1Mi")), nil, "tell VolumeMismatch"},
		{"asks for another's", aClaim(names("v")), aVolume("v", claimedBy("other", "uid-other")), nil, "tell FailedBinding"},
		{"bound", aClaim(names("v"), completed, func(c *corev1.PersistentVolumeClaim) {
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: c.Spec.AccessModes}
		}), mine, nil, ""},
		{"bound to a volume that is gone", aClaim(names("v"), completed), nil, nil, "patch status of PVC data Lost, tell ClaimLost"},
		{"bound to nothing", aClaim(completed), nil, nil, "patch status of PVC data Lost, tell ClaimLost"},
		{"bound to another's", aClaim(names("v"), completed), aVolume("v", claimedBy("other", "uid-other")), nil, "patch status of PVC data Lost, tell ClaimMisbound"},
		{"bound, the volume forgot", aClaim(names("v"), completed), aVolume("v"), nil, "update PV v, patch status of PV v Bound, patch status of PVC data Bound"},
	} {
		v := claimView{claim: test.claim, volume: test.volume, classes: []*storagev1.StorageClass{fast, lazy, byDefault}, waiting: test.waiting}
		if got := words(v.reconcile()); got != test.want {
			t.Errorf("%s: %s\nwant %s", test.what, got, test.want)
		}
	}
}

func TestVolumes(t *testing.T) {
	remove, retain := reclaims(corev1.PersistentVolumeReclaimDelete), reclaims(corev1.PersistentVolumeReclaimRetain)
	mine := claimedBy("data", "uid-data")
	for _, test := range []struct {
		what   string
		volume *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		want   string
	}{
		{"new", aVolume("v", inPhase(corev1.VolumePending)), nil, "patch status of PV v Available"},
		{"free", aVolume("v"), nil, ""},
		{"reserved", aVolume("v", claimedBy("data", "")), nil, ""},
		{"bound", aVolume("v", mine), aClaim(names("v")), "patch status of PV v Bound"},
		{"half bound", aVolume("v", mine), aClaim(), ""},
		{"its claim is gone", aVolume("v", mine, retain, inPhase(corev1.VolumeBound)), nil, "patch status of PV v Released"},
		{"its claim is another of the name", aVolume("v", mine, retain, inPhase(corev1.VolumeBound)), aClaim(func(c *corev1.PersistentVolumeClaim) { c.UID = "new" }), "patch status of PV v Released"},
		{"released, kept", aVolume("v", mine, retain, inPhase(corev1.VolumeReleased)), nil, ""},
		{"released, the provisioner deletes it", aVolume("v", mine, remove, marked(provisionedBy, "example.com/disk"), inPhase(corev1.VolumeReleased)), nil, ""},
		{"released, nobody can delete it", aVolume("v", mine, remove, inPhase(corev1.VolumeReleased)), nil, "patch status of PV v Failed, tell VolumeFailedDelete"},
		{"failed stays failed", aVolume("v", mine, remove, inPhase(corev1.VolumeFailed)), nil, ""},
		{"nobody recycles", aVolume("v", mine, reclaims(corev1.PersistentVolumeReclaimRecycle), inPhase(corev1.VolumeReleased)), nil, "patch status of PV v Failed, tell VolumeFailedRecycle"},
		{"the claim took another", aVolume("v", mine, marked(boundByController, "yes"), inPhase(corev1.VolumeBound)), aClaim(names("w")), "update PV v, patch status of PV v Available"},
		{"made for a claim that took another", aVolume("v", mine, remove, marked(provisionedBy, "example.com/disk"), inPhase(corev1.VolumeBound)), aClaim(names("w")), "patch status of PV v Released"},
	} {
		if got := words(volumeView{volume: test.volume, claim: test.claim}.reconcile()); got != test.want {
			t.Errorf("%s: %s\nwant %s", test.what, got, test.want)
		}
	}
}

func TestProtect(t *testing.T) {
	claim := func(held, leaving bool) *corev1.PersistentVolumeClaim {
		return aClaim(func(c *corev1.PersistentVolumeClaim) {
			if held {
				c.Finalizers = []string{claimFinalizer}
			}
			if leaving {
				c.DeletionTimestamp = new(ago(0))
			}
		})
	}
	for _, test := range []struct {
		held, leaving, used bool
		want                string
	}{
		{false, false, false, "patch PVC data"}, {true, false, false, ""}, {true, true, true, ""}, {true, true, false, "patch PVC data"}, {false, true, false, ""},
	} {
		if got := words(protect(claim(test.held, test.leaving), claimFinalizer, func() bool { return test.used })); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
	pod := func(changes ...change[*corev1.Pod]) *corev1.Pod {
		return with(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-p"}, Spec: corev1.PodSpec{NodeName: "n", Volumes: []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}, changes...)
	}
	own := aClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.OwnerReferences = "p-v", []metav1.OwnerReference{{UID: "uid-p", Controller: new(true)}}
	})
	ephemeral := func(p *corev1.Pod) {
		p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	}
	shutDown := func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(ago(0)), new(int64(0)) }
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		claim *corev1.PersistentVolumeClaim
		want  bool
	}{
		{"a pod that uses it", pod(), aClaim(), true},
		{"also when it is over", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), aClaim(), true},
		{"a pod without a node", pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), aClaim(), false},
		{"a pod of another claim", pod(), own, false},
		{"a pod and its own claim", pod(ephemeral), own, true},
		{"that is shut down", pod(ephemeral, shutDown), own, false},
		{"a claim of the name that is not its own", pod(ephemeral), aClaim(func(c *corev1.PersistentVolumeClaim) { c.Name = "p-v" }), false},
	} {
		if got := holds(test.pod, test.claim); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
}

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
func TestStorageInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		folder := t.TempDir()
		all := []controller.Definition{Binder, ClaimProtection, VolumeProtection, AttributesClassProtection, Ephemeral, Expand,
			LocalPath(LocalPathSettings{Folder: folder, Cleaned: true}), LocalPathCleaner("n1", folder)}
		stop := w.Run(all...)
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelHostname: "n1"}}})
		w.Pass(time.Second)
		class := world.Get[*storagev1.StorageClass](w, "", LocalPathClass)
		if class.Annotations[defaultClass] != "true" {
			t.Errorf("the class is not the default: %+v", class)
		}
		phase := func(name string) corev1.PersistentVolumeClaimPhase {
			return world.Get[*corev1.PersistentVolumeClaim](w, "default", name).Status.Phase
		}
		claim := func(name string, class *string) *corev1.PersistentVolumeClaim {
			return world.Create(w, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class,
				Resources: corev1.VolumeResourceRequirements{Requests: room("1Gi")}}})
		}
		// Volumes made by hand: of two claims, each gets one.
		for _, name := range []string{"v1", "v2"} {
			world.Create(w, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{Capacity: room("2Gi"),
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/" + name}}}})
		}
		w.Pass(time.Second)
		a := claim("a", new(""))
		claim("b", new(""))
		w.Pass(time.Second)
		claim("c", new(""))
		w.Pass(time.Second)
		if phase("a") != corev1.ClaimBound || phase("b") != corev1.ClaimBound || phase("c") != corev1.ClaimPending {
			t.Fatalf("claims are %s, %s, %s", phase("a"), phase("b"), phase("c"))
		}
		bound := world.Get[*corev1.PersistentVolumeClaim](w, "default", "a")
		if bound.Status.Capacity.Storage().String() != "2Gi" || !slices.Contains(bound.Finalizers, claimFinalizer) || bound.Annotations[bindCompleted] != "yes" {
			t.Errorf("bound claim %+v", bound)
		}
		if len(bound.Status.Conditions) != 1 || bound.Status.Conditions[0].Reason != "NoPodsUsingPVC" {
			t.Errorf("conditions %+v", bound.Status.Conditions)
		}
		w.Remove(a)
		w.Pass(time.Second)
		if !world.Gone[*corev1.PersistentVolumeClaim](w, "default", "a") || world.Get[*corev1.PersistentVolume](w, "", bound.Spec.VolumeName).Status.Phase != corev1.VolumeReleased {
			t.Error("a claim that goes releases its volume")
		}
		// A folder on a node, for a pod with an ephemeral volume.
		pod := world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64(0)),
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(LocalPathClass),
					Resources: corev1.VolumeResourceRequirements{Requests: room("1Gi")}}}}}}}}})
		w.Pass(time.Second)
		if phase("p-scratch") != corev1.ClaimPending || !metav1.IsControlledBy(world.Get[*corev1.PersistentVolumeClaim](w, "default", "p-scratch"), pod) {
			t.Fatal("the claim of the pod is not as it should be")
		}
		if told := w.Events("p-scratch"); !slices.Contains(told, "WaitForPodScheduled: waiting for pod p to be scheduled") {
			t.Errorf("events %q", told)
		}
		world.Edit(w, "default", "p-scratch", func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, selectedNode, "n1") })
		w.Pass(time.Second)
		if phase("p-scratch") != corev1.ClaimBound {
			t.Fatalf("the claim is %s: %q", phase("p-scratch"), w.Events("p-scratch"))
		}
		made := world.Get[*corev1.PersistentVolume](w, "", world.Get[*corev1.PersistentVolumeClaim](w, "default", "p-scratch").Spec.VolumeName)
		if err := os.MkdirAll(made.Spec.HostPath.Path, 0o700); err != nil { // as the kubelet would
			t.Fatal(err)
		}
		w.Remove(pod)
		w.Remove(world.Get[*corev1.PersistentVolumeClaim](w, "default", "p-scratch")) // as the garbage collector would
		w.Pass(5 * time.Second)
		if !world.Gone[*corev1.PersistentVolume](w, "", made.Name) {
			t.Errorf("the volume is still there: %+v", world.Get[*corev1.PersistentVolume](w, "", made.Name))
		}
		if _, err := os.Stat(made.Spec.HostPath.Path); !os.IsNotExist(err) {
			t.Error("the folder is still there")
		}
		// At rest another start writes nothing.
		stop()
		before := world.Newest(world.List[*corev1.PersistentVolumeClaim](w)) + " " + world.Newest(world.List[*corev1.PersistentVolume](w))
		defer w.Run(all...)()
		w.Pass(5 * time.Minute)
		if after := world.Newest(world.List[*corev1.PersistentVolumeClaim](w)) + " " + world.Newest(world.List[*corev1.PersistentVolume](w)); after != before {
			t.Errorf("a start at rest wrote: %s, was %s", after, before)
		}
	})
}

// TestClaimBeforeItsVolume: a claim may name a volume that is made after it.
func TestClaimBeforeItsVolume(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Binder)()
		spec := *aClaim().Spec.DeepCopy()
		spec.VolumeName = "disk"
		world.Create(w, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: spec})
		w.Pass(time.Second)
		world.Create(w, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: aVolume("disk", csi).Spec})
		w.Pass(time.Second)
		if got := world.Get[*corev1.PersistentVolumeClaim](w, "default", "data").Status.Phase; got != corev1.ClaimBound {
			t.Errorf("the claim is %s", got)
		}
	})
}
