package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"skiff/internal/kubelet/runtime"
	"skiff/internal/network/cni"
	"skiff/test/namespaces"
)

// UpstreamNode starts upstream's whole control plane and its kubelet with this machine as the node, below dir, and waits until the node is
// ready. Runtime and pod network are those of skiff's node, so that the two can be compared. It has to be called inside the namespaces of
// package namespaces. All of upstream's processes are what is measured; the runtime is not, on either side.
func UpstreamNode(dir string) (*Cluster, error) {
	programs, err := Upstream("kubelet")
	if err != nil {
		return nil, err
	}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	source, err := serveImages()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := nodeFolder(data, source); err != nil {
		source.Stop()
		return nil, err
	}
	c, err := UpstreamAPI(dir, "", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true")
	if err != nil {
		source.Stop()
		return nil, err
	}
	c.images, c.nodes, c.memory = source, 1, []string{data}
	if err := c.upstreamNode(programs, root, data); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) upstreamNode(programs, root, data string) error {
	if err := c.ControllerManager(); err != nil {
		return err
	}
	if err := c.Scheduler(); err != nil {
		return err
	}
	endpoint, err := c.ownRuntime(root, data)
	if err != nil {
		return err
	}
	const name = "n1"
	kubeconfig, config := filepath.Join(data, "kubeconfig"), filepath.Join(data, "kubelet.yaml")
	if err := c.pki.kubeconfig(kubeconfig, c.URL, "system:node:"+name, "system:nodes"); err != nil {
		return err
	}
	text := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
oomScoreAdj: 0
containerRuntimeEndpoint: %s
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %s/ca.crt}}
authorization: {mode: Webhook}
resolvConf: ""
kubeAPIQPS: 5000
kubeAPIBurst: 5000
registryPullQPS: 0
eventRecordQPS: 0
`, endpoint, c.pki.dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	p, err := start(c.Dir, "kubelet", filepath.Join(programs, "kubelet"), "--kubeconfig="+kubeconfig, "--config="+config, "--hostname-override="+name,
		"--node-ip="+namespaces.NodeAddress, "--root-dir="+filepath.Join(data, "kubelet"), "--cert-dir="+filepath.Join(data, "kubelet-certs"))
	if err != nil {
		return err
	}
	c.Server, c.Others = append(append(c.Server, c.Others...), p), nil
	return c.waitNodes()
}

// ownRuntime runs skiff's containerd with skiff's pod network, for a kubelet that is not skiff's, until this process ends.
func (c *Cluster) ownRuntime(root, data string) (endpoint string, err error) {
	bin := filepath.Join(root, "bin")
	containerd, err := runtime.New(runtime.Options{DataDir: data, Programs: bin, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", err
	}
	network := cni.Settings{DataDir: filepath.Join(data, "cni/state"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24")}}
	plugins := filepath.Join(data, "cni/bin")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{cni.Name, "loopback"} {
		if err := os.Symlink(filepath.Join(bin, cni.Name), filepath.Join(plugins, name)); err != nil {
			return "", err
		}
	}
	if err := cni.Setup(network); err != nil {
		return "", err
	}
	if err := cni.Configure(filepath.Join(data, "cni/net.d"), network); err != nil {
		return "", err
	}
	go func() { _ = containerd.Run(context.Background()) }()
	<-containerd.Ready()
	return containerd.Endpoint(), nil
}
