package system

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"skiff/internal/atomicfile"
	"skiff/internal/balancer"
	"skiff/internal/client"
)

// serverName is the name for which the certificates of all API servers are valid, wherever they are reached.
const serverName = "kubernetes.default.svc"

// agentBalancer connects the clients of a node to the API servers of its cluster. It learns them from the endpoints of the service `kubernetes`, and
// records them, so that a node starts although the server that it has joined is gone.
type agentBalancer struct {
	balancer.Balancer
	// configured are the addresses of the servers that the agent was given. They are used besides the others, which may not be reachable from here.
	configured []string
	// file has the recorded addresses, caFile the CAs of the servers.
	file, caFile string
	log          *slog.Logger
}

// open listens on loopback and uses the recorded servers and those with the URLs.
func (b *agentBalancer) open(ctx context.Context, servers []string) error {
	for _, server := range servers {
		u, err := url.Parse(server)
		if err != nil {
			return err
		}
		address := u.Host
		if u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), "443")
		}
		if !slices.Contains(b.configured, address) {
			b.configured = append(b.configured, address)
		}
	}
	b.Check, b.Log = b.check, b.log
	if err := b.Listen(ctx, "0"); err != nil {
		return err
	}
	recorded, err := b.load()
	if err != nil {
		return err
	}
	b.use(recorded)
	return nil
}

// URL is that of the API for the clients of the node.
func (b *agentBalancer) URL() string { return "https://" + b.Address() }

// use sets the servers, of which the configured ones are the last.
func (b *agentBalancer) use(servers []string) {
	all := slices.DeleteFunc(slices.Clone(servers), func(s string) bool { return slices.Contains(b.configured, s) })
	b.SetServers(append(all, b.configured...))
}

// run forwards connections and follows the servers until ctx is done.
func (b *agentBalancer) run(ctx context.Context, remote *client.Client) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return b.Run(ctx) })
	group.Go(func() error {
		b.follow(ctx, remote)
		return nil
	})
	return group.Wait()
}

// follow uses and records the servers of the cluster as they change.
func (b *agentBalancer) follow(ctx context.Context, remote *client.Client) {
	name := client.Selector{Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, "kubernetes")}
	client.For[*discoveryv1.EndpointSlice](remote).Follow(ctx, metav1.NamespaceDefault, name, client.FollowHandler[*discoveryv1.EndpointSlice]{
		Replace: func(slices []*discoveryv1.EndpointSlice) bool {
			for _, slice := range slices {
				b.update(slice)
			}
			return true
		},
		Apply: func(slice *discoveryv1.EndpointSlice, deleted bool) bool {
			if !deleted {
				b.update(slice)
			}
			return true
		},
		Fail: func(err error) { b.log.Warn("failed to read the API servers of the cluster", "error", err) },
	})
}

// update uses the servers of a slice. One without servers changes nothing.
func (b *agentBalancer) update(slice *discoveryv1.EndpointSlice) {
	servers := balancer.EndpointAddresses(slice)
	if len(servers) == 0 {
		return
	}
	b.use(servers)
	data, _ := json.Marshal(servers) // texts always encode
	if err := atomicfile.Write(b.file, data, 0o600); err != nil {
		b.log.Warn("failed to record the API servers of the cluster", "error", err)
	}
}

// load returns the recorded servers.
func (b *agentBalancer) load() ([]string, error) {
	data, err := os.ReadFile(b.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the API servers of the cluster: %w", err)
	}
	var servers []string
	if err := json.Unmarshal(data, &servers); err != nil {
		b.log.Warn("failed to read the recorded API servers of the cluster", "file", b.file, "error", err)
		return nil, nil
	}
	return servers, nil
}

// forget removes the recorded servers, when the host joins another cluster.
func (b *agentBalancer) forget() error {
	b.use(nil)
	if err := os.Remove(b.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the API servers of the cluster: %w", err)
	}
	return nil
}

// check requests the readiness of a server. Every response but a server error means that it serves: anonymous requests may be disabled.
func (b *agentBalancer) check(ctx context.Context, server string) error {
	cas, err := os.ReadFile(b.caFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cas)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serverName, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)); err != nil {
		return err
	}
	if response.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("/readyz responds %s", response.Status)
	}
	return nil
}
