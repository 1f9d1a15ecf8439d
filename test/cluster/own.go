package cluster

import (
	"path/filepath"
	"strconv"
)

// OwnControllerManager adds skiff's controllers, as a separate process, to a running cluster of skiff or of upstream.
func (c *Cluster) OwnControllerManager(flags ...string) (*Process, error) {
	f, err := c.signingFiles()
	if err != nil {
		return nil, err
	}
	return c.own("skiff-controller-manager", append([]string{"controller-manager", "--kubeconfig=" + c.Kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--service-account-private-key-file=" + f + "/service-account.key", "--root-ca-file=" + f + "/ca.crt",
		"--cluster-signing-cert-file=" + f + "/ca.crt", "--cluster-signing-key-file=" + f + "/ca.key"}, flags...)...)
}

// OwnScheduler adds skiff's scheduler as a separate process.
func (c *Cluster) OwnScheduler(flags ...string) (*Process, error) {
	return c.own("skiff-scheduler", append([]string{"scheduler", "--kubeconfig=" + c.Kubeconfig, "--leader-elect=false", "--secure-port=0"}, flags...)...)
}

// OwnProxy starts `skiff proxy` on the test's host.
func (c *Cluster) OwnProxy(flags ...string) (*Process, error) {
	return c.own("proxy", append([]string{"proxy", "--kubeconfig", c.Kubeconfig}, flags...)...)
}

// Hollow adds hollow nodes as a separate process.
func (c *Cluster) Hollow(nodes int, flags ...string) (*Process, error) {
	return c.own("skiff-hollow", append([]string{"hollow", "--kubeconfig=" + c.Kubeconfig, "--nodes=" + strconv.Itoa(nodes)}, flags...)...)
}

// own starts a component of skiff.
func (c *Cluster) own(name string, args ...string) (*Process, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	p, err := start(c.Dir, name, filepath.Join(root, "bin/skiff"), args...)
	if err != nil {
		return nil, err
	}
	c.Others = append(c.Others, p)
	return p, nil
}

// FreePort returns a port that is currently unused.
func FreePort() (int, error) {
	ports, err := freePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}
