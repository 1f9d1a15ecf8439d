package core

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kind"
)

// RangeAllocation is not served: it is how several API servers agree on who has which node port. The object
// servicenodeports lies at /registry/ranges/servicenodeports.
var RangeAllocation = kind.Of(kind.Definition[*corev1.RangeAllocation]{
	GVK: corev1.SchemeGroupVersion.WithKind("RangeAllocation"), Plural: "rangeallocations", Prefix: "ranges",
	Verbs: []string{},
})
