// Package checksum computes the checksums of upstream's checkpoint files, so that a node can switch between kubelets.
package checksum

import (
	"encoding/json"
	"errors"
	"fmt"
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

// Data is a value as JSON, with the checksum of that. Checkpoints have it since version 1.37, besides the fields that older versions read.
type Data struct {
	Data         string `json:"data"`
	DataChecksum uint64 `json:"dataChecksum"`
}

// Encode encodes a value.
func Encode(value any) (Data, error) {
	text, err := json.Marshal(value)
	return Data{Data: string(text), DataChecksum: Of(string(text))}, err
}

// IsAbsent reports whether an older version wrote the checkpoint.
func (d Data) IsAbsent() bool { return d.Data == "" && d.DataChecksum == 0 }

// Decode reads the value and verifies its checksum. name is that of the checkpoint.
func (d Data) Decode(value any, name string) error {
	if err := json.Unmarshal([]byte(d.Data), value); err != nil {
		return fmt.Errorf("failed to deserialize %s data: %w", name, err)
	}
	if Of(d.Data) != d.DataChecksum {
		return ErrCorrupt
	}
	return nil
}
