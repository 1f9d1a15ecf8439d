// Package storagemigration holds the row of storagemigration.k8s.io: the wish to have all objects of a resource written
// again, so that they are stored in the current version and under the current encryption.
package storagemigration

import "skiff/internal/kind"

// Kinds are the rows of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{StorageVersionMigration}
}
