package encryption

import (
	"bytes"
	"testing"
)

// FuzzEnvelope: malformed messages are refused, and a parsed envelope is encoded to the same bytes.
func FuzzEnvelope(f *testing.F) {
	whole := envelope{data: []byte("data"), keyID: "key", encryptedDEK: []byte("encrypted"), annotations: map[string][]byte{"a.example.com": []byte("1"), "b.example.com": nil}, source: sourceSeed}
	f.Add(whole.append(nil))
	f.Add([]byte{})
	f.Add([]byte{0x0a, 0xff})
	f.Fuzz(func(t *testing.T, message []byte) {
		e, err := parseEnvelope(message)
		if err != nil {
			return
		}
		written := e.append(nil)
		again, err := parseEnvelope(written)
		if err != nil || !bytes.Equal(again.append(nil), written) || again.keyID != e.keyID || !bytes.Equal(again.data, e.data) {
			t.Errorf("%x is read as %+v and written %x: %v", message, e, written, err)
		}
	})
}

// FuzzDecrypt gives every cipher values that it did not encrypt.
func FuzzDecrypt(f *testing.F) {
	e := configure(f, "resources: [{resources: [secrets], providers: [{"+providers["aescbc"]+"}, {"+providers["aesgcm"]+"}, {"+providers["secretbox"]+"}]}]")
	t := e.transformers.Load().forResource(secrets)
	encrypted, err := t.encrypt(f.Context(), []byte("plain"), name)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encrypted)
	f.Add([]byte("k8s:enc:aesgcm:v1:key1:x"))
	f.Add([]byte("k8s:enc:secretbox:v1:key1:x"))
	f.Fuzz(func(tt *testing.T, value []byte) {
		if plain, _, err := t.decrypt(tt.Context(), value, name); err == nil && bytes.Equal(plain, value) {
			tt.Errorf("%q was believed", value)
		}
	})
}
