package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"skiff/test/cluster"
)

// TestUpstreamControllers lets upstream's kube-controller-manager and kube-scheduler, unmodified, run on skiff's API
// server: a Deployment of 500 replicas becomes 500 bound pods on 50 nodes, is rolled out, rolled back and deleted with
// everything that depends on it.
func TestUpstreamControllers(t *testing.T) {
	t.Parallel()
	const replicas, nodes = 500, 50
	// New nodes are tainted until the node lifecycle controller, which does not run here, finds them ready.
	c, err := cluster.Skiff(t.TempDir(), "--disable-admission-plugins=TaintNodesByCondition")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	// Nodes without a kubelet must not become NotReady, and their pods must not be garbage-collected.
	if err := c.ControllerManager("--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"); err != nil {
		t.Fatal(err)
	}
	if err := c.Scheduler(); err != nil {
		t.Fatal(err)
	}
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for i := range nodes {
		if err := createReadyNode(ctx, k, fmt.Sprintf("node-%02d", i)); err != nil {
			t.Fatal(err)
		}
	}
	deployment, err := k.AppsV1().Deployments("default").Create(ctx, webDeployment(replicas), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	player := &hollowKubelet{client: k}
	go player.run(ctx)

	waitForRollout(ctx, t, k, deployment.Name, "image:1", replicas)
	assertSpread(ctx, t, k, nodes, replicas)

	setImage(ctx, t, k, deployment.Name, "image:2")
	waitForRollout(ctx, t, k, deployment.Name, "image:2", replicas)
	setImage(ctx, t, k, deployment.Name, "image:1") // what `rollout undo` writes
	waitForRollout(ctx, t, k, deployment.Name, "image:1", replicas)

	sets, err := k.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(sets.Items) != 2 {
		t.Fatalf("%d replica sets after a roll back, want the 2 revisions", len(sets.Items))
	}
	foreground := metav1.DeletePropagationForeground
	if err := k.AppsV1().Deployments("default").Delete(ctx, deployment.Name, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "everything that depended on the deployment is gone", func(ctx context.Context) (bool, error) {
		pods, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		sets, err := k.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
		return len(pods.Items) == 0 && len(sets.Items) == 0, err
	})
}

func webDeployment(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "image:1"}}},
			},
		},
	}
}

func createReadyNode(ctx context.Context, k clientset.Interface, name string) error {
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	if _, err := k.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	// A patch, because controllers also write the node as soon as they see it.
	patch, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{Capacity: resources, Allocatable: resources, Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()},
	}}})
	if err != nil {
		return err
	}
	_, err = k.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// hollowKubelet acts as the kubelet of all nodes: bound pods run, deleted pods are removed.
type hollowKubelet struct {
	client clientset.Interface
}

func (h *hollowKubelet) run(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := h.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName!="})
		if err != nil {
			continue
		}
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				h.syncPod(ctx, pod)
			}
		}
		w.Stop()
	}
}

func (h *hollowKubelet) syncPod(ctx context.Context, pod *corev1.Pod) {
	switch {
	case pod.DeletionTimestamp != nil:
		_ = h.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case pod.Status.Phase == corev1.PodPending:
		patch := fmt.Sprintf(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastTransitionTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
		_, _ = h.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	}
}

func setImage(ctx context.Context, t *testing.T, k clientset.Interface, name, image string) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":%q}]}}}}`, image)
	if _, err := k.AppsV1().Deployments("default").Patch(ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// waitForRollout waits until all replicas run the image and nothing else is left.
func waitForRollout(ctx context.Context, t *testing.T, k clientset.Interface, name, image string, replicas int32) {
	t.Helper()
	eventually(ctx, t, "rollout of "+image, func(ctx context.Context) (bool, error) {
		d, err := k.AppsV1().Deployments("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		s := d.Status
		return d.Spec.Template.Spec.Containers[0].Image == image && s.ObservedGeneration == d.Generation &&
			s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas && s.Replicas == replicas, nil
	})
}

// assertSpread checks that every replica is bound and that no node was left out.
func assertSpread(ctx context.Context, t *testing.T, k clientset.Interface, nodes, replicas int) {
	t.Helper()
	pods, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	perNode := map[string]int{}
	for _, p := range pods.Items {
		perNode[p.Spec.NodeName]++
	}
	if len(pods.Items) != replicas || perNode[""] != 0 || len(perNode) != nodes {
		t.Fatalf("%d pods on %d nodes, %d unbound; want %d on %d", len(pods.Items), len(perNode), perNode[""], replicas, nodes)
	}
}

func eventually(ctx context.Context, t *testing.T, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 4*time.Minute, true, condition); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
