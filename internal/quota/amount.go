package quota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The functions below do not modify their arguments. A quantity keeps the format of the first list that has it.

// Add returns a plus b.
func Add(a, b corev1.ResourceList) corev1.ResourceList {
	sum := make(corev1.ResourceList, max(len(a), len(b)))
	for name, quantity := range a {
		quantity = quantity.DeepCopy()
		if other, ok := b[name]; ok {
			quantity.Add(other)
		}
		sum[name] = quantity
	}
	for name, quantity := range b {
		if _, ok := sum[name]; !ok {
			sum[name] = quantity.DeepCopy()
		}
	}
	return sum
}

// Subtract returns a minus b for all names of a, with a minimum of zero. Names that are only in b are left out.
func Subtract(a, b corev1.ResourceList) corev1.ResourceList {
	rest := make(corev1.ResourceList, len(a))
	for name, quantity := range a {
		quantity = quantity.DeepCopy()
		if other, ok := b[name]; ok {
			quantity.Sub(other)
		}
		if quantity.Sign() < 0 {
			quantity = resource.Quantity{Format: quantity.Format}
		}
		rest[name] = quantity
	}
	return rest
}

// Mask returns the entries of a with the given names.
func Mask(a corev1.ResourceList, names []corev1.ResourceName) corev1.ResourceList {
	masked := corev1.ResourceList{}
	for _, name := range names {
		if quantity, ok := a[name]; ok {
			masked[name] = quantity
		}
	}
	return masked
}

// Equal reports whether a and b have the same names with the same values.
func Equal(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for name, quantity := range a {
		other, ok := b[name]
		if !ok || quantity.Cmp(other) != 0 {
			return false
		}
	}
	return true
}

// Names returns the sorted names of a.
func Names(a corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(a))
	for name := range a {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Format formats a for messages: cpu=1,memory=1Gi.
func Format(a corev1.ResourceList) string {
	var parts []string
	for _, name := range Names(a) {
		quantity := a[name]
		parts = append(parts, string(name)+"="+quantity.String())
	}
	return strings.Join(parts, ",")
}

// positive returns the entries of a that are greater than zero.
func positive(a corev1.ResourceList) corev1.ResourceList {
	rest := corev1.ResourceList{}
	for name, quantity := range a {
		if quantity.Sign() > 0 {
			rest[name] = quantity
		}
	}
	return rest
}

func join(names []corev1.ResourceName) string {
	var parts []string
	for _, name := range names {
		parts = append(parts, string(name))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

func count(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }
