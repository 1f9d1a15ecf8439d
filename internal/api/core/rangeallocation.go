package core

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kind"
)

// RangeAllocation is not served: API servers coordinate the allocation of node ports with it. The object servicenodeports is
// stored at /registry/ranges/servicenodeports.
var RangeAllocation = kind.Of(kind.Definition[*corev1.RangeAllocation]{
	GVK: corev1.SchemeGroupVersion.WithKind("RangeAllocation"), Plural: "rangeallocations", Prefix: "ranges",
	Verbs: []string{},
})
