package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"skiff/test/cluster"
)

var (
	customResourceDefinitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	gauges                    = schema.GroupVersionResource{Group: "other.example.com", Version: "v2", Resource: "gauges"}
	crontabs                  = schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "crontabs"}
)

const crontabDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, shortNames: [ct], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    additionalPrinterColumns:
    - {name: Spec, type: string, jsonPath: .spec.cronSpec}
    schema:
      openAPIV3Schema:
        type: object
        description: CronTab runs an image periodically.
        properties:
          spec:
            type: object
            required: [cronSpec]
            properties:
              cronSpec: {type: string, description: when it runs, maxLength: 20}
              image: {type: string, default: busybox}
              replicas: {type: integer, minimum: 0, maximum: 10}
            x-kubernetes-validations:
            - {rule: "self.cronSpec != 'never'", message: it must run}
          status: {type: object, properties: {replicas: {type: integer}, selector: {type: string}}}
`

// theirDefinition has another storage version than the one it is served in first.
const theirDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gauges.other.example.com}
spec:
  group: other.example.com
  scope: Cluster
  names: {plural: gauges, singular: gauge, kind: Gauge}
  versions:
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// registrationWithoutServer is an APIService whose Service does not exist.
const registrationWithoutServer = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.%[1]s.example.com, annotations: {example.com/writer: %[1]s}}
spec: {group: %[1]s.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 7, insecureSkipTLSVerify: true, service: {namespace: default, name: nowhere}}
`

func crontab(name, spec string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{"cronSpec": spec, "unknown": true},
	}}
}

func resources(t *testing.T, c *cluster.Cluster) dynamic.Interface {
	t.Helper()
	client, _ := dynamicClient(t, c)
	return client
}

// createDefinition creates the definition and waits until it is established.
func createDefinition(t *testing.T, client dynamic.Interface) {
	t.Helper()
	if _, err := client.Resource(customResourceDefinitions).Create(t.Context(), parseObject(t, crontabDefinition), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "definition is established", func(ctx context.Context) (bool, error) {
		crd, err := client.Resource(customResourceDefinitions).Get(ctx, "crontabs.stable.example.com", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		for _, c := range conditions {
			if condition := c.(map[string]any); condition["type"] == "Established" && condition["status"] == "True" {
				return true, nil
			}
		}
		return false, nil
	})
}

// TestCustomResources follows a definition from its creation to its deletion, over a restart of the server.
func TestCustomResources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	skiff, err := cluster.Skiff(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { skiff.Stop() })
	ctx := t.Context()
	client := resources(t, skiff)
	createDefinition(t, client)
	// Established means that the resource is there: no request may fail from here on.
	objects := client.Resource(crontabs).Namespace("default")
	watching, err := objects.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	created, err := objects.Create(ctx, crontab("a", "* * * * *"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if spec := created.Object["spec"]; !reflect.DeepEqual(spec, map[string]any{"cronSpec": "* * * * *", "image": "busybox"}) {
		t.Errorf("pruned and defaulted it is %v", spec)
	}
	if _, err := objects.Create(ctx, crontab("b", "* * * * *"), metav1.CreateOptions{FieldValidation: "Strict"}); err == nil || !strings.Contains(err.Error(), `unknown field "spec.unknown"`) {
		t.Errorf("strict validation: %v", err)
	}
	if _, err := objects.Create(ctx, crontab("b", "never"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "it must run") {
		t.Errorf("rule: %v", err)
	}
	if _, err := objects.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("patch: %v", err)
	}
	applied := crontab("a", "1 * * * *")
	unstructured.RemoveNestedField(applied.Object, "spec", "unknown")
	if _, err := objects.Apply(ctx, "a", applied, metav1.ApplyOptions{FieldManager: "e2e"}); !apierrors.IsConflict(err) {
		t.Errorf("apply without force: %v", err)
	}
	if _, err := objects.Apply(ctx, "a", applied, metav1.ApplyOptions{FieldManager: "e2e", Force: true}); err != nil {
		t.Errorf("apply: %v", err)
	}
	scale, err := objects.Get(ctx, "a", metav1.GetOptions{}, "scale")
	if replicas, _, _ := unstructured.NestedInt64(scale.Object, "spec", "replicas"); err != nil || replicas != 3 || scale.GetKind() != "Scale" {
		t.Errorf("scale: %v %v", scale, err)
	}
	if _, err := objects.Patch(ctx, "a", types.MergePatchType, []byte(`{"status":{"replicas":2},"spec":{"replicas":9}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("status: %v", err)
	}
	var seen []string
	for range 4 {
		event := <-watching.ResultChan()
		seen = append(seen, string(event.Type))
	}
	if got := strings.Join(seen, " "); got != "ADDED MODIFIED MODIFIED MODIFIED" {
		t.Errorf("watch: %s", got)
	}
	kubectlCustomResources(t, skiff)

	skiff.Stop()
	if skiff, err = cluster.Skiff(dir); err != nil {
		t.Fatal(err)
	}
	client = resources(t, skiff)
	objects = client.Resource(crontabs).Namespace("default")
	after, err := objects.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal("after a restart: ", err)
	}
	if got := fmt.Sprint(after.Object["spec"], after.Object["status"]); got != "map[cronSpec:1 * * * * image:busybox replicas:4] map[replicas:2]" {
		t.Errorf("after a restart it is %s", got)
	}
	deleteDefinition(t, client)
}

// kubectlCustomResources runs the commands of users.
func kubectlCustomResources(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, step := range []struct{ command, want string }{
		{"kubectl get ct", "NAME SPEC\na 1 * * * *"},
		{"kubectl get all", "crontab.stable.example.com/a"},
		{"kubectl get crd", "crontabs.stable.example.com Namespaced v1(storage)"},
		{"kubectl explain crontab.spec.cronSpec", "when it runs"},
		{"kubectl scale ct/a --replicas=4", "crontab.stable.example.com/a scaled"},
		{"kubectl wait --for=condition=Established crd/crontabs.stable.example.com", "condition met"},
		{"kubectl api-resources --api-group=stable.example.com", "crontabs ct stable.example.com/v1 true CronTab"},
	} {
		if got := runCommand(t.TempDir(), c.Kubeconfig, step.command); !strings.Contains(got, step.want) {
			t.Errorf("$ %s\n%s\nwant %q", step.command, got, step.want)
		}
	}
}

// deleteDefinition deletes the definition. Its objects are deleted first, with their finalizers.
func deleteDefinition(t *testing.T, client dynamic.Interface) {
	t.Helper()
	ctx := t.Context()
	objects := client.Resource(crontabs).Namespace("default")
	watching, err := objects.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	held := crontab("held", "* * * * *")
	held.SetFinalizers([]string{"example.com/held"})
	if _, err := objects.Create(ctx, held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.Resource(customResourceDefinitions).Delete(ctx, "crontabs.stable.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "objects without finalizers are deleted", func(ctx context.Context) (bool, error) {
		list, err := objects.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1, err
	})
	if _, err := objects.Create(ctx, crontab("late", "* * * * *"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an object was created while the definition is being deleted: %v", err)
	}
	if _, err := objects.Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "definition is deleted", func(ctx context.Context) (bool, error) {
		_, err := client.Resource(customResourceDefinitions).Get(ctx, "crontabs.stable.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	eventually(t.Context(), t, "resource is not served", func(ctx context.Context) (bool, error) {
		_, err := objects.List(ctx, metav1.ListOptions{})
		return apierrors.IsNotFound(err), nil
	})
	deleted := 0
	for event := range watching.ResultChan() { // it ends with the resource
		if event.Type == watch.Deleted {
			deleted++
		}
	}
	if deleted == 0 {
		t.Error("the watch did not see the deletions")
	}
}

// TestExtensionRoundTrip writes definitions, their objects and APIServices with one server and reads them with the other on the same etcd, in
// both directions.
func TestExtensionRoundTrip(t *testing.T) {
	t.Parallel()
	etcdURL := "unix://" + filepath.Join(t.TempDir(), "etcd.sock")
	const flag = "--disable-admission-plugins=ServiceAccount"
	skiff, err := cluster.Skiff(t.TempDir(), "--etcd-listen-client-url="+etcdURL, flag)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(skiff.Stop)
	ours := resources(t, skiff)
	createDefinition(t, ours)
	write := func(client dynamic.Interface, name string) {
		t.Helper()
		eventually(t.Context(), t, "create "+name, func(ctx context.Context) (bool, error) {
			_, err := client.Resource(crontabs).Namespace("default").Create(ctx, crontab(name, "* * * * *"), metav1.CreateOptions{FieldManager: "roundtrip"})
			return err == nil, nil // the other server may not serve it yet
		})
	}
	write(ours, "a")
	upstream, err := cluster.UpstreamAPI(t.TempDir(), etcdURL, flag)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	theirs := resources(t, upstream)
	write(theirs, "b")
	defined, err := theirs.Resource(customResourceDefinitions).Create(t.Context(), parseObject(t, theirDefinition), metav1.CreateOptions{FieldManager: "roundtrip"})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "create an object in a version that is not stored", func(ctx context.Context) (bool, error) {
		obj := parseObject(t, "{apiVersion: other.example.com/v2, kind: Gauge, metadata: {name: g}, value: 7}")
		_, err := ours.Resource(gauges).Create(ctx, obj, metav1.CreateOptions{FieldManager: "roundtrip"})
		return err == nil, nil
	})
	for group, client := range map[string]dynamic.Interface{"ours": ours, "theirs": theirs} {
		obj := parseObject(t, fmt.Sprintf(registrationWithoutServer, group))
		if _, err := client.Resource(apiServices).Create(t.Context(), obj, metav1.CreateOptions{FieldManager: "roundtrip"}); err != nil {
			t.Fatal(err)
		}
		// Both servers check it, with the same result.
		eventually(t.Context(), t, "the condition of "+obj.GetName()+" is written", func(ctx context.Context) (bool, error) {
			got, err := available(ctx, client, obj.GetName())
			return got == `False ServiceNotFound service/nowhere in "default" is not present`, err
		})
	}
	// Whoever wrote the definition last, nothing is lost.
	if got, err := ours.Resource(customResourceDefinitions).Get(t.Context(), defined.GetName(), metav1.GetOptions{}); err != nil || !reflect.DeepEqual(got.Object["spec"], defined.Object["spec"]) {
		t.Errorf("the definition of upstream is read as %s %v", indent(got), err)
	}
	for _, read := range []struct {
		gvr             schema.GroupVersionResource
		namespace, name string
	}{{customResourceDefinitions, "", "crontabs.stable.example.com"}, {crontabs, "default", "a"}, {crontabs, "default", "b"},
		{customResourceDefinitions, "", "gauges.other.example.com"}, {gauges, "", "g"},
		{apiServices, "", "v1.apps"}, {apiServices, "", "v1.stable.example.com"}, {apiServices, "", "v2.other.example.com"},
		{apiServices, "", "v1.ours.example.com"}, {apiServices, "", "v1.theirs.example.com"},
	} {
		eventually(t.Context(), t, "both servers have "+read.name, func(ctx context.Context) (bool, error) {
			got, err := ours.Resource(read.gvr).Namespace(read.namespace).Get(ctx, read.name, metav1.GetOptions{})
			if err != nil {
				return false, nil
			}
			want, err := theirs.Resource(read.gvr).Namespace(read.namespace).Get(ctx, read.name, metav1.GetOptions{})
			if err != nil || got.GetResourceVersion() != want.GetResourceVersion() {
				return false, nil
			}
			if !reflect.DeepEqual(got.Object, want.Object) {
				t.Errorf("%s differs:\n%s", read.name, difference(indent(got), indent(want)))
			}
			return true, nil
		})
	}
}
