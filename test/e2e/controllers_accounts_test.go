package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

// administrator is the user of the admin kubeconfig.
const administrator = "admin"

// TestControllersActAsTheirAccounts runs skiff's controllers as a separate process, once as administrator, which is the default, and
// once with --use-service-account-credentials, and reads from the audit log which user sent which requests and which were denied.
func TestControllersActAsTheirAccounts(t *testing.T) {
	t.Parallel()
	const account = "system:serviceaccount:kube-system:"
	for _, test := range []struct {
		what string
		flag string
		who  map[string]string // by what was done
	}{
		{"as administrator", "--use-service-account-credentials=false", map[string]string{"create replicasets": administrator, "create pods": administrator, "create serviceaccounts": administrator}},
		{"as accounts", "--use-service-account-credentials", map[string]string{
			"create replicasets": account + "deployment-controller", "create pods": account + "job-controller " + account + "replicaset-controller",
			"update deployments/status": account + "deployment-controller", "update replicasets/status": account + "replicaset-controller",
			"create endpointslices": account + "endpointslice-controller", "create endpoints": account + "endpoint-controller",
			"create configmaps": account + "root-ca-cert-publisher", "create serviceaccounts": account + "service-account-controller",
			"delete pods": account + "generic-garbage-collector", "deletecollection secrets": account + "namespace-controller",
			"update namespaces/finalize": account + "namespace-controller", "patch nodes": account + "node-controller " + account + "ttl-controller",
		}},
	} {
		t.Run(test.what, func(t *testing.T) {
			dir := t.TempDir()
			policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
			if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := cluster.Skiff(filepath.Join(dir, "server"), "--audit-policy-file="+policy, "--audit-log-path="+log)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Stop)
			if _, err := c.OwnControllerManager(test.flag); err != nil {
				t.Fatal(err)
			}
			config, err := c.Config()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			exerciseControllers(ctx, t, clientset.NewForConfigOrDie(config))

			// A request is in the audit log after its response, perhaps when the client has sent the next one.
			wrong, refused := wrongUsers(t, log, test.who)
			for until := time.Now().Add(10 * time.Second); len(wrong) > 0 && time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
				wrong, refused = wrongUsers(t, log, test.who)
			}
			for _, what := range wrong {
				t.Error(what)
			}
			if len(refused) > 0 {
				t.Errorf("refused: %q", refused)
			}
		})
	}
}

// wrongUsers compares the users of an audit log with the wanted ones, and returns the differences and the denied requests.
func wrongUsers(t *testing.T, log string, want map[string]string) (wrong, refused []string) {
	t.Helper()
	did, refused := auditedUsers(t, log)
	for _, what := range slices.Sorted(maps.Keys(want)) {
		var others []string
		for _, who := range did[what] {
			// The test itself sends requests as administrator, and the API server has controllers of its own.
			if (who != administrator || want[what] == administrator) && who != "system:apiserver" {
				others = append(others, who)
			}
		}
		if got := strings.Join(others, " "); got != want[what] {
			wrong = append(wrong, fmt.Sprintf("%s: %q, want %q", what, got, want[what]))
		}
	}
	return wrong, refused
}

// exerciseControllers gives many controllers work.
func exerciseControllers(ctx context.Context, t *testing.T, k clientset.Interface) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	until := func(what string, holds func() bool) {
		t.Helper()
		for ; !holds(); time.Sleep(50 * time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatalf("timed out waiting until %s", what)
			}
		}
	}
	must(createReadyNode(ctx, k, "node"))
	_, err := k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}}, metav1.CreateOptions{})
	must(err)
	until("the namespace has its account", func() bool {
		_, err := k.CoreV1().ServiceAccounts("work").Get(ctx, "default", metav1.GetOptions{})
		return err == nil
	})
	deployment := webDeployment(2)
	deployment.Namespace = "work"
	_, err = k.AppsV1().Deployments("work").Create(ctx, deployment, metav1.CreateOptions{})
	must(err)
	_, err = k.CoreV1().Services("work").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Selector: deployment.Spec.Selector.MatchLabels, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	must(err)
	_, err = k.BatchV1().Jobs("work").Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}, metav1.CreateOptions{})
	must(err)
	_, err = k.CoreV1().Secrets("work").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}}, metav1.CreateOptions{})
	must(err)
	pods := func() int {
		list, err := k.CoreV1().Pods("work").List(ctx, metav1.ListOptions{})
		must(err)
		return len(list.Items)
	}
	until("there are three pods", func() bool { return pods() == 3 })
	until("the service has endpoints", func() bool {
		slices, err := k.DiscoveryV1().EndpointSlices("work").List(ctx, metav1.ListOptions{})
		must(err)
		return len(slices.Items) > 0
	})
	must(k.AppsV1().Deployments("work").Delete(ctx, deployment.Name, metav1.DeleteOptions{}))
	until("the pods of the deployment are gone", func() bool { return pods() == 1 })
	must(k.CoreV1().Namespaces().Delete(ctx, "work", metav1.DeleteOptions{}))
	until("the namespace is gone", func() bool {
		_, err := k.CoreV1().Namespaces().Get(ctx, "work", metav1.GetOptions{})
		return err != nil
	})
}

// auditedUsers reads an audit log: the users of each verb and resource, in order, and the denied requests.
func auditedUsers(t *testing.T, log string) (did map[string][]string, refused []string) {
	t.Helper()
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	users, denied := map[string]map[string]bool{}, map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil || event.ObjectRef == nil {
			continue // the last line may be incomplete
		}
		what := event.Verb + " " + event.ObjectRef.Resource
		if event.ObjectRef.Subresource != "" {
			what += "/" + event.ObjectRef.Subresource
		}
		if users[what] == nil {
			users[what] = map[string]bool{}
		}
		users[what][event.User.Username] = true
		if event.ResponseStatus != nil && event.ResponseStatus.Code == 403 && !strings.Contains(event.ResponseStatus.Message, "being terminated") {
			denied[event.User.Username+": "+what] = true
		}
	}
	did = map[string][]string{}
	for what, by := range users {
		did[what] = slices.Sorted(maps.Keys(by))
	}
	return did, slices.Sorted(maps.Keys(denied))
}
