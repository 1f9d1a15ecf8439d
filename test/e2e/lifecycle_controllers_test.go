package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/test/cluster"
	"skiff/test/world"
)

// scriptRun is a run of the script on one control plane.
type scriptRun struct {
	name    string
	cluster *cluster.Cluster
	// lost is the hollow node that stops reporting.
	lost    *cluster.Process
	dir     string
	outputs []string
	// final lists the objects after the last command.
	final []string
}

// TestWorkloadLifecycle creates, updates and deletes workloads with kubectl on three control planes: upstream's; upstream's with
// skiff's controllers in place of its own; and skiff's. The output of kubectl must be the same everywhere, and so must all fields of
// the objects after the last command. On skiff each command succeeds or fails as expected.
func TestWorkloadLifecycle(t *testing.T) {
	t.Parallel()
	s := readScript(t, "testdata/controllers/lifecycle.script")
	var runs []*scriptRun
	var running sync.WaitGroup
	for _, controlPlane := range controlPlanes {
		scriptRun := controlPlane.start(t)
		runs = append(runs, scriptRun)
		running.Go(scriptRun.start(t, s))
	}
	running.Wait()
	want := runs[0]
	want.final = finalObjects(t, want.cluster)
	for _, got := range runs[1:] {
		got.final = finalObjects(t, got.cluster)
		t.Run(got.name, func(t *testing.T) {
			for i, command := range s.commands {
				if got.outputs[i] != want.outputs[i] {
					t.Errorf("line %d: $ %s\n%s", s.lines[i], command, difference(got.outputs[i], want.outputs[i]))
				}
			}
			if more, less := onlyIn(got.final, want.final), onlyIn(want.final, got.final); len(more)+len(less) > 0 {
				t.Errorf("unexpected objects after the last command:\n+ %s\nmissing objects:\n- %s", strings.Join(more, "\n+ "), strings.Join(less, "\n- "))
			}
		})
	}
	checkScriptResults(t, s, runs[len(runs)-1].outputs)
	for i, command := range s.commands {
		if strings.HasPrefix(command, "kubectl wait") && strings.Contains(want.outputs[i], "timed out") {
			t.Errorf("line %d: upstream itself timed out: $ %s\n%s", s.lines[i], command, want.outputs[i])
		}
	}
	t.Logf("%d commands, %d objects after the last", len(s.commands), len(want.final))
}

// checkScriptResults checks that every command on skiff succeeded or failed as expected, whatever upstream did.
func checkScriptResults(t *testing.T, s script, outputs []string) {
	t.Helper()
	// Objects that do not exist, and a rollback of a paused deployment.
	fails := []string{"kubectl rollout undo deployment/web --to-revision=7", "kubectl rollout undo deployment/web --to-revision=2", "kubectl get namespace doomed"}
	for i, command := range s.commands {
		if failed := !strings.HasSuffix(outputs[i], "[exit 0]") && !strings.HasPrefix(command, "lose "); failed != slices.Contains(fails, command) {
			t.Errorf("line %d: $ %s\n%s", s.lines[i], command, outputs[i])
		}
	}
	for line, want := range map[string]string{
		"kubectl rollout history deployment/web --revision=1": "Image: image:1", "kubectl get replicasets,pods -l app=temp": "No resources found",
		"kubectl drain a-2 --pod-selector=app=web --timeout=55s >drain.txt 2>&1; echo $?; tail -1 drain.txt": "0\nnode/a-2 drained",
		"kubectl get pods --field-selector=spec.nodeName=a-2 -l app=web":                                     "No resources found",
	} {
		if i := slices.Index(s.commands, line); i < 0 || !strings.Contains(outputs[i], want) {
			t.Errorf("$ %s\nwithout %q", line, want)
		}
	}
}

// start writes the script's files and returns a function that runs the commands.
func (p *scriptRun) start(t *testing.T, s script) func() {
	t.Helper()
	for name, content := range s.files {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig := scriptKubeconfig(t, p)
	return func() {
		for _, command := range s.commands {
			if strings.HasPrefix(command, "lose ") {
				p.lost.Stop()
				p.outputs = append(p.outputs, "")
				continue
			}
			p.outputs = append(p.outputs, runCommand(p.dir, kubeconfig, command))
		}
	}
}

// controlPlane is a combination of components that the script can run on.
type controlPlane struct {
	name       string
	cluster    func(dir string) (*cluster.Cluster, error)
	components func(c *cluster.Cluster) error
}

var (
	managerFlags = []string{"--allocate-node-cidrs=true", "--cluster-cidr=10.42.0.0/16", "--service-cluster-ip-range=10.96.0.0/12", "--node-monitor-grace-period=40s"}

	controlPlanes = []controlPlane{
		{"upstream", func(dir string) (*cluster.Cluster, error) { return cluster.UpstreamAPI(dir, "") },
			func(c *cluster.Cluster) error {
				return errors.Join(c.ControllerManager(managerFlags...), c.Scheduler())
			}},
		{"skiff's controllers", func(dir string) (*cluster.Cluster, error) { return cluster.UpstreamAPI(dir, "") },
			func(c *cluster.Cluster) error {
				_, err := c.OwnControllerManager(append(slices.Clone(managerFlags), "--controllers=*,-local-path-provisioner")...)
				return errors.Join(err, c.Scheduler())
			}},
		{"skiff", func(dir string) (*cluster.Cluster, error) { return cluster.Skiff(dir, "--without=") },
			func(*cluster.Cluster) error { return nil }},
	}
)

// start starts the control plane and its nodes.
func (w controlPlane) start(t *testing.T) *scriptRun {
	t.Helper()
	dir := t.TempDir()
	c, err := w.cluster(filepath.Join(dir, "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	scriptRun := &scriptRun{name: w.name, cluster: c, dir: dir}
	if err := w.components(c); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Hollow(3, "--name-prefix=a-", "--labels=part=stays"); err != nil {
		t.Fatal(err)
	}
	if scriptRun.lost, err = c.Hollow(1, "--name-prefix=lost-"); err != nil {
		t.Fatal(err)
	}
	return scriptRun
}

// scriptKubeconfig is the administrator's, with the script's namespace.
func scriptKubeconfig(t *testing.T, scriptRun *scriptRun) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(scriptRun.cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Contexts {
		c.Namespace = "story"
	}
	path := filepath.Join(scriptRun.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// nondeterministic matches what two runs of one script need not have in common.
var nondeterministic = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`), "IP"},
	{regexp.MustCompile(`-----BEGIN CERTIFICATE-----[^"]*`), "PEM"},
	{regexp.MustCompile(`minute-\d+`), "minute-N"},
	{regexp.MustCompile(`unable to get metrics for resource cpu: [^"]*`), "no metrics"}, // skiff serves the metrics API itself
	{regexp.MustCompile(`kube-api-access-\w{5}`), "kube-api-access-X"},
	{regexp.MustCompile(`"(nodeName|lastProbeTime)":("[^"]*"|null),?`), ""}, // the scheduler's choice
	{regexp.MustCompile(`"batch.kubernetes.io/cronjob-scheduled-timestamp":"[^"]*",?`), ""},
}

// finalObjects returns all objects in the script's namespace, and the nodes and namespaces.
func finalObjects(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	var items []world.Item
	for _, obj := range everything(t, c) {
		inside := obj.GetNamespace() == "story" || obj.GetKind() == "Node" || obj.GetKind() == "Namespace"
		if !inside || obj.GetKind() == "Event" || obj.GetKind() == "Lease" {
			continue
		}
		dropScheduledGeneration(obj.Object)
		items = append(items, world.Item{Kind: obj.GetKind(), Object: obj.Object})
	}
	lines, err := world.Normalize(items)
	if err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		for _, c := range nondeterministic {
			lines[i] = c.pattern.ReplaceAllString(lines[i], c.instead)
		}
	}
	slices.Sort(lines)
	return lines
}

// dropScheduledGeneration removes the observed generation of a pod's condition PodScheduled: a binding writes it without, a kubelet with the
// generation, and with upstream's API server either of them was seen at the end.
func dropScheduledGeneration(object map[string]any) {
	conditions, _, _ := unstructured.NestedSlice(object, "status", "conditions")
	for _, condition := range conditions {
		if c, ok := condition.(map[string]any); ok && c["type"] == string(corev1.PodScheduled) {
			delete(c, "observedGeneration")
		}
	}
	if len(conditions) > 0 {
		// NestedSlice returns a copy; a map that has the path takes it.
		_ = unstructured.SetNestedSlice(object, conditions, "status", "conditions")
	}
}

// onlyIn returns the lines that others does not have, each as often as it is missing.
func onlyIn(lines, others []string) (left []string) {
	others = slices.Clone(others)
	for _, line := range lines {
		if i := slices.Index(others, line); i >= 0 {
			others = slices.Delete(others, i, i+1)
			continue
		}
		left = append(left, line)
	}
	return left
}
