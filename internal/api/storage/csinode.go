package storage

import (
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/core"
	"skiff/internal/kind"
)

const maxNodeID = 256

// CSINode lists the CSI drivers on a node and what they reported about it. It has the node's name.
var CSINode = kind.Of(kind.Definition[*storagev1.CSINode]{
	GVK: storagev1.SchemeGroupVersion.WithKind("CSINode"), Plural: "csinodes",
	List:       &storagev1.CSINodeList{},
	Validate:   validateCSINode,
	CopyStatus: func(to, from *storagev1.CSINode) { to.Status = from.Status },
	// The feature gate of storage health is off: what a client sets is dropped.
	PrepareStatus: func(_ *kind.Request, node, old *storagev1.CSINode) {
		if len(old.Status.StorageHealth) == 0 {
			node.Status.StorageHealth = nil
		}
	},
	StatusOnly:              true,
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node"),
		kind.AgeColumn(),
	},
	Row: func(node *storagev1.CSINode, now time.Time) []any {
		return []any{node.Name, int64(len(node.Spec.Drivers)), kind.Age(node.CreationTimestamp, now)}
	},
})

func validateCSINode(_ *kind.Request, node, old *storagev1.CSINode) field.ErrorList {
	path := field.NewPath("spec", "drivers")
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range node.Spec.Drivers {
		driver := &node.Spec.Drivers[i]
		errs = append(errs, validateNodeDriver(driver, path.Index(i))...)
		if names.Has(driver.Name) {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), driver.Name))
		}
		names.Insert(driver.Name)
	}
	if old == nil {
		return errs
	}
	// What a driver reported about a node is immutable while the driver exists, except for its volume limit.
	for i := range old.Spec.Drivers {
		for j := range node.Spec.Drivers {
			if old.Spec.Drivers[i].Name == node.Spec.Drivers[j].Name {
				before, after := old.Spec.Drivers[i].DeepCopy(), node.Spec.Drivers[j].DeepCopy()
				before.Allocatable, after.Allocatable = nil, nil
				errs = append(errs, validation.ValidateImmutableField(after, before, path)...)
			}
		}
	}
	return errs
}

func validateNodeDriver(driver *storagev1.CSINodeDriver, path *field.Path) field.ErrorList {
	errs := core.ValidateCSIDriverName(driver.Name, path.Child("name"))
	if driver.NodeID == "" {
		errs = append(errs, field.Required(path.Child("nodeID"), ""))
	}
	if len(driver.NodeID) > maxNodeID {
		errs = append(errs, field.Invalid(path.Child("nodeID"), driver.NodeID, fmt.Sprintf("must be %d characters or less", maxNodeID)))
	}
	if driver.Allocatable != nil && driver.Allocatable.Count != nil {
		errs = append(errs, validation.ValidateNonnegativeField(int64(*driver.Allocatable.Count), path.Child("allocatable", "count"))...)
	}
	keys := sets.New[string]()
	for _, key := range driver.TopologyKeys {
		if key == "" {
			errs = append(errs, field.Required(path, key))
		}
		if keys.Has(key) {
			errs = append(errs, field.Duplicate(path, key))
		}
		keys.Insert(key)
		errs = append(errs, validateQualifiedName(key, path)...)
	}
	return errs
}
