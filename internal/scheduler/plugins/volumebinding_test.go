package plugins

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func TestVolumeBindingArguments(t *testing.T) {
	points := func(xs ...int32) (shape []configv1.UtilizationShapePoint) {
		for i := 0; i < len(xs); i += 2 {
			shape = append(shape, configv1.UtilizationShapePoint{Utilization: xs[i], Score: xs[i+1]})
		}
		return shape
	}
	for _, test := range []struct {
		what    string
		args    configv1.VolumeBindingArgs
		timeout int64
		shape   []configv1.UtilizationShapePoint
	}{
		{"none", configv1.VolumeBindingArgs{}, 600, points(0, 10, 100, 0)},
		{"no patience", configv1.VolumeBindingArgs{BindTimeoutSeconds: ptr.To(int64(0))}, 0, points(0, 10, 100, 0)},
		{"little patience", configv1.VolumeBindingArgs{BindTimeoutSeconds: ptr.To(int64(1))}, 1, points(0, 10, 100, 0)},
		{"a shape", configv1.VolumeBindingArgs{Shape: points(10, 1, 20, 2)}, 600, points(10, 1, 20, 2)},
	} {
		t.Run(test.what, func(t *testing.T) {
			if r := newVolumeBinding(&test.args).(*volumeBinding); r.TimeoutSeconds != test.timeout || !slices.Equal(r.shape, test.shape) {
				t.Errorf("timeout %d, shape %v", r.TimeoutSeconds, r.shape)
			}
		})
	}
}

func bindingPlugin(t testing.TB, shape ...configv1.UtilizationShapePoint) *volumeBinding {
	t.Helper()
	return newVolumeBinding(&configv1.VolumeBindingArgs{Shape: shape}).(*volumeBinding)
}

func TestVolumeBindingFilter(t *testing.T) {
	const (
		elsewhere = "never: " + snapshot.ReasonNodeConflict
		none      = "never: " + snapshot.ReasonBindConflict
		small     = "never: " + snapshot.ReasonNotEnoughSpace
		missing   = "never: " + snapshot.ReasonVolumeMissing
	)
	static := schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner)
	made := schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)
	tracks := schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		want  schedulertest.Verdicts
	}{
		{"a pod without volumes", nil, schedulertest.TestPod("p"), schedulertest.Verdicts{}},
		{"a pod with a disk and no claim", nil, schedulertest.TestPod("p", schedulertest.InlineVolumeSource(schedulertest.EbsDisk("x", false))), schedulertest.Verdicts{}},
		{"a claim that is missing", nil, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" not found`}},
		{"a claim of another namespace", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" not found`}},
		{"a claim still to be made for it", nil, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{"*": `never: waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v"`}},
		{"a claim that was not made for it", schedulertest.Objects{schedulertest.StorageClaim("p-v", schedulertest.ClaimOwnedBy("q"))}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{"*": "never: PVC default/p-v was not created for pod default/p (pod is not owner)"}},
		{"a claim that lost its volume", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"), schedulertest.ClaimLost)}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" bound to non-existent persistentvolume "v"`}},
		{"a claim on its way out", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"), schedulertest.ClaimTerminating), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" is being deleted`}},
		{"lost and on its way out", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"), schedulertest.ClaimTerminating, schedulertest.ClaimLost)}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "c" bound to non-existent persistentvolume "v"`}},
		{"on its way out and another's", schedulertest.Objects{schedulertest.StorageClaim("p-v", schedulertest.ClaimTerminating)}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "p-v" is being deleted`}},
		{"the first that is wrong is named", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d"), schedulertest.UsingClaim("e")), schedulertest.Verdicts{"*": `never: persistentvolumeclaim "d" not found`}},
		{"an unbound claim of an immediate class", schedulertest.Objects{schedulertest.ImmediateClass("late"), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"an unbound claim of no class", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimClass(""))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"an unbound claim of a class that is missing", schedulertest.Objects{schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"a claim that names its volume and waits", schedulertest.Objects{made, schedulertest.StorageVolume("v"), schedulertest.StorageClaim("c", schedulertest.ClaimVolumeName("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"one bound and one not", schedulertest.Objects{schedulertest.ImmediateClass("late"), schedulertest.StorageVolume("v"), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"*": "never: pod has unbound immediate PersistentVolumeClaims"}},
		{"a class without a mode", schedulertest.Objects{schedulertest.ClassWithoutBindingMode("late"), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"*": `error: VolumeBindingMode not set for StorageClass "late"`}},

		{"a bound volume of everywhere", schedulertest.Objects{schedulertest.StorageVolume("v"), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a bound volume of one node", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": elsewhere}},
		{"a bound volume of no node", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("z")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": elsewhere, "b": elsewhere}},
		{"a bound volume of another phase and a class without mode", schedulertest.Objects{schedulertest.ClassWithoutBindingMode("late"), schedulertest.StorageVolume("v", schedulertest.VolumePhase(corev1.VolumeFailed)), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"bound volumes of two nodes", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": elsewhere, "b": elsewhere}},
		{"a bound volume that is gone", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": missing, "b": missing}},
		{"gone is named where nothing else is wrong before", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": missing, "b": elsewhere}},
		{"the first that is gone ends the look", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("d"), schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": missing, "b": missing}},
		{"a bound volume that cannot be read in its driver's words", schedulertest.Objects{schedulertest.EbsVolume("v", "aws:///x/", ""), schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.CSINodeWithDrivers("b", nil, "kubernetes.io/aws-ebs")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{
			"b": "error: could not translate pv: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///x/)"}},
		{"its own bound claim", schedulertest.Objects{schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("b")), schedulertest.StorageClaim("p-v", schedulertest.ClaimOwnedBy("p"), schedulertest.ClaimBoundTo("v"))}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), schedulertest.Verdicts{"a": elsewhere}},

		{"a volume to choose on one node", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": none}},
		{"a volume to choose anywhere", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"no volume", schedulertest.Objects{static, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume of just the size", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("5Gi")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a volume too small by a byte", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("5368709121")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume of another class", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClass("other"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume that is released", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumePhase(corev1.VolumeReleased))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume that is pending", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumePhase(corev1.VolumePending))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume on its way out", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeTerminating)}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume of another mode", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume without the access asked", schedulertest.Objects{static, schedulertest.StorageClaim("c", claimModes(corev1.ReadWriteMany)), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume with other attributes", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") }), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume with the attributes asked", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") }), schedulertest.StorageVolume("v", func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = ptr.To("gold") })}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a volume whose labels do not match", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"kind": "fast"}}
		}), schedulertest.StorageVolume("v", schedulertest.VolumeLabel("kind", "slow"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a selector that cannot be read", schedulertest.Objects{static, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "?"}}}
		})}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{
			"a": `error: error creating internal label selector for claim: default/c: "?" is not a valid label selector operator`, "b": `error: error creating internal label selector for claim: default/c: "?" is not a valid label selector operator`}},
		{"a volume kept for another claim", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "d", ""))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume kept for this claim, whatever its phase", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "c", ""), schedulertest.VolumePhase(corev1.VolumeBound))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a volume kept for an earlier claim of the name", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "c", "old"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a volume kept for this claim on another node leaves no choice", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "c", "c"), schedulertest.VolumeOnNode("b")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none}},
		{"two claims and one volume", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": none, "b": none}},
		{"two claims and two volumes of a node", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"b": none}},
		{"the small claim leaves the large volume", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("3Gi")), schedulertest.StorageClaim("d", schedulertest.ClaimSize("1Gi")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("3Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeSize("2Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{}},
		{"a bound one elsewhere and none to choose", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("b"), schedulertest.VolumeClaimRef("default", "c", "c")), schedulertest.StorageClaim("d")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": elsewhere + "; " + snapshot.ReasonBindConflict, "b": none}},
		{"a bound one gone and none to choose", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": none + "; " + snapshot.ReasonVolumeMissing, "b": none + "; " + snapshot.ReasonVolumeMissing}},
		{"a bound one gone and no capacity", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageClaim("d")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": small + "; " + snapshot.ReasonVolumeMissing, "b": small + "; " + snapshot.ReasonVolumeMissing}},

		{"a volume to be made anywhere", schedulertest.Objects{made, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"nobody to make it", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", ""), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"to be made in one zone", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology(corev1.LabelTopologyZone, "za")), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": none}},
		{"a choice is made before anything is to be made", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology(corev1.LabelTopologyZone, "za")), schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("b"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"one chosen and one to be made", schedulertest.Objects{made, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{}},
		{"a claim sent to a node is not bound elsewhere", schedulertest.Objects{made, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode("b"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none}},
		{"nor to a volume there is", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode("b")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"a claim sent to no node at all", schedulertest.Objects{made, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode(""))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": none}},
		{"claims sent to two nodes", schedulertest.Objects{made, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode("a")), schedulertest.StorageClaim("d", schedulertest.ClaimSelectedNode("b"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": none, "b": none}},
		{"sent elsewhere ends the look, but bound ones are told", schedulertest.Objects{made, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("b")), schedulertest.StorageClaim("d", schedulertest.ClaimSelectedNode("b"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"a": elsewhere + "; " + snapshot.ReasonBindConflict}},

		{"no capacity anywhere", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"a driver that does not track", schedulertest.Objects{made, schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(false), nil), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a driver that says nothing", schedulertest.Objects{made, schedulertest.StorageDriver(schedulertest.CsiName, nil, nil), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"another driver tracks", schedulertest.Objects{made, schedulertest.StorageDriver("other", ptr.To(true), nil), schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"capacity in one zone", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "1Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": small}},
		{"too little by a byte", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "1073741823", ""), schedulertest.StorageCapacity("y", "late", "zb", "1073741824", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small}},
		{"capacity of another class", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "other", "za", "9Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"capacity that no node reaches", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "", "9Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"capacity of unknown size", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"capacity for small volumes only", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c", schedulertest.ClaimSize("3Gi")), schedulertest.StorageCapacity("x", "late", "za", "9Gi", "2Gi"), schedulertest.StorageCapacity("y", "late", "zb", "1Gi", "3Gi")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small}},
		{"the second capacity", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "1Mi", ""), schedulertest.StorageCapacity("y", "late", "za", "2Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": small}},
		{"a place that cannot be read", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), func() *storagev1.CSIStorageCapacity {
			c := schedulertest.StorageCapacity("x", "late", "za", "9Gi", "")
			c.NodeTopology.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: "?"}}
			return c
		}()}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": small}},
		{"an empty place is every place", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), func() *storagev1.CSIStorageCapacity {
			c := schedulertest.StorageCapacity("x", "late", "", "9Gi", "")
			c.NodeTopology = &metav1.LabelSelector{}
			return c
		}()}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"a claim for no size needs no capacity", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil })}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{}},
		{"each of two claims has capacity, though not both", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d"), schedulertest.StorageCapacity("x", "late", "za", "1Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), schedulertest.Verdicts{"b": small}},
		{"capacity does not matter for what is chosen", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"b": small}},
		{"capacity matters for a claim sent to the node", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c", schedulertest.ClaimSelectedNode("a")), schedulertest.StorageCapacity("x", "late", "zb", "9Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": small, "b": none}},
		{"a place that is not allowed is named before the capacity", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology(corev1.LabelTopologyZone, "zb")), tracks, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), schedulertest.Verdicts{"a": none, "b": small}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, schedulertest.TwoZones(), test.known)
			if got := heard(t, s, bindingPlugin(t), test.pod); !maps.Equal(got, test.want) {
				t.Errorf("says %v, want %v", got, test.want)
			}
		})
	}
}

func TestVolumeBindingScore(t *testing.T) {
	static, made := schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner), schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)
	other := schedulertest.WaitForConsumerClass("other", volume.NotSupportedProvisioner)
	tracks := schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)
	point := func(x, y int32) configv1.UtilizationShapePoint {
		return configv1.UtilizationShapePoint{Utilization: x, Score: y}
	}
	fullest := []configv1.UtilizationShapePoint{point(0, 0), point(100, 10)}
	for _, test := range []struct {
		what  string
		shape []configv1.UtilizationShapePoint
		known schedulertest.Objects
		pod   *corev1.Pod
		want  [2]int64 // of nodes a and b
	}{
		{"no claim", nil, nil, schedulertest.TestPod("p"), [2]int64{}},
		{"a bound claim says nothing", nil, schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{}},
		{"a fifth used, least is best", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{80, 80}},
		{"a fifth used, most is best", fullest, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{20, 20}},
		{"all used", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("5Gi")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{0, 0}},
		{"each node has its own volume", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"), schedulertest.VolumeSize("2Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"), schedulertest.VolumeSize("4Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{50, 75}},
		{"parts are cut, not rounded", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeSize("3Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{67, 67}},
		{"volumes of a class are added up", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimSize("2Gi")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeSize("5Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{50, 50}},
		{"classes are averaged", nil, schedulertest.Objects{static, other, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimClass("other")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeClass("other"), schedulertest.VolumeSize("2Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{25, 25}},
		{"and the average is rounded", fullest, schedulertest.Objects{static, other, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimClass("other")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeClass("other"), schedulertest.VolumeSize("3Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{67, 67}},
		{"nothing is known of what will be made", nil, schedulertest.Objects{made, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{}},
		{"capacity to make it", nil, schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "2Gi", ""), schedulertest.StorageCapacity("y", "late", "zb", "10Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{50, 90}},
		{"two share one capacity", nil, schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimSize("2Gi")), schedulertest.StorageCapacity("x", "late", "za", "6Gi", ""), schedulertest.StorageCapacity("y", "late", "zb", "2Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{50, 0}},
		{"capacity of which only the largest volume is known", nil, schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "", "5Gi"), schedulertest.StorageCapacity("y", "late", "zb", "4Gi", "5Gi")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{0, 75}},
		{"what is chosen speaks oncePod", nil, schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimSize("2Gi")), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"), schedulertest.VolumeSize("1Gi")), schedulertest.StorageCapacity("x", "late", "za", "100Gi", ""), schedulertest.StorageCapacity("y", "late", "zb", "30Gi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{0, 90}},
		{"a volume that cannot be read in its driver's words", nil, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v"), schedulertest.EbsVolume("w", "aws:///x/", ""), schedulertest.StorageClaim("d", schedulertest.ClaimBoundTo("w")), schedulertest.CSINodeWithDrivers("b", nil, "kubernetes.io/aws-ebs")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]int64{80, 0}},
		{"its own claim counts", nil, schedulertest.Objects{static, schedulertest.StorageClaim("p-v", schedulertest.ClaimOwnedBy("p")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), [2]int64{80, 80}},
		{"beyond the last point it stays level", []configv1.UtilizationShapePoint{point(10, 3), point(20, 7)}, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"), schedulertest.VolumeSize("2Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"), schedulertest.VolumeSize("20Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{70, 30}},
		{"between points it is straight", []configv1.UtilizationShapePoint{point(0, 10), point(50, 0), point(100, 10)}, schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"), schedulertest.VolumeSize("4Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("b"), schedulertest.VolumeSize("2Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]int64{50, 0}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, schedulertest.TwoZones(), test.known)
			scorer := bindingPlugin(t, test.shape...).Score(s, snapshottest.PodInfo(t, test.pod))
			var got [2]int64
			if scorer.Score != nil {
				got = [2]int64{scorer.Score(0), scorer.Score(1)}
			}
			if got != test.want || scorer.Normalization != NotNormalized {
				t.Errorf("scores %v, want %v", got, test.want)
			}
		})
	}
}

func TestVolumeBindingHints(t *testing.T) {
	pod := schedulertest.TestPod("p", schedulertest.UsingClaim("x"), schedulertest.UsingClaim("c"))
	capacity := func(capacity, largest string) *storagev1.CSIStorageCapacity {
		return schedulertest.StorageCapacity("r", "late", "za", capacity, largest)
	}
	update := func(r Resource, old, now any) Event {
		return Event{Resource: r, Action: UpdateOther, Old: old, New: now}
	}
	class := schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology("zone", "za"))
	for _, test := range []struct {
		what  string
		pod   *corev1.Pod
		event Event
		helps bool
	}{
		{"a class", pod, Event{Resource: StorageClassResource, Action: Add, New: class}, true},
		{"a class allows other places", pod, update(StorageClassResource, class, schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology("zone", "zb"))), true},
		{"a class allows all places", pod, update(StorageClassResource, class, schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)), true},
		{"a class says the same", pod, update(StorageClassResource, class, schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology("zone", "za"))), false},
		{"an empty list is no list", pod, update(StorageClassResource, schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, []corev1.TopologySelectorTerm{}...)), false},
		{"a class is gone", pod, Event{Resource: StorageClassResource, Action: Delete, Old: class}, false},
		{"its claim", pod, Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("c")}, true},
		{"its claim changes", pod, update(PersistentVolumeClaim, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("c")), true},
		{"the claim made for it", schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("p-v")}, true},
		{"the claim made for another", schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("v")), Event{Resource: PersistentVolumeClaim, Action: Add, New: schedulertest.StorageClaim("q-v")}, false},
		{"another claim", pod, update(PersistentVolumeClaim, schedulertest.StorageClaim("d"), schedulertest.StorageClaim("d")), false},
		{"a claim elsewhere", pod, update(PersistentVolumeClaim, schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other")), schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other"))), false},
		{"its claim is gone", pod, Event{Resource: PersistentVolumeClaim, Action: Delete, Old: schedulertest.StorageClaim("c")}, false},
		{"a volume", pod, Event{Resource: PersistentVolumeResource, Action: Add, New: schedulertest.StorageVolume("v")}, true},
		{"a volume changes", pod, update(PersistentVolumeResource, schedulertest.StorageVolume("v"), schedulertest.StorageVolume("v")), true},
		{"a volume is gone", pod, Event{Resource: PersistentVolumeResource, Action: Delete, Old: schedulertest.StorageVolume("v")}, false},
		{"a node", pod, Event{Resource: NodeResource, Action: Add, New: schedulertest.TestNode("n")}, true},
		{"a node's labels", pod, Event{Resource: NodeResource, Action: UpdateNodeLabel, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n", schedulertest.NodeLabel("x", "y"))}, true},
		{"a node's taints", pod, Event{Resource: NodeResource, Action: UpdateNodeTaint, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, false},
		{"a node's resources", pod, Event{Resource: NodeResource, Action: UpdateNodeAllocatable, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, false},
		{"a node tells of its drivers", pod, Event{Resource: CSINodeResource, Action: Add, New: schedulertest.CSINodeWithDrivers("a", nil)}, true},
		{"a kind has moved on a node", pod, update(CSINodeResource, schedulertest.CSINodeWithDrivers("a", nil), schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/aws-ebs")), true},
		{"a kind has moved back", pod, update(CSINodeResource, schedulertest.CSINodeWithDrivers("a", nil, "kubernetes.io/aws-ebs"), schedulertest.CSINodeWithDrivers("a", nil)), true},
		{"a node has another driver", pod, update(CSINodeResource, schedulertest.CSINodeWithDrivers("a", nil, "x"), schedulertest.CSINodeWithDrivers("a", map[string]int32{schedulertest.CsiName: 5}, "x")), false},
		{"capacity", pod, Event{Resource: CSIStorageCapacityResource, Action: Add, New: capacity("", "")}, true},
		{"more capacity", pod, update(CSIStorageCapacityResource, capacity("1Gi", ""), capacity("2Gi", "")), true},
		{"as much capacity", pod, update(CSIStorageCapacityResource, capacity("1Gi", ""), capacity("1024Mi", "")), false},
		{"less capacity", pod, update(CSIStorageCapacityResource, capacity("2Gi", ""), capacity("1Gi", "")), false},
		{"capacity that was unknown", pod, update(CSIStorageCapacityResource, capacity("", ""), capacity("0", "")), true},
		{"capacity that is unknown now", pod, update(CSIStorageCapacityResource, capacity("1Gi", ""), capacity("", "")), false},
		{"unknown still", pod, update(CSIStorageCapacityResource, capacity("", ""), capacity("", "")), false},
		{"larger volumes", pod, update(CSIStorageCapacityResource, capacity("9Gi", "1Gi"), capacity("9Gi", "2Gi")), true},
		{"more capacity for volumes of the same size", pod, update(CSIStorageCapacityResource, capacity("5Gi", "1Gi"), capacity("9Gi", "1Gi")), false},
		{"volumes no longer bounded", pod, update(CSIStorageCapacityResource, capacity("9Gi", "1Gi"), capacity("9Gi", "")), true},
		{"volumes bounded", pod, update(CSIStorageCapacityResource, capacity("9Gi", ""), capacity("9Gi", "1Gi")), false},
		{"capacity is gone", pod, Event{Resource: CSIStorageCapacityResource, Action: Delete, Old: capacity("1Gi", "")}, false},
		{"a driver tracks capacity no longer", pod, update(CSIDriverResource, schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(false), nil)), true},
		{"a driver says nothing of capacity any longer", pod, update(CSIDriverResource, schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil), schedulertest.StorageDriver(schedulertest.CsiName, nil, nil)), true},
		{"a driver begins to track capacity", pod, update(CSIDriverResource, schedulertest.StorageDriver(schedulertest.CsiName, nil, nil), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)), false},
		{"a driver changes otherwise", pod, update(CSIDriverResource, schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), ptr.To(true))), false},
		{"a driver", pod, Event{Resource: CSIDriverResource, Action: Add, New: schedulertest.StorageDriver(schedulertest.CsiName, nil, nil)}, false},
		{"a pod is gone", pod, Event{Resource: AssignedPod, Action: Delete, Old: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.UsingClaim("c"))}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, snapshottest.New(t, schedulertest.TwoZones()), bindingPlugin(t), test.pod, test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}
