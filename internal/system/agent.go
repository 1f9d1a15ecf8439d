package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/kubelet/bootstrap"
	"skiff/internal/systemd"
	"skiff/internal/version"
)

// RunAgent joins this host to a cluster as a node, if it has not joined yet, and runs the node until ctx is done.
func RunAgent(ctx context.Context, c config.Agent) error {
	level := &slog.LevelVar{}
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	if err := checkNode(&c.Node, c.DataDir, ""); err != nil {
		return err
	}
	p := newProgress(level, os.Stderr)
	unlock, err := openDataDir(c.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	defer p.run(fmt.Sprintf("Starting skiff %s, with data in %s", version.String(), c.DataDir))()
	return explainDir(runAgent(ctx, c, p), c.DataDir, "data-dir")
}

// runAgent runs an agent in its data directory, which is locked.
func runAgent(ctx context.Context, c config.Agent, p *progress) error {
	log, notifier := p.log, systemd.NewNotifier()
	if err := admitAgent(c.DataDir, log); err != nil {
		return err
	}
	name, err := c.NodeName()
	if err != nil {
		return err
	}
	identity := filepath.Join(c.DataDir, "kubelet")
	pkiDir := filepath.Join(identity, "pki")
	if err := os.MkdirAll(pkiDir, 0o700); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	join := bootstrap.Join{
		Servers: c.Servers, Certificate: bootstrap.NodeClient(pkiDir, name, log.With("component", "certificates")),
		CAFile: filepath.Join(pkiDir, "ca.crt"), Kubeconfig: filepath.Join(identity, "kubeconfig"), NewClient: newClient, Log: log,
	}
	record := &clusterRecord{file: filepath.Join(identity, "cluster.json"), log: log}
	servers := &agentBalancer{file: filepath.Join(identity, "servers.json"), caFile: join.CAFile, log: log.With("component", "balancer")}
	if err := servers.open(ctx, c.Servers); err != nil {
		return err
	}
	join.API, join.TLSServerName = servers.URL(), serverName
	join.Joined = func() error { return errors.Join(record.remove(), servers.forget()) }
	joined := p.begin("joining the cluster")
	if err := runJoin(ctx, join, c); err != nil {
		return wrap("join the cluster", err)
	}
	joined()
	remote, err := dial(join.Kubeconfig)
	if err != nil {
		return err
	}
	o := nodeOptions{
		Node: c.Node, dataDir: c.DataDir, root: c.Node.KubeletDir(c.DataDir), rootFlag: "root-dir", certificateDir: pkiDir, caFile: join.CAFile, servesDNS: true,
		localPathDir: localPathDir(c.DataDir), progress: p, ready: p.begin("node"),
	}
	if c.Runs(config.ComponentProxy) {
		o.proxy = &proxyOptions{nodePortAddresses: c.NodePortAddresses}
	}
	o.enforcesPolicies = c.Runs(config.ComponentPolicy)
	record.read = func(ctx context.Context, known clusterSettings) (clusterSettings, error) {
		if err := checkServerRelease(ctx, remote.Config, log); err != nil {
			return known, err
		}
		return readCluster(ctx, remote, known, log)
	}
	record.run = func(ctx context.Context, settings clusterSettings) error {
		if err := notifier.Ready(); err != nil {
			log.Warn("failed to report readiness to systemd", "error", err)
		}
		settings.apply(&o)
		p.finish(func(total time.Duration, pending []string) {
			p.show(total, pending, "kubectl get node "+name+"    # where the admin kubeconfig is")
		})
		return runRenewedNode(ctx, remote, join.Certificate, o, log)
	}
	group, ctx := errgroup.WithContext(ctx)
	start := starter(ctx, group)
	start("API balancer", func(ctx context.Context) error { return servers.run(ctx, remote) })
	start("node", record.Run)
	return group.Wait()
}

// runJoin joins the cluster, unless the host has joined already: then the file of the token may have been deleted.
func runJoin(ctx context.Context, join bootstrap.Join, c config.Agent) error {
	token, missing := c.ReadToken()
	if missing != nil && !errors.Is(missing, fs.ErrNotExist) {
		return missing
	}
	warnOfExposedSecret(join.Log, "token-file", c.TokenFile)
	err := join.Run(ctx, token)
	if missing != nil && errors.Is(err, bootstrap.ErrNoToken) {
		return missing
	}
	return err
}

// RunKubelet runs this host as a node of a cluster until ctx is done.
func RunKubelet(ctx context.Context, c config.Kubelet) error {
	log, err := newLogger(c.LogLevel)
	if err != nil {
		return err
	}
	settings, err := c.KubeletConfiguration()
	if err != nil {
		return err
	}
	name, err := c.NodeName()
	if err != nil {
		return err
	}
	certificate := bootstrap.NodeClient(c.CertificateDir(), name, log.With("component", "certificates"))
	if err := bootstrapKubeconfig(ctx, c, certificate, log); err != nil {
		return wrap("--bootstrap-kubeconfig", err)
	}
	connection, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if !settings.RotateCertificates {
		certificate = nil
	} else if err := bootstrap.UseCertificate(connection, certificate); err != nil {
		return fmt.Errorf("rotateCertificates: %w", err)
	}
	remote, err := newClient(connection)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return runRenewedNode(ctx, remote, certificate, nodeOptions{
		Node: c.Node, dataDir: c.DataDir(), root: c.RootDir, rootFlag: "root-dir", staticPods: c.PodManifestPath, clusterDomain: "cluster.local",
		certificateDir: c.CertificateDir(), localPathDir: filepath.Join(c.RootDir, "volumes"),
	}, log)
}

// bootstrapKubeconfig requests the client certificate of a kubelet with its bootstrap kubeconfig, unless its kubeconfig can be used.
func bootstrapKubeconfig(ctx context.Context, c config.Kubelet, certificate *bootstrap.Certificate, log *slog.Logger) error {
	if c.BootstrapKubeconfig == "" || bootstrap.UsableKubeconfig(c.Kubeconfig, time.Now()) {
		return nil
	}
	request := bootstrap.KubeconfigBootstrap{
		BootstrapKubeconfig: c.BootstrapKubeconfig, Kubeconfig: c.Kubeconfig, Certificate: certificate, NewClient: newClient, Log: log,
	}
	return request.Run(ctx)
}

// newClient makes a client of all built-in kinds.
func newClient(c *rest.Config) (*client.Client, error) {
	return client.New(c, api.Scheme(), api.Named())
}

// runRenewedNode runs a node and renews its client certificate, unless that is nil.
func runRenewedNode(ctx context.Context, remote *client.Client, certificate *bootstrap.Certificate, o nodeOptions, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	start := starter(ctx, group)
	start("kubelet", func(ctx context.Context) error {
		return runWithAddress(ctx, func(ctx context.Context) error { return runNode(ctx, remote, o, log) }, log)
	})
	if certificate != nil {
		start("certificates", func(ctx context.Context) error { return certificate.Run(ctx, remote) })
	}
	return group.Wait()
}
