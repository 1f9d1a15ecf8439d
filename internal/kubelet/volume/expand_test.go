package volume

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
)

func TestPlanExpansion(t *testing.T) {
	size := resource.MustParse
	storage := func(text string) corev1.ResourceList {
		if text == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceStorage: size(text)}
	}
	two := size("2Gi")
	for _, test := range []struct {
		name                              string
		capacity, allocated, state, known string
		mode                              corev1.PersistentVolumeAccessMode
		notRequired                       bool
		want                              expansionPlan
	}{
		{name: "as large as the volume", capacity: "1Gi", known: "2Gi"},
		{name: "pending on the node", capacity: "1Gi", allocated: "2Gi", state: "NodeResizePending", known: "1Gi", want: expansionPlan{two, true, true, true}},
		{name: "interrupted by a restart", capacity: "1Gi", allocated: "2Gi", state: "NodeResizeInProgress", known: "1Gi", want: expansionPlan{two, true, true, true}},
		{name: "the resizer is at work", capacity: "1Gi", allocated: "2Gi", state: "ControllerResizeInProgress", known: "1Gi"},
		{name: "infeasible", capacity: "1Gi", allocated: "2Gi", state: "NodeResizeInfeasible", known: "1Gi"},
		{name: "done by the resizer", capacity: "2Gi", allocated: "2Gi", known: "1Gi", want: expansionPlan{size: two}},
		{name: "done by another node", capacity: "2Gi", allocated: "2Gi", known: "1Gi", mode: corev1.ReadWriteMany, want: expansionPlan{size: two, call: true}},
		{name: "not required on nodes", capacity: "2Gi", allocated: "2Gi", known: "1Gi", mode: corev1.ReadWriteMany, notRequired: true, want: expansionPlan{size: two}},
		{name: "an older resizer", capacity: "1Gi", known: "1Gi", want: expansionPlan{size: two, call: true, finish: true}},
	} {
		claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{test.mode}}}
		claim.Status.Capacity, claim.Status.AllocatedResources = storage(test.capacity), storage(test.allocated)
		if test.state != "" {
			claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.ClaimResourceStatus(test.state)}
		}
		if test.notRequired {
			claim.Annotations = map[string]string{expansionNotRequired: "true"}
		}
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{Capacity: storage("2Gi")}}
		got := planExpansion(claim, pv, size(test.known))
		if got.size.Cmp(test.want.size) != 0 || got.call != test.want.call || got.mark != test.want.mark || got.finish != test.want.finish {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// expandable is a pod with a mounted volume that its driver can expand.
func expandable(t *testing.T) (*Volumes, *fakeDriver, *corev1.Pod) {
	t.Helper()
	v := clusterVolumes(t, t.TempDir())
	followNode(t, v)
	driver := startDriver(t, v.Root, csi.NodeServiceCapability_RPC_EXPAND_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	runWithRegistry(t, v)
	pod := bound(t, v, "disk", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "h"}}, nil)
	attach(t, v, "h")
	editNode(t, v, func(n *corev1.Node) {
		n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/disk.example.com^h"}}
	})
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return v, driver, pod
}

// enlarge does what the resizer of the driver does when a claim is enlarged.
func enlarge(t *testing.T, v *Volumes, text string) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
	volumes := client.For[*corev1.PersistentVolume](v.Client)
	pv, err := volumes.Get(t.Context(), "", "pv-disk")
	if err != nil {
		t.Fatal(err)
	}
	pv = pv.DeepCopy()
	pv.Spec.Capacity = size
	if _, err := volumes.Update(t.Context(), pv, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := readClaim(t, v).DeepCopy()
	claim.Status.AllocatedResources = size
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
	claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
		{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
	}
	if _, err := client.For[*corev1.PersistentVolumeClaim](v.Client).UpdateStatus(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
}

func readClaim(t *testing.T, v *Volumes) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := client.For[*corev1.PersistentVolumeClaim](v.Client).Get(t.Context(), metav1.NamespaceDefault, "disk")
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// syncDue mounts the volumes of a pod as its worker does when a refresh is due.
func syncDue(t *testing.T, v *Volumes, pod *corev1.Pod) {
	t.Helper()
	if at := v.RefreshAt(pod.UID); at.IsZero() || at.After(time.Now().Add(expansionPeriod)) {
		t.Errorf("the size is compared at %v", at)
	}
	v.state(pod.UID).expansions["data"].checkAt = time.Time{}
	if err := v.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// TestExpandMounted: the file system of a claim that is enlarged while a pod uses it is expanded.
func TestExpandMounted(t *testing.T) {
	v, driver, pod := expandable(t)
	syncDue(t, v, pod)
	if r := driver.lastExpansion(); r != nil {
		t.Fatalf("expanded without need: %v", r)
	}
	enlarge(t, v, "2Gi")
	if err := v.Mount(t.Context(), pod); err != nil || driver.lastExpansion() != nil {
		t.Fatalf("the size is compared at every sync: %v", err)
	}
	syncDue(t, v, pod)
	r := driver.lastExpansion()
	if r == nil || r.CapacityRange.RequiredBytes != 2<<30 || r.VolumePath != v.mounted(pod.UID, "data").path || filepath.Base(r.StagingTargetPath) != "globalmount" || r.VolumeCapability.GetMount() == nil {
		t.Fatalf("the driver was called with %v", r)
	}
	claim := readClaim(t, v)
	if claim.Status.Capacity.Storage().String() != "2Gi" || len(claim.Status.AllocatedResourceStatuses) > 0 || len(claim.Status.Conditions) > 0 || claim.Status.AllocatedResources.Storage().String() != "2Gi" {
		t.Errorf("the claim has %+v", claim.Status)
	}
	syncDue(t, v, pod)
	if count(driver, "expand h") != 1 {
		t.Error("expanded again")
	}
}

// TestExpandOnMount: the file system of a claim that was enlarged while no pod used it is expanded when one does, and the pod does not start before.
func TestExpandOnMount(t *testing.T) {
	v, driver, _ := expandable(t)
	enlarge(t, v, "2Gi")
	restarted := New(v.Options)
	restarted.csi = v.csi
	pod := testPod(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}}})
	pod.Namespace, pod.UID = metav1.NamespaceDefault, "second"
	restarted.InUseChanged = func() {
		used, err := restarted.InUse()
		if err != nil {
			t.Error(err)
		}
		editNode(t, v, func(n *corev1.Node) { n.Status.VolumesInUse = used })
		restarted.ReportedInUse(used)
	}
	driver.setExpandError(errors.New("broken"))
	if err := restarted.Mount(t.Context(), pod); err == nil {
		t.Error("the pod may use a volume that is smaller than its claim")
	}
	driver.setExpandError(nil)
	if err := restarted.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if claim := readClaim(t, v); claim.Status.Capacity.Storage().String() != "2Gi" || len(claim.Status.Conditions) > 0 {
		t.Errorf("the claim has %+v", claim.Status)
	}
}

// TestExpansionFailures has what a driver's errors mean for the claim.
func TestExpansionFailures(t *testing.T) {
	for _, test := range []struct {
		code  codes.Code
		state corev1.ClaimResourceStatus
		// condition is set if the claim says why, calls is how often the driver is called in two syncs.
		condition bool
		calls     int
	}{
		{codes.Internal, corev1.PersistentVolumeClaimNodeResizeInfeasible, true, 2}, // the second time: the user has not asked for this size
		{codes.OutOfRange, corev1.PersistentVolumeClaimNodeResizeInfeasible, true, 1},
		{codes.FailedPrecondition, corev1.PersistentVolumeClaimNodeResizeInProgress, true, 1},
		{codes.Unavailable, corev1.PersistentVolumeClaimNodeResizeInProgress, false, 2},
	} {
		t.Run(test.code.String(), func(t *testing.T) {
			v, driver, pod := expandable(t)
			driver.setExpandError(status.Error(test.code, "no"))
			enlarge(t, v, "2Gi")
			syncDue(t, v, pod)
			syncDue(t, v, pod)
			claim := readClaim(t, v)
			failed := slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
				return c.Type == corev1.PersistentVolumeClaimNodeResizeError && c.Message == "failed to expand pvc with "+status.Error(test.code, "no").Error()
			})
			if got := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; got != test.state || failed != test.condition || claim.Status.Capacity.Storage().String() != "1Gi" {
				t.Errorf("the claim has %+v", claim.Status)
			}
			if got := count(driver, "expand h"); got != test.calls {
				t.Errorf("%d calls", got)
			}
		})
	}
}

// TestVolumeStats: a driver that measures its volumes is asked once in a while.
func TestVolumeStats(t *testing.T) {
	v, driver, pod := expandable(t)
	for range 2 {
		all := v.Stats(t.Context(), []*corev1.Pod{pod})[pod.UID]
		if len(all) != 1 || all[0].Name != "data" || all[0].PVCRef == nil || all[0].PVCRef.Name != "disk" || *all[0].CapacityBytes != 100 || *all[0].UsedBytes != 30 || *all[0].InodesFree != 7 {
			t.Fatalf("stats %+v", all)
		}
	}
	if got := count(driver, "measure h"); got != 1 {
		t.Errorf("the driver was asked %d times", got)
	}
	v.StatsPeriod = -1
	if all := v.Stats(t.Context(), []*corev1.Pod{pod}); len(all) > 0 {
		t.Errorf("disabled, but measured: %v", all)
	}
}

// count counts the calls of a driver.
func count(s *fakeDriver, call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c == call {
			n++
		}
	}
	return n
}
