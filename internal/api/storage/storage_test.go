package storage

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, CreationTimestamp: kindtest.MinutesAgo(3)}
}

func terms(terms ...corev1.TopologySelectorTerm) []corev1.TopologySelectorTerm { return terms }

func term(key string, values ...string) corev1.TopologySelectorTerm {
	return corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: key, Values: values}}}
}

func TestStorageClass(t *testing.T) {
	base := &storagev1.StorageClass{ObjectMeta: named("fast"), Provisioner: "example.com/disk", Parameters: map[string]string{"type": "ssd"}}
	type class = *storagev1.StorageClass
	kindtest.Validations(t, StorageClass, base, []kindtest.Case[class]{
		{Name: "ordinary", Change: func(class) {}},
		{Name: "upper case provisioner", Change: func(c class) { c.Provisioner = "Example.com/Disk" }},
		{Name: "no provisioner", Change: func(c class) { c.Provisioner = "" }, Want: []string{"provisioner: Required value"}},
		{Name: "bad provisioner", Change: func(c class) { c.Provisioner = "-x" }, Want: []string{"provisioner: name part must consist of alphanumeric characters"}},
		{Name: "empty parameter", Change: func(c class) { c.Parameters = map[string]string{"": "v"} }, Want: []string{"parameters: field can not be empty."}},
		{Name: "large parameters", Change: func(c class) { c.Parameters = map[string]string{"a": strings.Repeat("x", 256<<10)} }, Want: []string{"parameters: Too long: may not be more than 262144 bytes"}},
		{Name: "reclaim", Change: func(c class) { c.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRecycle) }, Want: []string{`reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"`}},
		{Name: "binding", Change: func(c class) { c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingMode("Later")) }, Want: []string{`volumeBindingMode: Unsupported value: "Later": supported values: "Immediate", "WaitForFirstConsumer"`}},
		{Name: "topologies", Change: func(c class) { c.AllowedTopologies = terms(term("zone", "a"), term("zone", "b")) }},
		{Name: "equal topologies", Change: func(c class) { c.AllowedTopologies = terms(term("zone", "a", "b"), term("zone", "b", "a")) }, Want: []string{"allowedTopologies[1].matchLabelExpressions: Duplicate value"}},
		{Name: "empty topology", Change: func(c class) { c.AllowedTopologies = terms(corev1.TopologySelectorTerm{}) }, Want: []string{"allowedTopologies[0].matchLabelExpressions: Duplicate value"}},
		{Name: "topology values", Change: func(c class) {
			c.AllowedTopologies = terms(term("zone"), term("zone", "a", "a"), term("in valid", "a"))
		}, Want: []string{
			"allowedTopologies[0].matchLabelExpressions[0].values: Required value",
			`allowedTopologies[1].matchLabelExpressions[0].values[1]: Duplicate value: "a"`,
			"allowedTopologies[2].matchLabelExpressions[0].key: name part must consist",
		}},
		{Name: "changes that are allowed", Update: true, Change: func(c class) { c.MountOptions, c.AllowVolumeExpansion = []string{"ro"}, ptr.To(true) }},
		{Name: "changes that are not", Update: true, Change: func(c class) {
			c.Provisioner, c.Parameters = "other", nil
			c.ReclaimPolicy, c.VolumeBindingMode = ptr.To(corev1.PersistentVolumeReclaimRetain), ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}, Want: []string{
			"provisioner: Invalid value: null: field is immutable", "parameters: field is immutable",
			"reclaimPolicy: field is immutable", "volumeBindingMode: field is immutable",
		}},
	})
	StorageClass.Default(base)
	kindtest.Row(t, StorageClass, base, "fast", "example.com/disk", "Delete", "Immediate", false, "3m")
	kindtest.Warnings(t, StorageClass.Warn(kindtest.With(base, func(c class) {
		c.AllowedTopologies = terms(term("failure-domain.beta.kubernetes.io/zone", "a"))
	}), nil), `allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.17; use "topology.kubernetes.io/zone" instead`)
}

func TestDefaultStorageClassInLists(t *testing.T) {
	class := func(name string, minutes int, isDefault bool) kind.Object {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: kindtest.MinutesAgo(minutes)}}
		if isDefault {
			c.Annotations = map[string]string{DefaultClassAnnotation: "true"}
		}
		return c
	}
	for _, c := range []struct {
		classes []kind.Object
		want    string
	}{
		{[]kind.Object{class("a", 1, false), class("b", 2, true)}, "a,b (default)"},
		{[]kind.Object{class("a", 5, true), class("b", 2, true)}, "a,b (default)"},
		{[]kind.Object{class("b", 2, true), class("a", 2, true)}, "b,a (default)"},
		{[]kind.Object{class("a", 1, false)}, "a"},
	} {
		var rows [][]any
		for _, obj := range c.classes {
			rows = append(rows, StorageClass.Row(obj, kindtest.Now))
		}
		StorageClass.ListRows(c.classes, rows)
		var names []string
		for _, row := range rows {
			names = append(names, row[0].(string))
		}
		if got := strings.Join(names, ","); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func TestVolumeAttributesClass(t *testing.T) {
	base := &storagev1.VolumeAttributesClass{ObjectMeta: named("gold"), DriverName: "disk.example.com", Parameters: map[string]string{"iops": "9"}}
	type class = *storagev1.VolumeAttributesClass
	kindtest.Validations(t, VolumeAttributesClass, base, []kindtest.Case[class]{
		{Name: "ordinary", Change: func(class) {}},
		{Name: "empty", Change: func(c class) { c.DriverName, c.Parameters = "", nil }, Want: []string{"driverName: Required value", "parameters: Required value: must contain at least one key/value pair"}},
		{Name: "changed", Update: true, Change: func(c class) { c.DriverName, c.Parameters = "x", map[string]string{"iops": "1"} }, Want: []string{
			"driverName: Forbidden: updates to driverName are forbidden.", "parameters: Forbidden: updates to parameters are forbidden.",
		}},
	})
	kindtest.Row(t, VolumeAttributesClass, base, "gold", "disk.example.com", "3m")
}

func TestCSIDriver(t *testing.T) {
	base := &storagev1.CSIDriver{ObjectMeta: named("disk.example.com")}
	type driver = *storagev1.CSIDriver
	request := func(audience string, seconds int64) storagev1.TokenRequest {
		return storagev1.TokenRequest{Audience: audience, ExpirationSeconds: ptr.To(seconds)}
	}
	kindtest.Validations(t, CSIDriver, base, []kindtest.Case[driver]{
		{Name: "empty", Change: func(driver) {}},
		{Name: "policy and mode", Change: func(d driver) {
			d.Spec.FSGroupPolicy = ptr.To(storagev1.FSGroupPolicy("No"))
			d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{"Short"}
		}, Want: []string{
			`spec.fsGroupPolicy: Unsupported value: "No": supported values: "File", "None", "ReadWriteOnceWithFSType"`,
			`spec.volumeLifecycleModes: Unsupported value: "Short": supported values: "Persistent", "Ephemeral"`,
		}},
		{Name: "tokens", Change: func(d driver) {
			d.Spec.TokenRequests = []storagev1.TokenRequest{request("a", 599), request("b", 1<<33), request("a", 700)}
		}, Want: []string{
			"spec.tokenRequests[0].expirationSeconds: may not specify a duration less than 10 minutes",
			"spec.tokenRequests[1].expirationSeconds: may not specify a duration larger than 2^32 seconds",
			`spec.tokenRequests[2].audience: Duplicate value: "a"`,
		}},
		{Name: "tokens in secrets without tokens", Change: func(d driver) { d.Spec.ServiceAccountTokenInSecrets = ptr.To(true) }, Want: []string{"spec.serviceAccountTokenInSecrets: serviceAccountTokenInSecrets is set but no tokenRequests are specified"}},
		{Name: "period", Change: func(d driver) { d.Spec.NodeAllocatableUpdatePeriodSeconds = ptr.To[int64](9) }, Want: []string{"spec.nodeAllocatableUpdatePeriodSeconds: must be greater than or equal to 10 seconds"}},
		{Name: "changed", Update: true, Change: func(d driver) {
			d.Spec.AttachRequired = ptr.To(false)
			d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
		}, Want: []string{"spec.attachedRequired: Invalid value: false: field is immutable", "spec.volumeLifecycleModes: field is immutable"}},
		{Name: "changes that are allowed", Update: true, Change: func(d driver) { d.Spec.PodInfoOnMount = ptr.To(true) }},
	})
	CSIDriver.Default(base)
	for field, value := range map[string]*bool{"seLinuxMount": base.Spec.SELinuxMount, "preventPodSchedulingIfMissing": base.Spec.PreventPodSchedulingIfMissing} {
		if value == nil || *value {
			t.Errorf("%s is %v", field, value)
		}
	}
	kindtest.Row(t, CSIDriver, base, "disk.example.com", true, false, false, "<unset>", false, "Persistent", "3m")
	tokens := kindtest.With(base, func(d driver) { d.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "a"}, {Audience: "b"}} })
	kindtest.Row(t, CSIDriver, tokens, "disk.example.com", true, false, false, "a,b", false, "Persistent", "3m")
	kindtest.Warnings(t, CSIDriver.Warn(tokens, nil), "spec.serviceAccountTokenInSecrets is unset")
	kindtest.Warnings(t, CSIDriver.Warn(tokens, tokens))
}

func TestCSINode(t *testing.T) {
	base := &storagev1.CSINode{ObjectMeta: named("n1"), Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
		Name: "disk.example.com", NodeID: "id", TopologyKeys: []string{"zone"}, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](3)},
	}}}}
	type node = *storagev1.CSINode
	kindtest.Validations(t, CSINode, base, []kindtest.Case[node]{
		{Name: "ordinary", Change: func(node) {}},
		{Name: "bad driver", Change: func(n node) {
			n.Spec.Drivers[0] = storagev1.CSINodeDriver{Name: strings.Repeat("a", 64), TopologyKeys: []string{"k", "k"}, Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](-1)}}
		}, Want: []string{
			"spec.drivers[0].name: Too long: may not be more than 63 bytes", "spec.drivers[0].nodeID: Required value",
			"spec.drivers[0].allocatable.count: must be greater than or equal to 0", `spec.drivers[0]: Duplicate value: "k"`,
		}},
		{Name: "twice", Change: func(n node) { n.Spec.Drivers = append(n.Spec.Drivers, n.Spec.Drivers[0]) }, Want: []string{`spec.drivers[1].name: Duplicate value: "disk.example.com"`}},
		{Name: "long id", Change: func(n node) { n.Spec.Drivers[0].NodeID = strings.Repeat("i", 257) }, Want: []string{"spec.drivers[0].nodeID: must be 256 characters or less"}},
		{Name: "another count", Update: true, Change: func(n node) { n.Spec.Drivers[0].Allocatable.Count = ptr.To[int32](9) }},
		{Name: "another id", Update: true, Change: func(n node) { n.Spec.Drivers[0].NodeID = "other" }, Want: []string{"spec.drivers: field is immutable"}},
		{Name: "gone", Update: true, Change: func(n node) { n.Spec.Drivers = nil }},
	})
	kindtest.Row(t, CSINode, base, "n1", int64(1), "3m")
	got, _ := kindtest.UpdateSubresource(CSINode, "status", nil, kindtest.With(base, func(n node) { n.Status.StorageHealth = []storagev1.StorageHealth{{Name: "x"}} }), base)
	if got.Status.StorageHealth != nil {
		t.Error("storage health was kept")
	}
}

func TestCSIStorageCapacity(t *testing.T) {
	base := &storagev1.CSIStorageCapacity{ObjectMeta: named("c"), StorageClassName: "fast", Capacity: ptr.To(resource.MustParse("2Gi"))}
	type capacity = *storagev1.CSIStorageCapacity
	kindtest.Validations(t, CSIStorageCapacity, base, []kindtest.Case[capacity]{
		{Name: "ordinary", Change: func(capacity) {}},
		{Name: "negative", Change: func(c capacity) { c.Capacity = ptr.To(resource.MustParse("-1")) }, Want: []string{"capacity: must be greater than or equal to 0"}},
		{Name: "no class", Change: func(c capacity) { c.StorageClassName = "" }, Want: []string{"storageClassName: a lowercase RFC 1123 subdomain"}},
		{Name: "selector", Change: func(c capacity) { c.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{"-": "v"}} }, Want: []string{"nodeTopology.matchLabels: name part must consist"}},
		{Name: "changed", Update: true, Change: func(c capacity) { c.StorageClassName, c.NodeTopology = "slow", &metav1.LabelSelector{} }, Want: []string{
			"nodeTopology: field is immutable", `storageClassName: Invalid value: "slow": field is immutable`,
		}},
	})
	deprecated := kindtest.With(base, func(c capacity) {
		c.NodeTopology = &metav1.LabelSelector{
			MatchLabels:      map[string]string{"beta.kubernetes.io/os": "linux"},
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "beta.kubernetes.io/arch", Operator: metav1.LabelSelectorOpExists}},
		}
	})
	kindtest.Warnings(t, CSIStorageCapacity.Warn(deprecated, nil),
		"nodeTopology.matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14",
		"nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14")
}

func TestVolumeAttachment(t *testing.T) {
	base := &storagev1.VolumeAttachment{ObjectMeta: named("a"), Spec: storagev1.VolumeAttachmentSpec{
		Attacher: "disk.example.com", NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv")},
	}}
	type attachment = *storagev1.VolumeAttachment
	inline := func(spec corev1.PersistentVolumeSpec) func(attachment) {
		return func(a attachment) { a.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &spec} }
	}
	csi := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "h"}}
	once := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	kindtest.Validations(t, VolumeAttachment, base, []kindtest.Case[attachment]{
		{Name: "ordinary", Change: func(attachment) {}},
		{Name: "nothing", Change: func(a attachment) { a.Spec = storagev1.VolumeAttachmentSpec{} }, Want: []string{
			"spec.attacher: Required value", "spec.source: Required value: must specify exactly one of", "spec.nodeName: a lowercase RFC 1123 subdomain",
		}},
		{Name: "long attacher", Change: func(a attachment) { a.Spec.Attacher = strings.Repeat("a", 64) }, Want: []string{"spec.attacher: Too long: may not be more than 63 characters"}},
		{Name: "empty volume name", Change: func(a attachment) { a.Spec.Source.PersistentVolumeName = ptr.To("") }, Want: []string{
			"spec.source.persistentVolumeName: Required value: must specify non empty persistentVolumeName", "spec.source.persistentVolumeName: a lowercase RFC 1123 subdomain",
		}},
		{Name: "both", Change: func(a attachment) { a.Spec.Source.InlineVolumeSpec = &corev1.PersistentVolumeSpec{} }, Want: []string{"spec.source: Forbidden: must specify exactly one of"}},
		{Name: "inline", Change: inline(corev1.PersistentVolumeSpec{AccessModes: once, PersistentVolumeSource: csi})},
		{Name: "inline nothing", Change: inline(corev1.PersistentVolumeSpec{}), Want: []string{
			"spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes",
			"spec.source.inlineVolumeSpec.accessModes: Required value", "spec.source.inlineVolumeSpec: Required value: must specify a volume type",
		}},
		{Name: "inline with too much", Change: inline(corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod, corev1.ReadOnlyMany, "Twice"}, PersistentVolumeSource: csi,
			ClaimRef: &corev1.ObjectReference{}, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, NodeAffinity: &corev1.VolumeNodeAffinity{},
			StorageClassName: "fast", VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
		}), Want: []string{
			"spec.source.inlineVolumeSpec.accessModes: Unsupported value", "spec.source.inlineVolumeSpec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
			"spec.source.inlineVolumeSpec.claimRef: Forbidden", "spec.source.inlineVolumeSpec.capacity: Forbidden",
			"spec.source.inlineVolumeSpec.persistentVolumeReclaimPolicy: Forbidden: may only be Retain in the context of inline volumes",
			"spec.source.inlineVolumeSpec.nodeAffinity: Forbidden", "spec.source.inlineVolumeSpec.storageClassName: Forbidden",
			"spec.source.inlineVolumeSpec.volumeMode: Forbidden: may not specify volumeMode other than Filesystem",
		}},
		{Name: "inline secrets", Change: inline(corev1.PersistentVolumeSpec{AccessModes: once, PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			NodePublishSecretRef: &corev1.SecretReference{Namespace: "A"},
		}}}), Want: []string{
			"spec.source.inlineVolumeSpec.csi.driver: Required value", "spec.source.inlineVolumeSpec.csi.volumeHandle: Required value",
			"spec.source.inlineVolumeSpec.csi.nodePublishSecretRef.name: Required value", "spec.source.inlineVolumeSpec.csi.nodePublishSecretRef.namespace: a lowercase RFC 1123 label",
		}},
		{Name: "changed", Update: true, Change: func(a attachment) { a.Spec.NodeName = "n2" }, Want: []string{"spec: Invalid value: null: field is immutable"}},
	})
	kindtest.Row(t, VolumeAttachment, base, "a", "disk.example.com", "pv", "n1", false, "3m")

	kindtest.StatusUpdates(t, VolumeAttachment, base, []kindtest.Case[attachment]{
		{Name: "status", Change: func(a attachment) { a.Status.Attached, a.Spec.NodeName = true, "ignored" }},
		{Name: "bad status", Change: func(a attachment) {
			a.Status.AttachmentMetadata = map[string]string{"k": strings.Repeat("x", 256<<10)}
			a.Status.AttachError = &storagev1.VolumeError{Message: strings.Repeat("x", 1025), ErrorCode: ptr.To[int32](-1)}
		}, Want: []string{
			"status.attachmentMetadata: Too long: may not be more than 262144 bytes", "status.attachError.message: Too long: may not be more than 1024 bytes",
			"status.attachError.errorCode: must be between 0 and 2147483647, inclusive",
		}},
	})
}

func TestColumnsAreDescribed(t *testing.T) {
	for _, k := range Kinds() {
		kindtest.ColumnsDescribed(t, k)
	}
}
