package backup

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/iotest"
)

func TestMain(m *testing.M) {
	scryptN = 1 << 4 // tests derive hundreds of keys
	os.Exit(m.Run())
}

var testPassphrase = []byte("a passphrase for tests")

func encrypt(t testing.TB, plain []byte) []byte {
	t.Helper()
	var sealed bytes.Buffer
	e, err := newEncrypter(&sealed, testPassphrase)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(e, bytes.NewReader(plain)); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return sealed.Bytes()
}

func decrypt(sealed, passphrase []byte) ([]byte, error) {
	d, err := newDecrypter(bytes.NewReader(sealed), passphrase)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(d)
}

func randomBytes(n int) []byte {
	source := rand.NewChaCha8([32]byte{byte(n)})
	data := make([]byte, n)
	_, _ = source.Read(data)
	return data
}

func TestEncryption(t *testing.T) {
	for _, size := range []int{0, 1, chunkBytes - 1, chunkBytes, chunkBytes + 1, 3 * chunkBytes, 3*chunkBytes + 7} {
		plain := randomBytes(size)
		sealed := encrypt(t, plain)
		got, err := decrypt(sealed, testPassphrase)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%d bytes: %d came back, %v", size, len(got), err)
		}
		d, err := newDecrypter(iotest.HalfReader(bytes.NewReader(sealed)), testPassphrase)
		if err != nil {
			t.Fatal(err)
		}
		if err := iotest.TestReader(d, plain); size < 2*chunkBytes && err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if a, b := encrypt(t, []byte("same")), encrypt(t, []byte("same")); bytes.Equal(a[headerSize:], b[headerSize:]) {
		t.Error("two streams with the same content have the same chunks")
	}
}

// What is not exactly the stream that was written is refused, whatever was done to it.
func TestEncryptionDetectsChanges(t *testing.T) {
	const sealedChunk = chunkBytes + 16
	plain := randomBytes(2*chunkBytes + 100)
	sealed := encrypt(t, plain)
	chunk := func(i int) []byte {
		return sealed[headerSize+i*sealedChunk : min(headerSize+(i+1)*sealedChunk, len(sealed))]
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	header := sealed[:headerSize]
	flip := func(at int) []byte {
		changed := bytes.Clone(sealed)
		changed[at] ^= 1
		return changed
	}
	for what, test := range map[string]struct {
		sealed     []byte
		passphrase string
		want       error
	}{
		"another passphrase":       {sealed, "another passphrase", ErrPassphrase},
		"a passphrase too short":   {sealed, "short", nil},
		"nothing":                  {nil, "", ErrFormat},
		"another file":             {[]byte("kind: Pod"), "", ErrFormat},
		"another long file":        {bytes.Repeat([]byte("kind: Pod\n"), 100), "", ErrFormat},
		"a part of the header":     {header[:20], "", ErrDamaged},
		"the header alone":         {header, "", ErrDamaged},
		"cut in a chunk":           {sealed[:headerSize+1000], "", ErrDamaged},
		"cut between chunks":       {join(header, chunk(0), chunk(1)), "", ErrDamaged},
		"without the last byte":    {sealed[:len(sealed)-1], "", ErrDamaged},
		"with one more byte":       {append(bytes.Clone(sealed), 0), "", ErrDamaged},
		"with a chunk twice":       {join(header, chunk(0), chunk(0), chunk(1), chunk(2)), "", ErrDamaged},
		"without a chunk":          {join(header, chunk(0), chunk(2)), "", ErrDamaged},
		"chunks in another order":  {join(header, chunk(1), chunk(0), chunk(2)), "", ErrDamaged},
		"chunks of another stream": {join(encrypt(t, plain)[:headerSize], chunk(0), chunk(1), chunk(2)), "", ErrDamaged},
		"magic changed":            {flip(0), "", ErrFormat},
		"salt changed":             {flip(len(magic)), "", ErrPassphrase},
		"first chunk changed":      {flip(headerSize), "", ErrDamaged},
		"last chunk changed":       {flip(len(sealed) - 1), "", ErrDamaged},
	} {
		t.Run(what, func(t *testing.T) {
			passphrase := testPassphrase
			if test.passphrase != "" {
				passphrase = []byte(test.passphrase)
			}
			_, err := decrypt(test.sealed, passphrase)
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
	if _, err := newEncrypter(io.Discard, []byte("short")); err == nil || !strings.Contains(err.Error(), "at least 12") {
		t.Errorf("a short passphrase: %v", err)
	}
}

// Nothing but what was encrypted is decrypted. Each process of the fuzzer has encrypted it with another salt.
func FuzzDecrypt(f *testing.F) {
	content := []byte("content")
	sealed := encrypt(f, content)
	f.Add(sealed)
	f.Add(sealed[:len(sealed)-1])
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		plain, err := decrypt(data, testPassphrase)
		if err == nil && !bytes.Equal(plain, content) {
			t.Errorf("%x was decrypted to %q", data, plain)
		}
	})
}
