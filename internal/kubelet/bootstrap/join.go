package bootstrap

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/internal/atomicfile"
	"skiff/internal/client"
	"skiff/internal/pki"
)

// joinRetryInterval is the time between two attempts to reach a server.
const joinRetryInterval = 2 * time.Second

// Join makes this host a node of a cluster with a join token.
type Join struct {
	// Servers are the URLs of API servers of the cluster. The first that can be reached is used.
	Servers []string
	// API is the URL at which clients with the kubeconfig reach an API server, and TLSServerName the name in the server's certificate. Empty: the first
	// of Servers.
	API, TLSServerName string
	// Certificate is the node's client certificate.
	Certificate *Certificate
	// CAFile and Kubeconfig are written: the CAs of the cluster, and the kubeconfig of the node.
	CAFile, Kubeconfig string
	NewClient          func(*rest.Config) (*client.Client, error)
	// Joined is called when the host joins a cluster, before CAFile is written; it may be nil.
	Joined func() error
	Log    *slog.Logger
}

// ErrNoToken is the error of a host that has not joined and has no token.
var ErrNoToken = errors.New("--token: required, because this host has no valid node certificate; create one with 'skiff token create' on the server")

// Run joins the cluster, unless the host has joined already, and writes the kubeconfig. The token may be empty if the host has joined.
func (j Join) Run(ctx context.Context, text string) error {
	if err := j.Certificate.Load(); err != nil {
		return err
	}
	cas, err := readCAs(j.CAFile)
	if err != nil {
		return err
	}
	joined := len(cas) > 0 && j.Certificate.Usable(time.Now())
	if text == "" && !joined {
		return ErrNoToken
	}
	if text != "" {
		token, err := ParseToken(text)
		if err != nil {
			return fmt.Errorf("--token: %w", err)
		}
		// With a token of another cluster the host joins that one.
		sameCluster := func(c *x509.Certificate) bool { return HashOf(c) == token.CAHash }
		if joined = joined && slices.ContainsFunc(cas, sameCluster); !joined {
			if err := j.join(ctx, token); err != nil {
				return err
			}
		}
	}
	if joined {
		j.refreshCAs(ctx)
	}
	cluster := &clientcmdapi.Cluster{Server: cmp.Or(j.API, j.Servers[0]), TLSServerName: j.TLSServerName, CertificateAuthority: j.CAFile}
	return writeKubeconfig(j.Kubeconfig, cluster, j.Certificate)
}

// join verifies a server by the token and requests the node's certificate there.
func (j Join) join(ctx context.Context, token Token) error {
	var joined string
	var ca []byte
	err := retryUnreachable(ctx, j.Log, func() error {
		return TryServers(ctx, j.Servers, func(server string) (err error) {
			joined = server
			if ca, err = DiscoverCA(ctx, server, token.CAHash); err != nil {
				return err
			}
			remote, err := j.NewClient(&rest.Config{Host: server, BearerToken: token.Bearer(), TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
			if err != nil {
				return err
			}
			return request(ctx, j.Certificate, remote)
		})
	})
	if err != nil {
		return err
	}
	if j.Joined != nil {
		if err := j.Joined(); err != nil {
			return err
		}
	}
	j.Log.Info("joined the cluster", "server", joined)
	return atomicfile.Write(j.CAFile, ca, 0o644)
}

// refreshCAs reads the CAs that have been added since the host joined, and renews the node's certificate if the newest has not signed it.
// If the server is not reachable the node starts with the CAs it has.
func (j Join) refreshCAs(ctx context.Context) {
	cas, err := os.ReadFile(j.CAFile)
	if err == nil {
		known := cas
		err = TryServers(ctx, j.Servers, func(server string) (err error) {
			cas, err = RefreshCAs(ctx, server, known)
			return err
		})
	}
	if err == nil {
		err = atomicfile.Write(j.CAFile, cas, 0o644)
	}
	if err != nil {
		j.Log.Warn("failed to refresh the CAs of the cluster", "error", err)
	}
	RenewForNewestCA(j.Certificate, j.CAFile)
}

// RenewForNewestCA has a certificate renewed that the newest CA of a file has not signed.
func RenewForNewestCA(c *Certificate, caFile string) {
	if cas, err := readCAs(caFile); err == nil && len(cas) > 0 {
		c.RenewUnlessSignedBy(cas[len(cas)-1])
	}
}

// readCAs reads the CAs of the cluster. There are none before the host has joined.
func readCAs(path string) ([]*x509.Certificate, error) {
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

// KubeconfigBootstrap requests the client certificate of a kubelet with a bootstrap kubeconfig, as upstream's kubelet does.
type KubeconfigBootstrap struct {
	BootstrapKubeconfig string
	// Kubeconfig is written.
	Kubeconfig  string
	Certificate *Certificate
	NewClient   func(*rest.Config) (*client.Client, error)
	Log         *slog.Logger
}

// Run requests the certificate, unless there is a usable one, and writes the kubeconfig.
func (b KubeconfigBootstrap) Run(ctx context.Context) error {
	loaded, err := clientcmd.LoadFromFile(b.BootstrapKubeconfig)
	if err != nil {
		return err
	}
	// Relative paths refer to the directory of the bootstrap kubeconfig; the new one may be in another.
	if err := clientcmd.ResolveLocalPaths(loaded); err != nil {
		return err
	}
	current, ok := loaded.Contexts[loaded.CurrentContext]
	if !ok || loaded.Clusters[current.Cluster] == nil {
		return fmt.Errorf("%s has no current context with a cluster", b.BootstrapKubeconfig)
	}
	if err := b.Certificate.Load(); err != nil {
		return err
	}
	if !b.Certificate.Usable(time.Now()) {
		connection, err := clientcmd.BuildConfigFromFlags("", b.BootstrapKubeconfig)
		if err != nil {
			return err
		}
		remote, err := b.NewClient(connection)
		if err != nil {
			return err
		}
		if err := retryUnreachable(ctx, b.Log, func() error { return request(ctx, b.Certificate, remote) }); err != nil {
			return err
		}
	}
	return writeKubeconfig(b.Kubeconfig, loaded.Clusters[current.Cluster], b.Certificate)
}

// request requests the node's first certificate with the rights of a bootstrap token. Its errors say what to do when they do not suffice.
func request(ctx context.Context, certificate *Certificate, remote *client.Client) error {
	err := certificate.ObtainWithToken(ctx, remote)
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the server does not accept the token: it has expired, was deleted, or is of another cluster; create a new one with 'skiff token create' (%w)", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the token does not allow a node to join: it needs the group %s, which is the default of 'skiff token create' (%w)", NodeGroup, err)
	}
	return err
}

// TryServers calls try for the servers, one after the other, until one can be reached. Its error is the one of that server, or those of all.
func TryServers(ctx context.Context, servers []string, try func(server string) error) error {
	var errs []error
	for _, server := range servers {
		err := try(server)
		if !IsUnreachable(err) || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// IsUnreachable reports whether an error is that of a server that cannot be reached, or not yet: it is starting or overloaded, or what forwards its
// connections has no other.
func IsUnreachable(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial" || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err)
}

// retryUnreachable retries while the servers are unreachable.
func retryUnreachable(ctx context.Context, log *slog.Logger, try func() error) error {
	for {
		err := try()
		if !IsUnreachable(err) || ctx.Err() != nil {
			return err
		}
		log.Warn("failed to reach the API server, retrying", "error", err)
		select {
		case <-time.After(joinRetryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// UsableKubeconfig reports whether a kubeconfig exists and has credentials that have not expired.
func UsableKubeconfig(path string, now time.Time) bool {
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

// UseCertificate makes a connection use a certificate that is renewed. Until the first renewal it is that of the connection.
func UseCertificate(connection *rest.Config, certificate *Certificate) error {
	if err := certificate.Load(); err != nil {
		return err
	}
	if !certificate.Usable(time.Now()) {
		loaded := rest.CopyConfig(connection)
		if err := rest.LoadTLSFiles(loaded); err != nil {
			return err
		}
		if len(loaded.CertData) == 0 {
			return errors.New("the kubeconfig has no client certificate")
		}
		if err := certificate.Store(loaded.CertData, loaded.KeyData); err != nil {
			return err
		}
	}
	tls := &connection.TLSClientConfig
	tls.CertData, tls.KeyData, tls.CertFile, tls.KeyFile = nil, nil, certificate.File, certificate.File
	return nil
}

// writeKubeconfig writes a kubeconfig that refers to the file of a certificate, so that clients use the renewed one.
func writeKubeconfig(path string, cluster *clientcmdapi.Cluster, certificate *Certificate) error {
	k := clientcmdapi.NewConfig()
	k.Clusters["default-cluster"] = cluster
	k.AuthInfos["default-auth"] = &clientcmdapi.AuthInfo{ClientCertificate: certificate.File, ClientKey: certificate.File}
	k.Contexts["default-context"] = &clientcmdapi.Context{Cluster: "default-cluster", AuthInfo: "default-auth"}
	k.CurrentContext = "default-context"
	data, err := clientcmd.Write(*k)
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	return atomicfile.Write(path, data, 0o600)
}
