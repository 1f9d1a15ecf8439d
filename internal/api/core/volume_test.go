package core

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

var request = &kind.Request{Now: metav1.NewTime(now)}

func volume(changes ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	obj := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v", CreationTimestamp: hourly},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: quantities("storage", "1Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteMany", "ReadWriteOnce"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
		},
	}
	for _, change := range changes {
		change(obj)
	}
	return obj
}

func TestPersistentVolume(t *testing.T) {
	affinity := func(key string) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: "Exists"}}}}}}
	}
	for _, test := range []struct {
		name   string
		change func(*corev1.PersistentVolume)
		want   []string
	}{
		{"fine", func(*corev1.PersistentVolume) {}, nil},
		{"nothing", func(v *corev1.PersistentVolume) { v.Spec = corev1.PersistentVolumeSpec{} }, []string{"spec.accessModes: Required value", "spec.capacity: Required value", "spec.capacity: Unsupported value", "spec: Required value: must specify a volume type"}},
		{"two sources", func(v *corev1.PersistentVolume) {
			v.Spec.NFS = &corev1.NFSVolumeSource{Server: "s", Path: "/"}
			v.Spec.CephFS = &corev1.CephFSPersistentVolumeSource{}
		}, []string{"spec.nfs: Forbidden: may not specify more than 1 volume type", "spec.cephFS: Forbidden"}},
		{"backsteps", func(v *corev1.PersistentVolume) { v.Spec.HostPath.Path = "/a/../b" }, []string{"spec.hostPath.path: Invalid value: must not contain '..'"}},
		{"recycled root", func(v *corev1.PersistentVolume) {
			v.Spec.HostPath.Path, v.Spec.PersistentVolumeReclaimPolicy = "/", "Recycle"
		}, []string{"spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'"}},
		{"local without affinity", func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/d"}}
		}, []string{"spec.nodeAffinity: Required value: Local volume requires node affinity"}},
		{"csi", func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{NodePublishSecretRef: &corev1.SecretReference{Name: "A"}}}
		}, []string{"spec.csi.driver: Required value", "spec.csi.volumeHandle: Required value", "spec.csi.nodePublishSecretRef.name: Invalid value", "spec.csi.nodePublishSecretRef.namespace: Required value"}},
		{"iscsi", func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "p", IQN: "iqn.bad", Lun: 300}}
		}, []string{"spec.iscsi.iqn: Invalid value: must be valid format", "spec.iscsi.lun: Invalid value"}},
		{"modes", func(v *corev1.PersistentVolume) {
			v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"ReadWriteOncePod", "ReadWriteOnce", "Other"}
		}, []string{"spec.accessModes: Unsupported value", "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"}},
		{"attributes class without csi", func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = ptr.To("") }, []string{"spec.volumeAttributesClassName: Required value", "spec.csi: Required value"}},
		{"mount options", func(v *corev1.PersistentVolume) {
			v.Annotations = map[string]string{corev1.MountOptionAnnotation: "ro"}
		}, []string{"metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(PersistentVolume, request, volume(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
	old, _ := kindtest.Create(PersistentVolume, request, volume(func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = affinity(corev1.LabelFailureDomainBetaZone) }))
	for _, test := range []struct {
		name   string
		change func(*corev1.PersistentVolume)
		want   []string
	}{
		{"source", func(v *corev1.PersistentVolume) { v.Spec.HostPath.Path = "/other" }, []string{"spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"}},
		{"mode", func(v *corev1.PersistentVolume) { v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }, []string{"volumeMode: Invalid value: field is immutable"}},
		{"renamed label", func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = affinity(corev1.LabelTopologyZone) }, nil},
		{"other label", func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = affinity("other") }, []string{"nodeAffinity: Invalid value: field is immutable, except for updating from beta label to GA"}},
		{"no affinity", func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = nil }, []string{"nodeAffinity: Invalid value"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := old.DeepCopy()
			test.change(changed)
			_, errs := kindtest.Update(PersistentVolume, request, changed, old)
			kindtest.Errors(t, errs, test.want...)
		})
	}
	if old.Status.Phase != corev1.VolumePending || !old.Status.LastPhaseTransitionTime.Equal(&request.Now) || *old.Spec.HostPath.Type != "" {
		t.Errorf("%+v", old)
	}
	later := &kind.Request{Now: metav1.NewTime(now.Add(time.Hour))}
	bound := old.DeepCopy()
	bound.Status.Phase = corev1.VolumeBound
	bound, _ = kindtest.UpdateSubresource(PersistentVolume, "status", later, bound, old)
	if !bound.Status.LastPhaseTransitionTime.Equal(&later.Now) {
		t.Errorf("transition at %v", bound.Status.LastPhaseTransitionTime)
	}
	bound.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c"}
	checkRow(t, PersistentVolume, bound, "v", "1Gi", "RWO,RWX", "Retain", "Bound", "ns/c", "", "<unset>", "", "60m", "Filesystem")
	recycled := volume(func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = "Recycle" })
	if got := PersistentVolume.Warn(recycled, nil); len(got) != 1 {
		t.Errorf("warnings %q", got)
	}
	kindtest.Errors(t, ValidateInlineVolume(&recycled.Spec, nil), "capacity: Forbidden", "csi: Required value", "persistentVolumeReclaimPolicy: Forbidden")
}

func claim(changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	obj := &corev1.PersistentVolumeClaim{ObjectMeta: named("c"), Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}, Resources: corev1.VolumeResourceRequirements{Requests: quantities("storage", "1Gi")},
	}}
	for _, change := range changes {
		change(obj)
	}
	return obj
}

func TestPersistentVolumeClaim(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*corev1.PersistentVolumeClaim)
		want   []string
	}{
		{"fine", func(*corev1.PersistentVolumeClaim) {}, nil},
		{"nothing", func(c *corev1.PersistentVolumeClaim) { c.Spec = corev1.PersistentVolumeClaimSpec{} }, []string{"spec.accessModes: Required value: at least 1 access mode is required", "spec.resources[storage]: Required value"}},
		{"zero", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = quantities("storage", "0") }, []string{"spec.resources[storage]: Invalid value: must be greater than zero"}},
		{"class", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("A") }, []string{"spec.storageClassName: Invalid value"}},
		{"sources differ", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "a"}
			c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "b"}
		}, []string{"spec: Invalid value: must match dataSourceRef"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(PersistentVolumeClaim, request, claim(test.change))
			kindtest.Errors(t, errs, test.want...)
		})
	}
	populated, errs := kindtest.Create(PersistentVolumeClaim, request, claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To("example.com"), Kind: "Populator", Name: "p"}
	}))
	kindtest.Errors(t, errs)
	if populated.Spec.DataSource == nil || populated.Spec.DataSource.Kind != "Populator" {
		t.Errorf("dataSource %+v", populated.Spec.DataSource)
	}
	dropped, _ := kindtest.Create(PersistentVolumeClaim, request, claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ptr.To("example.com"), Kind: "Populator", Name: "p"}
	}))
	if dropped.Spec.DataSource != nil || dropped.Spec.DataSourceRef != nil {
		t.Errorf("kept %+v", dropped.Spec)
	}

	old, _ := kindtest.Create(PersistentVolumeClaim, request, claim())
	bound := old.DeepCopy()
	bound.Spec.VolumeName, bound.Status.Phase, bound.Status.Capacity = "v", corev1.ClaimBound, quantities("storage", "1Gi")
	bound.Status.AccessModes = bound.Spec.AccessModes
	for _, test := range []struct {
		name   string
		old    *corev1.PersistentVolumeClaim
		change func(*corev1.PersistentVolumeClaim)
		want   []string
	}{
		{"binding", old, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }, nil},
		{"a class at last", old, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("fast") }, nil},
		{"growing unbound", old, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = quantities("storage", "2Gi") }, []string{"spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"}},
		{"growing bound", bound, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = quantities("storage", "2Gi") }, nil},
		{"shrinking", bound, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = quantities("storage", "1Mi") }, []string{"spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"}},
		{"other volume", bound, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "w" }, []string{"spec: Forbidden"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := test.old.DeepCopy()
			test.change(changed)
			_, errs := kindtest.Update(PersistentVolumeClaim, request, changed, test.old)
			kindtest.Errors(t, errs, test.want...)
		})
	}
	checkRow(t, PersistentVolumeClaim, old, "c", "Pending", "", "", "", "", "<unset>", "60m", "Filesystem")
	checkRow(t, PersistentVolumeClaim, bound, "c", "Bound", "v", "1Gi", "RWO", "", "<unset>", "60m", "Filesystem")
	fractional := claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = quantities("storage", "1500m") })
	if got := PersistentVolumeClaim.Warn(fractional, nil); !slices.Equal(got, []string{`spec.resources.requests[storage]: fractional byte value "1500m" is invalid, must be an integer`}) {
		t.Errorf("warnings %q", got)
	}
	resizing := bound.DeepCopy()
	resizing.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": "Odd", "cpu": corev1.PersistentVolumeClaimNodeResizePending}
	_, errs = kindtest.UpdateSubresource(PersistentVolumeClaim, "status", request, resizing, bound)
	kindtest.Errors(t, errs, "status.allocatedResourceStatuses: Unsupported value", "status.allocatedResourceStatuses: Unsupported value")
}
