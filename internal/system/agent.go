package system

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/api"
	"skiff/internal/atomicfile"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/kubelet/bootstrap"
	"skiff/internal/pki"
)

// joinAgain is how soon a server that does not answer is asked again.
const joinAgain = 2 * time.Second

// RunAgent makes this machine a node of a cluster elsewhere, if it is none yet, and runs it until ctx ends.
func RunAgent(ctx context.Context, c config.Agent) error {
	log, err := newLogger(c.LogLevel)
	if err != nil {
		return err
	}
	name, err := c.NodeName()
	if err != nil {
		return err
	}
	root := filepath.Join(c.DataDir, "kubelet")
	j := joining{
		server: c.Server, identity: bootstrap.NodeClient(filepath.Join(root, "pki"), name, log.With("part", "certificates")),
		authorityFile: filepath.Join(root, "pki/ca.crt"), kubeconfig: filepath.Join(root, "kubeconfig"), log: log,
	}
	if err := os.MkdirAll(filepath.Join(root, "pki"), 0o700); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	unlock, err := lockDir(c.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	token, err := c.ReadToken()
	if err != nil {
		return err
	}
	if err := j.join(ctx, token); err != nil {
		return wrap("join the cluster", err)
	}
	remote, err := dial(j.kubeconfig)
	if err != nil {
		return err
	}
	return runKept(ctx, remote, j.identity, nodeSettings{
		Node: c.Node, dataDir: c.DataDir, root: root, clusterDomain: "cluster.local", certificates: filepath.Join(root, "pki"), authorityFile: j.authorityFile,
	}, log)
}

// RunKubelet runs this machine as a node of a cluster elsewhere until ctx ends.
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
	identity := bootstrap.NodeClient(c.CertificateDir(), name, log.With("part", "certificates"))
	if c.BootstrapKubeconfig != "" && !goodKubeconfig(c.Kubeconfig, time.Now()) {
		if err := introduce(ctx, c, identity, log); err != nil {
			return wrap("--bootstrap-kubeconfig", err)
		}
	}
	connection, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if !settings.RotateCertificates {
		identity = nil
	} else if err := keepClient(connection, identity); err != nil {
		return fmt.Errorf("rotateCertificates: %w", err)
	}
	remote, err := client.New(connection, api.Scheme(), api.Named())
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return runKept(ctx, remote, identity, nodeSettings{
		Node: c.Node, dataDir: filepath.Dir(c.RootDir), root: c.RootDir, staticPods: c.PodManifestPath, clusterDomain: "cluster.local", certificates: c.CertificateDir(),
	}, log)
}

// runKept runs a node and keeps the certificate fresh by which the API server knows it, unless that is nil.
func runKept(ctx context.Context, remote *client.Client, identity *bootstrap.Certificate, settings nodeSettings, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return wrap("kubelet", runNode(ctx, remote, settings, log)) })
	if identity != nil {
		group.Go(func() error { return wrap("certificates", identity.Run(ctx, remote)) })
	}
	return group.Wait()
}

// configuration is the KubeletConfiguration the node runs by.
func (s *nodeSettings) configuration() (*kubeletconfig.KubeletConfiguration, error) {
	settings, err := s.KubeletConfiguration()
	if err == nil && s.authorityFile != "" {
		settings.ServerTLSBootstrap = true
		if settings.Authentication.X509.ClientCAFile == "" {
			settings.Authentication.X509.ClientCAFile = s.authorityFile
		}
	}
	return settings, err
}

// joining is how a machine becomes a node of a cluster by a token.
type joining struct {
	server                    string
	identity                  *bootstrap.Certificate
	authorityFile, kubeconfig string
	log                       *slog.Logger
}

// join makes the machine a node, unless it is one already, and writes the kubeconfig that it acts by.
func (j joining) join(ctx context.Context, word string) error {
	if err := j.identity.Load(); err != nil {
		return err
	}
	known, err := readAuthorities(j.authorityFile)
	if err != nil {
		return err
	}
	member := len(known) > 0 && j.identity.Usable(time.Now())
	if word == "" && !member {
		return errors.New("--token: this machine has no good certificate of a node yet; `skiff token create` on the server makes a token")
	}
	if word != "" {
		token, err := bootstrap.ParseToken(word)
		if err != nil {
			return fmt.Errorf("--token: %w", err)
		}
		// A token of another cluster is a wish to change over.
		ours := func(c *x509.Certificate) bool { return bootstrap.HashOf(c) == token.CAHash }
		if member = member && slices.ContainsFunc(known, ours); !member {
			if err := j.introduce(ctx, token); err != nil {
				return err
			}
		}
	}
	if member {
		j.follow(ctx)
	}
	return writeKubeconfig(j.kubeconfig, &clientcmdapi.Cluster{Server: j.server, CertificateAuthority: j.authorityFile}, j.identity)
}

// follow learns the authorities that have come after those that are known, and lets the newest sign what the node has. A server that does not
// answer now need not hold up the node.
func (j joining) follow(ctx context.Context) {
	known, err := os.ReadFile(j.authorityFile)
	if err == nil {
		known, err = bootstrap.RefreshCAs(ctx, j.server, known)
	}
	if err == nil {
		err = atomicfile.Write(j.authorityFile, known, 0o644)
	}
	if err != nil {
		j.log.Warn("it is not known whether the cluster has a new authority", "error", err)
	}
	renewForNewest(j.identity, j.authorityFile)
}

// renewForNewest has a certificate renewed that the newest authority of a file has not signed.
func renewForNewest(c *bootstrap.Certificate, authorityFile string) {
	if known, err := readAuthorities(authorityFile); err == nil && len(known) > 0 {
		c.RenewUnlessSignedBy(known[len(known)-1])
	}
}

// introduce learns who the server is and gets the node's certificate from it.
func (j joining) introduce(ctx context.Context, token bootstrap.Token) error {
	var authority []byte
	err := patiently(ctx, j.log, func() (err error) {
		authority, err = bootstrap.DiscoverCA(ctx, j.server, token.CAHash)
		return err
	})
	if err != nil {
		return err
	}
	remote, err := client.New(&rest.Config{
		Host: j.server, BearerToken: token.Bearer(), TLSClientConfig: rest.TLSClientConfig{CAData: authority},
	}, api.Scheme(), api.Named())
	if err != nil {
		return err
	}
	if err := obtain(ctx, j.identity, remote, j.log); err != nil {
		return err
	}
	j.log.Info("this machine has joined the cluster", "server", j.server)
	return atomicfile.Write(j.authorityFile, authority, 0o644)
}

// introduce gets the certificate of a kubelet by its bootstrap kubeconfig, and writes the kubeconfig it is to use.
func introduce(ctx context.Context, c config.Kubelet, identity *bootstrap.Certificate, log *slog.Logger) error {
	loaded, err := clientcmd.LoadFromFile(c.BootstrapKubeconfig)
	if err != nil {
		return err
	}
	// Its files lie beside it; the new kubeconfig may lie elsewhere.
	if err := clientcmd.ResolveLocalPaths(loaded); err != nil {
		return err
	}
	current, ok := loaded.Contexts[loaded.CurrentContext]
	if !ok || loaded.Clusters[current.Cluster] == nil {
		return fmt.Errorf("%s has no current context with a cluster", c.BootstrapKubeconfig)
	}
	if err := identity.Load(); err != nil {
		return err
	}
	if !identity.Usable(time.Now()) {
		remote, err := dial(c.BootstrapKubeconfig)
		if err != nil {
			return err
		}
		if err := obtain(ctx, identity, remote, log); err != nil {
			return err
		}
	}
	return writeKubeconfig(c.Kubeconfig, loaded.Clusters[current.Cluster], identity)
}

// obtain gets the node's first certificate with the rights of a bootstrap token, and says what to do when they do not suffice.
func obtain(ctx context.Context, identity *bootstrap.Certificate, remote *client.Client, log *slog.Logger) error {
	err := patiently(ctx, log, func() error { return identity.Obtain(ctx, remote) })
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the server does not accept the token: it has expired, was deleted, or is not of this cluster; make a new one with `skiff token create` (%w)", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the token does not give the right to become a node: it needs the group %s, which `skiff token create` gives unless --groups says otherwise (%w)", bootstrap.NodeGroup, err)
	}
	return err
}

// patiently tries again while there is nobody to answer: a server may be starting.
func patiently(ctx context.Context, log *slog.Logger, try func() error) error {
	for {
		err := try()
		var dialing *net.OpError
		away := errors.As(err, &dialing) && dialing.Op == "dial" || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err)
		if !away || ctx.Err() != nil {
			return err
		}
		log.Warn("the server does not answer, trying again", "error", err)
		select {
		case <-time.After(joinAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// goodKubeconfig says whether a kubeconfig can still be used: it is there, and its certificate, if it has one, is not past.
func goodKubeconfig(path string, now time.Time) bool {
	connection, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil || rest.LoadTLSFiles(connection) != nil {
		return false
	}
	if len(connection.CertData) == 0 {
		return connection.BearerToken != "" || connection.BearerTokenFile != "" || connection.ExecProvider != nil
	}
	certs, err := pki.ParseCertificates(connection.CertData)
	return err == nil && len(certs) > 0 && now.Before(certs[0].NotAfter)
}

// keepClient lets a connection use the certificate that is kept fresh, which begins with the one that the connection has.
func keepClient(connection *rest.Config, identity *bootstrap.Certificate) error {
	if err := identity.Load(); err != nil {
		return err
	}
	if !identity.Usable(time.Now()) {
		loaded := rest.CopyConfig(connection)
		if err := rest.LoadTLSFiles(loaded); err != nil {
			return err
		}
		if len(loaded.CertData) == 0 {
			return errors.New("the kubeconfig has no client certificate to begin with")
		}
		if err := identity.Store(loaded.CertData, loaded.KeyData); err != nil {
			return err
		}
	}
	tls := &connection.TLSClientConfig
	tls.CertData, tls.KeyData, tls.CertFile, tls.KeyFile = nil, nil, identity.File, identity.File
	return nil
}

// writeKubeconfig writes a kubeconfig that names the file of a certificate, so that whoever uses it takes up what is renewed.
func writeKubeconfig(path string, cluster *clientcmdapi.Cluster, identity *bootstrap.Certificate) error {
	k := clientcmdapi.NewConfig()
	k.Clusters["default-cluster"] = cluster
	k.AuthInfos["default-auth"] = &clientcmdapi.AuthInfo{ClientCertificate: identity.File, ClientKey: identity.File}
	k.Contexts["default-context"] = &clientcmdapi.Context{Cluster: "default-cluster", AuthInfo: "default-auth"}
	k.CurrentContext = "default-context"
	data, err := clientcmd.Write(*k)
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	return atomicfile.Write(path, data, 0o600)
}

// readAuthorities reads the authorities of the cluster; there are none before a machine has joined.
func readAuthorities(path string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	certs, err := pki.ParseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return certs, nil
}

// serverNames are the names and addresses by which this machine's API server is known.
func serverNames(c config.Server) ([]string, error) {
	leaf, err := servingLeaf(c)
	names := leaf.DNSNames
	for _, ip := range leaf.IPs {
		names = append(names, ip.String())
	}
	return names, err
}
