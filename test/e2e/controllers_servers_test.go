package e2e

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

// TestServersShareControllers starts two servers on one etcd: one of them runs the controllers. It is killed, and the other takes over.
func TestServersShareControllers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	servers, clients, holder := twoServers(t, "scheduler", "kube-controller-manager")
	account := func(namespace string) {
		t.Helper()
		if _, err := clients[1].CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "a controller creates the service account of "+namespace, func(ctx context.Context) (bool, error) {
			_, err := clients[1].CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
			return err == nil, ignoreNotFound(err)
		})
	}
	eventually(ctx, t, "a leader is elected", func(ctx context.Context) (bool, error) { return holder(ctx) != "", nil })
	first := holder(ctx)
	account("one")
	// The first server started before the second: it is the leader.
	servers[0].Server[0].Kill()
	eventually(ctx, t, "the other server is elected", func(ctx context.Context) (bool, error) { return holder(ctx) != first && holder(ctx) != "", nil })
	account("two")
}

// twoServers starts two servers on one etcd, both without one component. holder returns the holder of a lease in kube-system, read
// from the second.
func twoServers(t *testing.T, without, lease string) (servers []*cluster.Cluster, clients []clientset.Interface, holder func(context.Context) string) {
	t.Helper()
	etcd, url, err := cluster.Etcd(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Stop)
	for range 2 {
		c, err := cluster.Skiff(t.TempDir(), "--without="+without, "--etcd-servers="+url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Stop)
		config, err := c.Config()
		if err != nil {
			t.Fatal(err)
		}
		servers, clients = append(servers, c), append(clients, clientset.NewForConfigOrDie(config))
	}
	return servers, clients, func(ctx context.Context) string {
		held, err := clients[1].CoordinationV1().Leases("kube-system").Get(ctx, lease, metav1.GetOptions{})
		if err != nil || held.Spec.HolderIdentity == nil {
			return ""
		}
		return *held.Spec.HolderIdentity
	}
}
