package backup

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/scrypt"
)

// An encrypted stream begins with a header: magic, a random salt, and an HMAC of both. Chunks of chunkBytes follow, each encrypted with AES-256-GCM.
// The nonce of a chunk is its number and whether it is the last one, so that a stream that was cut, extended or rearranged is recognized. The last
// chunk may be shorter. All keys are derived from the passphrase and the salt, so that no two streams have a key in common.
const (
	magic      = "skiffsn1"
	saltBytes  = 16
	headerSize = len(magic) + saltBytes + sha256.Size
	chunkBytes = 64 << 10

	scryptR, scryptP = 8, 1

	// MinPassphraseBytes is the length of the shortest passphrase that is accepted.
	MinPassphraseBytes = 12
)

// scryptN is the cost of scrypt: 32 MiB of memory, and about a tenth of a second. It is part of the format; only tests change it.
var scryptN = 1 << 15

var (
	// ErrPassphrase means that a snapshot was encrypted with another passphrase, or that its first bytes are damaged.
	ErrPassphrase = errors.New("the passphrase is not the one the snapshot was encrypted with, or the beginning of the snapshot is damaged")
	// ErrDamaged means that a snapshot is not what was written.
	ErrDamaged = errors.New("the snapshot is damaged or incomplete")
	// ErrFormat means that a file is not a snapshot.
	ErrFormat = errors.New("not a snapshot of skiff, or one of a newer version")
)

// deriveKeys returns the key of the header's HMAC and the cipher of the chunks.
func deriveKeys(passphrase, salt []byte) (headerKey []byte, chunks cipher.AEAD, err error) {
	if len(passphrase) < MinPassphraseBytes {
		return nil, nil, fmt.Errorf("the passphrase has %d bytes, at least %d are required", len(passphrase), MinPassphraseBytes)
	}
	secret, err := scrypt.Key(passphrase, salt, scryptN, scryptR, scryptP, sha256.Size)
	if err != nil {
		return nil, nil, err
	}
	if headerKey, err = hkdf.Expand(sha256.New, secret, "skiff snapshot header", sha256.Size); err != nil {
		return nil, nil, err
	}
	chunkKey, err := hkdf.Expand(sha256.New, secret, "skiff snapshot chunks", 32)
	if err != nil {
		return nil, nil, err
	}
	block, err := aes.NewCipher(chunkKey)
	if err != nil {
		return nil, nil, err
	}
	chunks, err = cipher.NewGCM(block)
	return headerKey, chunks, err
}

func headerMAC(key, header []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(header)
	return mac.Sum(nil)
}

// chunkNonce is the nonce of a chunk: its number, and 1 if it is the last.
func chunkNonce(number uint64, last bool) []byte {
	nonce := make([]byte, 12)
	binary.BigEndian.PutUint64(nonce[3:], number)
	if last {
		nonce[11] = 1
	}
	return nonce
}

// encrypter encrypts what is written to it. Close writes the last chunk; without it the stream is incomplete.
type encrypter struct {
	to     io.Writer
	chunks cipher.AEAD
	number uint64
	plain  []byte // of the current chunk
	sealed []byte // reused for every chunk
}

func newEncrypter(to io.Writer, passphrase []byte) (*encrypter, error) {
	salt := make([]byte, saltBytes)
	if _, err := rand.Read(salt); err != nil {
		return nil, err
	}
	headerKey, chunks, err := deriveKeys(passphrase, salt)
	if err != nil {
		return nil, err
	}
	header := append([]byte(magic), salt...)
	if _, err := to.Write(append(header, headerMAC(headerKey, header)...)); err != nil {
		return nil, err
	}
	return &encrypter{to: to, chunks: chunks, plain: make([]byte, 0, chunkBytes)}, nil
}

// Write implements io.Writer. A full chunk is written when it is known not to be the last.
func (e *encrypter) Write(data []byte) (int, error) {
	written := 0
	for len(data) > 0 {
		if len(e.plain) == chunkBytes {
			if err := e.flush(false); err != nil {
				return written, err
			}
		}
		n := min(chunkBytes-len(e.plain), len(data))
		e.plain = append(e.plain, data[:n]...)
		data = data[n:]
		written += n
	}
	return written, nil
}

// Close implements io.Closer. It does not close what the stream is written to.
func (e *encrypter) Close() error { return e.flush(true) }

func (e *encrypter) flush(last bool) error {
	e.sealed = e.chunks.Seal(e.sealed[:0], chunkNonce(e.number, last), e.plain, nil)
	e.plain = e.plain[:0]
	e.number++
	_, err := e.to.Write(e.sealed)
	return err
}

// decrypter decrypts a stream of an encrypter. It returns only what is authenticated, and io.EOF only after the last chunk.
type decrypter struct {
	from   *bufio.Reader
	chunks cipher.AEAD
	number uint64
	sealed []byte
	plain  []byte // what is left of the current chunk
	last   bool   // the current chunk is the last
}

func newDecrypter(from io.Reader, passphrase []byte) (*decrypter, error) {
	header := make([]byte, headerSize)
	switch n, err := io.ReadFull(from, header); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		if n < len(magic) || string(header[:len(magic)]) != magic {
			return nil, ErrFormat
		}
		return nil, ErrDamaged
	case err != nil:
		return nil, err
	case string(header[:len(magic)]) != magic:
		return nil, ErrFormat
	}
	signed, mac := header[:headerSize-sha256.Size], header[headerSize-sha256.Size:]
	headerKey, chunks, err := deriveKeys(passphrase, signed[len(magic):])
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(mac, headerMAC(headerKey, signed)) {
		return nil, ErrPassphrase
	}
	sealed := make([]byte, chunkBytes+chunks.Overhead())
	return &decrypter{from: bufio.NewReaderSize(from, len(sealed)), chunks: chunks, sealed: sealed}, nil
}

// Read implements io.Reader.
func (d *decrypter) Read(to []byte) (int, error) {
	for len(d.plain) == 0 {
		if d.last {
			return 0, io.EOF
		}
		if err := d.next(); err != nil {
			return 0, err
		}
	}
	n := copy(to, d.plain)
	d.plain = d.plain[n:]
	return n, nil
}

// next decrypts the next chunk.
func (d *decrypter) next() error {
	n, err := io.ReadFull(d.from, d.sealed)
	switch {
	case errors.Is(err, io.EOF):
		return ErrDamaged // the chunk before was not the last
	case errors.Is(err, io.ErrUnexpectedEOF):
		d.last = true
	case err != nil:
		return err
	default:
		if _, err := d.from.Peek(1); errors.Is(err, io.EOF) {
			d.last = true
		} else if err != nil {
			return err
		}
	}
	if d.plain, err = d.chunks.Open(d.sealed[:0], chunkNonce(d.number, d.last), d.sealed[:n], nil); err != nil {
		return ErrDamaged
	}
	d.number++
	return nil
}
