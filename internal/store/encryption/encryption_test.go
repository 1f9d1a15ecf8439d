package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/store"
	"skiff/internal/store/memory"
	"skiff/internal/store/storetest"
)

// resourceOf returns the first path segment below /registry/ as the resource.
func resourceOf(key string) schema.GroupResource {
	name, _, _ := strings.Cut(strings.TrimPrefix(key, "/registry/"), "/")
	return schema.ParseGroupResource(name)
}

// TestSuite: an encrypted store behaves like any other.
func TestSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		e := configure(t, "resources: [{resources: ['*.*'], providers: [{secretbox: {keys: [{name: key1, secret: "+key32+"}]}}]}]")
		return e.Wrap(memory.New(), resourceOf)
	})
}

func TestRulesByResource(t *testing.T) {
	e := configure(t, fmt.Sprintf(`resources:
- {resources: [events], providers: [{identity: {}}]}
- {resources: [secrets, pandas.bears.example], providers: [{aescbc: {keys: [{name: one, secret: %[1]s}]}}]}
- {resources: ['*.apps'], providers: [{aescbc: {keys: [{name: two, secret: %[1]s}]}}]}
- {resources: ['*.'], providers: [{aescbc: {keys: [{name: three, secret: %[1]s}]}}]}
- {resources: ['*.*'], providers: [{aescbc: {keys: [{name: four, secret: %[1]s}]}}]}
`, key32))
	for resource, want := range map[string]string{
		"events": "plain", "secrets": "k8s:enc:aescbc:v1:one:", "pandas.bears.example": "k8s:enc:aescbc:v1:one:", "deployments.apps": "k8s:enc:aescbc:v1:two:",
		"pods": "k8s:enc:aescbc:v1:three:", "jobs.batch": "k8s:enc:aescbc:v1:four:",
	} {
		encrypted, err := e.transformers.Load().forResource(schema.ParseGroupResource(resource)).encrypt(t.Context(), []byte("plain"), name)
		if err != nil || !strings.HasPrefix(string(encrypted), want) {
			t.Errorf("%s: %q %v", resource, encrypted, err)
		}
	}
}

func TestBadConfigurations(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"resources: []", "resources: Required value: at least one resources is required"},
		{"resources: [{}]", "resources[0].resources: Required value"},
		{"resources: [{resources: [secrets]}]", "resources[0].providers: Required value"},
		{oneProvider(""), "resources[0].providers[0]: Invalid value"},
		{oneProvider("identity: {}, aesgcm: {}"), "more than one provider specified"},
		{oneProvider("aesgcm: {}"), "resources[0].providers[0].aesgcm.keys: Required value"},
		{oneProvider("aesgcm: {keys: [{name: a}]}"), "resources[0].providers[0].aesgcm.keys[0].secret: Required value"},
		{oneProvider("aescbc: {keys: [{secret: " + key16 + "}]}"), "resources[0].providers[0].aescbc.keys[0].name: Required value"},
		{oneProvider("aescbc: {keys: [{name: a, secret: '!!'}]}"), `aescbc.keys[0].secret: Invalid value: "REDACTED": secrets must be base64 encoded`},
		{oneProvider("aescbc: {keys: [{name: a, secret: aGlkZGVu}]}"), `Invalid value: "REDACTED": secret is not of the expected length, got 6, expected one of [16 24 32]`},
		{oneProvider("secretbox: {keys: [{name: a, secret: " + key16 + "}]}"), "got 16, expected one of [32]"},
		{"resources: [{resources: [secrets], resources: [configmaps], providers: [{identity: {}}]}]", `key "resources" already set in map`},
		{oneProvider("salt: {}"), `unknown field "resources[0].providers[0].salt"`},
		{"resources: [{resources: [secrets, secrets], providers: [{identity: {}}]}]", "the same resource cannot be specified multiple times"},
		{"resources: [{resources: [secrets, '*.'], providers: [{identity: {}}]}]", "using overlapping resources"},
		{"resources: [{resources: ['*'], providers: [{identity: {}}]}]", "resources[0].resources[0]: Invalid value: \"*\": use '*.'"},
		{"resources: [{resources: [Secrets], providers: [{identity: {}}]}]", "capital letters"},
		{"resources: [{resources: [x.events.k8s.io], providers: [{identity: {}}]}]", "Use 'events' instead"},
		{"resources: [{resources: ['secrets.*'], providers: [{identity: {}}]}]", "across groups is not supported"},
		{"resources: [{resources: ['*.'], providers: [{identity: {}}]}, {resources: [secrets], providers: [{identity: {}}]}]", `resource "secrets" is masked by earlier rule "*."`},
		{oneProvider("kms: {name: a, endpoint: 'unix:///x'}"), "resources[0].providers[0].kms.apiVersion"},
		{oneProvider("kms: {apiVersion: v2, name: 'a:b', endpoint: 'tcp://x', timeout: -1s, cachesize: 3}"), "kms.endpoint"},
		{"resources: [{resources: [secrets], providers: [{kms: {apiVersion: v2, name: a, endpoint: 'unix:///x'}}, {kms: {apiVersion: v2, name: a, endpoint: 'unix:///x'}}]}]", "duplicate KMS provider name a"},
	} {
		path := filepath.Join(t.TempDir(), "encryption.yaml")
		if err := os.WriteFile(path, []byte(head+tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(path, false, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "aGlkZGVu") {
			t.Errorf("%s\n gives %v\n want %s", tt.text, err, tt.want)
		}
	}
}

// TestRotation: the first key encrypts, all keys decrypt, and a value of another key than the first is stale.
func TestRotation(t *testing.T) {
	inner := memory.New()
	old := configure(t, oneProvider(providers["aescbc"])).Wrap(inner, resourceOf)
	both := configure(t, fmt.Sprintf("resources: [{resources: [secrets], providers: [{secretbox: {keys: [{name: new, secret: %s}]}}, {%s}, {identity: {}}]}]", key32, providers["aescbc"])).Wrap(inner, resourceOf)
	ctx := t.Context()
	revision, err := old.Create(ctx, string(name), []byte("plain"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Create(ctx, "/registry/secrets/ns/bare", []byte("bare"), 0); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{string(name): "plain", "/registry/secrets/ns/bare": "bare"} {
		kv, err := both.Get(ctx, key)
		stale, staleErr := both.Stale(ctx, key)
		if err != nil || staleErr != nil || string(kv.Value) != want || !stale {
			t.Errorf("%q %v %v %v", kv.Value, err, stale, staleErr)
		}
	}
	if _, err := both.Update(ctx, string(name), []byte("plain"), 0, revision); err != nil {
		t.Fatal(err)
	}
	if stale, err := both.Stale(ctx, string(name)); stale || err != nil {
		t.Error(stale, err)
	}
	raw, err := inner.Get(ctx, string(name))
	if err != nil || !bytes.HasPrefix(raw.Value, []byte("k8s:enc:secretbox:v1:new:")) || bytes.Contains(raw.Value, []byte("plain")) {
		t.Errorf("%q %v", raw.Value, err)
	}
	// A configuration with only the old key cannot decrypt the value; other values stay readable.
	kv, err := old.Get(ctx, string(name))
	if err != nil || !store.IsEncrypted(kv.Value) {
		t.Errorf("%q %v", kv.Value, err)
	}
	var encrypted *store.EncryptionError
	if _, err := old.Decrypt(ctx, string(name), kv.Value); !errors.As(err, &encrypted) || err.Error() != "no matching prefix found" {
		t.Error(err)
	}
}

// TestPlaintextIsRejected: without the identity provider, a plaintext value in the store is an error.
func TestPlaintextIsRejected(t *testing.T) {
	inner := memory.New()
	s := configure(t, oneProvider(providers["aesgcm"])).Wrap(inner, resourceOf)
	ctx := t.Context()
	if _, err := inner.Create(ctx, string(name), []byte("forged"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Create(ctx, "/registry/pods/ns/a", []byte("pod"), 0); err != nil {
		t.Fatal(err)
	}
	kv, err := s.Get(ctx, string(name))
	if err != nil || !store.IsEncrypted(kv.Value) {
		t.Fatalf("%q %v", kv.Value, err)
	}
	if _, err := s.Decrypt(ctx, string(name), kv.Value); err == nil || err.Error() != "no matching prefix found" {
		t.Error(err)
	}
	if kv, err := s.Get(ctx, "/registry/pods/ns/a"); err != nil || string(kv.Value) != "pod" {
		t.Errorf("%q %v", kv.Value, err)
	}
	// Nor is the encrypted value of another object accepted.
	if _, err := s.Create(ctx, "/registry/secrets/ns/b", []byte("b"), 0); err != nil {
		t.Fatal(err)
	}
	raw, err := inner.Get(ctx, "/registry/secrets/ns/b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Create(ctx, "/registry/secrets/ns/c", raw.Value, 0); err != nil {
		t.Fatal(err)
	}
	if kv, err := s.Get(ctx, "/registry/secrets/ns/c"); err != nil || !store.IsEncrypted(kv.Value) {
		t.Errorf("%q %v", kv.Value, err)
	}
}

func TestKeyOfServiceChanges(t *testing.T) {
	p, endpoint := startPlugin(t)
	e := configure(t, oneProvider("kms: {apiVersion: v2, name: plug, endpoint: "+endpoint+"}"))
	s := e.Wrap(memory.New(), resourceOf)
	kms := e.transformers.Load().providers[0]
	ctx := t.Context()
	if _, err := s.Create(ctx, string(name), []byte("plain"), 0); err != nil {
		t.Fatal(err)
	}
	if stale, err := s.Stale(ctx, string(name)); stale || err != nil {
		t.Error(stale, err)
	}
	p.rotate("key-2")
	kms.probed = time.Time{}
	if err := e.Healthy(ctx); err != nil {
		t.Fatal(err)
	}
	if stale, err := s.Stale(ctx, string(name)); !stale || err != nil {
		t.Error(stale, err)
	}
	if p.decrypt.Load() != 0 {
		t.Error("the plugin was called for a cached key")
	}
	// A seed whose key the plugin has not confirmed for too long is used to decrypt but not to encrypt.
	current := *kms.current.Load()
	current.expires = time.Now().Add(-time.Second)
	kms.current.Store(&current)
	if _, err := s.Create(ctx, "/registry/secrets/ns/b", []byte("b"), 0); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Error(err)
	}
	if kv, err := s.Get(ctx, string(name)); err != nil || string(kv.Value) != "plain" {
		t.Errorf("%q %v", kv.Value, err)
	}
}

func TestServiceThatIsDown(t *testing.T) {
	p, endpoint := startPlugin(t)
	text := oneProvider("kms: {apiVersion: v2, name: plug, endpoint: " + endpoint + ", timeout: 200ms}")
	inner := memory.New()
	before := configure(t, text).Wrap(inner, resourceOf)
	ctx := t.Context()
	for i := range 3 {
		if _, err := before.Create(ctx, fmt.Sprintf("/registry/secrets/ns/%d", i), []byte("plain"), 0); err != nil {
			t.Fatal(err)
		}
	}
	e := configure(t, text) // as after a restart: no seed is cached
	s := e.Wrap(inner, resourceOf)
	p.down.Store(true)
	kvs, _, _, err := s.List(ctx, "/registry/", "", 0, 0)
	if err != nil || len(kvs) != 3 || p.decrypt.Load() != 1 {
		t.Fatalf("%d values, %d calls: %v", len(kvs), p.decrypt.Load(), err)
	}
	if _, err := s.Decrypt(ctx, kvs[0].Key, kvs[0].Value); err == nil || !strings.Contains(err.Error(), "failed to decrypt DEK") {
		t.Error(err)
	}
	e.transformers.Load().providers[0].probed = time.Time{}
	if err := e.Healthy(ctx); err == nil || !strings.Contains(err.Error(), "kms-provider-0: failed to perform status section of the healthz check for KMS Provider plug") {
		t.Error(err)
	}
	p.down.Store(false)
	if plain, err := s.Decrypt(ctx, kvs[0].Key, kvs[0].Value); err != nil || string(plain) != "plain" {
		t.Errorf("%q %v", plain, err)
	}
}

// A KMS plugin that does not respond delays no event of the watch, neither of its own kind nor of others.
func TestSlowServiceDoesNotDelayWatch(t *testing.T) {
	p, endpoint := startPlugin(t)
	text := oneProvider("kms: {apiVersion: v2, name: plug, endpoint: " + endpoint + ", timeout: 1h}")
	inner := memory.New()
	writer := configure(t, text).Wrap(inner, resourceOf)
	reader := configure(t, text).Wrap(inner, resourceOf) // another server: it has not decrypted the writer's seed
	ctx := t.Context()
	blocked := make(chan struct{})
	p.blocked.Store(&blocked)
	watch := reader.Watch(ctx, "/registry/", 1)
	next := func() store.Event {
		t.Helper()
		for {
			select {
			case batch := <-watch.Batches():
				if len(batch.Events) == 1 {
					return batch.Events[0]
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the watch waits for the plugin")
			}
		}
	}
	for range 3 {
		revision, err := writer.Create(ctx, string(name), []byte("secret"), 0)
		if err != nil {
			t.Fatal(err)
		}
		if event := next(); !store.IsEncrypted(event.Value) {
			t.Errorf("got %q without the plugin", event.Value)
		}
		if _, err := writer.Delete(ctx, string(name), revision); err != nil {
			t.Fatal(err)
		}
		next()
	}
	if _, err := writer.Create(ctx, "/registry/pods/ns/a", []byte("pod"), 0); err != nil {
		t.Fatal(err)
	}
	if event := next(); string(event.Value) != "pod" {
		t.Errorf("got %q", event.Value)
	}
	close(blocked)
	// When the plugin has responded, to one call for all events, the watch delivers decrypted values.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		revision, err := writer.Create(ctx, string(name), []byte("secret"), 0)
		if err != nil {
			t.Fatal(err)
		}
		event := next()
		if string(event.Value) == "secret" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the key is never decrypted")
		}
		if _, err := writer.Delete(ctx, string(name), revision); err != nil {
			t.Fatal(err)
		}
		next()
	}
	if n := p.decrypt.Load(); n != 1 {
		t.Errorf("%d calls of the plugin", n)
	}
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(head+text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(oneProvider("identity: {}"))
	e, err := New(path, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if e.HealthCheck() != "kms-providers" || e.Healthy(t.Context()) != nil {
		t.Error("no health check")
	}
	e.poll = 5 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	sealsWith := func(prefix string) bool {
		encrypted, err := e.transformers.Load().forResource(secrets).encrypt(ctx, []byte("plain"), name)
		return err == nil && bytes.HasPrefix(encrypted, []byte(prefix))
	}
	wait := func(prefix string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !sealsWith(prefix); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("nothing is encrypted with %s", prefix)
			}
		}
	}
	write(oneProvider(providers["aesgcm"]))
	wait("k8s:enc:aesgcm:")
	write("resources: 7") // invalid
	time.Sleep(30 * time.Millisecond)
	if !sealsWith("k8s:enc:aesgcm:") {
		t.Error("a bad file took effect")
	}
	_, endpoint := startPlugin(t)
	write(oneProvider("kms: {apiVersion: v2, name: plug, endpoint: " + endpoint + "}"))
	wait("k8s:enc:kms:v2:plug:")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
