package encryption

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"

	"golang.org/x/crypto/nacl/secretbox"
)

var errShort = errors.New("the stored data was shorter than the required size")

// gcm is AES-GCM. The random nonce precedes the ciphertext.
type gcm struct{ aead cipher.AEAD }

func newGCM(key []byte) (transformer, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return gcm{aead}, nil
}

func (g gcm) encrypt(_ context.Context, plain, key []byte) ([]byte, error) {
	return g.encryptAfter(nil, plain, key), nil
}

// encryptAfter returns prefix followed by the nonce and the ciphertext.
func (g gcm) encryptAfter(prefix, plain, key []byte) []byte {
	size := len(prefix) + g.aead.NonceSize()
	out := make([]byte, size, size+len(plain)+g.aead.Overhead())
	copy(out, prefix)
	rand.Read(out[len(prefix):])
	return g.aead.Seal(out, out[len(prefix):], plain, key)
}

func (g gcm) decrypt(_ context.Context, encrypted, key []byte) ([]byte, bool, error) {
	size := g.aead.NonceSize()
	if len(encrypted) < size {
		return nil, false, errShort
	}
	plain, err := g.aead.Open(nil, encrypted[:size], encrypted[size:], key)
	return plain, false, err
}

// cbc is AES-CBC with PKCS#7 padding. The random initialization vector precedes the ciphertext. It authenticates nothing.
type cbc struct{ block cipher.Block }

func newCBC(key []byte) (transformer, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cbc{block}, nil
}

func (c cbc) encrypt(_ context.Context, plain, _ []byte) ([]byte, error) {
	padding := aes.BlockSize - len(plain)%aes.BlockSize
	out := make([]byte, aes.BlockSize+len(plain)+padding)
	rand.Read(out[:aes.BlockSize])
	copy(out[aes.BlockSize:], plain)
	for i := len(out) - padding; i < len(out); i++ {
		out[i] = byte(padding)
	}
	cipher.NewCBCEncrypter(c.block, out[:aes.BlockSize]).CryptBlocks(out[aes.BlockSize:], out[aes.BlockSize:])
	return out, nil
}

func (c cbc) decrypt(_ context.Context, encrypted, _ []byte) ([]byte, bool, error) {
	if len(encrypted) < aes.BlockSize {
		return nil, false, errShort
	}
	vector, body := encrypted[:aes.BlockSize], encrypted[aes.BlockSize:]
	if len(body)%aes.BlockSize != 0 {
		return nil, false, errors.New("the stored data is not a multiple of the block size")
	}
	if len(body) == 0 {
		return nil, false, errors.New("invalid PKCS7 data (empty or not padded)")
	}
	plain := make([]byte, len(body))
	cipher.NewCBCDecrypter(c.block, vector).CryptBlocks(plain, body)
	padding := int(plain[len(plain)-1])
	if padding == 0 || padding > len(plain) {
		return nil, false, errors.New("invalid PKCS7 data (empty or not padded)")
	}
	for _, b := range plain[len(plain)-padding:] {
		if int(b) != padding {
			return nil, false, errors.New("invalid padding on input")
		}
	}
	return plain[:len(plain)-padding], false, nil
}

// box is XSalsa20 with Poly1305. The random nonce precedes the ciphertext.
type box struct{ key [32]byte }

const boxNonce = 24

func newSecretbox(key []byte) (transformer, error) {
	if len(key) != 32 {
		return nil, errors.New("secretbox key must have 32 bytes")
	}
	return &box{[32]byte(key)}, nil
}

func (b *box) encrypt(_ context.Context, plain, _ []byte) ([]byte, error) {
	var nonce [boxNonce]byte
	rand.Read(nonce[:])
	return secretbox.Seal(nonce[:], plain, &nonce, &b.key), nil
}

func (b *box) decrypt(_ context.Context, encrypted, _ []byte) ([]byte, bool, error) {
	if len(encrypted) < boxNonce+secretbox.Overhead {
		return nil, false, errShort
	}
	nonce := [boxNonce]byte(encrypted[:boxNonce])
	plain, ok := secretbox.Open(nil, encrypted[boxNonce:], &nonce, &b.key)
	if !ok {
		// Upstream's text for a value that was tampered with or encrypted with another key.
		return nil, false, errors.New("output array was not large enough for encryption")
	}
	return plain, false, nil
}
