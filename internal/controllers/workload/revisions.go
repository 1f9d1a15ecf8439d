package workload

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"

	"skiff/internal/controller"
	"skiff/internal/kind"
)

// StatefulSets and DaemonSets keep former templates in ControllerRevisions, as a patch that restores the template. The encoding is
// upstream's: equal templates are found by comparing the bytes.

// templatePatch is the data of a revision.
func templatePatch(template *corev1.PodTemplateSpec) ([]byte, error) {
	data, err := json.Marshal(template)
	if err != nil {
		return nil, err
	}
	// Encode through a map, which sorts the keys.
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	fields["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": fields}})
}

// templateOf decodes the template of a revision.
func templateOf(revision *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var patch struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(revision.Data.Raw, &patch); err != nil {
		return nil, err
	}
	return &patch.Spec.Template, nil
}

// compareRevisions sorts the oldest revision first.
func compareRevisions(a, b *appsv1.ControllerRevision) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// revisionContent is the content of a new revision.
type revisionContent struct {
	labels     map[string]string
	patch      []byte // of the template
	number     int64
	collisions int32
}

// newRevision returns the revision of a template, named by a hash of its data.
func newRevision(owner kind.Object, ownerKind schema.GroupVersionKind, content revisionContent) *appsv1.ControllerRevision {
	hash := revisionHash(content.patch, content.collisions)
	name := owner.GetName()
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: name[:min(len(name), 223)] + "-" + hash, Namespace: owner.GetNamespace(),
			Labels: maps.Clone(content.labels), Annotations: maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, ownerKind)},
		},
		Data: runtime.RawExtension{Raw: content.patch}, Revision: content.number,
	}
	metav1.SetMetaDataLabel(&r.ObjectMeta, "controller.kubernetes.io/hash", hash)
	return r
}

// revisionHash is upstream's: FNV of the data and of the decimal collision count.
func revisionHash(patch []byte, collisions int32) string {
	hash := fnv.New32()
	_, _ = hash.Write(patch)
	_, _ = hash.Write([]byte(strconv.Itoa(int(collisions))))
	return rand.SafeEncodeString(strconv.FormatUint(uint64(hash.Sum32()), 10))
}

// failedBeforeStatus reports whether a step failed that adopts pods or writes revisions. Then the status cannot be calculated.
func failedBeforeStatus(result controller.ApplyResult) bool {
	var writeErr *controller.WriteError
	if !errors.As(result.Err, &writeErr) {
		return result.Err != nil
	}
	_, isRevision := writeErr.Object.(*appsv1.ControllerRevision)
	return writeErr.Verb == controller.Patch || isRevision && writeErr.Verb != controller.Delete
}

// revisionsWithData returns the revisions with the same data.
func revisionsWithData(revisions []*appsv1.ControllerRevision, patch []byte) []*appsv1.ControllerRevision {
	return filter(revisions, func(r *appsv1.ControllerRevision) bool { return bytes.Equal(r.Data.Raw, patch) })
}

// withRevisionNumber returns a copy of a revision with another number.
func withRevisionNumber(r *appsv1.ControllerRevision, number int64) *appsv1.ControllerRevision {
	c := *r
	c.Revision = number
	return &c
}

// nextRevision is the number after the highest revision.
func nextRevision(revisions []*appsv1.ControllerRevision) int64 {
	if len(revisions) == 0 {
		return 1
	}
	return slices.MaxFunc(revisions, compareRevisions).Revision + 1
}
