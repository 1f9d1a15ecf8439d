package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/test/cluster"
)

var storageVersionMigrations = schema.GroupVersionResource{Group: "storagemigration.k8s.io", Version: "v1", Resource: "storageversionmigrations"}

// TestStorageVersionMigration changes the storage version of a custom resource and migrates its objects: then the old version can be removed
// from the definition.
func TestStorageVersionMigration(t *testing.T) {
	t.Parallel()
	etcdURL := "unix://" + filepath.Join(t.TempDir(), "etcd.sock")
	c, err := cluster.Skiff(t.TempDir(), "--etcd-listen-client-url="+etcdURL, "--without=scheduler")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{etcdURL}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { etcd.Close() })
	ctx, client := t.Context(), resources(t, c)
	definitions := client.Resource(customResourceDefinitions)
	if _, err := definitions.Create(ctx, parseObject(t, theirDefinition), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "an object is created", func(ctx context.Context) (bool, error) {
		_, err := client.Resource(gauges).Create(ctx, parseObject(t, "{apiVersion: other.example.com/v2, kind: Gauge, metadata: {name: g}, value: 7}"), metav1.CreateOptions{})
		return err == nil, nil
	})
	storedAs := func() string {
		t.Helper()
		response, err := etcd.Get(ctx, "/registry/other.example.com/gauges/g")
		if err != nil || len(response.Kvs) != 1 {
			t.Fatalf("%+v %v", response, err)
		}
		var obj metav1.PartialObjectMetadata
		if err := json.Unmarshal(response.Kvs[0].Value, &obj); err != nil {
			t.Fatal(err)
		}
		return obj.APIVersion
	}
	storedVersions := func(ctx context.Context) string {
		t.Helper()
		crd, err := definitions.Get(ctx, "gauges.other.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		versions, _, _ := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions")
		return fmt.Sprint(versions)
	}
	if _, err := definitions.Patch(ctx, "gauges.other.example.com", types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/versions/0/storage","value":true},{"op":"replace","path":"/spec/versions/1/storage","value":false}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := storedAs() + " " + storedVersions(ctx); got != "other.example.com/v1 [v1 v2]" {
		t.Errorf("before the migration: %s", got)
	}
	migration := parseObject(t, "{apiVersion: storagemigration.k8s.io/v1, kind: StorageVersionMigration, metadata: {name: gauges}, spec: {resource: {group: other.example.com, resource: gauges}}}")
	if _, err := client.Resource(storageVersionMigrations).Create(ctx, migration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := runCommand(t.TempDir(), c.Kubeconfig, "kubectl wait --timeout=2m --for=condition=Running=false storageversionmigration/gauges"); !strings.Contains(got, "condition met") {
		t.Fatalf("%s\n%s", got, runCommand(t.TempDir(), c.Kubeconfig, "kubectl get crd,storageversionmigration -o yaml"))
	}
	if got := storedAs() + " " + storedVersions(ctx); got != "other.example.com/v2 [v2]" {
		t.Errorf("after the migration: %s\n%s", got, runCommand(t.TempDir(), c.Kubeconfig, "kubectl get crd,storageversionmigration -o yaml"))
	}
	if _, err := definitions.Patch(ctx, "gauges.other.example.com", types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/versions/1"}]`), metav1.PatchOptions{}); err != nil {
		t.Errorf("remove the old version: %v", err)
	}
}
