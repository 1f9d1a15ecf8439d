package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// groupMembers counts the watchers of a resource that are leaders and followers.
func (s *testServer) groupMembers(resource string) (leaders, followers int) {
	groups := &s.find(resource).groups
	groups.mu.Lock()
	defer groups.mu.Unlock()
	for _, g := range groups.groups {
		g.mu.Lock()
		for _, members := range g.members {
			followers += len(members)
		}
		if g.leader != nil {
			leaders++
			followers--
		}
		g.mu.Unlock()
	}
	return leaders, followers
}

// newConnection returns a client with a connection of its own.
func newConnection(t *testing.T, server *httptest.Server) *http.Client {
	transport := server.Client().Transport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// readEvents watches configmaps after a revision, hands each event to yield as "TYPE name@revision", and returns the revision of the last event
// or bookmark. It ends when yield returns false.
func readEvents(ctx context.Context, client *http.Client, url, after string, yield func(event string) bool) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/v1/configmaps?watch=1&allowWatchBookmarks=true&resourceVersion="+after, nil)
	if err != nil {
		return after, err
	}
	req.Header.Set("Authorization", "Bearer admin")
	resp, err := client.Do(req)
	if err != nil {
		return after, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		return after, fmt.Errorf("watch: %s %s", resp.Proto, resp.Status)
	}
	for events := json.NewDecoder(bufio.NewReader(resp.Body)); ; {
		var e struct {
			Type   string
			Object metav1.PartialObjectMetadata
		}
		if err := events.Decode(&e); err != nil {
			return after, err
		}
		if e.Type == eventError {
			return after, fmt.Errorf("the watch failed: %v", e.Object)
		}
		after = e.Object.ResourceVersion
		if e.Type != eventBookmark && !yield(fmt.Sprintf("%s %s@%s", e.Type, e.Object.Name, after)) {
			return after, nil
		}
	}
}

// Watchers that share connections and are sent events by a leader receive each event once and in order, whichever of them end, begin and
// send bookmarks meanwhile.
func TestWatchGroup(t *testing.T) {
	const connections, perConnection, last = 3, 6, "last"
	s := newTestServer(t, func(c *Config) { c.Limits.Bookmark = 5 * time.Millisecond })
	server := s.serveOver(overHTTP2)
	start := fmt.Sprint(s.add("configmaps", configMap("ns", "first")).Revision())
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	received := make([][]string, connections*perConnection)
	var readers sync.WaitGroup
	for connection := range connections {
		client := newConnection(t, server)
		for i := range perConnection {
			watcher := connection*perConnection + i
			readers.Go(func() {
				after, ended := start, false
				for !ended && ctx.Err() == nil {
					left := rand.IntN(60) // events after which every other watcher continues with a new watch
					var err error
					after, err = readEvents(ctx, client, server.URL, after, func(event string) bool {
						received[watcher] = append(received[watcher], event)
						ended = strings.Contains(event, " "+last+"@")
						left--
						return !ended && (watcher%2 == 0 || left > 0)
					})
					if err != nil {
						t.Errorf("watcher %d: %v", watcher, err)
						return
					}
				}
			})
		}
	}
	waitUntil(t, "watchers are in groups", func() bool {
		leaders, followers := s.groupMembers("configmaps")
		return leaders > 0 && followers > perConnection/2
	})
	res := s.find("configmaps")
	want := []string{}
	for i := range 1000 {
		name := fmt.Sprint("cm", i%17)
		entry, change := res.table.Get(res.kind.Key("ns", name)), "MODIFIED"
		switch {
		case entry == nil:
			change, entry = "ADDED", s.add("configmaps", configMap("ns", name))
		case i%5 == 0:
			change, entry = "DELETED", s.remove("configmaps", "ns", name)
		default:
			entry = s.change("configmaps", "ns", name, func(obj kind.Object) { obj.SetGeneration(int64(i)) })
		}
		want = append(want, fmt.Sprintf("%s %s@%d", change, name, entry.Revision()))
		if i%100 == 0 {
			time.Sleep(10 * time.Millisecond) // longer than events are held back, so that watchers catch up and join
		}
	}
	want = append(want, fmt.Sprintf("ADDED %s@%d", last, s.add("configmaps", configMap("ns", last)).Revision()))
	readers.Wait()
	for i, got := range received {
		if !slices.Equal(got, want) {
			n := 0
			for n < min(len(got), len(want)) && got[n] == want[n] {
				n++
			}
			t.Errorf("watcher %d: %d events of %d; from %d on %v, want %v", i, len(got), len(want), n, got[n:min(n+3, len(got))], want[n:min(n+3, len(want))])
		}
	}
	waitUntil(t, "no group is left", func() bool {
		res.groups.mu.Lock()
		defer res.groups.mu.Unlock()
		return len(res.groups.groups) == 0
	})
}

// A client that grants no window for one of its watches does not hold up the others of the group, and that watch ends after the timeout: if
// it leads the group and if it follows.
func TestWatchGroupWithSlowClient(t *testing.T) {
	for name, slow := range map[string]uint32{"leader": 1, "follower": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestServer(t, func(c *Config) { c.Limits.Timeout = 300 * time.Millisecond })
			c := newSlowClient(t, s.serveOver(overHTTP2), overHTTP2)
			c.must(c.framer.WriteWindowUpdate(0, 1<<20))
			for id := uint32(1); id <= 5; id += 2 {
				c.get("/api/v1/configmaps?watch=true", "admin")
				if id != slow {
					c.must(c.framer.WriteWindowUpdate(id, 1<<20))
				}
				waitUntil(t, "the watch is in the group", func() bool {
					leaders, followers := s.groupMembers("configmaps")
					return leaders == 1 && followers == int(id/2)
				})
			}
			for i := range 100 {
				s.add("configmaps", configMap("ns", fmt.Sprint("cm", i)))
			}
			received := map[uint32]string{}
			reset := false
			for !reset || strings.Count(received[1]+received[3]+received[5], "\n") < 200 {
				frame, err := c.framer.ReadFrame()
				c.must(err)
				switch f := frame.(type) {
				case *xhttp2.DataFrame:
					received[f.StreamID] += string(f.Data())
				case *xhttp2.RSTStreamFrame:
					if f.StreamID != slow {
						t.Fatalf("stream %d was reset", f.StreamID)
					}
					reset = true
				}
			}
			for id, events := range received {
				lines := bufio.NewScanner(strings.NewReader(events))
				for i := range 100 {
					if lines.Scan(); !strings.Contains(lines.Text(), fmt.Sprintf(`"name":"cm%d"`, i)) {
						t.Fatalf("event %d of stream %d is %s", i, id, lines.Text())
					}
				}
			}
			waitUntil(t, "the others are in the group again", func() bool {
				leaders, followers := s.groupMembers("configmaps")
				return leaders == 1 && followers == 1
			})
		})
	}
}

// heldResponse is a response whose client accepts nothing while it is held.
type heldResponse struct {
	held    bool
	written string
	flushed int // bytes
}

func (r *heldResponse) TryWrite(p []byte) bool {
	if !r.held {
		r.written += string(p)
	}
	return !r.held
}

func (r *heldResponse) FlushPending() { r.flushed = len(r.written) }

// The leader sends for its followers, which are woken only if they have to go on by themselves.
func TestWatchGroupMembers(t *testing.T) {
	s := newTestServer(t)
	res := s.find("configmaps")
	group := &watchGroup{members: map[string][]*watcher{}}
	responses := map[*watcher]*heldResponse{}
	newWatcher := func(address string) *watcher {
		cursor, err := res.table.Watch(res.table.Snapshot().Revision(), cache.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cursor.Close)
		response := &heldResponse{}
		w := &watcher{
			s: s.Server, res: res, req: &request{Request: &http.Request{RemoteAddr: address}, w: &responseWriter{}}, cursor: cursor, group: group, sink: &chunkSink{},
			direct: response, signal: make(chan struct{}, 1), match: &matcher{}, shared: &res.batches[formatJSON], encode: &res.encoder,
		}
		responses[w] = response
		if _, _, err := cursor.Poll(); err != nil {
			t.Fatal(err)
		}
		return w
	}
	signalled := func(w *watcher) bool {
		select {
		case <-w.signal:
			return true
		default:
			return false
		}
	}
	receive := func(w *watcher, names ...string) {
		t.Helper()
		response := responses[w]
		if response.flushed != len(response.written) {
			t.Errorf("%d of %d bytes are flushed", response.flushed, len(response.written))
		}
		events := strings.SplitAfter(response.written, "\n")
		if len(events)-1 != len(names) {
			t.Fatalf("got %q, want %v", events, names)
		}
		for i, name := range names {
			if !strings.Contains(events[i], fmt.Sprintf(`"name":%q`, name)) {
				t.Errorf("event %d is %s, want %s", i, events[i], name)
			}
		}
		response.written, response.flushed = "", 0
	}
	add := func(name string) { s.add("configmaps", configMap("ns", name)) }
	first, second, third := newWatcher("a"), newWatcher("a"), newWatcher("b")
	if group.join(first) || !group.join(second) || !group.join(third) {
		t.Fatal("the first watcher does not lead")
	}

	// Followers are not woken.
	add("one")
	if !group.send(first, first.poll(t)) {
		t.Error("the leader was not sent the event")
	}
	for _, w := range []*watcher{first, second, third} {
		if receive(w, "one"); signalled(w) {
			t.Error("a member was woken")
		}
	}

	// A follower that cannot be sent an event goes on at that event.
	responses[second].held = true
	add("two")
	group.send(first, first.poll(t))
	receive(first, "two")
	receive(second)
	receive(third, "two")
	if !signalled(second) {
		t.Error("the follower whose client is slow was not woken")
	}
	if group.join(second) {
		t.Error("a watcher joined that has not sent what the group has")
	}
	if events := second.poll(t); !strings.Contains(string(events.bytes), `"two"`) || events.count != 1 {
		t.Errorf("it continues with %s", events.bytes)
	}
	responses[second].held = false

	// A watcher that is ahead of the leader is not sent an event twice.
	add("three")
	second.poll(t)
	if !group.join(second) {
		t.Error("a watcher that has sent everything did not join")
	}
	group.send(first, first.poll(t))
	receive(first, "three")
	receive(second)
	receive(third, "three")

	// A leader that cannot be sent an event, or leaves, is replaced.
	responses[first].held = true
	add("four")
	if group.send(first, first.poll(t)) {
		t.Error("the leader need not send an event that its client did not accept")
	}
	receive(second, "four")
	receive(third, "four")
	leader := group.leader
	if leader != second && leader != third || !signalled(leader) {
		t.Fatal("no follower was made the leader")
	}
	other := second
	if leader == second {
		other = third
	}
	group.leave(leader)
	if group.leader != other || !signalled(other) {
		t.Fatal("the last follower was not made the leader")
	}
	add("five")
	if group.send(leader, leader.poll(t)) {
		t.Error("a watcher that is no longer the leader sends for the group")
	}
	group.send(other, other.poll(t))
	receive(other, "five")
	if group.leave(other); group.leader != nil || len(group.members) != 0 {
		t.Error("the group has members after the last has left")
	}
}

// A leader that is ahead of followers lets them go on by themselves.
func TestWatchGroupLeaderAhead(t *testing.T) {
	s := newTestServer(t)
	res := s.find("configmaps")
	group := &watchGroup{members: map[string][]*watcher{}}
	newWatcher := func() *watcher {
		cursor, err := res.table.Watch(res.table.Snapshot().Revision(), cache.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cursor.Close)
		w := &watcher{req: &request{Request: &http.Request{}}, cursor: cursor, signal: make(chan struct{}, 1)}
		if _, _, err := cursor.Poll(); err != nil {
			t.Fatal(err)
		}
		return w
	}
	leader, behind, ahead := newWatcher(), newWatcher(), newWatcher()
	group.join(leader)
	s.add("configmaps", configMap("ns", "one"))
	waitUntil(t, "there is an event", func() bool {
		events, _, err := ahead.cursor.Poll()
		return len(events) == 1 && err == nil
	})
	group.join(ahead)
	group.join(behind)
	group.leave(leader)
	if len(behind.signal) != 1 || len(ahead.signal) != 1 || group.leader != ahead || len(group.members[""]) != 1 {
		t.Errorf("the leader is %p of %v, want %p alone", group.leader, group.members, ahead)
	}
}

// poll waits for events and encodes them.
func (w *watcher) poll(t *testing.T) *batch {
	t.Helper()
	var events []cache.Event
	waitUntil(t, "there are events", func() bool {
		var err error
		if events, _, err = w.cursor.Poll(); err != nil {
			t.Fatal(err)
		}
		return len(events) > 0
	})
	made, err := w.batchOf(events)
	if err != nil {
		t.Fatal(err)
	}
	w.releaseBuffer()
	return made
}
