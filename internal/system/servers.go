package system

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"skiff/internal/api/bootstrap"
	"skiff/internal/atomicfile"
	"skiff/internal/cluster"
	"skiff/internal/config"
	"skiff/internal/store"
	"skiff/internal/store/etcd"
)

// etcdDir is the directory of the embedded etcd.
func etcdDir(dataDir string) string { return filepath.Join(dataDir, "etcd") }

// memberRecord is recorded beside the data of an etcd that is a member of a cluster, so that the server needs no flags when it starts again.
type memberRecord struct {
	// Name of the member.
	Name string `json:"name"`
	// Joins is set if the member was added by a server of the cluster. Until it has data, it must not start a cluster of its own.
	Joins bool `json:"joins,omitempty"`
	// Resets is set while the member is made the only one. Until that is done, clients may have seen revisions that would be used again.
	Resets bool `json:"resets,omitempty"`
}

func memberFile(dataDir string) string { return filepath.Join(etcdDir(dataDir), "member.json") }

// readMemberRecord returns nil for an etcd that is alone.
func readMemberRecord(dataDir string) (*memberRecord, error) {
	data, err := os.ReadFile(memberFile(dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of the etcd member: %w", err)
	}
	record := &memberRecord{}
	if err := json.Unmarshal(data, record); err != nil {
		return nil, fmt.Errorf("read the record of the etcd member: %s: %w", memberFile(dataDir), err)
	}
	return record, nil
}

func (r *memberRecord) write(dataDir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(etcdDir(dataDir), 0o700); err != nil {
		return fmt.Errorf("create data directory of etcd: %w", err)
	}
	return atomicfile.Write(memberFile(dataDir), data, 0o600)
}

// newMemberName is the host's name and a random suffix: a host that is replaced is another member.
func newMemberName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	return host + "-" + strings.ToLower(rand.Text()[:8]), nil
}

// joinCluster decides whether etcd is a member of a cluster, and joins one if that is configured and has not happened yet. It returns before etcd
// is started.
func (s *server) joinCluster(ctx context.Context) error {
	c, dir := &s.config.Servers, s.config.DataDir
	record, err := readMemberRecord(dir)
	if err != nil {
		return err
	}
	if len(s.config.Etcd.Servers) > 0 || record == nil && !c.Init && len(c.Join) == 0 && !c.Reset {
		return nil
	}
	hasData := etcd.HasMember(etcdDir(dir))
	if err := checkMember(c, record, hasData); err != nil {
		return fmt.Errorf("%w (%s)", err, etcdDir(dir))
	}
	if record == nil {
		record = &memberRecord{}
		if record.Name, err = newMemberName(); err != nil {
			return err
		}
	}
	s.peer = s.newPeer(record.Name)
	if err := checkPort(s.peer.Listen, "choose another --etcd-peer-port"); err != nil {
		return err
	}
	if len(c.Join) > 0 && !hasData {
		record.Joins = true
		response, err := s.sendJoin(ctx)
		if err == nil {
			err = s.acceptJoin(record, response)
		}
		if err != nil {
			return fmt.Errorf("join the cluster: %w", err)
		}
	}
	record.Resets = c.Reset
	return record.write(dir)
}

// checkMember checks that what is configured can be done with the data of etcd that exists.
func checkMember(c *config.Servers, record *memberRecord, hasData bool) error {
	switch {
	case c.Reset && !hasData:
		return errors.New("--cluster-reset: there is no data of etcd")
	case !c.Reset && hasData && record != nil && record.Resets:
		return errors.New("--cluster-reset: required, because a reset of this server was interrupted")
	case len(c.Join) > 0 && hasData && record == nil:
		return errors.New("--join: this server has data of a cluster of its own; remove it to join another cluster")
	case c.Init && !hasData && record != nil && record.Joins:
		return errors.New("--cluster-init: this server has begun to join another cluster; remove its data directory to start one")
	case len(c.Join) == 0 && !hasData && record != nil && record.Joins:
		return errors.New("--join: required, because this server has not joined its cluster yet")
	}
	return nil
}

// newPeer is the configuration of this server's member of etcd.
func (s *server) newPeer(name string) *etcd.Peer {
	c, port := &s.config, strconv.Itoa(s.config.Servers.PeerPort)
	keys := filepath.Join(c.DataDir, "pki")
	return &etcd.Peer{
		Name: name, Listen: net.JoinHostPort(c.BindAddress, port), URL: "https://" + net.JoinHostPort(advertisedAddress(c.APIServer).String(), port),
		CAFile: filepath.Join(keys, "etcd-ca.crt"), CertFile: filepath.Join(keys, "etcd-server.crt"), KeyFile: filepath.Join(keys, "etcd-server.key"),
		CommonName: etcdMemberName, Reset: c.Servers.Reset,
	}
}

// sendJoin joins the cluster of another server, which responds with the keys of the cluster and the members of etcd.
func (s *server) sendJoin(ctx context.Context) (*cluster.JoinResponse, error) {
	c := &s.config.Servers
	token, err := c.ReadToken()
	if err != nil {
		return nil, err
	}
	if token == "" {
		return nil, errors.New("--join-token: required; create one with 'skiff token create --server' on the other server")
	}
	warnOfExposedSecret(s.log, "join-token-file", c.JoinTokenFile)
	joined := s.progress.begin("joining the cluster")
	join := cluster.Join{Servers: c.Join, Token: token, Log: s.log}
	response, err := join.Send(ctx, cluster.JoinRequest{PeerURL: s.peer.URL, Settings: s.sharedSettings(), Release: &s.release.Release})
	if err != nil {
		return nil, err
	}
	joined()
	return response, nil
}

// acceptJoin records that this server joins, and then stores the keys of the cluster. With its keys and without the record it would start a second cluster.
func (s *server) acceptJoin(record *memberRecord, response *cluster.JoinResponse) error {
	if err := record.write(s.config.DataDir); err != nil {
		return err
	}
	if err := response.Keys.Write(filepath.Join(s.config.DataDir, "pki")); err != nil {
		return err
	}
	s.peer.Members = response.Members
	s.log.Info("joining the cluster", "servers", s.config.Servers.Join, "member", s.peer.Name, "peerURL", s.peer.URL)
	return nil
}

// sharedSettings are the settings that must be the same on all servers.
func (s *server) sharedSettings() cluster.Settings {
	c := &s.config
	// Of files only their use must be the same.
	isSet := func(file string) string { return strconv.FormatBool(file != "") }
	return cluster.Settings{
		"service-cidr": c.ServiceCIDR, "service-node-port-range": c.NodePortRange, "cluster-domain": c.ClusterDomain,
		"cluster-cidr": c.PodCIDRs.ClusterCIDR, "network-backend": c.NetworkBackend, "disable": strings.Join(slices.Sorted(slices.Values(c.Disable)), ","),
		"etcd-prefix": store.CleanPrefix(c.Etcd.Prefix), "encryption-provider-config": isSet(c.Encryption.File),
		"service-account-signing-key-file": isSet(c.Authentication.ServiceAccounts.SigningKeyFile),
	}
}

func (s *server) clusterHandler() http.Handler {
	return &cluster.Handler{
		Members: s.members, KeyDir: filepath.Join(s.config.DataDir, "pki"), Settings: s.sharedSettings(), Releases: s.releases,
		Log: s.log.With("component", "cluster"),
	}
}

// watchMembership ends the server when its member of etcd was removed.
func (s *server) watchMembership(ctx context.Context) error {
	select {
	case <-s.members.Stopped():
		return fmt.Errorf("this server was removed from its cluster: it can join again when %s is removed", etcdDir(s.config.DataDir))
	case <-ctx.Done():
		return nil
	}
}

// sharesStore reports whether other servers may use the same store. Then one of them runs controllers and scheduler.
func (s *server) sharesStore() bool { return len(s.config.Etcd.Servers) > 0 || s.peer != nil }

// endpointAddress is the address at which pods and nodes reach this API server.
func (s *server) endpointAddress() (netip.Addr, error) {
	ip := advertisedAddress(s.config.APIServer)
	address, ok := netip.AddrFromSlice(ip)
	if !ok {
		return netip.Addr{}, fmt.Errorf("advertised address %v is not an IP address", ip)
	}
	return address.Unmap(), nil
}

// runEndpoints maintains the endpoints of the service `kubernetes` while other servers use the same store.
func (s *server) runEndpoints(ctx context.Context) error {
	address, err := s.endpointAddress()
	if err != nil || address.IsLoopback() { // which no endpoint can have
		return err
	}
	endpoints := cluster.Endpoints{
		Store: s.store, Address: address, Log: s.log.With("component", "endpoints"),
		Publish: func(ctx context.Context, servers []netip.Addr) error {
			return bootstrap.EnsureEndpoints(ctx, s.api.KindClient(), servers, int32(s.config.SecurePort))
		},
	}
	return endpoints.Run(ctx, s.shutdown)
}

// resetCluster makes the embedded etcd the only member of its cluster.
func (s *server) resetCluster(ctx context.Context) error {
	if err := s.joinCluster(ctx); err != nil {
		return err
	}
	revision, err := s.resetMember(ctx)
	if err != nil {
		return fmt.Errorf("reset the cluster: %w; run it again, before this server is started", err)
	}
	record := &memberRecord{Name: s.peer.Name}
	if err := record.write(s.config.DataDir); err != nil {
		return fmt.Errorf("reset the cluster: %w", err)
	}
	s.log.Info("the cluster was reset to this server, and clients will list everything again: what only the lost servers had is lost", "revision", revision)
	s.log.Info("start this server without --cluster-reset, then join the others with empty data directories")
	return nil
}

// resetMember resets the data of etcd, and returns a revision that no client has seen before.
func (s *server) resetMember(ctx context.Context) (store.Revision, error) {
	log, dir := s.log.With("component", "etcd"), etcdDir(s.config.DataDir)
	opened, err := etcd.Open(ctx, etcd.Config{DataDir: dir, Peer: s.peer, QuotaBytes: s.config.Etcd.QuotaBytes, CompactionInterval: -1, Log: log})
	if err != nil {
		return 0, err
	}
	if err := opened.Close(); err != nil {
		return 0, err
	}
	return etcd.SkipRevisions(dir, log)
}

// ListMembers writes the servers of a cluster.
func ListMembers(ctx context.Context, c config.Member, out io.Writer) error {
	servers, err := memberClient(c)
	if err != nil {
		return err
	}
	list, err := servers.List(ctx)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tID\tPEER URL\tROLE\tVERSION")
	for _, m := range list {
		role := "member"
		switch {
		case m.IsLearner:
			role = "joining"
		case m.IsLeader:
			role = "etcd leader"
		}
		version := "-"
		if m.Release != nil {
			version = m.Release.Skiff
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cmp.Or(m.Name, "-"), m.ID, m.PeerURL, role, version)
	}
	return w.Flush()
}

// RemoveMember removes a server from a cluster.
func RemoveMember(ctx context.Context, c config.Member, name string, out io.Writer) error {
	servers, err := memberClient(c)
	if err != nil {
		return err
	}
	if err := servers.Remove(ctx, name); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "server %s removed\n", name)
	return err
}

func memberClient(c config.Member) (cluster.Client, error) {
	connection, err := adminConnection(c.DataDir, c.Kubeconfig)
	if err != nil {
		return cluster.Client{}, err
	}
	return cluster.NewClient(connection)
}
