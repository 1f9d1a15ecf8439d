package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.etcd.io/etcd/server/v3/etcdserver/version"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
)

// The settings of a member of a cluster. The intervals are etcd's defaults: a leader that has died is replaced after one to two seconds.
const (
	clusterTickMilliseconds = 100
	clusterElectionTicks    = 10
	// maxLearners is how many members may join at the same time.
	maxLearners = 1
	// The pauses between the attempts of a learner to be promoted.
	minPromotePause, maxPromotePause = 100 * time.Millisecond, 2 * time.Second
	// leaderChangePause is the pause before a read is repeated after the leader has changed.
	leaderChangePause = 10 * time.Millisecond
	// versionPause is the pause between two checks whether the version of the cluster is decided.
	versionPause = 10 * time.Millisecond
	// probeTimeout bounds the check whether a member runs.
	probeTimeout = 2 * time.Second
	// transferTimeout bounds the transfer of leadership by a leader that ends: two elections. The other member may have ended too.
	transferTimeout = 2 * clusterElectionTicks * clusterTickMilliseconds * time.Millisecond
	// peerReadTimeout bounds a request of another member, which may be a snapshot of the database. It is etcd's.
	peerReadTimeout = 5 * time.Minute
)

// Peer makes the embedded etcd a member of a cluster. Members authenticate each other by certificates.
type Peer struct {
	// Name of this member.
	Name string
	// Listen is the address, HOST:PORT, at which the other members are served. URL, with scheme https, is where they reach it.
	Listen, URL string
	// CAFile has the CA of all members. CertFile and KeyFile are this member's certificate, for serving and as a client.
	CAFile, CertFile, KeyFile string
	// CommonName is the common name of the certificates of all members. Other clients of the CA are rejected.
	CommonName string
	// Members are the members of the cluster to join, this one included, as Store.AddLearner has returned them. They are needed until HasMember.
	// Empty: this is the first member.
	Members []Member
	// Reset makes this the only member, with the data that it has.
	Reset bool
	// OnWaiting, if set, is called every second while Open waits for other members.
	OnWaiting func(Waiting)
}

// Member is a member of a cluster.
type Member struct {
	ID string `json:"id"`
	// Name is empty before the member has started for the first time.
	Name    string `json:"name,omitempty"`
	PeerURL string `json:"peerURL"`
	// IsLearner is set until the member has caught up. Learners do not vote.
	IsLearner bool `json:"isLearner,omitempty"`
	IsLeader  bool `json:"isLeader,omitempty"`
}

var (
	// ErrNoCluster: this etcd is not a member of a cluster that skiff manages.
	ErrNoCluster = errors.New("etcd is not a member of a cluster: start the server with --cluster-init")
	// ErrMemberRuns: a member that is to be replaced is still running.
	ErrMemberRuns = errors.New("a member with this peer URL is running")
	// ErrNotNow: the members cannot be changed at present, because another member is joining or not enough members are healthy.
	ErrNotNow = errors.New("the members of etcd cannot be changed now")
	// ErrNoMember: there is no such member.
	ErrNoMember = errors.New("no such member")

	errStopped = errors.New("etcd has stopped: if this member was removed from its cluster, remove its data and join again")
)

// HasMember reports whether a data directory has the data of a member, which continues where it stopped.
func HasMember(dataDir string) bool { return wal.Exist(filepath.Join(dataDir, "member", "wal")) }

// configure changes the settings of a single member to those of a member of a cluster.
func (p *Peer) configure(c *config.ServerConfig) {
	c.Name, c.PeerURLs = p.Name, types.MustNewURLs([]string{p.URL})
	c.InitialPeerURLsMap = types.URLsMap{p.Name: c.PeerURLs}
	if len(p.Members) > 0 {
		c.NewCluster = false
		for _, m := range p.Members {
			if m.PeerURL != p.URL {
				// Only the URLs matter here. A name could be this member's own.
				c.InitialPeerURLsMap[m.ID] = types.MustNewURLs([]string{m.PeerURL})
			}
		}
	}
	c.PeerTLSInfo = p.tlsInfo()
	c.TickMs, c.ElectionTicks = clusterTickMilliseconds, clusterElectionTicks
	c.SnapshotCatchUpEntries, c.MaxLearners = etcdserver.DefaultSnapshotCatchUpEntries, maxLearners
	c.ForceNewCluster = p.Reset
}

// tlsInfo is the TLS configuration between members. The files are read for every handshake, so that renewed certificates are used.
func (p *Peer) tlsInfo() transport.TLSInfo {
	return transport.TLSInfo{
		CertFile: p.CertFile, KeyFile: p.KeyFile, TrustedCAFile: p.CAFile, ClientCertAuth: true, AllowedCNs: []string{p.CommonName},
		// A member's address may be translated on the way; its certificate identifies it.
		SkipClientSANVerify: true,
	}
}

// validate checks the URLs, which etcd would panic about.
func (p *Peer) validate() error {
	for _, text := range append(memberURLs(p.Members), p.URL) {
		if u, err := url.Parse(text); err != nil || u.Scheme != "https" || u.Port() == "" || u.Path != "" {
			return fmt.Errorf("peer URL %q is not https://ADDRESS:PORT", text)
		}
	}
	return nil
}

func memberURLs(members []Member) []string {
	var urls []string
	for _, m := range members {
		urls = append(urls, m.PeerURL)
	}
	return urls
}

// peerServer serves the other members.
type peerServer struct {
	config   *Peer
	listener net.Listener
	server   http.Server
	contacts contacts
	served   chan struct{} // closed when the listener is not served any more; nil before serve
}

func listenPeers(p *Peer) (*peerServer, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	listener, err := p.listenTLS()
	if err != nil {
		return nil, err
	}
	return &peerServer{config: p, listener: listener}, nil
}

func (p *peerServer) serve(e *embedded, logger *zap.Logger) {
	mux := http.NewServeMux()
	mux.Handle("/", p.contacts.track(etcdhttp.NewPeerHandler(logger, e.server)))
	mux.HandleFunc(contactPath, e.serveContact)
	mux.HandleFunc(defragmentationPath, e.serveDefragmentation)
	p.server.Handler, p.server.ReadTimeout = mux, peerReadTimeout
	p.server.ErrorLog = log.New(io.Discard, "", 0) // failed handshakes of untrusted clients
	p.served = make(chan struct{})
	go func() {
		defer close(p.served)
		_ = p.server.Serve(p.listener) // ends with close
	}()
}

// close closes all connections. It does nothing for the only member, which has no peerServer.
func (p *peerServer) close() {
	if p == nil {
		return
	}
	p.listener.Close()
	p.server.Close()
	if p.served != nil {
		<-p.served
	}
}

// isOnlyVoter reports whether no other member has a vote.
func (e *embedded) isOnlyVoter() bool {
	for _, m := range e.server.Cluster().Members() {
		if isSelf := m.ID == e.server.MemberID(); isSelf == m.IsLearner {
			return false
		}
	}
	return true
}

// joinMembers returns when this member has a vote and the others reach it at its URL.
func (e *embedded) joinMembers(ctx context.Context, p *Peer) error {
	if err := e.awaitReady(ctx, p.OnWaiting); err != nil {
		return err
	}
	if err := e.promote(ctx); err != nil {
		return err
	}
	id := e.server.MemberID()
	if self := e.server.Cluster().Member(id); self == nil || slices.Equal(self.PeerURLs, []string{p.URL}) {
		return nil
	}
	updated := membership.Member{ID: id, RaftAttributes: membership.RaftAttributes{PeerURLs: []string{p.URL}}}
	if _, err := e.server.UpdateMember(ctx, updated); err != nil {
		return fmt.Errorf("change the peer URL to %s: %w", p.URL, err)
	}
	return nil
}

// promote makes a learner a voting member. The leader rejects that until the learner has caught up.
func (e *embedded) promote(ctx context.Context) error {
	for pause := minPromotePause; e.server.IsLearner(); pause = min(2*pause, maxPromotePause) {
		_, err := e.server.PromoteMember(ctx, uint64(e.server.MemberID()))
		if err != nil && !errors.Is(err, membership.ErrMemberNotLearner) {
			e.log.Debug("etcd learner is not promoted yet", "reason", err)
		}
		select {
		case <-time.After(pause):
		case <-e.server.StopNotify():
			return errStopped
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// stopMember stops the member of a cluster. If it is the leader it transfers its leadership to another member before, unless none responds or that takes longer than
// an election would.
func (e *embedded) stopMember() {
	if e.server.Leader() == e.server.MemberID() && !e.hasStopped() {
		ctx, cancel := context.WithTimeout(context.Background(), transferTimeout)
		defer cancel()
		if err := e.transferLeadership(ctx); err != nil {
			e.log.Debug("etcd leadership was not transferred", "reason", err)
		}
	}
	e.server.HardStop()
}

// hasStopped reports whether etcd has stopped by itself.
func (e *embedded) hasStopped() bool {
	select {
	case <-e.server.StopNotify():
		return true
	default:
		return false
	}
}

// transferLeadership makes another member the leader instead of this one: the first that responds.
func (e *embedded) transferLeadership(ctx context.Context) error {
	_, others := e.voters()
	to, err := firstResponding(ctx, others, e.peerClient().probe)
	if err != nil {
		return err
	}
	id, err := types.IDFromString(to.ID)
	if err != nil {
		return err
	}
	return e.server.MoveLeader(ctx, uint64(e.server.MemberID()), uint64(id))
}

// retryLeaderChange repeats a read that failed because the leader has changed.
func (e *embedded) retryLeaderChange(ctx context.Context, read func() error) error {
	for {
		err := read()
		if !errors.Is(err, etcderrors.ErrLeaderChanged) {
			return err
		}
		select {
		case <-time.After(leaderChangePause):
		case <-e.server.StopNotify():
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// Stopped is closed when the embedded etcd has stopped by itself, because this member was removed from its cluster. It is nil for other stores.
func (s *Store) Stopped() <-chan struct{} {
	if e, err := s.member(); err == nil {
		return e.server.StopNotify()
	}
	return nil
}

// member returns the embedded etcd of a cluster.
func (s *Store) member() (*embedded, error) {
	e, ok := s.engine.(*embedded)
	if !ok || e.peers == nil {
		return nil, ErrNoCluster
	}
	return e, nil
}

// Members returns the members of the cluster, sorted by name.
func (s *Store) Members(ctx context.Context) ([]Member, error) {
	e, err := s.member()
	if err != nil {
		return nil, err
	}
	// A member that was added through another server must be included.
	if _, err := e.current(ctx); err != nil {
		return nil, err
	}
	return e.members(), nil
}

func (e *embedded) members() []Member {
	var members []Member
	for _, m := range e.server.Cluster().Members() {
		member := Member{ID: m.ID.String(), Name: m.Name, IsLearner: m.IsLearner, IsLeader: m.ID == e.server.Leader()}
		if len(m.PeerURLs) > 0 {
			member.PeerURL = m.PeerURLs[0]
		}
		members = append(members, member)
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name+a.ID, b.Name+b.ID) })
	return members
}

// AddLearner adds a member that is going to start at a URL, and returns all members. A member that had this URL is replaced, unless a member is in contact with it.
func (s *Store) AddLearner(ctx context.Context, peerURL string) ([]Member, error) {
	e, err := s.member()
	if err != nil {
		return nil, err
	}
	if err := (&Peer{URL: peerURL}).validate(); err != nil {
		return nil, err
	}
	if err := e.awaitVersion(ctx); err != nil {
		return nil, err
	}
	for _, m := range e.server.Cluster().Members() {
		if !slices.Contains(m.PeerURLs, peerURL) {
			continue
		}
		if from, ok := e.findContact(ctx, Member{ID: m.ID.String(), PeerURL: peerURL}); ok {
			return nil, fmt.Errorf("%w: %s at %s, which is in contact with %s", ErrMemberRuns, m.Name, peerURL, from.Name)
		}
		if _, err := e.server.RemoveMember(ctx, uint64(m.ID)); err != nil {
			return nil, memberError(ctx, "replace member "+m.Name, err)
		}
	}
	now := time.Now()
	added := membership.NewMemberAsLearner("", types.MustNewURLs([]string{peerURL}), "", &now)
	if _, err := e.server.AddMember(ctx, *added); err != nil {
		return nil, memberError(ctx, "add member "+peerURL, err)
	}
	return e.members(), nil
}

// awaitVersion returns when the leader has decided the version of the cluster: a member that joins asks for it when it starts, and would end without it.
// etcd decides it at an election that its own monitor observes, and otherwise seconds later; so the leader decides it here.
func (e *embedded) awaitVersion(ctx context.Context) error {
	if e.server.ClusterVersion() == nil && e.server.Leader() == e.server.MemberID() {
		if err := version.NewMonitor(e.server.Logger(), etcdserver.NewServerVersionAdapter(e.server)).UpdateClusterVersionIfNeeded(); err != nil {
			return fmt.Errorf("decide the version of the cluster: %w", err)
		}
	}
	ticker := time.NewTicker(versionPause)
	defer ticker.Stop()
	for e.server.ClusterVersion() == nil {
		select {
		case <-ticker.C:
		case <-e.server.StopNotify():
			return errStopped
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// RemoveMember removes the member with a name or an ID. Its server ends.
func (s *Store) RemoveMember(ctx context.Context, nameOrID string) error {
	e, err := s.member()
	if err != nil {
		return err
	}
	for _, m := range e.server.Cluster().Members() {
		if nameOrID == m.ID.String() || nameOrID == m.Name {
			_, err := e.server.RemoveMember(ctx, uint64(m.ID))
			return memberError(ctx, "remove member "+nameOrID, err)
		}
	}
	return fmt.Errorf("%w: %s", ErrNoMember, nameOrID)
}

// isListening reports whether anything accepts connections at a URL.
func isListening(ctx context.Context, peerURL string) bool {
	u, err := url.Parse(peerURL)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// memberError says what was to be done, and marks temporary errors with ErrNotNow.
func memberError(ctx context.Context, action string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, membership.ErrTooManyLearners), errors.Is(err, membership.ErrIDRemoved), errors.Is(err, etcderrors.ErrUnhealthy),
		errors.Is(err, etcderrors.ErrNotEnoughStartedMembers):
		return fmt.Errorf("%s: %w: %w", action, ErrNotNow, err)
	}
	return fmt.Errorf("%s: %w", action, embeddedError(ctx, err))
}
