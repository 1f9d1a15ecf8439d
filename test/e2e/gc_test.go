package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/controllers"
	"skiff/test/cluster"
)

// TestCleanup runs skiff's garbage collector, namespace and quota controllers, in this process and over the network, on skiff.
func TestCleanup(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir(), "--without=controllers,scheduler")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	cleanUp(t, c)
}

// TestCleanupOnUpstream does the same on upstream's API server.
func TestCleanupOnUpstream(t *testing.T) {
	t.Parallel()
	c, err := cluster.UpstreamAPI(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	cleanUp(t, c)
}

// cleanUp runs the controllers and their tests.
func cleanUp(t *testing.T, c *cluster.Cluster) {
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	own, err := client.New(config, api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- controllers.Run(ctx, controllers.Config{
			Client: own, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
			Enabled: []string{"garbage-collector-controller", "namespace-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller",
				"resourcequota-controller", "clusterrole-aggregation-controller"},
			Settings: controllers.Settings{NamespaceGrace: ptr.To(100 * time.Millisecond), RootCA: []byte("authority")},
		})
	}()
	k := &cleanupTest{Interface: clientset.NewForConfigOrDie(config), dynamic: dynamic.NewForConfigOrDie(config), ctx: ctx}
	t.Run("background", k.background)
	t.Run("foreground", k.foreground)
	t.Run("orphan", k.orphan)
	t.Run("circle", k.ownerCycle)
	t.Run("namespace", k.namespace)
	t.Run("quota", k.quota)
	t.Run("custom resources", k.customResources)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the controllers ended with %v", err)
	}
}

type cleanupTest struct {
	clientset.Interface
	dynamic dynamic.Interface
	ctx     context.Context
}

// newNamespace creates a namespace and waits for the objects that controllers create in it.
func (k *cleanupTest) newNamespace(t *testing.T, name string) {
	t.Helper()
	if _, err := k.CoreV1().Namespaces().Create(k.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(k.ctx, t, "the namespace has a service account and kube-root-ca.crt", func(ctx context.Context) (bool, error) {
		_, err := k.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			_, err = k.CoreV1().ConfigMaps(name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		}
		return err == nil, nil
	})
}

func (k *cleanupTest) object(t *testing.T, namespace, name string, owners ...*corev1.ConfigMap) *corev1.ConfigMap {
	t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, owner := range owners {
		m.OwnerReferences = append(m.OwnerReferences, ownerReference(owner))
	}
	m, err := k.CoreV1().ConfigMaps(namespace).Create(k.ctx, m, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func ownerReference(owner *corev1.ConfigMap) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: ptr.To(true)}
}

func (k *cleanupTest) delete(t *testing.T, namespace, name string, policy metav1.DeletionPropagation) {
	t.Helper()
	if err := k.CoreV1().ConfigMaps(namespace).Delete(k.ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		t.Fatal(err)
	}
}

// waitForRemaining waits until only these objects are left in a namespace.
func (k *cleanupTest) waitForRemaining(t *testing.T, namespace string, names ...string) []corev1.ConfigMap {
	t.Helper()
	var left []corev1.ConfigMap
	eventually(k.ctx, t, fmt.Sprintf("only %v remain", names), func(ctx context.Context) (bool, error) {
		maps, err := k.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		left = slices.DeleteFunc(maps.Items, func(m corev1.ConfigMap) bool { return m.Name == "kube-root-ca.crt" })
		return slices.EqualFunc(left, names, func(m corev1.ConfigMap, name string) bool { return m.Name == name }), nil
	})
	return left
}

func (k *cleanupTest) background(t *testing.T) {
	k.newNamespace(t, "background")
	owner := k.object(t, "background", "owner")
	other := k.object(t, "background", "other")
	child := k.object(t, "background", "child", owner)
	k.object(t, "background", "grandchild", child)
	k.object(t, "background", "shared", owner, other)
	k.object(t, "background", "stranger")
	began := time.Now()
	k.delete(t, "background", "owner", metav1.DeletePropagationBackground)
	left := k.waitForRemaining(t, "background", "other", "shared", "stranger")
	t.Logf("took %v", time.Since(began))
	eventually(k.ctx, t, "the shared object names only the owner that is left", func(ctx context.Context) (bool, error) {
		shared, err := k.CoreV1().ConfigMaps("background").Get(ctx, left[1].Name, metav1.GetOptions{})
		return err == nil && len(shared.OwnerReferences) == 1 && shared.OwnerReferences[0].UID == other.UID, err
	})
}

func (k *cleanupTest) foreground(t *testing.T) {
	k.newNamespace(t, "foreground")
	owner := k.object(t, "foreground", "owner")
	child := k.object(t, "foreground", "child", owner)
	held := k.object(t, "foreground", "grandchild", child)
	held.Finalizers = []string{"example.com/hold"}
	if _, err := k.CoreV1().ConfigMaps("foreground").Update(k.ctx, held, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	k.delete(t, "foreground", "owner", metav1.DeletePropagationForeground)
	eventually(k.ctx, t, "the deletion reaches the last dependent", func(ctx context.Context) (bool, error) {
		m, err := k.CoreV1().ConfigMaps("foreground").Get(ctx, "grandchild", metav1.GetOptions{})
		return err == nil && m.DeletionTimestamp != nil, err
	})
	k.waitForRemaining(t, "foreground", "child", "grandchild", "owner")
	if _, err := k.CoreV1().ConfigMaps("foreground").Patch(k.ctx, "grandchild", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	k.waitForRemaining(t, "foreground")
}

// waitForCollector waits until the collector has observed all objects of a namespace: it deletes the last, whose owner does not exist.
func (k *cleanupTest) waitForCollector(t *testing.T, namespace string) {
	t.Helper()
	k.object(t, namespace, "last", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "absent", UID: "absent"}})
	eventually(k.ctx, t, "the collector has observed all objects", func(ctx context.Context) (bool, error) {
		_, err := k.CoreV1().ConfigMaps(namespace).Get(ctx, "last", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
}

func (k *cleanupTest) orphan(t *testing.T) {
	k.newNamespace(t, "orphan")
	owner := k.object(t, "orphan", "owner")
	for i := range 20 {
		k.object(t, "orphan", fmt.Sprintf("child-%02d", i), owner)
	}
	k.waitForCollector(t, "orphan") // it cannot release what it has not observed
	k.delete(t, "orphan", "owner", metav1.DeletePropagationOrphan)
	eventually(k.ctx, t, "the owner is deleted and no owner reference names it", func(ctx context.Context) (bool, error) {
		maps, err := k.CoreV1().ConfigMaps("orphan").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return !slices.ContainsFunc(maps.Items, func(m corev1.ConfigMap) bool { return m.Name == "owner" || len(m.OwnerReferences) > 0 }), nil
	})
	k.waitForCollector(t, "orphan")
	maps, err := k.CoreV1().ConfigMaps("orphan").List(k.ctx, metav1.ListOptions{})
	if err != nil || len(maps.Items) != 21 {
		t.Errorf("%d objects are left, want 20 orphans and kube-root-ca.crt; %v", len(maps.Items), err)
	}
}

// ownerCycle is three objects that own one another.
func (k *cleanupTest) ownerCycle(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		namespace := "circle-" + map[bool]string{true: "foreground", false: "background"}[policy == metav1.DeletePropagationForeground]
		k.newNamespace(t, namespace)
		a := k.object(t, namespace, "a")
		b := k.object(t, namespace, "b", a)
		c := k.object(t, namespace, "c", b)
		a.OwnerReferences = []metav1.OwnerReference{ownerReference(c)}
		if _, err := k.CoreV1().ConfigMaps(namespace).Update(k.ctx, a, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		k.delete(t, namespace, "a", policy)
		k.waitForRemaining(t, namespace)
	}
}

func (k *cleanupTest) namespace(t *testing.T) {
	k.newNamespace(t, "ending")
	k.object(t, "ending", "settings")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image"}}}}
	if _, err := k.CoreV1().Pods("ending").Create(k.ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := k.CoreV1().Namespaces().Delete(k.ctx, "ending", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(k.ctx, t, "the namespace's conditions report what remains", func(ctx context.Context) (bool, error) {
		namespace, err := k.CoreV1().Namespaces().Get(ctx, "ending", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(namespace.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue
		}), nil
	})
	if _, err := k.CoreV1().ConfigMaps("ending").Get(k.ctx, "settings", metav1.GetOptions{}); err != nil {
		t.Errorf("the config map does not outlive the pod: %v", err)
	}
	if _, err := k.CoreV1().Pods("ending").Patch(k.ctx, "held", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	eventually(k.ctx, t, "the namespace is gone", func(ctx context.Context) (bool, error) {
		_, err := k.CoreV1().Namespaces().Get(ctx, "ending", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	t.Logf("took %v beyond its last pod", time.Since(began))
}

func (k *cleanupTest) quota(t *testing.T) {
	k.newNamespace(t, "quota")
	hard := corev1.ResourceList{"pods": resource.MustParse("5"), "requests.cpu": resource.MustParse("1"), "count/configmaps": resource.MustParse("10")}
	if _, err := k.CoreV1().ResourceQuotas("quota").Create(k.ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(pods, cpu, configMaps string) {
		t.Helper()
		eventually(k.ctx, t, fmt.Sprintf("%s pods, %s cpu and %s config maps are used", pods, cpu, configMaps), func(ctx context.Context) (bool, error) {
			quota, err := k.CoreV1().ResourceQuotas("quota").Get(ctx, "limits", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			is := func(name corev1.ResourceName, want string) bool {
				got, ok := quota.Status.Used[name]
				return ok && got.Cmp(resource.MustParse(want)) == 0
			}
			return is("pods", pods) && is("requests.cpu", cpu) && is("count/configmaps", configMaps), nil
		})
	}
	used("0", "0", "1")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "image", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("500m")}}}}}}
	if _, err := k.CoreV1().Pods("quota").Create(k.ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	k.object(t, "quota", "more")
	used("1", "500m", "2")
	if err := k.CoreV1().Pods("quota").Delete(k.ctx, "pod", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	k.delete(t, "quota", "more", metav1.DeletePropagationBackground)
	used("0", "0", "1")
}

// customResources tests a resource that is added while the collector runs, and that has no strategic merge patch.
func (k *cleanupTest) customResources(t *testing.T) {
	definitions := k.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := definitions.Create(k.ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "widgets.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k.newNamespace(t, "custom")
	widgets := k.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("custom")
	widget := func(name string, owners ...*unstructured.Unstructured) *unstructured.Unstructured {
		w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
		w.SetName(name)
		var refs []metav1.OwnerReference
		for _, owner := range owners {
			refs = append(refs, metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: owner.GetName(), UID: owner.GetUID()})
		}
		w.SetOwnerReferences(refs)
		var made *unstructured.Unstructured
		eventually(k.ctx, t, "a widget can be created", func(ctx context.Context) (bool, error) {
			made, err = widgets.Create(ctx, w, metav1.CreateOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil // not served yet
			}
			return err == nil, err
		})
		return made
	}
	first, second := widget("first"), widget("second")
	widget("of-first", first)
	widget("of-both", first, second)
	began := time.Now()
	if err := widgets.Delete(k.ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(k.ctx, t, "the dependent is deleted, the shared one is released", func(ctx context.Context) (bool, error) {
		list, err := widgets.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return len(list.Items) == 2 && len(list.Items[0].GetOwnerReferences()) == 1 && list.Items[1].GetName() == "second", nil
	})
	t.Logf("took %v", time.Since(began))
	orphan := metav1.DeletePropagationOrphan
	if err := widgets.Delete(k.ctx, "second", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	eventually(k.ctx, t, "the last one is an orphan", func(ctx context.Context) (bool, error) {
		list, err := widgets.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 && len(list.Items[0].GetOwnerReferences()) == 0, err
	})
	if err := k.CoreV1().Namespaces().Delete(k.ctx, "custom", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(k.ctx, t, "the namespace is deleted with the widget in it", func(ctx context.Context) (bool, error) {
		_, err := k.CoreV1().Namespaces().Get(ctx, "custom", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}
