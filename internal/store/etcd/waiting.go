package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
)

// waitingInterval is the time between two checks which members a member that starts can reach.
const waitingInterval = time.Second

// Waiting is what a member waits for before Open returns.
type Waiting struct {
	// Voters is the number of members with a vote, this one included unless it is a learner.
	Voters int
	// Unreachable are those of them that do not respond as members of this cluster.
	Unreachable []UnreachableMember
}

// UnreachableMember is a member that does not respond, and why.
type UnreachableMember struct {
	Member
	Err error
}

func (m UnreachableMember) String() string {
	if m.Name == "" {
		return fmt.Sprintf("%s: %v", m.PeerURL, m.Err)
	}
	return fmt.Sprintf("%s at %s: %v", m.Name, m.PeerURL, m.Err)
}

// HasMajority reports whether enough members can be reached to elect a leader.
func (w Waiting) HasMajority() bool { return w.Voters-len(w.Unreachable) > w.Voters/2 }

// Reason says what the member waits for, without naming other members.
func (w Waiting) Reason() string {
	if w.HasMajority() {
		return fmt.Sprintf("waiting for the %d members of etcd to elect a leader", w.Voters)
	}
	return fmt.Sprintf("waiting for a majority of the %d members of etcd: %d can be reached", w.Voters, w.Voters-len(w.Unreachable))
}

// Details is Reason with the members that cannot be reached.
func (w Waiting) Details() string {
	if len(w.Unreachable) == 0 {
		return w.Reason()
	}
	return w.Reason() + "; cannot reach " + strings.Join(w.unreachable(), ", ")
}

func (w Waiting) unreachable() []string {
	var members []string
	for _, m := range w.Unreachable {
		members = append(members, m.String())
	}
	return members
}

// awaitReady returns when the members have a leader and it knows this one. What it waits for until then is reported, and logged once if it is a
// majority of the members.
func (e *embedded) awaitReady(ctx context.Context, report func(Waiting)) error {
	waiting, stop := context.WithCancel(ctx)
	var reports sync.WaitGroup
	reports.Go(func() { e.reportWaiting(waiting, report) })
	defer reports.Wait()
	defer stop()
	select {
	case <-e.server.ReadyNotify():
		return nil
	case <-e.server.StopNotify():
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reportWaiting reports which members can be reached until ctx is done.
func (e *embedded) reportWaiting(ctx context.Context, report func(Waiting)) {
	ticker := time.NewTicker(waitingInterval)
	defer ticker.Stop()
	for isLogged := false; ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		w := e.probeVoters(ctx)
		if ctx.Err() != nil {
			return
		}
		if report != nil {
			report(w)
		}
		if !isLogged && !w.HasMajority() {
			e.log.Warn("waiting for a majority of the members of etcd", "members", w.Voters, "unreachable", w.unreachable())
			isLogged = true
		}
	}
}

// voters returns how many members have a vote, and those of them besides this one.
func (e *embedded) voters() (count int, others []Member) {
	self := e.server.MemberID().String()
	for _, m := range e.members() {
		if m.IsLearner {
			continue
		}
		count++
		if m.ID != self {
			others = append(others, m)
		}
	}
	return count, others
}

// probeVoters checks which of the members with a vote respond, all at the same time.
func (e *embedded) probeVoters(ctx context.Context) Waiting {
	peers := e.peerClient()
	count, others := e.voters()
	errs := make([]error, len(others))
	var probes sync.WaitGroup
	for i, m := range others {
		probes.Go(func() { errs[i] = peers.probe(ctx, m) })
	}
	probes.Wait()
	w := Waiting{Voters: count}
	for i, m := range others {
		if errs[i] != nil {
			w.Unreachable = append(w.Unreachable, UnreachableMember{m, errs[i]})
		}
	}
	return w
}

// firstResponding returns the first of the members for which probe, which is called for all at the same time, returns no error. The others are not waited for:
// their contexts are done.
func firstResponding(ctx context.Context, members []Member, probe func(context.Context, Member) error) (Member, error) {
	type response struct {
		Member
		err error
	}
	var probes sync.WaitGroup
	defer probes.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	responses := make(chan response, len(members))
	for _, m := range members {
		probes.Go(func() { responses <- response{m, probe(ctx, m)} })
	}
	errs := []error{errors.New("no other member with a vote responds")}
	for range members {
		r := <-responses
		if r.err == nil {
			return r.Member, nil
		}
		errs = append(errs, r.err)
	}
	return Member{}, errors.Join(errs...)
}

// peerClient checks whether other members respond.
type peerClient struct {
	info    transport.TLSInfo
	cluster string // the ID of the cluster
}

func (e *embedded) peerClient() peerClient {
	return peerClient{info: e.peers.config.tlsInfo(), cluster: e.server.Cluster().ID().String()}
}

// probe requests the members from one of them.
func (c peerClient) probe(ctx context.Context, from Member) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	response, err := c.get(ctx, from, "/members")
	if err != nil {
		return err
	}
	response.Body.Close()
	switch found := response.Header.Get("X-Etcd-Cluster-ID"); {
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("responds %s", response.Status)
	case found != c.cluster:
		return fmt.Errorf("is a member of another cluster, %s", found)
	}
	return nil
}

// get requests a path of a member. The caller closes the body.
func (c peerClient) get(ctx context.Context, from Member, path string) (*http.Response, error) {
	connections, err := rafthttp.NewRoundTripper(c.info, probeTimeout)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from.PeerURL+path, nil)
	if err != nil {
		return nil, err
	}
	request.Close = true // the next request may be long after the connection has failed
	return connections.RoundTrip(request)
}
