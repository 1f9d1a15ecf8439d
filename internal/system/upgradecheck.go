package system

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/balancer"
	"skiff/internal/client"
	"skiff/internal/cluster"
	"skiff/internal/config"
	"skiff/internal/store/etcd"
	"skiff/internal/upgrade"
)

const (
	// upgradeTimeout bounds each request of a check.
	upgradeTimeout = 10 * time.Second
	// maxMetricsBytes bounds what is read of a server's metrics.
	maxMetricsBytes = 64 << 20
	// nodePage and definitionPage are how many objects are read at a time: a node has some ten kilobytes, a definition up to a megabyte.
	nodePage, definitionPage = 250, 25

	metricDeprecated   = "apiserver_requested_deprecated_apis"
	metricLastSnapshot = "skiff_snapshot_last_success_timestamp_seconds"
)

// CheckUpgrade writes what an upgrade to this version would do. It changes nothing. The error says that the upgrade would be refused, or that there is nothing to examine.
func CheckUpgrade(ctx context.Context, c config.Upgrade, out io.Writer) error {
	if !c.Check {
		return errors.New("--check: required, because there is nothing else to run: an upgrade is a restart with another version of skiff")
	}
	x := &upgradeExamination{config: c}
	if err := x.readDataDir(); err != nil {
		return err
	}
	if err := x.readCluster(ctx); err != nil {
		return err
	}
	if !x.HasData && x.URL == "" {
		return fmt.Errorf("%s has no data of skiff, and no cluster answers: give --data-dir or --kubeconfig", c.DataDir)
	}
	if !x.IsAgent {
		x.readSnapshots(ctx)
	}
	plan := upgrade.NewPlan(upgrade.Current(), x.Observed, time.Now())
	return errors.Join(plan.Write(out), plan.Err())
}

// upgradeExamination gathers what a check of an upgrade looks at.
type upgradeExamination struct {
	upgrade.Observed
	config     config.Upgrade
	connection *rest.Config
	remote     *client.Client
}

// unknown notes what could not be examined.
func (x *upgradeExamination) unknown(what string, err error) {
	x.Unknown = append(x.Unknown, what+": "+err.Error())
}

func exists(path ...string) bool {
	_, err := os.Lstat(filepath.Join(path...))
	return err == nil
}

// readDataDir examines the data directory.
func (x *upgradeExamination) readDataDir() (err error) {
	dir := x.config.DataDir
	if _, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return explainRead(fmt.Errorf("--data-dir: %w", err))
	}
	if x.Data, err = upgrade.ReadRecord(dir); err != nil {
		return err
	}
	x.Dir, x.HasObjects = dir, etcd.HasMember(etcdDir(dir))
	x.HasData = x.Data != nil || x.HasObjects || exists(dir, "kubelet")
	x.IsAgent = x.config.Kubeconfig == "" && exists(agentKubeconfig(dir)) && !exists(dir, adminKubeconfig)
	return nil
}

// agentKubeconfig is the kubeconfig of an agent.
func agentKubeconfig(dataDir string) string { return filepath.Join(dataDir, "kubelet", "kubeconfig") }

// readCluster examines the cluster of a kubeconfig: the one that was given, the administrator's, or an agent's. A server of the data directory that does not
// run is no error.
func (x *upgradeExamination) readCluster(ctx context.Context) (err error) {
	path := cmp.Or(x.config.Kubeconfig, filepath.Join(x.config.DataDir, adminKubeconfig))
	if x.IsAgent {
		path = agentKubeconfig(x.config.DataDir)
	}
	if x.config.Kubeconfig == "" && !exists(path) {
		return nil
	}
	if x.connection, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	x.connection.Timeout = upgradeTimeout
	release, err := serverRelease(ctx, x.connection)
	if err != nil {
		if x.config.Kubeconfig != "" {
			return fmt.Errorf("--kubeconfig: %w", err)
		}
		x.unknown("the running cluster, because the API server does not answer", err)
		return nil
	}
	x.API, x.URL = release, x.connection.Host
	if x.IsAgent {
		return nil // it has the rights of a node
	}
	if x.remote, err = newClient(x.connection); err != nil {
		return err
	}
	endpoints := x.readEndpoints(ctx)
	x.readServers(ctx, endpoints)
	x.readNodes(ctx)
	x.readDefinitions(ctx)
	for _, e := range endpoints {
		x.readMetrics(ctx, e.connection)
	}
	return nil
}

// apiEndpoint is an API server that runs.
type apiEndpoint struct {
	connection *rest.Config
	// host is the address at which others reach it.
	host string
}

// readEndpoints returns all API servers that run.
func (x *upgradeExamination) readEndpoints(ctx context.Context) []apiEndpoint {
	slice, err := client.For[*discoveryv1.EndpointSlice](x.remote).Get(ctx, metav1.NamespaceDefault, "kubernetes")
	if err != nil {
		x.unknown("other API servers", err)
		return []apiEndpoint{{x.connection, hostOf(x.connection.Host)}}
	}
	return x.endpoints(balancer.EndpointAddresses(slice))
}

// endpoints are the API servers at addresses. The only one is reached by the address of the kubeconfig: that of the administrator has 127.0.0.1, which says nothing about
// the host, and from elsewhere another address may be needed.
func (x *upgradeExamination) endpoints(addresses []string) []apiEndpoint {
	var all []apiEndpoint
	for _, address := range addresses {
		connection := rest.CopyConfig(x.connection)
		connection.Host, connection.ServerName = "https://"+address, serverName
		all = append(all, apiEndpoint{connection, hostOf(connection.Host)})
	}
	switch len(all) {
	case 0:
		return []apiEndpoint{{x.connection, hostOf(x.connection.Host)}}
	case 1:
		all[0].connection = x.connection
	}
	return all
}

// readServers examines the servers: the members of etcd, or those that answer if etcd is not skiff's.
func (x *upgradeExamination) readServers(ctx context.Context, endpoints []apiEndpoint) {
	list, err := x.members(ctx)
	if err != nil {
		x.unknown("the servers", err)
	}
	for _, m := range list {
		s := upgrade.ObservedServer{Server: upgrade.Server{Name: cmp.Or(m.Name, m.PeerURL)}, Host: hostOf(m.PeerURL), IsLeader: m.IsLeader}
		if m.Release != nil {
			s.Release = *m.Release
		}
		x.Servers = append(x.Servers, s)
	}
	if len(list) > 0 {
		return
	}
	for _, e := range endpoints {
		s := upgrade.ObservedServer{Host: e.host}
		s.Name = s.Host
		if s.Release, err = serverRelease(ctx, e.connection); err != nil {
			x.unknown("the server "+s.Name, err)
		}
		x.Servers = append(x.Servers, s)
	}
}

// members are the servers of a cluster of several; none: the server is alone, or etcd is not skiff's.
func (x *upgradeExamination) members(ctx context.Context) ([]cluster.Server, error) {
	servers, err := cluster.NewClient(x.connection)
	if err != nil {
		return nil, err
	}
	list, err := servers.List(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return list, err
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.Hostname()
}

func (x *upgradeExamination) readNodes(ctx context.Context) {
	err := client.For[*corev1.Node](x.remote).EachPage(ctx, "", client.Selector{}, nodePage, func(page []*corev1.Node) error {
		x.addNodes(page)
		return nil
	})
	if err != nil {
		x.unknown("the nodes", err)
	}
}

func (x *upgradeExamination) addNodes(page []*corev1.Node) {
	for _, n := range page {
		release, err := upgrade.ParseGitVersion(n.Status.NodeInfo.KubeletVersion)
		if err != nil {
			x.unknown("the node "+n.Name, err)
			continue
		}
		node := upgrade.ObservedNode{Name: n.Name, Release: release}
		for _, address := range n.Status.Addresses {
			if net.ParseIP(address.Address) != nil {
				node.Hosts = append(node.Hosts, address.Address)
			}
		}
		x.Nodes = append(x.Nodes, node)
	}
}

func (x *upgradeExamination) readDefinitions(ctx context.Context) {
	err := client.For[*apiextensionsv1.CustomResourceDefinition](x.remote).EachPage(ctx, "", client.Selector{}, definitionPage,
		func(page []*apiextensionsv1.CustomResourceDefinition) error {
			x.addDefinitions(page)
			return nil
		})
	if err != nil {
		x.unknown("the custom resource definitions", err)
	}
}

func (x *upgradeExamination) addDefinitions(page []*apiextensionsv1.CustomResourceDefinition) {
	for _, d := range page {
		definition := upgrade.Definition{Name: d.Name, Stored: d.Status.StoredVersions}
		for _, version := range d.Spec.Versions {
			if version.Storage {
				definition.Storage = version.Name
			}
		}
		x.Definitions = append(x.Definitions, definition)
	}
}

// readMetrics reads from a server which deprecated APIs were requested of it, and when it saved its last snapshot.
func (x *upgradeExamination) readMetrics(ctx context.Context, connection *rest.Config) {
	series, err := requestMetrics(ctx, connection, metricDeprecated, metricLastSnapshot)
	if err != nil {
		x.UnknownAPIs = true
		x.unknown("the deprecated APIs that clients request of "+connection.Host, err)
		return
	}
	for _, s := range series {
		if s.name == metricLastSnapshot {
			if s.value > 0 {
				x.saved(time.Unix(int64(s.value), 0))
			}
			continue
		}
		api := upgrade.DeprecatedAPI{Group: s.labels["group"], Version: s.labels["version"], Resource: s.labels["resource"], RemovedRelease: s.labels["removed_release"]}
		if !slices.Contains(x.DeprecatedAPIs, api) {
			x.DeprecatedAPIs = append(x.DeprecatedAPIs, api)
		}
	}
}

// series is a line of metrics.
type series struct {
	name   string
	labels map[string]string
	value  float64
}

// label matches a label of a series. The values that are read here contain no quotes.
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// requestMetrics reads the series with some names from a server.
func requestMetrics(ctx context.Context, connection *rest.Config, names ...string) ([]series, error) {
	remote, err := statusClient(rest.CopyConfig(connection))
	if err != nil {
		return nil, err
	}
	body, err := remote.Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var found []series
	lines := bufio.NewScanner(io.LimitReader(body, maxMetricsBytes))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		id, value, _ := strings.Cut(lines.Text(), "} ")
		name, labels, hasLabels := strings.Cut(id, "{")
		if !hasLabels {
			name, value, _ = strings.Cut(id, " ")
		}
		if !slices.Contains(names, name) {
			continue
		}
		s := series{name: name, labels: map[string]string{}}
		for _, m := range label.FindAllStringSubmatch(labels, -1) {
			s.labels[m[1]] = m[2]
		}
		if s.value, err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("parse metric %s: %w", name, err)
		}
		found = append(found, s)
	}
	return found, lines.Err()
}

// saved notes a snapshot.
func (x *upgradeExamination) saved(at time.Time) {
	if at.After(x.Snapshot) {
		x.Snapshot = at
	}
}

// readSnapshots examines the stored snapshots.
func (x *upgradeExamination) readSnapshots(ctx context.Context) {
	storage, err := snapshotStorage(x.config.DataDir, x.config.Storage)
	if err != nil {
		x.unknown("the stored snapshots", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeTimeout)
	defer cancel()
	entries, err := storage.List(ctx)
	if err != nil {
		x.unknown("the stored snapshots", err)
	}
	for _, e := range entries {
		if !e.IsFuture(time.Now()) {
			x.saved(e.Created)
		}
	}
}
