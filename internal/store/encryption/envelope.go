package encryption

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// envelope is a ciphertext with what the KMS plugin needs to decrypt its key. It is stored as a protobuf message.
type envelope struct {
	data         []byte // 1
	keyID        string // 2
	encryptedDEK []byte // 3
	annotations  map[string][]byte
	source       uint64 // 5
}

// What encryptedDEK contains: the data encryption key itself, or the seed from which keys are derived.
const (
	sourceKey  = 0
	sourceSeed = 1
)

const (
	fieldData protowire.Number = iota + 1
	fieldKeyID
	fieldEncryptedDEK
	fieldAnnotations
	fieldSource
)

const (
	maxKeyID        = 1 << 10
	maxEncryptedDEK = 1 << 10
	maxAnnotations  = 32 << 10
)

func (e *envelope) append(to []byte) []byte {
	bytes := func(number protowire.Number, value []byte) {
		to = protowire.AppendTag(to, number, protowire.BytesType)
		to = protowire.AppendBytes(to, value)
	}
	bytes(fieldData, e.data)
	bytes(fieldKeyID, []byte(e.keyID))
	bytes(fieldEncryptedDEK, e.encryptedDEK)
	for _, key := range slices.Sorted(maps.Keys(e.annotations)) {
		var entry []byte
		entry = protowire.AppendTag(entry, 1, protowire.BytesType)
		entry = protowire.AppendString(entry, key)
		entry = protowire.AppendTag(entry, 2, protowire.BytesType)
		entry = protowire.AppendBytes(entry, e.annotations[key])
		bytes(fieldAnnotations, entry)
	}
	if e.source != 0 {
		to = protowire.AppendTag(to, fieldSource, protowire.VarintType)
		to = protowire.AppendVarint(to, e.source)
	}
	return to
}

var errBrokenEnvelope = errors.New("the stored envelope is malformed")

func parseEnvelope(message []byte) (e envelope, err error) {
	err = eachField(message, func(number protowire.Number, bytes []byte, varint uint64) error {
		switch number {
		case fieldData:
			e.data = bytes
		case fieldKeyID:
			e.keyID = string(bytes)
		case fieldEncryptedDEK:
			e.encryptedDEK = bytes
		case fieldAnnotations:
			return e.parseAnnotation(bytes)
		case fieldSource:
			e.source = varint
		}
		return nil
	})
	if err != nil {
		return envelope{}, err
	}
	return e, e.validate()
}

func (e *envelope) parseAnnotation(entry []byte) error {
	var key string
	var value []byte
	err := eachField(entry, func(number protowire.Number, bytes []byte, _ uint64) error {
		switch number {
		case 1:
			key = string(bytes)
		case 2:
			value = bytes
		}
		return nil
	})
	if e.annotations == nil {
		e.annotations = map[string][]byte{}
	}
	e.annotations[key] = value
	return err
}

// eachField iterates over the fields of a message. bytes is nil and varint is zero for fields of other types.
func eachField(message []byte, yield func(number protowire.Number, bytes []byte, varint uint64) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errBrokenEnvelope
		}
		message = message[n:]
		var bytes []byte
		var varint uint64
		switch kind {
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			varint, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return errBrokenEnvelope
		}
		message = message[n:]
		if err := yield(number, bytes, varint); err != nil {
			return err
		}
	}
	return nil
}

func (e *envelope) validate() error {
	switch {
	case e.source != sourceKey && e.source != sourceSeed:
		return fmt.Errorf("unknown encryptedDEKSourceType: %d", e.source)
	case len(e.data) == 0:
		return errors.New("encrypted data is empty")
	case len(e.encryptedDEK) == 0:
		return errors.New("failed to validate encrypted DEK source: encrypted DEK source is empty")
	case len(e.encryptedDEK) > maxEncryptedDEK:
		return fmt.Errorf("failed to validate encrypted DEK source: encrypted DEK source is %d bytes, which exceeds the max size of %d", len(e.encryptedDEK), maxEncryptedDEK)
	}
	if err := validateKeyID(e.keyID); err != nil {
		return fmt.Errorf("failed to validate key id: %w", err)
	}
	size := 0
	for key, value := range e.annotations {
		if errs := validation.IsFullyQualifiedDomainName(field.NewPath("annotations"), key); len(errs) > 0 {
			return fmt.Errorf("failed to validate annotations: %w", errs.ToAggregate())
		}
		size += len(key) + len(value)
	}
	if size > maxAnnotations {
		return fmt.Errorf("failed to validate annotations: total size of annotations is %d, which exceeds the max size of %d", size, maxAnnotations)
	}
	return nil
}

func validateKeyID(id string) error {
	switch {
	case id == "":
		return errors.New("keyID is empty")
	case len(id) > maxKeyID:
		return fmt.Errorf("keyID is %d bytes, which exceeds the max size of %d", len(id), maxKeyID)
	}
	return nil
}

// identity identifies the encrypted DEK: it is the envelope without its data.
func (e *envelope) identity() string {
	bare := *e
	bare.data = nil
	return string(bare.append(nil))
}

// derived encrypts each value with AES-GCM under its own key, which HKDF derives from the seed and 32 random bytes. Those
// bytes precede the nonce.
type derived struct{ seed []byte }

const (
	seedSize = 32
	infoSize = 32
)

func newDerived(seed []byte) (transformer, error) {
	if len(seed) < seedSize {
		return nil, fmt.Errorf("invalid seed length %d used for key generation", len(seed))
	}
	return derived{seed}, nil
}

func (d derived) cipher(info []byte) (gcm, error) {
	key, err := hkdf.Expand(sha256.New, d.seed, string(info), 32)
	if err != nil {
		return gcm{}, fmt.Errorf("failed to KDF expand seed with info: %w", err)
	}
	made, err := newGCM(key)
	if err != nil {
		return gcm{}, err
	}
	return made.(gcm), nil
}

func (d derived) encrypt(_ context.Context, plain, key []byte) ([]byte, error) {
	info := make([]byte, infoSize)
	rand.Read(info)
	g, err := d.cipher(info)
	if err != nil {
		return nil, err
	}
	return g.encryptAfter(info, plain, key), nil
}

func (d derived) decrypt(ctx context.Context, encrypted, key []byte) ([]byte, bool, error) {
	if len(encrypted) < infoSize {
		return nil, false, errShort
	}
	g, err := d.cipher(encrypted[:infoSize])
	if err != nil {
		return nil, false, err
	}
	return g.decrypt(ctx, encrypted[infoSize:], key)
}
