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

	"k8s.io/client-go/tools/clientcmd"

	"skiff/test/cluster"
	"skiff/test/world"
)

// side is a control plane on which the story is played.
type side struct {
	name    string
	cluster *cluster.Cluster
	// lost is the process that plays the node that falls silent.
	lost *cluster.Process
	dir  string
	said []string
	// end is what there is in the end.
	end []string
}

// TestStory leads workloads through their lives with kubectl on three control planes: upstream's whole; upstream's with skiff's controllers in
// place of its own, beside upstream's scheduler; and skiff's. What kubectl says is the same everywhere, and so is, field by field, what
// there is in the end.
func TestStory(t *testing.T) {
	s := readStory(t, "testdata/controllers/life.story")
	var sides []*side
	var playing sync.WaitGroup
	for _, way := range storyWays {
		side := way.start(t)
		sides = append(sides, side)
		playing.Go(side.player(t, s))
	}
	playing.Wait()
	want := sides[0]
	want.end = storyEnd(t, want.cluster)
	for _, got := range sides[1:] {
		got.end = storyEnd(t, got.cluster)
		t.Run(got.name, func(t *testing.T) {
			for i, command := range s.commands {
				if got.said[i] != want.said[i] {
					t.Errorf("line %d: $ %s\n%s", s.lines[i], command, difference(got.said[i], want.said[i]))
				}
			}
			if more, less := onlyIn(got.end, want.end), onlyIn(want.end, got.end); len(more)+len(less) > 0 {
				t.Errorf("in the end there is\n+ %s\nand there is not\n- %s", strings.Join(more, "\n+ "), strings.Join(less, "\n- "))
			}
		})
	}
	for i, command := range s.commands {
		if strings.HasPrefix(command, "kubectl wait") && strings.Contains(want.said[i], "timed out") {
			t.Errorf("line %d: upstream itself did not get there: $ %s\n%s", s.lines[i], command, want.said[i])
		}
	}
	t.Logf("%d commands, %d objects in the end", len(s.commands), len(want.end))
}

// TestStoryAlone plays the story on skiff alone: every command does what it should, or fails as it should.
func TestStoryAlone(t *testing.T) {
	s := readStory(t, "testdata/controllers/life.story")
	side := storyWays[len(storyWays)-1].start(t)
	side.player(t, s)()
	// What is not there, or no longer, and a rollback of what is paused.
	fails := []string{"kubectl rollout undo deployment/web --to-revision=7", "kubectl rollout undo deployment/web --to-revision=2", "kubectl get namespace doomed"}
	for i, command := range s.commands {
		if failed := !strings.HasSuffix(side.said[i], "[exit 0]") && !strings.HasPrefix(command, "lose "); failed != slices.Contains(fails, command) {
			t.Errorf("line %d: $ %s\n%s", s.lines[i], command, side.said[i])
		}
	}
	for line, want := range map[string]string{
		"kubectl rollout history deployment/web --revision=1": "Image: image:1", "kubectl get replicasets,pods -l app=temp": "No resources found",
		"kubectl drain a-2 --pod-selector=app=web --timeout=55s >drain.txt 2>&1; echo $?; tail -1 drain.txt": "0\nnode/a-2 drained",
		"kubectl get pods --field-selector=spec.nodeName=a-2 -l app=web":                                     "No resources found",
	} {
		if i := slices.Index(s.commands, line); i < 0 || !strings.Contains(side.said[i], want) {
			t.Errorf("$ %s\nwithout %q", line, want)
		}
	}
	t.Logf("%d commands, %d objects in the end", len(s.commands), len(storyEnd(t, side.cluster)))
}

// player plays the story on a side.
func (p *side) player(t *testing.T, s story) func() {
	t.Helper()
	for name, content := range s.files {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig := storyKubeconfig(t, p)
	return func() {
		for _, command := range s.commands {
			if strings.HasPrefix(command, "lose ") {
				p.lost.Stop()
				p.said = append(p.said, "")
				continue
			}
			p.said = append(p.said, runCommand(p.dir, kubeconfig, command))
		}
	}
}

// way is a control plane the story can be played on.
type way struct {
	name    string
	cluster func(dir string) (*cluster.Cluster, error)
	parts   func(c *cluster.Cluster) error
}

var (
	managerFlags = []string{"--allocate-node-cidrs=true", "--cluster-cidr=10.42.0.0/16", "--service-cluster-ip-range=10.96.0.0/12", "--node-monitor-grace-period=40s"}

	storyWays = []way{
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
func (w way) start(t *testing.T) *side {
	t.Helper()
	dir := t.TempDir()
	c, err := w.cluster(filepath.Join(dir, "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	side := &side{name: w.name, cluster: c, dir: dir}
	if err := w.parts(c); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Hollow(3, "--name-prefix=a-", "--labels=part=stays"); err != nil {
		t.Fatal(err)
	}
	if side.lost, err = c.Hollow(1, "--name-prefix=lost-"); err != nil {
		t.Fatal(err)
	}
	return side
}

// storyKubeconfig is the administrator's, with the story's namespace.
func storyKubeconfig(t *testing.T, side *side) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(side.cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Contexts {
		c.Namespace = "story"
	}
	path := filepath.Join(side.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// chance is what two runs of one story need not have in common.
var chance = []struct {
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

// storyEnd is everything in the story's namespace, and the nodes and namespaces.
func storyEnd(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	var items []world.Item
	for _, obj := range everything(t, c) {
		inside := obj.GetNamespace() == "story" || obj.GetKind() == "Node" || obj.GetKind() == "Namespace"
		if !inside || obj.GetKind() == "Event" || obj.GetKind() == "Lease" {
			continue
		}
		items = append(items, world.Item{Kind: obj.GetKind(), Object: obj.Object})
	}
	lines, err := world.Normalize(items)
	if err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		for _, c := range chance {
			lines[i] = c.pattern.ReplaceAllString(lines[i], c.instead)
		}
	}
	slices.Sort(lines)
	return lines
}

// onlyIn returns the lines that others do not have, each as often as it is missing.
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
