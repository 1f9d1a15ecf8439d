package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"skiff/test/cluster"
)

// TestCustomResourceControllers: the controllers of a running server treat custom resources as they treat built-in ones.
func TestCustomResourceControllers(t *testing.T) {
	t.Parallel()
	skiff, err := cluster.Skiff(t.TempDir(), "--without=scheduler")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(skiff.Stop)
	config, err := skiff.Config()
	if err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(config)
	createDefinition(t, client)
	c := &customController{Interface: clientset.NewForConfigOrDie(config), objects: client}
	t.Run("autoscaler", c.autoscaler)
	t.Run("quota", c.quota)
	t.Run("garbage collection", c.garbageCollection)
	t.Run("namespace", c.namespaceDeletion)
}

type customController struct {
	clientset.Interface
	objects dynamic.Interface
}

func (c *customController) newNamespace(t *testing.T, name string) dynamic.ResourceInterface {
	t.Helper()
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c.objects.Resource(crontabs).Namespace(name)
}

func create(t *testing.T, in dynamic.ResourceInterface, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	obj.SetNamespace("") // that of the request
	created, err := in.Create(t.Context(), obj, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// autoscaler scales an object by its scale subresource, up to the minimum and down to the maximum.
func (c *customController) autoscaler(t *testing.T) {
	objects := c.newNamespace(t, "scaled")
	tab := crontab("a", "* * * * *")
	if err := unstructured.SetNestedField(tab.Object, int64(1), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	create(t, objects, tab)
	if _, err := objects.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"status":{"replicas":1,"selector":"app=a"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	autoscalers := c.AutoscalingV2().HorizontalPodAutoscalers("scaled")
	hpa, err := autoscalers.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "stable.example.com/v1", Kind: "CronTab", Name: "a"},
			MinReplicas:    ptr.To(int32(3)), MaxReplicas: 5,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To(int32(50))},
			}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.waitForReplicas(t, objects, 3)
	if hpa, err = autoscalers.Get(t.Context(), hpa.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := autoscalers.Patch(t.Context(), hpa.Name, types.MergePatchType, []byte(`{"spec":{"minReplicas":1,"maxReplicas":2}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.waitForReplicas(t, objects, 2)
	eventually(t.Context(), t, "the autoscaler reports what it did", func(ctx context.Context) (bool, error) {
		hpa, err := autoscalers.Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range hpa.Status.Conditions {
			if condition.Type == autoscalingv2.AbleToScale {
				return condition.Status == corev1.ConditionTrue && hpa.Status.DesiredReplicas == 2, nil
			}
		}
		return false, nil
	})
}

func (c *customController) waitForReplicas(t *testing.T, objects dynamic.ResourceInterface, want int64) {
	t.Helper()
	eventually(t.Context(), t, fmt.Sprintf("%d replicas", want), func(ctx context.Context) (bool, error) {
		tab, err := objects.Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		replicas, _, err := unstructured.NestedInt64(tab.Object, "spec", "replicas")
		return replicas == want, err
	})
}

// quota counts the objects of a custom resource, refuses what exceeds it, and is released by deletions.
func (c *customController) quota(t *testing.T) {
	objects := c.newNamespace(t, "limited")
	const counted = "count/crontabs.stable.example.com"
	create(t, objects, crontab("before", "* * * * *"))
	if _, err := c.CoreV1().ResourceQuotas("limited").Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "tabs"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{counted: resource.MustParse("2")}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(want int64) {
		t.Helper()
		eventually(t.Context(), t, fmt.Sprintf("%d are used", want), func(ctx context.Context) (bool, error) {
			quota, err := c.CoreV1().ResourceQuotas("limited").Get(ctx, "tabs", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			amount, ok := quota.Status.Used[counted]
			return ok && amount.Value() == want, nil
		})
	}
	used(1) // what existed before
	create(t, objects, crontab("second", "* * * * *"))
	used(2)
	third := crontab("third", "* * * * *")
	third.SetNamespace("")
	_, err := objects.Create(t.Context(), third, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: tabs, requested: "+counted+"=1, used: "+counted+"=2, limited: "+counted+"=2") {
		t.Errorf("beyond the quota: %v", err)
	}
	if err := objects.Delete(t.Context(), "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used(1)
	create(t, objects, third)
	used(2)
}

// garbageCollection deletes the objects whose owner is deleted, across custom and built-in resources.
func (c *customController) garbageCollection(t *testing.T) {
	objects := c.newNamespace(t, "owned")
	owner, err := c.CoreV1().ConfigMaps("owned").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := crontab("owned", "* * * * *")
	owned.SetOwnerReferences([]metav1.OwnerReference{ownerReference(owner)})
	tab := create(t, objects, owned)
	create(t, objects, crontab("free", "* * * * *"))
	dependent := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dependent", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "stable.example.com/v1", Kind: "CronTab", Name: tab.GetName(), UID: tab.GetUID()},
	}}}
	if _, err := c.CoreV1().ConfigMaps("owned").Create(t.Context(), dependent, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	foreground := metav1.DeletePropagationForeground
	if err := c.CoreV1().ConfigMaps("owned").Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "owner and dependents are deleted", func(ctx context.Context) (bool, error) {
		_, first := c.CoreV1().ConfigMaps("owned").Get(ctx, "owner", metav1.GetOptions{})
		_, second := objects.Get(ctx, "owned", metav1.GetOptions{})
		_, third := c.CoreV1().ConfigMaps("owned").Get(ctx, "dependent", metav1.GetOptions{})
		return apierrors.IsNotFound(first) && apierrors.IsNotFound(second) && apierrors.IsNotFound(third), nil
	})
	if _, err := objects.Get(t.Context(), "free", metav1.GetOptions{}); err != nil {
		t.Errorf("an object without an owner: %v", err)
	}
}

// namespaceDeletion waits for the finalizers of custom objects and says so.
func (c *customController) namespaceDeletion(t *testing.T) {
	objects := c.newNamespace(t, "temporary")
	held := crontab("held", "* * * * *")
	held.SetFinalizers([]string{"example.com/held"})
	create(t, objects, held)
	create(t, objects, crontab("free", "* * * * *"))
	if err := c.CoreV1().Namespaces().Delete(t.Context(), "temporary", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "the namespace names what is left", func(ctx context.Context) (bool, error) {
		namespace, err := c.CoreV1().Namespaces().Get(ctx, "temporary", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range namespace.Status.Conditions {
			if condition.Type == corev1.NamespaceContentRemaining && condition.Status == corev1.ConditionTrue {
				return strings.Contains(condition.Message, "crontabs.stable.example.com has 1 resource instances"), nil
			}
		}
		return false, nil
	})
	if _, err := objects.Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, "the namespace is deleted", func(ctx context.Context) (bool, error) {
		_, err := c.CoreV1().Namespaces().Get(ctx, "temporary", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}
