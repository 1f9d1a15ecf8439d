// Package storagemigration has StorageVersionMigration: it requests that all objects of a resource be rewritten, so that
// they are stored in the current version and with the current encryption key.
package storagemigration

import "skiff/internal/kind"

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{StorageVersionMigration}
}
