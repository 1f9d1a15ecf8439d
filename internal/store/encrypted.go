package store

import (
	"bytes"
	"context"
	"errors"
)

// encryptedPrefix begins every encrypted value.
var encryptedPrefix = []byte("k8s:enc:")

// IsEncrypted reports whether a value is encrypted.
func IsEncrypted(value []byte) bool { return bytes.HasPrefix(value, encryptedPrefix) }

// ErrNoProvider: a value is encrypted, and no provider is configured that could decrypt it.
var ErrNoProvider = errors.New("identity transformer tried to read encrypted data")

// EncryptionError says why a value cannot be encrypted or decrypted. Key is set only for a value that was read.
type EncryptionError struct {
	Key string
	Err error
}

func (e *EncryptionError) Error() string { return e.Err.Error() }
func (e *EncryptionError) Unwrap() error { return e.Err }

// Decrypter is a Store that encrypts values. It returns values that it could not decrypt as they are stored, so that one
// such value does not prevent others from being read.
type Decrypter interface {
	Store
	// Decrypt decrypts a value that was returned encrypted. The error is an *EncryptionError.
	Decrypt(ctx context.Context, key string, value []byte) ([]byte, error)
	// Stale reports whether a key's value would be encrypted with another provider or key if it were written now.
	Stale(ctx context.Context, key string) (bool, error)
}
