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

// StatefulSets and DaemonSets keep the templates they have had in ControllerRevisions, as a patch that would restore the template.
// The bytes are upstream's: equal templates are found by comparing them.

// templatePatch is the data of a revision.
func templatePatch(template *corev1.PodTemplateSpec) ([]byte, error) {
	data, err := json.Marshal(template)
	if err != nil {
		return nil, err
	}
	// Through a map, because the keys must be in order.
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	fields["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": fields}})
}

// templateOf reads the template back.
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

// compareRevisions puts the oldest revision first.
func compareRevisions(a, b *appsv1.ControllerRevision) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// newRevision makes the revision of a template, named by a hash of its data.
func newRevision(owner kind.Object, ownerKind schema.GroupVersionKind, labels map[string]string, patch []byte, number int64, collisions int32) *appsv1.ControllerRevision {
	hash := revisionHash(patch, collisions)
	name := owner.GetName()
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: name[:min(len(name), 223)] + "-" + hash, Namespace: owner.GetNamespace(),
			Labels: maps.Clone(labels), Annotations: maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, ownerKind)},
		},
		Data: runtime.RawExtension{Raw: patch}, Revision: number,
	}
	metav1.SetMetaDataLabel(&r.ObjectMeta, "controller.kubernetes.io/hash", hash)
	return r
}

// revisionHash is upstream's: FNV of the data and of the collisions as a number in text.
func revisionHash(patch []byte, collisions int32) string {
	hash := fnv.New32()
	_, _ = hash.Write(patch)
	_, _ = hash.Write([]byte(strconv.Itoa(int(collisions))))
	return rand.SafeEncodeString(strconv.FormatUint(uint64(hash.Sum32()), 10))
}

// isInconclusive reports whether the steps ended before it was clear whose the pods are and which revision they should have: nothing can be reported.
func isInconclusive(result controller.ApplyResult) bool {
	var writeErr *controller.WriteError
	if !errors.As(result.Err, &writeErr) {
		return result.Err != nil
	}
	_, isRevision := writeErr.Object.(*appsv1.ControllerRevision)
	return writeErr.Verb == controller.Patch || isRevision && writeErr.Verb != controller.Delete
}

// revisionsWithData selects the revisions with the same data.
func revisionsWithData(revisions []*appsv1.ControllerRevision, patch []byte) []*appsv1.ControllerRevision {
	return filter(revisions, func(r *appsv1.ControllerRevision) bool { return bytes.Equal(r.Data.Raw, patch) })
}

// withRevisionNumber returns a copy of a revision with another number.
func withRevisionNumber(r *appsv1.ControllerRevision, number int64) *appsv1.ControllerRevision {
	c := *r
	c.Revision = number
	return &c
}

// nextRevision is the number after the last of sorted revisions.
func nextRevision(revisions []*appsv1.ControllerRevision) int64 {
	if len(revisions) == 0 {
		return 1
	}
	return slices.MaxFunc(revisions, compareRevisions).Revision + 1
}
