package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"skiff/internal/kubelet/runtime"
	"skiff/test/namespaces"
)

// UpstreamNode starts upstream's control plane and kubelet with this host as the node, below dir, and waits until the
// node is ready. The container runtime is that of skiff's node, so that the two can be compared; the pod network uses the
// standard CNI plugins. It has to be called inside the namespaces of package namespaces. All of upstream's processes are
// measured; the runtime and the CNI plugins are not, on either side.
func UpstreamNode(dir string) (*Cluster, error) {
	programs, err := UpstreamNodePrograms()
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
	if err := nodeDir(data, source); err != nil {
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

// UpstreamNodePrograms builds the programs of UpstreamNode.
func UpstreamNodePrograms() (directory string, err error) {
	return Upstream(append([]string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}, bridgePlugins...)...)
}

var bridgePlugins = []string{"bridge", "host-local", "portmap"}

func (c *Cluster) upstreamNode(programs, root, data string) error {
	if err := c.ControllerManager(); err != nil {
		return err
	}
	if err := c.Scheduler(); err != nil {
		return err
	}
	endpoint, err := c.ownRuntime(root, programs, data)
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

// bridgeNetwork is a pod network of the standard CNI plugins.
const bridgeNetwork = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.42.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`

// ownRuntime runs skiff's containerd with the standard CNI plugins, for a kubelet that is not skiff's, until this process
// exits.
func (c *Cluster) ownRuntime(root, programs, data string) (endpoint string, err error) {
	containerd, err := runtime.New(runtime.Options{DataDir: data, Programs: filepath.Join(root, "bin"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", err
	}
	plugins, configuration := filepath.Join(data, "cni/bin"), filepath.Join(data, "cni/net.d")
	for _, directory := range []string{plugins, configuration} {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return "", err
		}
	}
	for _, name := range bridgePlugins {
		if err := os.Symlink(filepath.Join(programs, name), filepath.Join(plugins, name)); err != nil {
			return "", err
		}
	}
	text := fmt.Sprintf(bridgeNetwork, filepath.Join(data, "cni/state"))
	if err := os.WriteFile(filepath.Join(configuration, "10-bridge.conflist"), []byte(text), 0o600); err != nil {
		return "", err
	}
	go func() { _ = containerd.Run(context.Background()) }()
	<-containerd.Ready()
	return containerd.Endpoint(), nil
}
