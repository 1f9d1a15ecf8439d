package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	kmsapi "k8s.io/kms/apis/v2"

	"skiff/test/cluster"
)

// kmsPlugin is a KMS plugin without a key: it inverts bytes.
type kmsPlugin struct {
	kmsapi.UnsafeKeyManagementServiceServer
}

func (kmsPlugin) Status(context.Context, *kmsapi.StatusRequest) (*kmsapi.StatusResponse, error) {
	return &kmsapi.StatusResponse{Version: "v2", Healthz: "ok", KeyId: "key-1"}, nil
}

func (kmsPlugin) Encrypt(_ context.Context, r *kmsapi.EncryptRequest) (*kmsapi.EncryptResponse, error) {
	return &kmsapi.EncryptResponse{Ciphertext: invert(r.Plaintext), KeyId: "key-1", Annotations: map[string][]byte{"by.example.com": []byte("test")}}, nil
}

func (kmsPlugin) Decrypt(_ context.Context, r *kmsapi.DecryptRequest) (*kmsapi.DecryptResponse, error) {
	return &kmsapi.DecryptResponse{Plaintext: invert(r.Ciphertext)}, nil
}

func invert(data []byte) []byte {
	out := bytes.Clone(data)
	for i := range out {
		out[i] ^= 0xff
	}
	return out
}

func startKMSPlugin(t *testing.T) (endpoint string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(server, kmsPlugin{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return "unix://" + filepath.Join(dir, "s")
}

// encryptionConfig encrypts a resource with each provider, secrets with the AES-CBC keys named.
func encryptionConfig(endpoint string, cbcKeys ...string) string {
	var keys []string
	for _, name := range cbcKeys {
		// Each name is a different key of 32 bytes.
		keys = append(keys, fmt.Sprintf("{name: %s, secret: %s}", name, map[string]string{
			"key1": "MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXY=", "key2": "dnV0c3JxcG9ubWxramloZ2ZlZGNiYTk4NzY1NDMyMTA=",
		}[name]))
	}
	const secret = "MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1ub3BxcnN0dXY="
	return fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- {resources: [secrets], providers: [{aescbc: {keys: [%s]}}, {identity: {}}]}
- {resources: [configmaps], providers: [{aesgcm: {keys: [{name: key1, secret: %s}]}}, {identity: {}}]}
- {resources: [limitranges], providers: [{secretbox: {keys: [{name: key1, secret: %s}]}}]}
- {resources: ['*.coordination.k8s.io'], providers: [{kms: {apiVersion: v2, name: plug, endpoint: %s}}, {identity: {}}]}
- {resources: [resourcequotas], providers: [{identity: {}}]}
`, strings.Join(keys, ", "), secret, secret, endpoint)
}

// encryptedResources are the resources of the configuration, with the prefixes of their stored values.
var encryptedResources = []struct {
	gvr    schema.GroupVersionResource
	key    string
	object string
	prefix string
}{
	{schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, "/registry/secrets/default/", `{apiVersion: v1, kind: Secret, stringData: {k: hidden}}`, "k8s:enc:aescbc:v1:key1:"},
	{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "/registry/configmaps/default/", `{apiVersion: v1, kind: ConfigMap, data: {k: hidden}}`, "k8s:enc:aesgcm:v1:key1:"},
	{schema.GroupVersionResource{Version: "v1", Resource: "limitranges"}, "/registry/limitranges/default/", `{apiVersion: v1, kind: LimitRange, metadata: {labels: {a: hidden}}, spec: {limits: [{type: Pod, max: {cpu: "1"}}]}}`, "k8s:enc:secretbox:v1:key1:"},
	{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "/registry/leases/default/", `{apiVersion: coordination.k8s.io/v1, kind: Lease, spec: {holderIdentity: hidden}}`, "k8s:enc:kms:v2:plug:"},
	{schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}, "/registry/resourcequotas/default/", `{apiVersion: v1, kind: ResourceQuota, spec: {hard: {pods: "1"}}}`, "k8s\x00"},
}

// TestEncryptionLikeUpstream runs both servers on one etcd with one configuration: each reads what the other encrypted, with every provider.
func TestEncryptionLikeUpstream(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	endpoint := startKMSPlugin(t)
	file := filepath.Join(dir, "encryption.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(encryptionConfig(endpoint, "key1"))
	etcd, url, err := cluster.Etcd(filepath.Join(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Stop)
	flag := "--encryption-provider-config=" + file
	skiff, err := cluster.Skiff(filepath.Join(dir, "skiff"), "--etcd-servers="+url, flag)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { skiff.Stop() })
	upstream, err := cluster.UpstreamAPI(filepath.Join(dir, "upstream"), url, flag)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	ours, theirs := plainClient(t, skiff), plainClient(t, upstream)

	for _, kind := range encryptedResources {
		for writer, clients := range map[string][2]dynamic.Interface{"skiff": {ours, theirs}, "upstream": {theirs, ours}} {
			obj := parseObject(t, kind.object)
			obj.SetName("by-" + writer)
			written, err := clients[0].Resource(kind.gvr).Namespace("default").Create(t.Context(), obj, metav1.CreateOptions{})
			if err != nil {
				t.Fatalf("%s writes %s: %v", writer, kind.gvr.Resource, err)
			}
			value := storedValue(t, raw, kind.key+obj.GetName())
			if !bytes.HasPrefix(value, []byte(kind.prefix)) || bytes.Contains(value, []byte("hidden")) {
				t.Errorf("%s stores %s as %q", writer, kind.gvr.Resource, value[:min(60, len(value))])
			}
			read, err := clients[1].Resource(kind.gvr).Namespace("default").Get(t.Context(), obj.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatalf("what %s wrote as %s: %v", writer, kind.gvr.Resource, err)
			}
			if indent(read) != indent(written) {
				t.Errorf("%s differs:\n%s", kind.gvr.Resource, difference(indent(read), indent(written)))
			}
		}
	}
	compareBrokenSecret(t, raw, ours, theirs)

	// A new key comes first: what is written again, even unchanged, is encrypted with it.
	skiff.Stop()
	write(encryptionConfig(endpoint, "key2", "key1"))
	if skiff, err = cluster.Skiff(filepath.Join(dir, "skiff"), "--etcd-servers="+url, flag); err != nil {
		t.Fatal(err)
	}
	secrets := plainClient(t, skiff).Resource(encryptedResources[0].gvr).Namespace("default")
	for _, name := range []string{"by-skiff", "by-upstream"} {
		secret, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{FieldManager: "e2e.test"})
		if err != nil {
			t.Fatal(err)
		}
		if value := storedValue(t, raw, "/registry/secrets/default/"+name); !bytes.HasPrefix(value, []byte("k8s:enc:aescbc:v1:key2:")) {
			t.Errorf("%s is stored as %q", name, value[:30])
		}
		third, err := secrets.Update(t.Context(), again, metav1.UpdateOptions{FieldManager: "e2e.test"})
		if err != nil || third.GetResourceVersion() != again.GetResourceVersion() || again.GetResourceVersion() == secret.GetResourceVersion() {
			t.Errorf("%v: revisions %s, %s and %s", err, secret.GetResourceVersion(), again.GetResourceVersion(), third.GetResourceVersion())
		}
	}
	// Upstream has only the old key.
	_, err = theirs.Resource(encryptedResources[0].gvr).Namespace("default").Get(t.Context(), "by-skiff", metav1.GetOptions{})
	if !apierrors.IsInternalError(err) {
		t.Errorf("upstream without the key: %v", err)
	}
}

// compareBrokenSecret checks that an object that cannot be decrypted gives the same error from both servers, and that no other
// object does.
func compareBrokenSecret(t *testing.T, raw *clientv3.Client, ours, theirs dynamic.Interface) {
	t.Helper()
	for name, value := range map[string]string{
		"no-key": "k8s:enc:aescbc:v1:nobody:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "no-provider": "k8s:enc:aesgcm:v1:key1:xxxxxxxxxxxx", "broken": "k8s:enc:aescbc:v1:key1:xxx",
	} {
		key := "/registry/secrets/default/" + name
		if _, err := raw.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
		var messages [2]string
		for i, client := range []dynamic.Interface{ours, theirs} {
			secrets := client.Resource(encryptedResources[0].gvr).Namespace("default")
			_, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
			messages[i] = describeError(err)
			// The error of a list names it.
			_, err = secrets.List(t.Context(), metav1.ListOptions{})
			messages[i] += "\n" + describeError(err)
			if _, err := secrets.Get(t.Context(), "by-skiff", metav1.GetOptions{}); err != nil {
				t.Errorf("another secret: %v", err)
			}
			if _, err := client.Resource(encryptedResources[1].gvr).Namespace("default").List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Errorf("another resource: %v", err)
			}
		}
		if messages[0] != messages[1] {
			t.Errorf("%s: %s\nupstream: %s", name, messages[0], messages[1])
		}
		if _, err := raw.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	// Once the object is deleted, lists work again.
	if _, err := ours.Resource(encryptedResources[0].gvr).Namespace("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

func describeError(err error) string {
	if status, ok := err.(apierrors.APIStatus); ok {
		s := status.Status()
		return fmt.Sprintf("%d %s %s", s.Code, s.Reason, s.Message)
	}
	return fmt.Sprint(err)
}

func plainClient(t *testing.T, c *cluster.Cluster) dynamic.Interface {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func storedValue(t *testing.T, raw *clientv3.Client, key string) []byte {
	t.Helper()
	response, err := raw.Get(t.Context(), key)
	if err != nil || len(response.Kvs) != 1 {
		t.Fatalf("%s: %v", key, err)
	}
	return response.Kvs[0].Value
}
