package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

// TestControllerManagerServes reads the health endpoints of a standalone controller manager, which need no credentials, and its
// metrics, which need the API server's authorization.
func TestControllerManagerServes(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	manager, err := c.OwnControllerManager("--leader-elect", "--bind-address=127.0.0.1", fmt.Sprint("--secure-port=", port),
		"--allocate-node-cidrs", "--cluster-cidr=10.7.0.0/16", "--node-cidr-mask-size=20", "--service-cluster-ip-range=10.7.0.0/20")
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // it signs its own certificate
	get := func(path, token string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", port, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := insecure.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	eventually(ctx, t, "the controller manager is ready", func(context.Context) (bool, error) {
		if manager.Exited() {
			return false, fmt.Errorf("the controller manager exited:\n%s", manager.Log(20))
		}
		code, _ := get("/readyz", "")
		return code == 200, nil
	})
	for path, want := range map[string]string{
		"/healthz": "ok", "/livez": "ok", "/healthz?verbose": "[+]ping ok\n[+]leaderElection ok\nhealthz check passed\n", "/readyz?verbose": "[+]informer-sync ok",
	} {
		if code, body := get(path, ""); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want %q", path, code, body, want)
		}
	}

	tokenOf := func(name string) string {
		if _, err := k.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		request, err := k.CoreV1().ServiceAccounts("default").CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	prometheus, unauthorized := tokenOf("prometheus"), tokenOf("unauthorized")
	if _, err := k.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "prometheus"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:monitoring"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "prometheus"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		token, path string
		code        int
	}{
		{"", "/metrics", 403}, {"nonsense", "/metrics", 401}, {unauthorized, "/metrics", 403}, {prometheus, "/metrics", 200}, {prometheus, "/debug/pprof/", 403},
	} {
		if code, body := get(test.path, test.token); code != test.code {
			t.Errorf("%s: %d %s, want %d", test.path, code, body, test.code)
		}
	}

	// Every node gets a pod CIDR, none of which overlaps the Service CIDR.
	for i := range 3 {
		if err := createReadyNode(ctx, k, fmt.Sprint("node-", i)); err != nil {
			t.Fatal(err)
		}
	}
	given := map[string]bool{}
	eventually(ctx, t, "every node has a pod CIDR", func(ctx context.Context) (bool, error) {
		nodes, err := k.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		clear(given)
		for _, node := range nodes.Items {
			if node.Spec.PodCIDR == "" {
				return false, nil
			}
			given[node.Spec.PodCIDR] = true
		}
		return len(given) == 3, nil
	})
	for cidr := range given {
		if !strings.HasPrefix(cidr, "10.7.") || !strings.HasSuffix(cidr, "/20") || cidr == "10.7.0.0/20" {
			t.Errorf("a node has the pod CIDR %s", cidr)
		}
	}
	_, metrics := get("/metrics", prometheus)
	for _, want := range []string{
		`workqueue_depth{name="deployment"}`, `workqueue_adds_total{name="cidrallocator_node"}`, `leader_election_master_status{name="kube-controller-manager"} 1`,
		`running_managed_controllers{manager="kube-controller-manager",name="replicaset-controller"} 1`, `rest_client_requests_total{code="200"`, "process_cpu_seconds_total",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s among the metrics", want)
		}
	}
}

// TestServerShowsControllers finds the controllers' metrics among the server's own, and a pod CIDR at every node, with default
// flags.
func TestServerShowsControllers(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir(), "--without=")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.Hollow(3); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "every node has a pod CIDR", func(ctx context.Context) (bool, error) {
		nodes, err := k.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		given := map[string]bool{}
		for _, node := range nodes.Items {
			if strings.HasPrefix(node.Spec.PodCIDR, "10.42.") && strings.HasSuffix(node.Spec.PodCIDR, ".0/24") && len(node.Spec.PodCIDRs) == 1 {
				given[node.Spec.PodCIDR] = true
			}
		}
		return len(given) == 3, nil
	})
	body, err := k.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"apiserver_request_total", `workqueue_adds_total{name="cidrallocator_node"}`, `running_managed_controllers{manager="kube-controller-manager",name="job-controller"} 1`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("no %s among the metrics", want)
		}
	}
}
