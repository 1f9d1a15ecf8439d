package e2e

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/controllers"
	"skiff/test/cluster"
)

// TestNetworkNodeAndVolumeControllers runs skiff's own controllers over the network, as a separate process would, and reads the
// objects they maintain with upstream's client.
func TestNetworkNodeAndVolumeControllers(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	runControllers(ctx, t, c, "serviceaccount-controller", "endpointslice-controller", "endpoints-controller", "endpointslice-mirroring-controller",
		"service-cidr-controller", "service-lb-controller", "taint-eviction-controller", "disruption-controller", "persistentvolume-binder-controller",
		"persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller", "ephemeral-volume-controller")
	if err := createReadyNode(ctx, k, "n1"); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the default account", func(ctx context.Context) (bool, error) {
		_, err := k.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
	t.Run("endpoints", func(t *testing.T) { endpointsFollowPods(ctx, t, k) })
	t.Run("mirror", func(t *testing.T) { endpointsAreMirrored(ctx, t, k) })
	t.Run("service CIDR", func(t *testing.T) { serviceCIDRIsAddedAndRemoved(ctx, t, k) })
	t.Run("disruption budget", func(t *testing.T) { budgetAllowsEvictions(ctx, t, k) })
	t.Run("taint", func(t *testing.T) { taintEvictsPods(ctx, t, k) })
	t.Run("volume", func(t *testing.T) { claimIsBound(ctx, t, k) })
}

// runControllers runs controllers until the test ends.
func runControllers(ctx context.Context, t *testing.T, c *cluster.Cluster, names ...string) {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	local, err := client.New(config, api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- controllers.Run(ctx, controllers.Config{Client: local, Enabled: names, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("controllers: %v", err)
		}
	})
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// runningPod creates a pod with the status of a pod that runs on n1.
func runningPod(ctx context.Context, t *testing.T, k clientset.Interface, name, app, ip string, change func(*corev1.Pod)) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: ptr.To[int64](0)}}
	if change != nil {
		change(pod)
	}
	made, err := k.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if _, err := k.CoreV1().Pods("default").UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// addresses lists the ready addresses in the slices of a service, and how many slices there are.
func addresses(ctx context.Context, k clientset.Interface, service string) (ready []string, slices int, err error) {
	list, err := k.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, 0, err
	}
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if ptr.Deref(e.Conditions.Ready, true) {
				ready = append(ready, e.Addresses...)
			}
		}
	}
	return ready, len(list.Items), nil
}

func endpointsFollowPods(ctx context.Context, t *testing.T, k clientset.Interface) {
	if _, err := k.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "an empty slice", func(ctx context.Context) (bool, error) {
		ready, slices, err := addresses(ctx, k, "web")
		return len(ready) == 0 && slices == 1, err
	})
	runningPod(ctx, t, k, "web-1", "web", "10.0.0.1", nil)
	runningPod(ctx, t, k, "web-2", "web", "10.0.0.2", nil)
	eventually(ctx, t, "two addresses in slices and Endpoints", func(ctx context.Context) (bool, error) {
		ready, slices, err := addresses(ctx, k, "web")
		if err != nil || len(ready) != 2 || slices != 1 {
			return false, err
		}
		e, err := k.CoreV1().Endpoints("default").Get(ctx, "web", metav1.GetOptions{}) //nolint:staticcheck // the older form is what is tested
		return err == nil && len(e.Subsets) == 1 && len(e.Subsets[0].Addresses) == 2, ignoreNotFound(err)
	})
	if err := k.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the Endpoints are deleted with the service", func(ctx context.Context) (bool, error) {
		_, err := k.CoreV1().Endpoints("default").Get(ctx, "web", metav1.GetOptions{}) //nolint:staticcheck // the older form is what is tested
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
}

func endpointsAreMirrored(ctx context.Context, t *testing.T, k clientset.Interface) {
	if _, err := k.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "own"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	own := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // the older form is what is tested
		Addresses: []corev1.EndpointAddress{{IP: "10.1.2.3"}}, Ports: []corev1.EndpointPort{{Port: 80}}}}}
	own, err := k.CoreV1().Endpoints("default").Create(ctx, own, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := func(want string) {
		eventually(ctx, t, "mirror of "+want, func(ctx context.Context) (bool, error) {
			ready, _, err := addresses(ctx, k, "own")
			return len(ready) == 1 && ready[0] == want, err
		})
	}
	has("10.1.2.3")
	own.Subsets[0].Addresses[0].IP = "10.2.3.4"
	if _, err := k.CoreV1().Endpoints("default").Update(ctx, own, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	has("10.2.3.4")
	if err := k.CoreV1().Endpoints("default").Delete(ctx, "own", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the mirrored slice is deleted", func(ctx context.Context) (bool, error) {
		_, slices, err := addresses(ctx, k, "own")
		return slices == 0, err
	})
}

func serviceCIDRIsAddedAndRemoved(ctx context.Context, t *testing.T, k clientset.Interface) {
	if _, err := k.NetworkingV1().ServiceCIDRs().Create(ctx, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.77.0.0/24"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the range is ready", func(ctx context.Context) (bool, error) {
		cidr, err := k.NetworkingV1().ServiceCIDRs().Get(ctx, "more", metav1.GetOptions{})
		return err == nil && meta.IsStatusConditionTrue(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady), err
	})
	if err := k.NetworkingV1().ServiceCIDRs().Delete(ctx, "more", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the range is deleted", func(ctx context.Context) (bool, error) {
		_, err := k.NetworkingV1().ServiceCIDRs().Get(ctx, "more", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
}

func budgetAllowsEvictions(ctx context.Context, t *testing.T, k clientset.Interface) {
	runningPod(ctx, t, k, "guarded-1", "guarded", "10.0.1.1", nil)
	runningPod(ctx, t, k, "guarded-2", "guarded", "10.0.1.2", nil)
	if _, err := k.PolicyV1().PodDisruptionBudgets("default").Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "guarded"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	allowed := func(want int32) {
		eventually(ctx, t, "the budget's status is up to date", func(ctx context.Context) (bool, error) {
			b, err := k.PolicyV1().PodDisruptionBudgets("default").Get(ctx, "guarded", metav1.GetOptions{})
			return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.DisruptionsAllowed == want, err
		})
	}
	evict := func(name string) error {
		return k.PolicyV1().Evictions("default").Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
	}
	allowed(1)
	if err := evict("guarded-1"); err != nil {
		t.Fatal(err)
	}
	allowed(0)
	if err := evict("guarded-2"); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("an eviction that the budget does not allow: %v", err)
	}
}

func taintEvictsPods(ctx context.Context, t *testing.T, k clientset.Interface) {
	runningPod(ctx, t, k, "tolerating", "tainted", "10.0.2.1", func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "go", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}
	})
	runningPod(ctx, t, k, "waits", "tainted", "10.0.2.2", func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "go", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](3)}}
	})
	runningPod(ctx, t, k, "evicted", "tainted", "10.0.2.3", nil)
	began := time.Now()
	patch := []byte(`{"spec":{"taints":[{"key":"go","effect":"NoExecute"}]}}`)
	if _, err := k.CoreV1().Nodes().Patch(ctx, "n1", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := func(name string) {
		eventually(ctx, t, name+" is gone", func(ctx context.Context) (bool, error) {
			_, err := k.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		})
	}
	gone("evicted")
	gone("waits")
	if waited := time.Since(began); waited < 3*time.Second {
		t.Errorf("the pod that tolerates the taint for 3 seconds was evicted after %v", waited)
	}
	if _, err := k.CoreV1().Pods("default").Get(ctx, "tolerating", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod that tolerates the taint: %v", err)
	}
}

func claimIsBound(ctx context.Context, t *testing.T, k clientset.Interface) {
	capacity := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if _, err := k.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: capacity, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, StorageClassName: "manual",
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/disk"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, StorageClassName: ptr.To("manual"), Resources: corev1.VolumeResourceRequirements{Requests: capacity}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the claim is bound", func(ctx context.Context) (bool, error) {
		claim, err := k.CoreV1().PersistentVolumeClaims("default").Get(ctx, "data", metav1.GetOptions{})
		return err == nil && claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName == "disk", err
	})
	if err := k.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the volume is released", func(ctx context.Context) (bool, error) {
		volume, err := k.CoreV1().PersistentVolumes().Get(ctx, "disk", metav1.GetOptions{})
		return err == nil && volume.Status.Phase == corev1.VolumeReleased, err
	})
}
