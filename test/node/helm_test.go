package node

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/test/cluster"
)

// helmTest is a cluster on which helm installs the chart of test/helm.
type helmTest struct {
	*testing.T
	c           *cluster.Cluster
	home        string
	chart, path string
}

// TestHelm installs, tests, upgrades, rolls back and uninstalls a chart. Each stage starts from the result of the previous one.
func TestHelm(t *testing.T) {
	path, err := cluster.Helm()
	if err != nil {
		t.Fatal(err)
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	h := &helmTest{T: t, c: c, home: t.TempDir(), chart: filepath.Join(root, "test/helm/chart"), path: path}
	for _, stage := range []struct {
		name string
		run  func(*helmTest)
	}{
		{"install", (*helmTest).install}, {"list", (*helmTest).list}, {"test", (*helmTest).test}, {"upgrade", (*helmTest).upgrade}, {"failed upgrade", (*helmTest).fail},
		{"rollback", (*helmTest).rollback}, {"uninstall", (*helmTest).uninstall}, {"patches of the client", (*helmTest).clientSide},
	} {
		if !t.Run(stage.name, func(t *testing.T) {
			on := *h
			on.T = t
			stage.run(&on)
		}) {
			t.Fatalf("the objects are\n%s\nthe server's log ends\n%s", kubectl(t, c, "", "get", "all", "--namespace=shop"), c.Server[0].Log(20))
		}
	}
}

// command runs helm and returns its output.
func (h *helmTest) command(args ...string) (string, error) {
	cmd := exec.Command(h.path, append(args, "--kubeconfig", h.c.Kubeconfig, "--namespace=shop")...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+h.home, "HELM_CONFIG_HOME="+h.home, "HELM_DATA_HOME="+h.home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run runs helm, and fails the test if it fails.
func (h *helmTest) run(args ...string) string {
	h.Helper()
	out, err := h.command(args...)
	if err != nil {
		h.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// kubectl runs kubectl in the namespace of the release.
func (h *helmTest) kubectl(args ...string) string {
	h.Helper()
	return kubectl(h.T, h.c, "", append(args, "--namespace=shop")...)
}

// contains checks the output of a command.
func (h *helmTest) contains(output string, wants ...string) {
	h.Helper()
	for _, want := range wants {
		if !strings.Contains(output, want) {
			h.Errorf("no %q in\n%s", want, output)
		}
	}
}

// history checks the statuses of all revisions.
func (h *helmTest) history(release string, want ...string) {
	h.Helper()
	var revisions []struct{ Status string }
	out := h.run("history", release, "-o", "json")
	if err := json.Unmarshal([]byte(out), &revisions); err != nil {
		h.Fatalf("%v\n%s", err, out)
	}
	var statuses []string
	for _, r := range revisions {
		statuses = append(statuses, r.Status)
	}
	if !slices.Equal(statuses, want) {
		h.Errorf("the history is %q, want %q", statuses, want)
	}
}

// served checks the page that the Service of a release serves.
func (h *helmTest) served(release, want string) {
	h.Helper()
	address := h.kubectl("get", "service", release, "-o", "jsonpath={.spec.clusterIP}") + ":80"
	eventually(h.T, "the page "+want, func() bool { page, err := get(address); return err == nil && page == want })
}

// install installs the chart: its definitions first, then the hooks, then the rest, for which helm waits.
func (h *helmTest) install() {
	if out, err := h.command("install", "shop", h.chart, "--create-namespace", "--set=message="); err == nil || !strings.Contains(out, "minLength") {
		h.Errorf("values that the chart's schema refuses: %v\n%s", err, out)
	}
	h.contains(h.run("install", "shop", h.chart, "--create-namespace", "--wait", "--timeout=2m"),
		"STATUS: deployed", "REVISION: 1", `The shop shop serves "first" on Kubernetes v1.37.`)
	if available := h.kubectl("get", "deployment", "shop", "-o", "jsonpath={.status.availableReplicas}"); available != "1" {
		h.Errorf("helm waited, and %q pods are available", available)
	}
	h.kubectl("get", "discount", "shop")
	uid := kubectl(h.T, h.c, "", "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")
	if found := h.kubectl("get", "configmap", "shop-lookup", "-o", "jsonpath={.data.uid}"); found != uid {
		h.Errorf("lookup found the UID %q, want %q", found, uid)
	}
	// The job was complete before anything that is not a hook was created.
	var job batchv1.Job
	var page corev1.ConfigMap
	for object, into := range map[string]any{"job/shop-pre-install": &job, "configmap/shop": &page} {
		if err := json.Unmarshal([]byte(h.kubectl("get", object, "-o", "json")), into); err != nil {
			h.Fatal(err)
		}
	}
	if job.Status.CompletionTime == nil || page.CreationTimestamp.Before(job.Status.CompletionTime) {
		h.Errorf("the hook was complete at %v, the ConfigMap made at %v", job.Status.CompletionTime, page.CreationTimestamp)
	}
	if left := h.kubectl("get", "configmap", "shop-settings", "--ignore-not-found", "-o", "name"); left != "" {
		h.Errorf("a hook that is to be deleted is left: %s", left)
	}
	h.served("shop", "first")
}

// list reads the release back. It is stored in a Secret.
func (h *helmTest) list() {
	secrets := h.kubectl("get", "secrets", "-l", "owner=helm", "-o", `jsonpath={range .items[*]}{.metadata.name} {.type} {.metadata.labels.status}{end}`)
	if want := "sh.helm.release.v1.shop.v1 helm.sh/release.v1 deployed"; secrets != want {
		h.Errorf("releases are stored in %q, want %q", secrets, want)
	}
	h.contains(h.run("list"), "shop", "deployed", "shop-1.2.3")
	h.contains(h.run("list", "--all-namespaces", "--filter=^sh", "-o", "yaml"), "name: shop", `revision: "1"`)
	h.history("shop", "deployed")
	h.contains(h.run("status", "shop"), "STATUS: deployed", "==> v1/Deployment", "==> v1/Discount")
	h.contains(h.run("get", "values", "shop", "--all"), "message: first")
	h.contains(h.run("get", "manifest", "shop"), "kind: Discount", `index.html: "first"`)
	h.contains(h.run("get", "hooks", "shop"), "name: shop-pre-install", "name: shop-test")
	h.contains(h.run("get", "notes", "shop"), `The shop shop serves "first"`)
	h.contains(h.run("upgrade", "shop", h.chart, "--dry-run=server", "--set=message=never"), `index.html: "never"`, "name: shop-lookup")
	h.history("shop", "deployed")
}

// test runs the chart's own test, a pod.
func (h *helmTest) test() {
	h.contains(h.run("test", "shop", "--logs", "--timeout=1m"), "Succeeded", "the page is first")
}

// upgrade changes values, and runs the other hooks.
func (h *helmTest) upgrade() {
	before := h.kubectl("get", "discount", "shop", "-o", "jsonpath={.metadata.uid}")
	h.contains(h.run("upgrade", "shop", h.chart, "--set=message=second,percent=20,replicas=2", "--wait", "--timeout=2m"), "STATUS: deployed", "REVISION: 2")
	h.history("shop", "superseded", "deployed")
	h.served("shop", "second")
	if after := h.kubectl("get", "discount", "shop", "-o", "jsonpath={.metadata.uid} {.spec.percent}"); after != before+" 20" {
		h.Errorf("the custom resource is %q, was %q", after, before)
	}
	if log := h.kubectl("logs", "job/shop-post-upgrade"); log != "post-upgrade revision 2\n" {
		h.Errorf("the hook printed %q", log)
	}
	if managers := h.kubectl("get", "deployment", "shop", "--show-managed-fields", "-o", `jsonpath={range .metadata.managedFields[?(@.operation=="Apply")]}{.manager} {end}`); managers != "helm " {
		h.Errorf("the fields are applied by %q", managers)
	}
	h.contains(h.run("test", "shop", "--logs", "--timeout=1m"), "the page is second")
}

// fail upgrades to what the API server refuses. Helm rolls back by itself.
func (h *helmTest) fail() {
	out, err := h.command("upgrade", "shop", h.chart, "--set=message=third,percent=200", "--rollback-on-failure", "--timeout=2m")
	if err == nil {
		h.Fatalf("the upgrade succeeded\n%s", out)
	}
	h.contains(out, "spec.percent: Invalid value: 200: spec.percent in body should be less than or equal to 100")
	h.history("shop", "superseded", "superseded", "failed", "deployed")
	h.served("shop", "second")
}

// rollback returns to the first revision.
func (h *helmTest) rollback() {
	h.contains(h.run("rollback", "shop", "1", "--wait", "--timeout=2m"), "Rollback was a success")
	h.history("shop", "superseded", "superseded", "failed", "superseded", "deployed")
	h.served("shop", "first")
	replicas := h.kubectl("get", "deployment", "shop", "-o", "jsonpath={.spec.replicas}")
	if percent := h.kubectl("get", "discount", "shop", "-o", "jsonpath={.spec.percent}"); replicas != "1" || percent != "10" {
		h.Errorf("replicas are %s, percent %s", replicas, percent)
	}
}

// uninstall removes everything but the definition, and the history only when it is not to be kept.
func (h *helmTest) uninstall() {
	h.run("uninstall", "shop", "--wait", "--timeout=2m", "--keep-history")
	for _, object := range []string{"deployment/shop", "service/shop", "configmap/shop", "discount/shop"} {
		if left := h.kubectl("get", object, "--ignore-not-found", "-o", "name"); left != "" {
			h.Errorf("%s is left", left)
		}
	}
	kubectl(h.T, h.c, "", "get", "crd", "discounts.shop.example.com")
	h.history("shop", "superseded", "superseded", "failed", "superseded", "uninstalled")
	if out := h.run("list", "--deployed", "--short"); strings.TrimSpace(out) != "" {
		h.Errorf("after the uninstallation there are releases %q", out)
	}
	h.run("uninstall", "shop")
	if left := h.kubectl("get", "secrets", "-l", "owner=helm", "-o", "name"); left != "" {
		h.Errorf("secrets are left:\n%s", left)
	}
	eventually(h.T, "the pods of the Deployment are gone", func() bool { return h.kubectl("get", "pods", "-l", "shop", "-o", "name") == "" })
}

// clientSide installs and upgrades with the patches that helm 3 makes, and waits as helm 3 does. The definition is there already.
func (h *helmTest) clientSide() {
	h.run("install", "old", h.chart, "--server-side=false", "--wait=legacy", "--timeout=2m")
	h.served("old", "first")
	h.run("upgrade", "old", h.chart, "--set=message=second,percent=20", "--wait=legacy", "--timeout=2m")
	h.served("old", "second")
	h.run("rollback", "old", "--wait=legacy", "--timeout=2m")
	h.served("old", "first")
	h.history("old", "superseded", "superseded", "deployed")
	if percent := h.kubectl("get", "discount", "old", "-o", "jsonpath={.spec.percent}"); percent != "10" {
		h.Errorf("percent is %s", percent)
	}
	h.run("uninstall", "old", "--wait=legacy", "--timeout=2m")
	kubectl(h.T, h.c, "", "delete", "namespace", "shop", "--timeout=60s")
}
