package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"skiff/test/cluster"
)

// TestStoreRoundTrip writes objects of all kinds through one server and reads them through the other on the same etcd, in both
// directions: every object must be the same.
func TestStoreRoundTrip(t *testing.T) {
	t.Parallel()
	etcdURL := "unix://" + filepath.Join(t.TempDir(), "etcd.sock")
	const flag = "--disable-admission-plugins=ServiceAccount"

	t.Run("skiff writes, upstream reads", func(t *testing.T) {
		skiff, err := cluster.Skiff(t.TempDir(), "--etcd-listen-client-url="+etcdURL, flag)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(skiff.Stop)
		writeEverything(t, skiff)
		upstream, err := cluster.UpstreamAPI(t.TempDir(), etcdURL, flag)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(upstream.Stop)
		compareServers(t, skiff, upstream)
	})

	t.Run("upstream writes, skiff reads", func(t *testing.T) {
		etcd, url, err := cluster.Etcd(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(etcd.Stop)
		upstream, err := cluster.UpstreamAPI(t.TempDir(), url, flag)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(upstream.Stop)
		writeEverything(t, upstream)
		skiff, err := cluster.Skiff(t.TempDir(), "--etcd-servers="+url, flag)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(skiff.Stop)
		compareServers(t, upstream, skiff)
	})
}

// copies is how many objects of each kind are written, so that lists and namespaces hold more than one.
const copies = 4

// writeEverything creates the objects of kinds.script, several copies of each.
func writeEverything(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	client, mapping := dynamicClient(t, c)
	s := readScript(t, "testdata/kubectl/kinds.script")
	written := 0
	for _, file := range []string{"namespace.yaml", "cluster.yaml", "namespaced.yaml"} {
		for document := range strings.SplitSeq(s.files[file], "\n---\n") {
			for i := range copies {
				obj := parseObject(t, document)
				rename(obj, i)
				gvr, ok := mapping[obj.GroupVersionKind()]
				if !ok {
					t.Fatalf("%s does not serve %s", c.Name, obj.GroupVersionKind())
				}
				_, err := client.Resource(gvr).Namespace(obj.GetNamespace()).Create(t.Context(), obj, metav1.CreateOptions{FieldManager: "roundtrip"})
				if err != nil {
					t.Fatalf("create %s %s: %v", gvr.Resource, obj.GetName(), err)
				}
				written++
			}
		}
	}
	if written < 100 {
		t.Fatalf("only %d objects written", written)
	}
}

// rename gives each copy of an object its own name.
func rename(obj *unstructured.Unstructured, copy int) {
	if copy == 0 {
		return
	}
	suffix := fmt.Sprintf("-%d", copy)
	switch obj.GetKind() {
	case "Namespace":
		obj.SetName(obj.GetName() + suffix)
	case "CSIDriver", "VolumeAttributesClass":
		obj.SetName(fmt.Sprintf("c%d.%s", copy, obj.GetName()))
	default:
		obj.SetName(obj.GetName() + suffix)
	}
	if obj.GetNamespace() != "" {
		obj.SetNamespace(obj.GetNamespace() + suffix)
	}
	if obj.GetKind() == "Event" {
		// An event is in the namespace of its object.
		_ = unstructured.SetNestedField(obj.Object, obj.GetNamespace(), "involvedObject", "namespace")
	}
}

// compareServers lists every resource of both servers and requires equal objects.
func compareServers(t *testing.T, wrote, reads *cluster.Cluster) {
	t.Helper()
	want, got := everything(t, wrote), everything(t, reads)
	if len(want) < 100 {
		t.Fatalf("only %d objects found", len(want))
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] == nil {
			t.Errorf("%s is not there when %s reads", key, reads.Name)
			continue
		}
		if !reflect.DeepEqual(want[key].Object, got[key].Object) {
			t.Errorf("%s differs:\n%s", key, difference(indent(got[key]), indent(want[key])))
		}
	}
	t.Logf("%d objects compared", len(want))
}

// everything returns all objects of GA resources by resource, namespace and name, except those that servers update by themselves.
func everything(t *testing.T, c *cluster.Cluster) map[string]*unstructured.Unstructured {
	t.Helper()
	client, mapping := dynamicClient(t, c)
	all := map[string]*unstructured.Unstructured{}
	for _, gvr := range mapping {
		list, err := client.Resource(gvr).List(t.Context(), metav1.ListOptions{})
		if apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			t.Fatalf("list %s on %s: %v", gvr, c.Name, err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			if ownedByServer(obj) {
				continue
			}
			all[fmt.Sprintf("%s %s/%s", gvr, obj.GetNamespace(), obj.GetName())] = obj
		}
	}
	return all
}

// ownedByServer reports objects that each server writes for itself while it runs: their content is not the other's.
func ownedByServer(obj *unstructured.Unstructured) bool {
	switch obj.GetKind() {
	case "APIService", "ComponentStatus":
		return true
	case "Lease":
		return obj.GetNamespace() != "kinds" && !strings.HasPrefix(obj.GetNamespace(), "kinds-")
	case "Service", "Endpoints", "EndpointSlice":
		return obj.GetName() == "kubernetes" && obj.GetNamespace() == "default"
	}
	return false
}

// dynamicClient returns a client and the GA resources of a server by kind.
func dynamicClient(t *testing.T, c *cluster.Cluster) (dynamic.Interface, map[schema.GroupVersionKind]schema.GroupVersionResource) {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	mapping := map[schema.GroupVersionKind]schema.GroupVersionResource{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") {
				continue
			}
			mapping[gv.WithKind(r.Kind)] = gv.WithResource(r.Name)
		}
	}
	return client, mapping
}

func parseObject(t *testing.T, document string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(data); err != nil {
		t.Fatalf("%v in:\n%s", err, document)
	}
	return obj
}

func indent(obj *unstructured.Unstructured) string {
	data, err := json.MarshalIndent(obj, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// TestRestart checks that a restarted server has its state, and that two servers cannot share a data directory.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := cluster.Skiff(dir)
	if err != nil {
		t.Fatal(err)
	}
	client, _ := dynamicClient(t, first)
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	created, err := client.Resource(configMaps).Namespace("default").Create(t.Context(), parseObject(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: kept}, data: {a: b}}"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Skiff(filepath.Join(t.TempDir()), "--data-dir="+filepath.Join(dir, "data")); err == nil || !strings.Contains(err.Error(), "used by another skiff") {
		t.Fatalf("a second server on the same directory: %v", err)
	}
	first.Stop()
	second, err := cluster.Skiff(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client, _ = dynamicClient(t, second)
	found, err := client.Resource(configMaps).Namespace("default").Get(ctx, "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(created.Object, found.Object) {
		t.Fatalf("after a restart:\n%s", difference(indent(found), indent(created)))
	}
}
