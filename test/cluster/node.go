package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"skiff/test/namespaces"
	"skiff/test/registry"
)

// nodeTimeout bounds the time until a node is ready, which includes importing the images.
const nodeTimeout = 3 * time.Minute

// SuiteArchives are the image archives of the conformance suite.
var SuiteArchives = []string{"busybox", "pause", "agnhost", "programs"}

// archives are the image archives that the nodes of this process have; none means those of the conformance suite.
var archives []string

// Needs is what the tests of a package need that is built with network access.
type Needs struct {
	Images   []string // image archives of the nodes; none means those of the conformance suite
	Programs []string // upstream programs
	// Extensions are helm and the operator of test/operator.
	Extensions bool
}

// build builds what is missing.
func (n Needs) build() error {
	_, err := Images(n.Images...)
	if err == nil && len(n.Programs) > 0 {
		_, err = Upstream(n.Programs...)
	}
	if err == nil && n.Extensions {
		if _, err = Operator(); err == nil {
			_, err = Helm()
		}
	}
	return err
}

// Main runs the tests of a package that starts nodes, inside their own namespaces. What they need is built before,
// because there is no network access inside.
func Main(m *testing.M, needs Needs) {
	archives = needs.Images
	if namespaces.Outermost() {
		if err := needs.build(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	namespaces.Main(m)
}

// UseImages builds the image archives that the nodes of this process have.
func UseImages(images ...string) error {
	archives = images
	_, err := Images(archives...)
	return err
}

// SkiffNode starts a complete skiff with this host as its node, below dir, and waits until the node is ready. It has to
// be called inside the namespaces of package namespaces. The images of Main are imported, and a registry has them as
// well.
//
// The data directory is on tmpfs and is removed with the namespaces; the logs are kept.
func SkiffNode(dir string, flags ...string) (*Cluster, error) {
	source, err := serveImages()
	if err != nil {
		return nil, err
	}
	if err := nodeDir(filepath.Join(dir, "data"), source); err != nil {
		source.Stop()
		return nil, err
	}
	c, err := Skiff(dir, append([]string{
		"--no-node=false", "--without=", "--disable=", "--bind-address=0.0.0.0", "--advertise-address=" + namespaces.NodeAddress, "--node-ip=" + namespaces.NodeAddress,
	}, flags...)...)
	if err != nil {
		source.Stop()
		return nil, err
	}
	c.images, c.nodes, c.memory = source, 1, []string{filepath.Join(dir, "data")}
	if err := c.waitNodes(); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// AddNode adds a node to a cluster of SkiffNode: a host of its own, which joins with a token.
func (c *Cluster) AddNode() error {
	token, err := c.NodeToken()
	if err != nil {
		return err
	}
	c.nodes++
	p, dir, err := c.StartAgent(c.nodes, token)
	if err != nil {
		return err
	}
	if err := c.waitNodes(); err != nil {
		return fmt.Errorf("%w; end of the log of %s:\n%s", err, p.Name, p.Log(20))
	}
	// A ready node may not serve logs yet: that needs a serving certificate for its registered addresses.
	for end := time.Now().Add(nodeTimeout); ; time.Sleep(50 * time.Millisecond) {
		if _, err = os.Stat(filepath.Join(dir, "kubelet/pki/kubelet-server-current.pem")); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// NodeToken creates a join token with `skiff token create` and the given flags.
func (c *Cluster) NodeToken(flags ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	out, err := exec.Command(filepath.Join(root, "bin/skiff"), append([]string{"token", "create", "--kubeconfig=" + c.Kubeconfig}, flags...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("skiff token create: %w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// Host is the host with the given number, which is not the test's own.
func (c *Cluster) Host(number int) *namespaces.Host {
	if c.hosts[number] == nil {
		if c.hosts == nil {
			c.hosts = map[int]*namespaces.Host{}
		}
		c.hosts[number] = &namespaces.Host{Name: fmt.Sprintf("node-%d", number), Address: fmt.Sprintf("10.88.0.%d", number)}
	}
	return c.hosts[number]
}

// StartAgent starts or restarts `skiff agent` on the host with the given number, and returns the process and its data
// directory, which has the manifests of static pods in its subdirectory manifests.
func (c *Cluster) StartAgent(number int, token string) (*Process, string, error) {
	host := c.Host(number)
	dir := filepath.Join(c.Dir, host.Name)
	if err := nodeDir(dir, c.images); err != nil {
		return nil, "", err
	}
	if !slices.Contains(c.memory, dir) {
		c.memory = append(c.memory, dir)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(c.URL, "https://"))
	if err != nil {
		return nil, "", err
	}
	p, err := startAgent(host, agentOptions{
		program: c.Agent, logDir: c.Dir, dir: dir, server: "https://" + net.JoinHostPort(namespaces.NodeAddress, port), token: token,
	})
	if err != nil {
		return nil, "", err
	}
	c.Others = append(c.Others, p)
	return p, dir, nil
}

// agentOptions are what an agent is started with.
type agentOptions struct {
	program Program
	// logDir is the directory of the log, dir the data directory.
	logDir, dir   string
	server, token string
	// kubelet are further lines of the KubeletConfiguration.
	kubelet string
}

// startAgent starts `skiff agent` on a host.
func startAgent(host *namespaces.Host, o agentOptions) (*Process, error) {
	config := filepath.Join(o.dir, "kubelet.yaml")
	// The hosts of a test share its cgroups.
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupRoot: /" + host.Name + "\nstaticPodPath: " + filepath.Join(o.dir, "manifests") + "\n" + o.kubelet
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	path, err := o.program.path()
	if err != nil {
		return nil, err
	}
	return startBy(host.Start, o.logDir, host.Name, path, "agent", "--server="+o.server, "--token="+o.token, "--data-dir="+o.dir,
		"--kubelet-config="+config, "--node-name="+host.Name)
}

// serveImages starts a registry with the images of the conformance suite.
func serveImages() (*registry.Registry, error) {
	archives, err := imageArchives()
	if err != nil {
		return nil, err
	}
	source, err := registry.StartAt(namespaces.NodeAddress)
	if err != nil {
		return nil, err
	}
	for _, archive := range archives {
		if err := source.AddArchive(archive); err != nil {
			source.Stop()
			return nil, err
		}
	}
	return source, nil
}

// imageArchives returns the files of the image archives.
func imageArchives() ([]string, error) {
	images, err := Images(archives...)
	if err != nil {
		return nil, err
	}
	names := archives
	if len(names) == 0 {
		names = SuiteArchives
	}
	var files []string
	for _, name := range names {
		files = append(files, filepath.Join(images, name+".tar"))
	}
	return files, nil
}

// nodeDir creates a data directory on tmpfs, with images to import and a registry for all others. An existing directory
// is used as it is, on any file system.
func nodeDir(data string, source *registry.Registry) error {
	if _, err := os.Stat(data); err != nil {
		if err := os.MkdirAll(data, 0o700); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", data, "tmpfs", 0, "mode=700,size=75%"); err != nil {
			return fmt.Errorf("mount data directory: %w", err)
		}
	}
	ready := filepath.Join(data, "images")
	if _, err := os.Stat(ready); err != nil {
		if err := os.Mkdir(ready, 0o700); err != nil {
			return err
		}
		archives, err := imageArchives()
		if err != nil {
			return err
		}
		for _, archive := range archives {
			if err := os.Symlink(archive, filepath.Join(ready, filepath.Base(archive))); err != nil {
				return err
			}
		}
	}
	return source.StandIn(filepath.Join(data, "registries"), registry.Everything)
}

// waitNodes waits until all nodes are ready.
func (c *Cluster) waitNodes() error {
	want := c.nodes
	config, err := c.Config()
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), nodeTimeout)
	defer cancel()
	for {
		ready, err := readyNodes(ctx, client, c.URL)
		if ready >= want {
			return nil
		}
		if c.Server[0].Exited() {
			return fmt.Errorf("%s ended before its node was ready:\n%s", c.Server[0].Name, c.Server[0].Log(20))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d nodes are ready (%v); the log ends:\n%s", ready, want, err, c.Server[0].Log(20))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// isConditionTaint reports whether a taint says that something is wrong with the node.
func isConditionTaint(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") }

// readyNodes returns the number of nodes that are ready and have no taints besides those they were registered with.
func readyNodes(ctx context.Context, client *http.Client, url string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/v1/nodes", nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	var nodes corev1.NodeList
	if err := json.NewDecoder(response.Body).Decode(&nodes); err != nil {
		return 0, err
	}
	ready := 0
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue && !slices.ContainsFunc(node.Spec.Taints, isConditionTaint) {
				ready++
			}
		}
	}
	return ready, nil
}
