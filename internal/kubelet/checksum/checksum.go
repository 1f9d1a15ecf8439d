// Package checksum computes the checksums of upstream's checkpoint files, so that a node can switch between kubelets.
package checksum

import (
	"errors"
	"hash/fnv"

	"k8s.io/utils/dump"
)

// ErrCorrupt is the error of a checkpoint with another checksum than it should have.
var ErrCorrupt = errors.New("checkpoint is corrupted")

// Of is the checksum of a value: of its text in the format that upstream uses for hashes, which includes the types.
func Of(value any) uint64 { return OfText(dump.ForHash(value)) }

// OfText is the checksum of a text.
func OfText(text string) uint64 {
	h := fnv.New32a()
	h.Write([]byte(text))
	return uint64(h.Sum32())
}
