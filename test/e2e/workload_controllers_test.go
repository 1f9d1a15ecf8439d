package e2e

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/controllers"
	"skiff/test/cluster"
)

// TestWorkloadControllers lets skiff's own controllers, in this process and over the network, roll a Deployment of 100 replicas out
// and back.
func TestWorkloadControllers(t *testing.T) {
	const replicas = 100
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	rollOutAndBack(t, c, replicas)
}

// TestWorkloadControllersOnUpstream does the same on upstream's API server.
func TestWorkloadControllersOnUpstream(t *testing.T) {
	c, err := cluster.UpstreamAPI(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	rollOutAndBack(t, c, 20)
}

func rollOutAndBack(t *testing.T, c *cluster.Cluster, replicas int32) {
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
		ended <- controllers.Run(ctx, controllers.Config{Client: own, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	}()
	k := clientset.NewForConfigOrDie(config)
	if err := createReadyNode(ctx, k, "node"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Logf("service account: %v", err)
	}
	go bindAll(ctx, k)
	go (&hollowKubelet{client: k}).run(ctx)
	deployment, err := k.AppsV1().Deployments("default").Create(ctx, webDeployment(replicas), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	waitForRollout(ctx, t, k, deployment.Name, "image:1", replicas)
	t.Logf("%d replicas after %v", replicas, time.Since(began))
	setImage(ctx, t, k, deployment.Name, "image:2")
	waitForRollout(ctx, t, k, deployment.Name, "image:2", replicas)
	setImage(ctx, t, k, deployment.Name, "image:1") // what `rollout undo` writes
	waitForRollout(ctx, t, k, deployment.Name, "image:1", replicas)
	t.Logf("rolled out and back after %v", time.Since(began))

	sets, err := k.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(sets.Items) != 2 {
		t.Fatalf("%d replica sets after a roll back, want the 2 revisions; %v", len(sets.Items), err)
	}
	d, err := k.AppsV1().Deployments("default").Get(ctx, deployment.Name, metav1.GetOptions{})
	if err != nil || d.Annotations["deployment.kubernetes.io/revision"] != "3" {
		t.Errorf("revision %q after a roll back, want 3; %v", d.Annotations["deployment.kubernetes.io/revision"], err)
	}
	eventually(ctx, t, "events tell of the rollout", func(ctx context.Context) (bool, error) {
		events, err := k.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Deployment,reason=ScalingReplicaSet"})
		return err == nil && len(events.Items) > 2, err
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the controllers ended with %v", err)
	}
}

// bindAll is a scheduler that knows one node.
func bindAll(ctx context.Context, k clientset.Interface) {
	for ctx.Err() == nil {
		w, err := k.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName="})
		if err != nil {
			continue
		}
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				_ = k.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}, metav1.CreateOptions{})
			}
		}
		w.Stop()
	}
}
