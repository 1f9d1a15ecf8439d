package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// A member that this one cannot connect to may be alive: packets may be lost in one direction only, or between two hosts only. So a member is replaced
// only if it has no connection to this one, and if no other member that responds has one.
const (
	// contactPath followed by the ID of a member is where members say whether they are in contact with it.
	contactPath = "/skiff/contact/"
	// contactTimeout bounds a request for that: the other member may probe first.
	contactTimeout = 2 * probeTimeout
	// maxContactBytes bounds the answer.
	maxContactBytes = 16
)

// contacts are the requests of other members that are being served. Each member has open ones at all others, over which it receives messages.
type contacts struct {
	mu   sync.Mutex
	open map[string]int // by the ID of the member
}

// track records the requests of members while they are served. That is as long as their connections last, for those over which messages are sent.
func (c *contacts) track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from := r.Header.Get("X-Server-From"); from != "" {
			c.add(from, 1)
			defer c.add(from, -1)
		}
		next.ServeHTTP(w, r)
	})
}

func (c *contacts) add(id string, requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[string]int{}
	}
	if c.open[id] += requests; c.open[id] == 0 {
		delete(c.open, id)
	}
}

func (c *contacts) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[id] > 0
}

// inContact reports whether this member can connect to another one, or the other one is connected to it.
func (e *embedded) inContact(ctx context.Context, m Member) bool {
	return e.peers.contacts.has(m.ID) || isListening(ctx, m.PeerURL)
}

// serveContact says whether this member is in contact with another one.
func (e *embedded) serveContact(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimPrefix(r.URL.Path, contactPath)
	for _, m := range e.members() {
		if m.ID == id {
			fmt.Fprint(w, e.inContact(r.Context(), m))
			return
		}
	}
	http.NotFound(w, r)
}

// findContact returns a member that is in contact with another one, which may be this one; false if there is none.
func (e *embedded) findContact(ctx context.Context, with Member) (Member, bool) {
	self := e.server.MemberID().String()
	var others []Member
	for _, m := range e.members() {
		switch m.ID {
		case with.ID:
		case self:
			if e.inContact(ctx, with) {
				return m, true
			}
		default:
			others = append(others, m)
		}
	}
	peers := e.peerClient()
	found, err := firstResponding(ctx, others, func(ctx context.Context, from Member) error { return peers.requestContact(ctx, from, with) })
	return found, err == nil
}

// requestContact returns no error if a member is in contact with another one. Members of older versions do not say so.
func (c peerClient) requestContact(ctx context.Context, from, with Member) error {
	ctx, cancel := context.WithTimeout(ctx, contactTimeout)
	defer cancel()
	response, err := c.get(ctx, from, contactPath+with.ID)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxContactBytes))
	if err != nil {
		return err
	}
	if isInContact, err := strconv.ParseBool(string(answer)); response.StatusCode != http.StatusOK || err != nil || !isInContact {
		return errors.New("it is not in contact with the member")
	}
	return nil
}
