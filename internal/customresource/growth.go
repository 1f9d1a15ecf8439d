package customresource

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A default is set in each item of a list that does not have the field, and defaults inside a default are set as well: a small object can grow
// exponentially. growth computes by how much before anything is set.
const (
	// maxGrowth is by how many bytes defaults may make an object larger: as large as a request can be.
	maxGrowth = 3 << 20
	// maxSize is what larger sizes count as, so that sums do not overflow.
	maxSize = 1 << 40
)

// growth is by how many bytes defaulting makes a value larger; maxSize and more are not told apart.
func (s *shape) growth(value any) (bytes int) {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range s.defaulted {
			if _, ok := value[name]; !ok {
				bytes += len(name) + s.properties[name].defaultSize
			}
		}
		for name, inner := range value {
			if property := s.properties[name]; property != nil {
				bytes += property.growthOf(inner)
			} else if s.additional != nil {
				bytes += s.additional.growthOf(inner)
			}
		}
	case []any:
		if s.items == nil {
			return 0
		}
		for _, inner := range value {
			bytes += s.items.growthOf(inner)
		}
	}
	return min(bytes, maxSize)
}

// growthOf is the growth of a value inside another one: null is replaced by the default where it is not allowed.
func (s *shape) growthOf(value any) int {
	if value == nil && !s.nullable {
		return s.defaultSize
	}
	return s.growth(value)
}

// checkGrowth returns an error if defaults are not set because they would make the object too large.
func (s *shape) checkGrowth(root map[string]any) field.ErrorList {
	if growth := s.growth(root); growth > maxGrowth {
		return field.ErrorList{field.Forbidden(nil, fmt.Sprintf("the defaults of the schema would make the object larger by %d bytes, the limit is %d", growth, maxGrowth))}
	}
	return nil
}

// sizeOf is the approximate size of a JSON value.
func sizeOf(value any) int {
	const scalar = 8
	size := 2
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			size += len(name) + sizeOf(inner)
		}
	case []any:
		for _, inner := range value {
			size += sizeOf(inner)
		}
	case string:
		size += len(value)
	default:
		size = scalar
	}
	return size
}
