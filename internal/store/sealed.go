package store

import (
	"bytes"
	"context"
	"errors"
)

// sealedPrefix begins every value that an encryption sealed.
var sealedPrefix = []byte("k8s:enc:")

// Sealed reports whether a value is sealed.
func Sealed(value []byte) bool { return bytes.HasPrefix(value, sealedPrefix) }

// ErrNotConfigured: a value is sealed, and nobody was told how to open it.
var ErrNotConfigured = errors.New("identity transformer tried to read encrypted data")

// SealError says why a value cannot be sealed or opened. Key is that of a value that was read.
type SealError struct {
	Key string
	Err error
}

func (e *SealError) Error() string { return e.Err.Error() }
func (e *SealError) Unwrap() error { return e.Err }

// Opener is a Store that seals values. What it could not open it hands out sealed, so that one value does not keep others
// from being read.
type Opener interface {
	Store
	// Open opens a value that was handed out sealed. The error is a *SealError.
	Open(ctx context.Context, key string, value []byte) ([]byte, error)
	// Stale reports whether a key's value would be sealed otherwise if it were written now.
	Stale(ctx context.Context, key string) (bool, error)
}
