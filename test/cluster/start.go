package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"skiff/internal/pki"
)

// startTimeout bounds the start of a control plane on a loaded host, where several may start at once.
const startTimeout = 5 * time.Minute

// keys are the certificates of an upstream control plane.
type keys struct {
	dir   string
	ca    *pki.CA
	proxy *pki.CA
}

// Skiff starts skiff's API server from bin/ with its state below dir, without controllers, scheduler and DNS unless the flags
// say otherwise (--without=, --disable=), and waits until it is ready. Started again on the same dir it keeps its state and port.
func Skiff(dir string, flags ...string) (*Cluster, error) { return Program("").Skiff(dir, flags...) }

// Skiff is the function Skiff with this program.
func (p Program) Skiff(dir string, flags ...string) (*Cluster, error) {
	began := time.Now()
	c, err := p.StartSkiff(dir, flags...)
	if err != nil {
		return nil, err
	}
	if err := c.WaitReady(); err != nil {
		c.Stop()
		return nil, err
	}
	c.Ready = time.Since(began)
	return c, nil
}

// StartSkiff is Skiff without waiting until the server is ready. It has written its kubeconfig.
func StartSkiff(dir string, flags ...string) (*Cluster, error) {
	return Program("").StartSkiff(dir, flags...)
}

// StartSkiff is the function StartSkiff with this program.
func (p Program) StartSkiff(dir string, flags ...string) (*Cluster, error) {
	path, err := p.path()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	port, err := keptPort(filepath.Join(dir, "port"))
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: "skiff", Dir: dir, URL: "https://127.0.0.1:" + port, Kubeconfig: filepath.Join(dir, "data/admin.kubeconfig")}
	args := append([]string{"server", "--no-node", "--without=controllers,scheduler", "--disable=dns", "--data-dir", filepath.Join(dir, "data"),
		"--bind-address", "127.0.0.1", "--secure-port", port}, flags...)
	began := time.Now()
	server, err := start(dir, "skiff", path, args...)
	if err != nil {
		return nil, err
	}
	c.Server = []*Process{server}
	// The kubeconfig is written before the server listens, but may be incomplete at first.
	_, err = c.Config()
	for ; err != nil && !server.Exited() && time.Since(began) < startTimeout; _, err = c.Config() {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		c.Stop()
		return nil, fmt.Errorf("skiff wrote no kubeconfig: %w; end of its log:\n%s", err, server.Log(20))
	}
	return c, nil
}

// WaitReady waits until the first of the serving processes is ready.
func (c *Cluster) WaitReady() error {
	config, err := c.Config()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return waitReady(ctx, config, c.Server[0])
}

// UpstreamAPI starts upstream's etcd and kube-apiserver below dir. If etcd is set, the API server uses that etcd instead: URLs, separated by commas.
func UpstreamAPI(dir, etcd string, flags ...string) (*Cluster, error) {
	programs, err := Upstream("etcd", "kube-apiserver")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: "upstream", Dir: dir, URL: "https://127.0.0.1:" + strconv.Itoa(ports[0]), Kubeconfig: filepath.Join(dir, "admin.kubeconfig")}
	if c.pki, err = newKeys(filepath.Join(dir, "pki")); err != nil {
		return nil, err
	}
	if err := c.pki.kubeconfig(c.Kubeconfig, c.URL, "admin", "system:masters"); err != nil {
		return nil, err
	}
	began := time.Now()
	if etcd == "" {
		p, url, err := Etcd(dir)
		if err != nil {
			return nil, err
		}
		c.Server, etcd = append(c.Server, p), url
	}
	f := c.pki.dir
	args := append([]string{
		// Upstream rejects loopback as advertise address. This one, reserved for documentation, is only stored.
		"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--advertise-address=192.0.2.1", "--secure-port=" + strconv.Itoa(ports[0]),
		"--service-cluster-ip-range=10.96.0.0/12", "--authorization-mode=Node,RBAC",
		"--client-ca-file=" + f + "/ca.crt", "--tls-cert-file=" + f + "/apiserver.crt", "--tls-private-key-file=" + f + "/apiserver.key",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + f + "/service-account.pub", "--service-account-signing-key-file=" + f + "/service-account.key",
		"--requestheader-client-ca-file=" + f + "/front-proxy-ca.crt", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + f + "/front-proxy-client.crt", "--proxy-client-key-file=" + f + "/front-proxy-client.key",
	}, flags...)
	p, err := start(dir, "kube-apiserver", filepath.Join(programs, "kube-apiserver"), args...)
	if err != nil {
		c.Stop()
		return nil, err
	}
	c.Server = append(c.Server, p)
	config, err := c.Config()
	if err != nil {
		c.Stop()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := waitReady(ctx, config, p); err != nil {
		c.Stop()
		return nil, err
	}
	c.Ready = time.Since(began)
	return c, nil
}

// Etcd starts only upstream's etcd and returns its client URL.
func Etcd(dir string) (*Process, string, error) {
	members, urls, err := EtcdMembers(dir, 1)
	if err != nil {
		return nil, "", err
	}
	return members[0], urls[0], nil
}

// EtcdMembers starts the members of a cluster of upstream's etcd, with TLS between them, and returns their client URLs.
func EtcdMembers(dir string, n int) (members []*Process, urls []string, err error) {
	programs, err := Upstream("etcd")
	if err != nil {
		return nil, nil, err
	}
	ports, err := freePorts(2 * n)
	if err != nil {
		return nil, nil, err
	}
	local := func(scheme string, port int) string { return scheme + "://127.0.0.1:" + strconv.Itoa(port) }
	var initial []string
	for i := range n {
		initial = append(initial, fmt.Sprintf("etcd-%d=%s", i, local("https", ports[2*i])))
	}
	for i := range n {
		name, peer, url := fmt.Sprint("etcd-", i), local("https", ports[2*i]), local("http", ports[2*i+1])
		p, err := start(dir, name, filepath.Join(programs, "etcd"), "--name="+name, "--data-dir="+filepath.Join(dir, name),
			"--listen-client-urls="+url, "--advertise-client-urls="+url, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer,
			"--initial-cluster="+strings.Join(initial, ","), "--peer-auto-tls", "--log-level=warn")
		if err != nil {
			for _, member := range members {
				member.Kill()
			}
			return nil, nil, err
		}
		members, urls = append(members, p), append(urls, url)
	}
	return members, urls, nil
}

// ControllerManager adds upstream's kube-controller-manager to a running cluster, with the administrator's credentials.
func (c *Cluster) ControllerManager(flags ...string) error {
	programs, err := Upstream("kube-controller-manager")
	if err != nil {
		return err
	}
	f, err := c.signingFiles()
	if err != nil {
		return err
	}
	args := append([]string{
		"--kubeconfig=" + c.Kubeconfig, "--authentication-kubeconfig=" + c.Kubeconfig, "--authorization-kubeconfig=" + c.Kubeconfig,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0", "--kube-api-qps=-1",
		"--service-account-private-key-file=" + f + "/service-account.key", "--root-ca-file=" + f + "/ca.crt",
		"--cluster-signing-cert-file=" + f + "/ca.crt", "--cluster-signing-key-file=" + f + "/ca.key",
		"--use-service-account-credentials=false", "--cert-dir=" + filepath.Join(c.Dir, "kcm-certs"),
	}, flags...)
	p, err := start(c.Dir, "kube-controller-manager", filepath.Join(programs, "kube-controller-manager"), args...)
	if err != nil {
		return err
	}
	c.Others = append(c.Others, p)
	return nil
}

// Scheduler adds upstream's kube-scheduler to a running cluster, with the administrator's credentials.
func (c *Cluster) Scheduler(flags ...string) error {
	programs, err := Upstream("kube-scheduler")
	if err != nil {
		return err
	}
	args := append([]string{
		"--kubeconfig=" + c.Kubeconfig, "--authentication-kubeconfig=" + c.Kubeconfig, "--authorization-kubeconfig=" + c.Kubeconfig,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0", "--kube-api-qps=-1", "--cert-dir=" + filepath.Join(c.Dir, "scheduler-certs"),
	}, flags...)
	p, err := start(c.Dir, "kube-scheduler", filepath.Join(programs, "kube-scheduler"), args...)
	if err != nil {
		return err
	}
	c.Others = append(c.Others, p)
	return nil
}

// KubeProxy adds upstream's kube-proxy in nftables mode, with the administrator's credentials.
func (c *Cluster) KubeProxy(flags ...string) (*Process, error) {
	programs, err := Upstream("kube-proxy", "nft")
	if err != nil {
		return nil, err
	}
	// kube-proxy finds nft, and nft its libraries, by the environment.
	withNFT := func(cmd *exec.Cmd) error {
		nft := filepath.Join(programs, "nft/usr")
		libraries, err := filepath.Glob(nft + "/lib/*-linux-gnu")
		if err != nil {
			return err
		}
		cmd.Env = append(os.Environ(), "PATH="+nft+"/sbin:"+os.Getenv("PATH"), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
		return cmd.Start()
	}
	args := append([]string{
		"--kubeconfig=" + c.Kubeconfig, "--proxy-mode=nftables",
		// What belongs to the host, not to a network namespace, is left as it is.
		"--conntrack-max-per-core=0", "--oom-score-adj=0",
	}, flags...)
	p, err := startBy(withNFT, c.Dir, "kube-proxy", filepath.Join(programs, "kube-proxy"), args...)
	if err != nil {
		return nil, err
	}
	c.Others = append(c.Others, p)
	return p, nil
}

// CoreDNS adds CoreDNS with the given configuration.
func (c *Cluster) CoreDNS(corefile string) (*Process, error) {
	programs, err := Upstream("coredns")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(c.Dir, "Corefile")
	if err := os.WriteFile(path, []byte(corefile), 0o600); err != nil {
		return nil, err
	}
	p, err := start(c.Dir, "coredns", filepath.Join(programs, "coredns"), "-conf", path)
	if err != nil {
		return nil, err
	}
	c.Others = append(c.Others, p)
	return p, nil
}

// signingFiles returns the directory with the cluster's ca.crt, ca.key and service-account.key.
func (c *Cluster) signingFiles() (string, error) {
	if c.pki != nil {
		return c.pki.dir, nil
	}
	dir := filepath.Join(c.Dir, "data/pki")
	_, err := os.Stat(filepath.Join(dir, "service-account.key"))
	return dir, err
}

func newKeys(dir string) (*keys, error) {
	now := time.Now()
	directory := pki.Dir(dir)
	ca, err := directory.CA("ca", "kubernetes", now)
	if err != nil {
		return nil, err
	}
	proxy, err := directory.CA("front-proxy-ca", "front-proxy", now)
	if err != nil {
		return nil, err
	}
	if _, err := directory.SigningKey("service-account"); err != nil {
		return nil, err
	}
	if _, err := directory.Leaf("apiserver", ca, pki.Leaf{
		CommonName: "kube-apiserver", DNSNames: []string{"localhost", "kubernetes", "kubernetes.default"},
		IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)}, Server: true,
	}, now); err != nil {
		return nil, err
	}
	if _, err := directory.Leaf("front-proxy-client", proxy, pki.Leaf{CommonName: "front-proxy-client", Client: true}, now); err != nil {
		return nil, err
	}
	return &keys{dir: dir, ca: ca, proxy: proxy}, nil
}

func (k *keys) kubeconfig(path, url, user string, groups ...string) error {
	pair, err := k.ca.Issue(pki.Leaf{CommonName: user, Organizations: groups, Client: true}, time.Now())
	if err != nil {
		return err
	}
	return writeKubeconfig(path, url, k.ca.Cert, pair.Cert, pair.Key)
}

// keptPort returns the port stored in file, or stores a free one.
func keptPort(file string) (string, error) {
	if data, err := os.ReadFile(file); err == nil {
		return string(data), nil
	}
	ports, err := freePorts(1)
	if err != nil {
		return "", err
	}
	port := strconv.Itoa(ports[0])
	return port, os.WriteFile(file, []byte(port), 0o600)
}
