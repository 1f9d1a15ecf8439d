package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/internal/pki"
	"skiff/internal/scheduler"
	"skiff/internal/scheduler/decision"
	"skiff/test/cluster"
)

// whyTest is a cluster with a few hollow nodes, and users with and without permission to query the scheduler.
type whyTest struct {
	t       *testing.T
	ctx     context.Context
	cluster *cluster.Cluster
	client  *clientset.Clientset
	config  *rest.Config
	// further flags of `skiff why` and `skiff what-if`
	flags []string
}

func startWhyTest(t *testing.T, flags ...string) *whyTest {
	t.Helper()
	c, err := cluster.Skiff(t.TempDir(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Hollow(4, "--cpu=4", "--zones=2"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	a := &whyTest{t: t, ctx: ctx, cluster: c, client: clientset.NewForConfigOrDie(config), config: config}
	a.must(a.client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))
	eventually(ctx, t, "the nodes are there", func(ctx context.Context) (bool, error) {
		nodes, err := a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err == nil && len(nodes.Items) == 4, err
	})
	return a
}

func (a *whyTest) must(_ any, err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// token creates a service account and a token of it.
func (a *whyTest) token(name string) string {
	a.t.Helper()
	a.must(a.client.CoreV1().ServiceAccounts("default").Create(a.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	request, err := a.client.CoreV1().ServiceAccounts("default").CreateToken(a.ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	a.must(request, err)
	return request.Status.Token
}

// user writes the kubeconfig of a service account.
func (a *whyTest) user(name string) string {
	a.t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: a.config.Host, CertificateAuthorityData: a.config.CAData, CertificateAuthority: a.config.CAFile}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: a.token(name)}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: "default"}
	config.CurrentContext = "x"
	path := filepath.Join(a.t.TempDir(), name+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// grant gives a service account permissions in its namespace.
func (a *whyTest) grant(name string, rules ...rbacv1.PolicyRule) {
	a.t.Helper()
	a.must(a.client.RbacV1().Roles("default").Create(a.ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}))
	a.must(a.client.RbacV1().RoleBindings("default").Create(a.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: name}},
	}, metav1.CreateOptions{}))
}

// skiff runs the program with a user's kubeconfig.
func (a *whyTest) skiff(kubeconfig, input string, args ...string) (string, error) {
	a.t.Helper()
	root, err := cluster.Root()
	if err != nil {
		a.t.Fatal(err)
	}
	cmd := exec.CommandContext(a.ctx, filepath.Join(root, "bin/skiff"), append(append(args, "--kubeconfig", kubeconfig), a.flags...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

const manifest = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 6
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: pause, resources: {requests: {cpu: "1"}}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: c, image: pause}]}
---
apiVersion: v1
kind: Pod
metadata: {name: giant}
spec: {containers: [{name: c, image: pause, resources: {requests: {cpu: "5"}}}]}
`

// checkResponses checks the responses to users, whichever process serves them.
func (a *whyTest) checkResponses() {
	t := a.t
	t.Helper()
	for name, cpu := range map[string]string{"small": "500m", "giant": "5"} {
		a.must(a.client.CoreV1().Pods("default").Create(a.ctx, pendingPod(name, cpu), metav1.CreateOptions{}))
	}
	eventually(a.ctx, t, "the scheduler has decided about the pods", func(ctx context.Context) (bool, error) {
		small, err := a.client.CoreV1().Pods("default").Get(ctx, "small", metav1.GetOptions{})
		if err != nil || small.Spec.NodeName == "" {
			return false, err
		}
		giant, err := a.client.CoreV1().Pods("default").Get(ctx, "giant", metav1.GetOptions{})
		return err == nil && len(giant.Status.Conditions) > 0, err
	})
	allowed, viewer := a.user("asker"), a.user("viewer")
	a.grant("asker",
		rbacv1.PolicyRule{APIGroups: []string{scheduler.GroupVersion.Group}, Resources: []string{"pods/why"}, Verbs: []string{"get"}},
		rbacv1.PolicyRule{APIGroups: []string{scheduler.GroupVersion.Group}, Resources: []string{"whatifs"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}})
	a.grant("viewer", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "pods/*"}, Verbs: []string{"get", "list", "create"}})

	for _, test := range []struct {
		what, kubeconfig, input string
		args, contains          []string
		fails                   bool
	}{
		{what: "a pod that has a node", kubeconfig: allowed, args: []string{"why", "pod/small"}, contains: []string{"Pod default/small goes to node hollow-", "Decided ", "of 4 nodes 4 could take it", "NODE", "chosen", "fits", "NodeResourcesFit"}},
		{what: "a pod that has none", kubeconfig: allowed, args: []string{"why", "-n", "default", "giant"}, contains: []string{"has no node: 0/4 nodes are available: 4 Insufficient cpu.", "refused by NodeResourcesFit: Insufficient cpu", "The smallest changes", "request 1 less cpu, for the node has 4 in all", "likewise on 3 other nodes"}},
		{what: "a pod that does not exist", kubeconfig: allowed, args: []string{"why", "pod/nobody"}, fails: true, contains: []string{`pods "nobody" not found`}},
		{what: "another namespace", kubeconfig: allowed, args: []string{"why", "pod/small", "-n", "kube-system"}, fails: true, contains: []string{"orbidden"}},
		{what: "a user who may read pods, but not query the scheduler", kubeconfig: viewer, args: []string{"why", "pod/small"}, fails: true, contains: []string{"orbidden"}},
		{what: "a manifest", kubeconfig: allowed, input: manifest, args: []string{"what-if", "-f", "-"}, contains: []string{"web-0", "web-5", "agent-hollow-3", "10 of 11 pods would have a node", "Pod default/giant has no node"}},
		{what: "what-if, by a user without permission", kubeconfig: viewer, input: manifest, args: []string{"what-if", "-f", "-"}, fails: true, contains: []string{"orbidden"}},
	} {
		out, err := a.skiff(test.kubeconfig, test.input, test.args...)
		if (err != nil) != test.fails {
			t.Errorf("%s: %v\n%s", test.what, err, out)
		}
		for _, want := range test.contains {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", test.what, want, out)
			}
		}
	}
	out, err := a.skiff(allowed, "", "why", "pod/small", "-o", "json")
	var e decision.Explanation
	if err != nil || json.Unmarshal([]byte(out), &e) != nil || e.Kind != "Explanation" || len(e.Verdicts) != 4 || e.Verdicts[0].Node != e.Node {
		t.Errorf("%v\n%s", err, out)
	}
	pods, err := a.client.CoreV1().Pods("").List(a.ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) != 2 {
		t.Errorf("queries have created pods: there are %d, %v", len(pods.Items), err)
	}
}

// TestWhy queries the scheduler inside a server, through the API server.
func TestWhy(t *testing.T) {
	t.Parallel()
	a := startWhyTest(t, "--without=controllers")
	a.checkResponses()
	data, err := a.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(a.ctx)
	a.must(data, err)
	checkSchedulerMetrics(t, string(data))
	// Unknown paths are not found, and known paths accept their own methods only.
	for path, want := range map[string]int{"pods/small": 404, "whatifs": 405, "pods/small/why/more": 404} {
		var code int
		a.client.CoreV1().RESTClient().Get().AbsPath(scheduler.Root + "v1/namespaces/default/" + path).Do(a.ctx).StatusCode(&code)
		if code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
}

// TestWhyStandalone queries a standalone scheduler at its own port.
func TestWhyStandalone(t *testing.T) {
	t.Parallel()
	a := startWhyTest(t)
	directory := filepath.Join(a.cluster.Dir, "data/pki")
	ca, err := pki.ReadCA(filepath.Join(directory, "ca.crt"), filepath.Join(directory, "ca.key"))
	a.must(ca, err)
	pair, err := ca.Issue(pki.NodeServing("scheduler", []string{"localhost"}, nil), time.Now())
	a.must(pair, err)
	files := t.TempDir()
	for name, data := range map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key, "ca.crt": ca.Cert} {
		if err := os.WriteFile(filepath.Join(files, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port, err := cluster.FreePort()
	a.must(port, err)
	process, err := a.cluster.OwnScheduler("--leader-elect", "--bind-address=127.0.0.1", fmt.Sprint("--secure-port=", port),
		"--tls-cert-file="+files+"/tls.crt", "--tls-private-key-file="+files+"/tls.key")
	a.must(process, err)
	url := fmt.Sprint("https://localhost:", port)
	a.flags = []string{"--scheduler", url, "--scheduler-ca", files + "/ca.crt"}

	a.must(a.client.RbacV1().ClusterRoleBindings().Create(a.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "watcher"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:monitoring"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "watcher"}},
	}, metav1.CreateOptions{}))
	config := rest.AnonymousClientConfig(a.config)
	config.BearerToken = a.token("watcher")
	client, err := rest.HTTPClientFor(config)
	a.must(client, err)
	get := func(path string) (int, string) {
		resp, err := client.Get(url + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		a.must(body, err)
		return resp.StatusCode, string(body)
	}
	eventually(a.ctx, t, "the scheduler is ready", func(context.Context) (bool, error) {
		if process.Exited() {
			return false, fmt.Errorf("the scheduler exited:\n%s", process.Log(20))
		}
		code, _ := get("/readyz")
		return code == http.StatusOK, nil
	})
	a.checkResponses()
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if code, body := get(path); code != http.StatusOK || body != "ok" {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	code, metrics := get("/metrics")
	if code != http.StatusOK {
		t.Errorf("/metrics: %d %s", code, metrics)
	}
	checkSchedulerMetrics(t, metrics)
}

// checkSchedulerMetrics checks for the metrics that dashboards and alerts use.
func checkSchedulerMetrics(t *testing.T, text string) {
	t.Helper()
	for _, want := range []string{
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 1`,
		`scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"} `,
		`scheduler_scheduling_attempt_duration_seconds_count{profile="default-scheduler",result="scheduled"} 1`,
		`scheduler_pending_pods{queue="unschedulable"} 1`, `scheduler_pending_pods{queue="gated"} 0`,
		`scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"} 1`, `scheduler_pod_scheduling_attempts_count 1`,
		`scheduler_queue_incoming_pods_total{event="UnscheduledPodAdd",queue="active"} 2`,
		`scheduler_queue_incoming_pods_total{event="ScheduleAttemptFailure",queue="unschedulable"} `,
		`scheduler_preemption_attempts_total `, `scheduler_preemption_victims_count 0`,
		`scheduler_framework_extension_point_duration_seconds_count{extension_point="Bind",profile="default-scheduler",status="Success"} 1`,
		`scheduler_plugin_execution_duration_seconds_count{extension_point="PreFilter",plugin="NodeResourcesFit",status="Success"} `,
		`scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="default-scheduler"} 1`, `scheduler_cache_size{type="nodes"} 4`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s among the metrics", want)
		}
	}
}
