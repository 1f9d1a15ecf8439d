package encryption

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	upstreamaes "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
	upstreambox "k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
	kmsapi "k8s.io/kms/apis/v2"
)

// plugin is a KMS plugin without a secret: it reverses bytes.
type plugin struct {
	kmsapi.UnsafeKeyManagementServiceServer
	keyID   atomic.Pointer[string]
	down    atomic.Bool
	decrypt atomic.Int32 // number of Decrypt calls
	// blocked: calls of Decrypt wait until it is closed.
	blocked atomic.Pointer[chan struct{}]
}

var errDown = errors.New("the plugin is down")

func turned(data []byte) []byte {
	out := bytes.Clone(data)
	for i := range out {
		out[i] ^= 0xff
	}
	return out
}

func (p *plugin) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	if p.down.Load() {
		return nil, errDown
	}
	return &kmsapi.StatusResponse{Version: "v2", Healthz: "ok", KeyId: *p.keyID.Load()}, nil
}

func (p *plugin) Encrypt(_ context.Context, r *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	if p.down.Load() {
		return nil, errDown
	}
	return &kmsapi.EncryptResponse{
		Ciphertext: turned(r.Plaintext), KeyId: *p.keyID.Load(),
		Annotations: map[string][]byte{"b.example.com": []byte("2"), "a.example.com": []byte("1")},
	}, nil
}

func (p *plugin) Decrypt(_ context.Context, r *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	p.decrypt.Add(1)
	if blocked := p.blocked.Load(); blocked != nil {
		<-*blocked
	}
	if p.down.Load() {
		return nil, errDown
	}
	if string(r.Annotations["a.example.com"]) != "1" || len(r.Annotations) != 2 {
		return nil, errors.New("the annotations are not mine")
	}
	return &kmsapi.DecryptResponse{Plaintext: turned(r.Ciphertext)}, nil
}

// startPlugin serves a plugin and returns its endpoint.
func startPlugin(t *testing.T) (*plugin, string) {
	t.Helper()
	// The length of a socket path is limited.
	dir, err := os.MkdirTemp("", "kms")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	p := &plugin{}
	p.rotate("key-1")
	server := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(server, p)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return p, "unix://" + path
}

func (p *plugin) rotate(keyID string) { p.keyID.Store(&keyID) }

const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n"

// Keys of all sizes: 16, 24 and 32 bytes.
const (
	key16 = "MDEyMzQ1Njc4OWFiY2RlZg=="
	key24 = "MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u"
	key32 = "MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXY="
)

func configure(t testing.TB, text string) *Encryption {
	t.Helper()
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(path, []byte(head+text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := New(path, false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.transformers.Load().close() })
	e.ProbeProviders(t.Context())
	return e
}

var secrets = schema.GroupResource{Resource: "secrets"}

// upstreamChain makes upstream's transformers with one key each.
func upstreamChain(t testing.TB) map[string]value.Transformer {
	t.Helper()
	block := func(key string) cipher.Block {
		secret, err := base64.StdEncoding.DecodeString(key)
		if err != nil {
			t.Fatal(err)
		}
		b, err := aes.NewCipher(secret)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	gcm, err := upstreamaes.NewGCMTransformer(block(key24))
	if err != nil {
		t.Fatal(err)
	}
	secret, err := base64.StdEncoding.DecodeString(key32)
	if err != nil {
		t.Fatal(err)
	}
	chain := func(prefix, none string, inner value.Transformer) value.Transformer {
		keys := value.NewPrefixTransformers(errors.New(none), value.PrefixTransformer{Prefix: []byte("key1:"), Transformer: inner})
		return value.NewPrefixTransformers(errors.New("no matching prefix found"), value.PrefixTransformer{Prefix: []byte(prefix), Transformer: keys})
	}
	const noAES = "no matching key was found for the provided AES transformer"
	return map[string]value.Transformer{
		"aescbc":    chain("k8s:enc:aescbc:v1:", noAES, upstreamaes.NewCBCTransformer(block(key32))),
		"aescbc-16": chain("k8s:enc:aescbc:v1:", noAES, upstreamaes.NewCBCTransformer(block(key16))),
		"aesgcm":    chain("k8s:enc:aesgcm:v1:", noAES, gcm),
		"secretbox": chain("k8s:enc:secretbox:v1:", "no matching key was found for the provided Secretbox transformer", upstreambox.NewSecretboxTransformer([32]byte(secret))),
	}
}

func oneProvider(provider string) string {
	return "resources: [{resources: [secrets], providers: [{" + provider + "}]}]"
}

var providers = map[string]string{
	"aescbc":    "aescbc: {keys: [{name: key1, secret: " + key32 + "}]}",
	"aescbc-16": "aescbc: {keys: [{name: key1, secret: " + key16 + "}]}",
	"aesgcm":    "aesgcm: {keys: [{name: key1, secret: " + key24 + "}]}",
	"secretbox": "secretbox: {keys: [{name: key1, secret: " + key32 + "}]}",
}

var name = []byte("/registry/secrets/ns/a")

// TestUpstreamCompatibility decrypts our values with upstream's code and upstream's values with ours; both must refuse the
// same broken values with the same errors.
func TestUpstreamCompatibility(t *testing.T) {
	upstream := upstreamChain(t)
	for provider, text := range providers {
		t.Run(provider, func(t *testing.T) {
			e := configure(t, oneProvider(text))
			ctx := t.Context()
			theirs, ours := upstream[provider], e.transformers.Load().forResource(secrets)
			for _, size := range []int{1, 15, 16, 17, 1000, 100000} {
				plain := make([]byte, size)
				rand.Read(plain)
				encrypted, err := ours.encrypt(ctx, plain, name)
				if err != nil {
					t.Fatal(err)
				}
				decrypted, stale, err := theirs.TransformFromStorage(ctx, encrypted, value.DefaultContext(name))
				if err != nil || stale || !bytes.Equal(decrypted, plain) {
					t.Fatalf("upstream cannot read ours: %v %v", stale, err)
				}
				if encrypted, err = theirs.TransformToStorage(ctx, plain, value.DefaultContext(name)); err != nil {
					t.Fatal(err)
				}
				decrypted, stale, err = ours.decrypt(ctx, encrypted, name)
				if err != nil || stale || !bytes.Equal(decrypted, plain) {
					t.Fatalf("we cannot read upstream's: %v %v", stale, err)
				}
			}
			// Upstream panics on an initialization vector without data.
			if _, _, err := ours.decrypt(ctx, []byte("k8s:enc:"+strings.TrimSuffix(provider, "-16")+":v1:key1:0123456789abcdef"), name); err == nil {
				t.Error("nothing was decrypted")
			}
			prefix := "k8s:enc:" + strings.TrimSuffix(provider, "-16") + ":v1:"
			for _, encrypted := range []string{
				"plain", "k8s:enc:", prefix, prefix + "key2:xxxxxxxxxxxxxxxxxxxxxxxxxxxx", prefix + "key1:", prefix + "key1:short",
				prefix + "key1:0123456789abcdefxxx", prefix + "key1:0123456789abcdef0123456789abcdef", prefix + "key1:" + strings.Repeat("x", 100),
			} {
				_, _, want := theirs.TransformFromStorage(ctx, []byte(encrypted), value.DefaultContext(name))
				_, _, got := ours.decrypt(ctx, []byte(encrypted), name)
				if got == nil || want == nil || got.Error() != want.Error() {
					t.Errorf("%q: %v, upstream %v", encrypted, got, want)
				}
			}
		})
	}
}

// TestEnvelopeUpstreamCompatibility parses a KMS value with upstream's types and decrypts it with upstream's cipher, and
// the other way round.
func TestEnvelopeUpstreamCompatibility(t *testing.T) {
	_, endpoint := startPlugin(t)
	e := configure(t, oneProvider("kms: {apiVersion: v2, name: plug, endpoint: "+endpoint+"}"))
	ours := e.transformers.Load().forResource(secrets)
	ctx := t.Context()
	encrypted, err := ours.encrypt(ctx, []byte("plain"), name)
	if err != nil {
		t.Fatal(err)
	}
	body, ok := bytes.CutPrefix(encrypted, []byte("k8s:enc:kms:v2:plug:"))
	if !ok {
		t.Fatalf("%q", encrypted)
	}
	var object kmstypes.EncryptedObject
	if err := proto.Unmarshal(body, &object); err != nil {
		t.Fatal(err)
	}
	if object.KeyID != "key-1" || string(object.Annotations["b.example.com"]) != "2" || len(object.Annotations) != 2 ||
		object.EncryptedDEKSourceType != kmstypes.EncryptedDEKSourceType_HKDF_SHA256_XNONCE_AES_GCM_SEED {
		t.Errorf("%v", &object)
	}
	theirs, err := upstreamaes.NewHKDFExtendedNonceGCMTransformer(turned(object.EncryptedDEKSource))
	if err != nil {
		t.Fatal(err)
	}
	if plain, _, err := theirs.TransformFromStorage(ctx, object.EncryptedData, value.DefaultContext(name)); err != nil || string(plain) != "plain" {
		t.Errorf("%q %v", plain, err)
	}
	// With a seed, and with a key as older servers wrote it.
	seed := bytes.Repeat([]byte{7}, 32)
	block, err := aes.NewCipher(seed)
	if err != nil {
		t.Fatal(err)
	}
	plainKey, err := upstreamaes.NewGCMTransformer(block)
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err = upstreamaes.NewHKDFExtendedNonceGCMTransformer(seed); err != nil {
		t.Fatal(err)
	}
	for source, transformer := range map[kmstypes.EncryptedDEKSourceType]value.Transformer{
		kmstypes.EncryptedDEKSourceType_HKDF_SHA256_XNONCE_AES_GCM_SEED: theirs, kmstypes.EncryptedDEKSourceType_AES_GCM_KEY: plainKey,
	} {
		data, err := transformer.TransformToStorage(ctx, []byte("theirs"), value.DefaultContext(name))
		if err != nil {
			t.Fatal(err)
		}
		message, err := proto.Marshal(&kmstypes.EncryptedObject{
			EncryptedData: data, KeyID: "key-1", EncryptedDEKSource: turned(seed), EncryptedDEKSourceType: source,
			Annotations: map[string][]byte{"a.example.com": []byte("1"), "b.example.com": []byte("2")},
		})
		if err != nil {
			t.Fatal(err)
		}
		plain, stale, err := ours.decrypt(ctx, append([]byte("k8s:enc:kms:v2:plug:"), message...), name)
		if err != nil || string(plain) != "theirs" || stale != (source == kmstypes.EncryptedDEKSourceType_AES_GCM_KEY) {
			t.Errorf("%v: %q %v %v", source, plain, stale, err)
		}
	}
}

// BenchmarkEncryption encrypts and decrypts 2 KB, here and with k8s.io/apiserver's transformers.
func BenchmarkEncryption(b *testing.B) {
	plain := bytes.Repeat([]byte("plain"), 400)
	upstream := upstreamChain(b)
	for _, provider := range []string{"aescbc", "aesgcm", "secretbox"} {
		ours := configure(b, oneProvider(providers[provider])).transformers.Load().forResource(secrets)
		b.Run(provider+"/skiff", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				encrypted, err := ours.encrypt(b.Context(), plain, name)
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := ours.decrypt(b.Context(), encrypted, name); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(provider+"/upstream", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				encrypted, err := upstream[provider].TransformToStorage(b.Context(), plain, value.DefaultContext(name))
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := upstream[provider].TransformFromStorage(b.Context(), encrypted, value.DefaultContext(name)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
