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

// gcm is AES-GCM with random nonces, which come first.
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

func (g gcm) seal(_ context.Context, plain, key []byte) ([]byte, error) {
	return g.sealAfter(nil, plain, key), nil
}

// sealAfter appends the sealed value.
func (g gcm) sealAfter(head, plain, key []byte) []byte {
	size := len(head) + g.aead.NonceSize()
	out := make([]byte, size, size+len(plain)+g.aead.Overhead())
	copy(out, head)
	rand.Read(out[len(head):])
	return g.aead.Seal(out, out[len(head):], plain, key)
}

func (g gcm) open(_ context.Context, sealed, key []byte) ([]byte, bool, error) {
	size := g.aead.NonceSize()
	if len(sealed) < size {
		return nil, false, errShort
	}
	plain, err := g.aead.Open(nil, sealed[:size], sealed[size:], key)
	return plain, false, err
}

// cbc is AES-CBC with PKCS#7 padding and a random vector, which comes first. It authenticates nothing.
type cbc struct{ block cipher.Block }

func newCBC(key []byte) (transformer, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cbc{block}, nil
}

func (c cbc) seal(_ context.Context, plain, _ []byte) ([]byte, error) {
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

func (c cbc) open(_ context.Context, sealed, _ []byte) ([]byte, bool, error) {
	if len(sealed) < aes.BlockSize {
		return nil, false, errShort
	}
	vector, body := sealed[:aes.BlockSize], sealed[aes.BlockSize:]
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

// box is XSalsa20 and Poly1305 with random nonces, which come first.
type box struct{ key [32]byte }

const boxNonce = 24

func newSecretbox(key []byte) (transformer, error) {
	if len(key) != 32 {
		return nil, errors.New("a secretbox key has 32 bytes")
	}
	return &box{[32]byte(key)}, nil
}

func (b *box) seal(_ context.Context, plain, _ []byte) ([]byte, error) {
	var nonce [boxNonce]byte
	rand.Read(nonce[:])
	return secretbox.Seal(nonce[:], plain, &nonce, &b.key), nil
}

func (b *box) open(_ context.Context, sealed, _ []byte) ([]byte, bool, error) {
	if len(sealed) < boxNonce+secretbox.Overhead {
		return nil, false, errShort
	}
	nonce := [boxNonce]byte(sealed[:boxNonce])
	plain, ok := secretbox.Open(nil, sealed[boxNonce:], &nonce, &b.key)
	if !ok {
		// Upstream's words for a value that was tampered with or sealed with another key.
		return nil, false, errors.New("output array was not large enough for encryption")
	}
	return plain, false, nil
}
