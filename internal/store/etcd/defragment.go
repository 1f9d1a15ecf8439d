package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// A member does not serve while it defragments its file, which takes minutes for a large one. The files of all members are equally full, so all of them would do
// it at the same time. At most one does: it first says that it defragments (embedded.isDefragmenting) and then asks the others; of two that do so at the same
// time at least one finds the other. What is said ends with the process, so nothing is left behind that would keep others from it.
//
// Of those that want to, the followers are first, in the order of their IDs, and the leader is last.

// defragmentationPath is where members say whether they defragment their files.
const defragmentationPath = "/skiff/defragmentation"

// maxDefragmentationBytes bounds what a member says.
const maxDefragmentationBytes = 4096

// defragmentation is what a member says.
type defragmentation struct {
	Running bool `json:"running"`
	// Wanted is set if the member would defragment its file now.
	Wanted bool `json:"wanted"`
}

// memberDefragmentation is what another member with a vote says, or why it is not known.
type memberDefragmentation struct {
	Member
	defragmentation
	err error
}

// deferDefragmentation says why a member must not defragment its file now; empty: it may. If it is not urgent, all members must respond, so that one that
// cannot be reached is not the last but one that serves. Otherwise writes are refused until there is space, and a majority suffices.
func deferDefragmentation(self Member, others []memberDefragmentation, isUrgent bool) string {
	responding := 1
	for _, m := range others {
		switch {
		case m.err != nil && !isUrgent:
			return fmt.Sprintf("%s does not respond: %v", m.Name, m.err)
		case m.err != nil:
			continue
		case m.Running:
			return m.Name + " defragments its file"
		case m.Wanted && m.isDefragmentedBefore(self):
			return m.Name + " is to defragment its file first"
		}
		responding++
	}
	if len(others) > 0 && responding <= (len(others)+1)/2 {
		return "no majority of the members responds"
	}
	return ""
}

func (m Member) isDefragmentedBefore(other Member) bool {
	if m.IsLeader != other.IsLeader {
		return other.IsLeader
	}
	return m.ID < other.ID
}

// beginDefragmentation says that this member defragments its file, unless it must not now. Then it says why.
func (e *embedded) beginDefragmentation(ctx context.Context, isUrgent bool) (deferred string) {
	e.isDefragmenting.Store(true)
	if e.peers == nil {
		return ""
	}
	_, others := e.voters()
	if deferred = deferDefragmentation(e.self(), e.requestDefragmentations(ctx, others), isUrgent); deferred != "" {
		e.isDefragmenting.Store(false)
	}
	return deferred
}

// self is this member.
func (e *embedded) self() Member {
	id := e.server.MemberID()
	return Member{ID: id.String(), IsLeader: e.server.Leader() == id}
}

// requestDefragmentations asks other members, all at the same time.
func (e *embedded) requestDefragmentations(ctx context.Context, others []Member) []memberDefragmentation {
	peers := e.peerClient()
	said := make([]memberDefragmentation, len(others))
	var requests sync.WaitGroup
	for i, m := range others {
		requests.Go(func() {
			said[i].Member = m
			said[i].defragmentation, said[i].err = peers.requestDefragmentation(ctx, m)
		})
	}
	requests.Wait()
	return said
}

// requestDefragmentation asks a member. One of a version that does not say so counts as one that does not defragment.
func (c peerClient) requestDefragmentation(ctx context.Context, from Member) (said defragmentation, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	response, err := c.get(ctx, from, defragmentationPath)
	if err != nil {
		return said, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusNotFound:
		return said, nil
	case http.StatusOK:
		err = json.NewDecoder(io.LimitReader(response.Body, maxDefragmentationBytes)).Decode(&said)
		return said, err
	}
	return said, errors.New("responds " + response.Status)
}

// serveDefragmentation says whether this member defragments its file.
func (e *embedded) serveDefragmentation(w http.ResponseWriter, _ *http.Request) {
	said := defragmentation{Running: e.isDefragmenting.Load()}
	if !said.Running { // otherwise the sizes are not known before it ends
		u, err := e.usage(e.rejectedBytes.Load())
		said.Wanted = err == nil && u.worthDefragmenting() && !e.defragmentFailed.Load()
	}
	_ = json.NewEncoder(w).Encode(said) // the other member may have closed the connection
}
