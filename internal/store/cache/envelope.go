package cache

import (
	"bytes"
	"encoding/binary"
)

// A stored object is the magic and a runtime.Unknown message, whose field 2 is the object's own message. In every API
// type field 1 is the metadata, and field 11 of the metadata is the labels: a map of messages with key (1) and value (2).
var magic = []byte("k8s\x00")

const (
	unknownRaw     = 2
	objectMetadata = 1
	metadataLabels = 11
	mapKey         = 1
	mapValue       = 2
)

// storedLabels reads the labels from stored bytes without decoding the object. It returns false when the bytes are not a
// protobuf envelope (JSON, encrypted) or are malformed.
func storedLabels(stored []byte) (map[string]string, bool) {
	message, isProtobuf := bytes.CutPrefix(stored, magic)
	if !isProtobuf {
		return nil, false
	}
	object, ok := firstField(message, unknownRaw)
	if !ok {
		return nil, false
	}
	metadata, ok := firstField(object, objectMetadata)
	if !ok {
		return nil, false
	}
	var labels map[string]string
	for len(metadata) > 0 {
		number, value, rest, ok := nextField(metadata)
		if !ok {
			return nil, false
		}
		metadata = rest
		if number != metadataLabels {
			continue
		}
		key, okKey := firstField(value, mapKey)
		content, okValue := firstField(value, mapValue)
		if !okKey || !okValue {
			return nil, false
		}
		if labels == nil {
			labels = make(map[string]string)
		}
		labels[string(key)] = string(content)
	}
	return labels, true
}

// StoredField reads a string field from stored bytes without decoding the object. The path is the numbers of the fields
// that lead to it. It returns "" when the field is absent, and false when the bytes are not a protobuf envelope or are
// malformed.
func StoredField(stored []byte, path []uint64) (string, bool) {
	message, ok := bytes.CutPrefix(stored, magic)
	if !ok {
		return "", false
	}
	message, ok = firstField(message, unknownRaw)
	for i := 0; ok && i < len(path); i++ {
		message, ok = firstField(message, path[i])
	}
	return string(message), ok
}

// firstField returns the bytes of a message's first field with the number; nil when it is absent. ok is false when the
// message is malformed before it.
func firstField(message []byte, number uint64) (value []byte, ok bool) {
	for len(message) > 0 {
		found, value, rest, ok := nextField(message)
		if !ok {
			return nil, false
		}
		if found == number {
			return value, true
		}
		message = rest
	}
	return nil, true
}

// nextField splits off the first field of a message. value is nil for fields of other types than bytes.
func nextField(message []byte) (number uint64, value, rest []byte, ok bool) {
	tag, n := binary.Uvarint(message)
	if n <= 0 {
		return 0, nil, nil, false
	}
	message = message[n:]
	length := 0
	switch tag & 7 {
	case 0: // varint
		_, length = binary.Uvarint(message)
		if length <= 0 {
			return 0, nil, nil, false
		}
	case 1: // fixed 64
		length = 8
	case 5: // fixed 32
		length = 4
	case 2: // bytes
		size, n := binary.Uvarint(message)
		if n <= 0 || size > uint64(len(message)-n) {
			return 0, nil, nil, false
		}
		message = message[n:]
		return tag >> 3, message[:size], message[size:], true
	default:
		return 0, nil, nil, false
	}
	if length > len(message) {
		return 0, nil, nil, false
	}
	return tag >> 3, nil, message[length:], true
}
