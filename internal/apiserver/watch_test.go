package apiserver

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
	"skiff/internal/store"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
)

// stream is a running watch, read event by event.
type stream struct {
	t      testing.TB
	resp   *http.Response
	reader *bufio.Reader
	cancel context.CancelFunc
}

func (s *testServer) watch(path string, headers ...string) *stream {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	req, err := http.NewRequestWithContext(ctx, "GET", s.http.URL+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		s.t.Fatalf("watch %s: %d %s", path, resp.StatusCode, body)
	}
	w := &stream{t: s.t, resp: resp, reader: bufio.NewReader(resp.Body), cancel: cancel}
	s.t.Cleanup(w.close)
	return w
}

func (w *stream) close() {
	w.cancel()
	w.resp.Body.Close()
}

// line is the next event as it was sent.
func (w *stream) line() string {
	w.t.Helper()
	line, err := w.reader.ReadString('\n')
	if err != nil {
		w.t.Fatalf("watch ended: %v", err)
	}
	return line
}

// event is what tests compare: ADDED a@5.
type event struct {
	Type   string
	Object json.RawMessage
}

func (w *stream) next() (event, metav1.PartialObjectMetadata) {
	w.t.Helper()
	var e event
	line := w.line()
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		w.t.Fatalf("%v in %s", err, line)
	}
	var m metav1.PartialObjectMetadata
	if err := json.Unmarshal(e.Object, &m); err != nil {
		w.t.Fatalf("%v in %s", err, e.Object)
	}
	return e, m
}

func (w *stream) expect(want ...string) {
	w.t.Helper()
	for _, text := range want {
		e, m := w.next()
		if got := fmt.Sprintf("%s %s@%s", e.Type, m.Name, m.ResourceVersion); got != text {
			w.t.Fatalf("got %s, want %s", got, text)
		}
	}
}

// expectEnd waits for the end of the watch, which must be a complete response.
func (w *stream) expectEnd() {
	w.t.Helper()
	if rest, err := io.ReadAll(w.reader); err != nil || len(rest) > 0 {
		w.t.Fatalf("watch ended with %q, error %v", rest, err)
	}
}

func TestWatch(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", ""))
	w := s.watch("/api/v1/namespaces/ns/pods?watch=true&resourceVersion=2")
	if got := w.resp.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %s", got)
	}
	s.add("pods", pod("ns", "b", ""))
	s.add("pods", pod("other", "x", ""))
	s.change("pods", "ns", "a", func(obj kind.Object) { obj.(*corev1.Pod).Spec.NodeName = "n" })
	s.remove("pods", "ns", "b")
	w.expect("ADDED b@3", "MODIFIED a@5", "DELETED b@6")

	again := s.watch("/api/v1/watch/namespaces/ns/pods/a?resourceVersion=2")
	again.expect("MODIFIED a@5")
	named := s.watch("/api/v1/namespaces/ns/pods?watch=1&fieldSelector=metadata.name%3Db&resourceVersion=2")
	named.expect("ADDED b@3", "DELETED b@6")
}

func TestWatchFromTheStart(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "b", ""))
	s.add("pods", pod("ns", "a", ""))
	for _, query := range []string{"watch=true", "watch=true&resourceVersion=0"} {
		w := s.watch("/api/v1/pods?" + query)
		w.expect("ADDED a@3", "ADDED b@2")
	}
	from := s.watch("/api/v1/pods?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
	list := s.watch("/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	list.expect("ADDED a@3", "ADDED b@2")
	e, m := list.next()
	if e.Type != "BOOKMARK" || m.ResourceVersion != "3" || m.Annotations["k8s.io/initial-events-end"] != "true" || m.Kind != "Pod" {
		t.Errorf("%s %s", e.Type, e.Object)
	}
	s.add("pods", pod("ns", "c", ""))
	list.expect("ADDED c@4")
	from.expect("ADDED c@4")
}

// A client that has received the header of the response misses nothing of what happens from then on.
func TestWatchBeginsBeforeItsResponse(t *testing.T) {
	s := newTestServer(t)
	for i := range 200 {
		w := s.watch("/api/v1/pods?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
		name := fmt.Sprintf("p%d", i)
		s.add("pods", pod("ns", name, ""))
		w.expect(fmt.Sprintf("ADDED %s@%d", name, i+2))
		w.close()
	}
}

func TestWatchSelection(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", "n1", "app=web"))
	byLabel := s.watch("/api/v1/pods?watch=true&resourceVersion=2&labelSelector=app%3Dweb")
	byField := s.watch("/api/v1/pods?watch=true&resourceVersion=2&fieldSelector=spec.nodeName%3Dn1")
	proto := s.watch("/api/v1/pods?watch=true&resourceVersion=2&labelSelector=app%3Dweb", "Accept: "+mediaProtobuf+";stream=watch")
	set := func(label, node string) {
		s.change("pods", "ns", "a", func(obj kind.Object) {
			obj.SetLabels(map[string]string{"app": label})
			obj.(*corev1.Pod).Spec.NodeName = node
		})
	}
	set("db", "n1")  // 3
	set("web", "n2") // 4
	set("web", "n1") // 5
	s.remove("pods", "ns", "a")
	byLabel.expect("DELETED a@3", "ADDED a@4", "MODIFIED a@5", "DELETED a@6")
	byField.expect("MODIFIED a@3", "DELETED a@4", "ADDED a@5", "DELETED a@6")
	// What leaves the selection is shown as it was while it was selected.
	name, gone := proto.nextProto()
	if name != "DELETED" || gone.ResourceVersion != "3" || gone.Labels["app"] != "web" {
		t.Errorf("%s %+v", name, gone)
	}
	for _, want := range []string{"ADDED 4", "MODIFIED 5", "DELETED 6"} {
		if name, pod := proto.nextProto(); name+" "+pod.ResourceVersion != want {
			t.Errorf("%s %s, want %s", name, pod.ResourceVersion, want)
		}
	}
}

// nextProto reads one frame of a protobuf watch.
func (w *stream) nextProto() (string, *corev1.Pod) {
	w.t.Helper()
	raw := w.frame()
	var e metav1.WatchEvent
	if err := e.Unmarshal(raw); err != nil {
		w.t.Fatal(err)
	}
	envelope, err := parseEnvelope(e.Object.Raw)
	if err != nil {
		w.t.Fatal(err)
	}
	var p corev1.Pod
	if err := p.Unmarshal(envelope.raw); err != nil {
		w.t.Fatal(err)
	}
	return e.Type, &p
}

func (w *stream) frame() []byte {
	w.t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(w.reader, size[:]); err != nil {
		w.t.Fatal(err)
	}
	raw := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(w.reader, raw); err != nil {
		w.t.Fatal(err)
	}
	return raw
}

func TestWatchInProtobuf(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", fullPod())
	w := s.watch("/api/v1/pods?watch=true&allowWatchBookmarks=true", "Accept: application/vnd.kubernetes.protobuf;stream=watch,application/json")
	if got := w.resp.Header.Get("Content-Type"); got != "application/vnd.kubernetes.protobuf;stream=watch" {
		t.Errorf("content type %s", got)
	}
	name, p := w.nextProto()
	if name != "ADDED" || p.Name != "full" || p.ResourceVersion != "2" || p.Labels["c"] != "d" {
		t.Errorf("%s %+v", name, p)
	}
	if name, p = w.nextProto(); name != "BOOKMARK" || p.ResourceVersion != "2" {
		t.Errorf("%s %+v", name, p)
	}
}

func TestWatchOfMetadata(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", fullPod())
	for _, version := range []string{"v1", "v1beta1"} {
		w := s.watch("/api/v1/pods?watch=true&labelSelector=a%3Db", "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v="+version)
		e, m := w.next()
		if e.Type != "ADDED" || m.Kind != "PartialObjectMetadata" || m.APIVersion != "meta.k8s.io/"+version || m.Labels["a"] != "b" || strings.Contains(string(e.Object), "spec") {
			t.Errorf("%s %s", e.Type, e.Object)
		}
	}
	p := s.watch("/api/v1/pods?watch=true&labelSelector=a%3Db", "Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	j := s.watch("/api/v1/pods?watch=true&labelSelector=a%3Db", "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	expect := func(want string) {
		t.Helper()
		var e metav1.WatchEvent
		if err := e.Unmarshal(p.frame()); err != nil {
			t.Fatal(err)
		}
		envelope, err := parseEnvelope(e.Object.Raw)
		if err != nil || envelope.kind != "PartialObjectMetadata" {
			t.Fatalf("%+v %v", envelope, err)
		}
		var m metav1.PartialObjectMetadata
		if err := m.Unmarshal(envelope.raw); err != nil {
			t.Fatal(err)
		}
		if got := e.Type + " " + m.ResourceVersion + " " + m.Labels["a"]; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	// A watch has begun when its first event arrives, not with the header.
	expect("ADDED 2 b")
	j.expect("ADDED full@2")
	s.change("pods", "ns", "full", func(obj kind.Object) { obj.SetLabels(nil) })
	expect("DELETED 3 b")
	j.expect("DELETED full@3")
}

func TestWatchOfATable(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", ""))
	w := s.watch("/api/v1/pods?watch=true&allowWatchBookmarks=true&includeObject=None", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1")
	read := func() (string, metav1.Table) {
		var e event
		if err := json.Unmarshal([]byte(w.line()), &e); err != nil {
			t.Fatal(err)
		}
		var table metav1.Table
		if err := json.Unmarshal(e.Object, &table); err != nil {
			t.Fatalf("%v in %s", err, e.Object)
		}
		return e.Type, table
	}
	name, table := read()
	if name != "ADDED" || len(table.ColumnDefinitions) != 3 || table.Rows[0].Cells[0] != "a" || table.ResourceVersion != "2" || table.Rows[0].Object.Raw != nil && string(table.Rows[0].Object.Raw) != "null" {
		t.Errorf("%s %+v", name, table)
	}
	name, table = read()
	if name != "BOOKMARK" || table.ResourceVersion != "2" || !strings.Contains(string(table.Rows[0].Object.Raw), "initial-events-end") {
		t.Errorf("%s %+v", name, table)
	}
	s.change("pods", "ns", "a", func(obj kind.Object) { obj.(*corev1.Pod).Status.Phase = "Failed" })
	name, table = read()
	if name != "MODIFIED" || table.ColumnDefinitions != nil || table.Rows[0].Cells[1] != "Failed" {
		t.Errorf("%s %+v", name, table)
	}
}

func TestWatchErrorsAreEvents(t *testing.T) {
	compacted := memory.New()
	for range 9 {
		if _, err := compacted.Create(t.Context(), fmt.Sprint("/registry/other/", rand.Int()), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := compacted.Compact(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	s := newTestServer(t, func(c *Config) { c.Cache = cache.New(compacted, nil) })
	w := s.watch("/api/v1/configmaps?watch=true&resourceVersion=3")
	var e event
	if err := json.Unmarshal([]byte(w.line()), &e); err != nil {
		t.Fatal(err)
	}
	var status metav1.Status
	if err := json.Unmarshal(e.Object, &status); err != nil {
		t.Fatal(err)
	}
	if e.Type != "ERROR" || status.Code != 410 || status.Reason != "Expired" || status.Kind != "Status" || status.Message != "too old resource version: 3 (8)" {
		t.Errorf("%s %s", e.Type, e.Object)
	}
	if _, err := w.reader.ReadByte(); err != io.EOF {
		t.Errorf("the watch goes on: %v", err)
	}
	s.get("/api/v1/configmaps?watch=true&resourceVersion=x").status(400, "BadRequest",
		`invalid resource version: resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax`)
	refused := s.get("/api/v1/configmaps?watch=true", "Accept: application/yaml")
	if refused.code != 406 || !strings.Contains(string(refused.body), "reason: NotAcceptable") {
		t.Errorf("%d %s", refused.code, refused.body)
	}
}

func TestWatchEndsInTime(t *testing.T) {
	s := newTestServer(t)
	start := time.Now()
	w := s.watch("/api/v1/pods?watch=true&resourceVersion=1&timeoutSeconds=1")
	if rest, err := io.ReadAll(w.reader); err != nil || len(rest) != 0 {
		t.Errorf("%q %v", rest, err)
	}
	if took := time.Since(start); took < 900*time.Millisecond || took > 5*time.Second {
		t.Errorf("ended after %v", took)
	}
}

func TestBookmarks(t *testing.T) {
	s := newTestServer(t, func(c *Config) { c.Limits.Bookmark = 20 * time.Millisecond })
	s.add("pods", pod("ns", "a", ""))
	w := s.watch("/api/v1/namespaces/none/pods?watch=true&resourceVersion=1&allowWatchBookmarks=true")
	// Nothing happens in the namespace, and yet the client learns how far it has seen everything.
	w.expect("BOOKMARK @2")
	s.add("configmaps", configMap("ns", "x"))
	for {
		e, m := w.next()
		if e.Type != "BOOKMARK" {
			t.Fatalf("got %s", e.Type)
		}
		if m.ResourceVersion == "3" {
			break
		}
	}
}

// A client that sends a message larger than the limit is disconnected, before the message has arrived.
func TestWatchOverWebSocketLimitsMessages(t *testing.T) {
	s := newTestServer(t)
	address := "ws" + strings.TrimPrefix(s.http.URL, "http") + "/api/v1/pods?watch=true"
	conn, _, err := websocket.DefaultDialer.Dial(address, http.Header{"Authorization": {"Bearer admin"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The header of a masked binary message.
	header := binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, MaxSocketMessage+1)
	if _, err := conn.NetConn().Write(append(header, 0, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
		t.Errorf("the connection ends with %v", err)
	}
}

func TestWatchOverWebSocket(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", ""))
	address := "ws" + strings.TrimPrefix(s.http.URL, "http") + "/api/v1/pods?watch=true"
	header := http.Header{"Authorization": {"Bearer admin"}, "Origin": {"http://localhost"}}
	conn, _, err := websocket.DefaultDialer.Dial(address, header)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	read := func(kindOfMessage int) []byte {
		t.Helper()
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		got, data, err := conn.ReadMessage()
		if err != nil || got != kindOfMessage {
			t.Fatalf("message %d: %v", got, err)
		}
		return data
	}
	if data := read(websocket.TextMessage); !strings.HasPrefix(string(data), `{"type":"ADDED","object":{"kind":"Pod"`) {
		t.Errorf("%s", data)
	}
	s.add("pods", pod("ns", "b", ""))
	s.add("pods", pod("ns", "c", ""))
	for _, name := range []string{"b", "c"} {
		var e struct{ Object metav1.PartialObjectMetadata }
		if err := json.Unmarshal(read(websocket.TextMessage), &e); err != nil || e.Object.Name != name {
			t.Errorf("%v %v", e, err)
		}
	}
	header.Set("Accept", mediaProtobuf)
	conn2, _, err := websocket.DefaultDialer.Dial(address, header)
	if err != nil {
		t.Fatal(err)
	}
	defer conn2.Close()
	conn = conn2
	var e metav1.WatchEvent
	if err := e.Unmarshal(read(websocket.BinaryMessage)); err != nil || e.Type != "ADDED" {
		t.Errorf("%+v %v", e, err)
	}
}

// Everybody who lists and then watches must end with what a list shows, whatever happened meanwhile.
func TestWatchIsListPlusEvents(t *testing.T) {
	s := newTestServer(t)
	ctx := context.Background()
	res := s.find("configmaps")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 2000 {
			key := res.kind.Key("ns", fmt.Sprint("cm", i%17))
			switch current := res.table.Get(key); {
			case current == nil:
				_, _ = res.table.Create(ctx, key, configMap("ns", fmt.Sprint("cm", i%17), fmt.Sprint("n=", i%3)), 0)
			case i%5 == 0:
				_, _ = res.table.Delete(ctx, key, current.Revision())
			default:
				cm := configMap("ns", fmt.Sprint("cm", i%17), fmt.Sprint("n=", i%3))
				cm.Data["i"] = fmt.Sprint(i)
				_, _ = res.table.Update(ctx, key, cm, 0, current.Revision())
			}
		}
	}()
	check := func(selector string) {
		var list corev1.ConfigMapList
		s.get("/api/v1/configmaps?labelSelector=" + selector).into(&list)
		seen := map[string]string{}
		for _, item := range list.Items {
			seen[item.Name] = item.ResourceVersion
		}
		w := s.watch("/api/v1/configmaps?watch=true&labelSelector=" + selector + "&resourceVersion=" + list.ResourceVersion)
		last := mustRevision(t, list.ResourceVersion)
		<-done
		final := s.config.Cache.Revision()
		s.add("configmaps", configMap("ns", "end-"+selector[4:], "n=0", "n=1", "n="+selector[4:]))
		for {
			e, m := w.next()
			if m.Name == "end-"+selector[4:] {
				break
			}
			revision := mustRevision(t, m.ResourceVersion)
			if revision <= last {
				t.Fatalf("%d after %d", revision, last)
			}
			last = revision
			_, known := seen[m.Name]
			switch e.Type {
			case "ADDED":
				if known {
					t.Fatalf("%s was added twice", m.Name)
				}
				seen[m.Name] = m.ResourceVersion
			case "MODIFIED":
				if !known {
					t.Fatalf("%s was changed before it was added", m.Name)
				}
				seen[m.Name] = m.ResourceVersion
			case "DELETED":
				if !known {
					t.Fatalf("%s was deleted before it was added", m.Name)
				}
				delete(seen, m.Name)
			}
		}
		var want corev1.ConfigMapList
		s.get(fmt.Sprintf("/api/v1/configmaps?labelSelector=%s&resourceVersion=%d&resourceVersionMatch=Exact", selector, final)).into(&want)
		if len(want.Items) != len(seen) {
			t.Fatalf("%d objects, want %d", len(seen), len(want.Items))
		}
		for _, item := range want.Items {
			if seen[item.Name] != item.ResourceVersion {
				t.Errorf("%s at %s, want %s", item.Name, seen[item.Name], item.ResourceVersion)
			}
		}
	}
	check("n%3D1")
	check("n%3D2")
}

// TestWatchersTogether: those who send what another made, and those who select for themselves, each show what is theirs.
func TestWatchersTogether(t *testing.T) {
	s := newTestServer(t)
	version := strconv.FormatInt(s.find("configmaps").table.Snapshot().Revision(), 10)
	all, ofA, selected := []*stream{}, []*stream{}, []*stream{}
	for range 3 {
		all = append(all, s.watch("/api/v1/configmaps?watch=1&resourceVersion="+version))
		ofA = append(ofA, s.watch("/api/v1/namespaces/a/configmaps?watch=1&resourceVersion="+version))
		selected = append(selected, s.watch("/api/v1/configmaps?watch=1&labelSelector=even&resourceVersion="+version))
	}
	var wantAll, wantA, wantSelected []string
	for i := range 60 {
		cm := configMap([]string{"a", "b"}[i%3/2], fmt.Sprint("cm", i))
		if i%2 == 0 {
			cm.Labels = map[string]string{"even": "yes"}
		}
		s.add("configmaps", cm)
		event := fmt.Sprint("ADDED ", cm.Name)
		wantAll = append(wantAll, event)
		if cm.Namespace == "a" {
			wantA = append(wantA, event)
		}
		if i%2 == 0 {
			wantSelected = append(wantSelected, event)
		}
	}
	for want, streams := range map[*[]string][]*stream{&wantAll: all, &wantA: ofA, &wantSelected: selected} {
		for _, w := range streams {
			for i, expected := range *want {
				e, meta := w.next()
				if got := e.Type + " " + meta.Name; got != expected {
					t.Fatalf("event %d is %s, want %s", i, got, expected)
				}
			}
		}
	}
}

// incompressible returns a text of n letters and digits that the cache cannot compress.
func incompressible(n int) string {
	const characters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	text := make([]byte, n)
	for i := range text {
		text[i] = characters[rand.IntN(len(characters))]
	}
	return string(text)
}

// Many writes of one large object take nothing from the watches and lists of others: their history stays, and the values
// that are no longer in memory are read from the store.
func TestLargeObjectsLeaveHistoryToOthers(t *testing.T) {
	s := newTestServer(t)
	s.add("configmaps", configMap("ns", "a", "app=small"))
	begin := s.config.Cache.Revision()
	s.add("configmaps", configMap("ns", "b", "app=small"))
	s.add("configmaps", configMap("ns", "large", "app=large"))
	var list corev1.ConfigMapList
	s.get("/api/v1/namespaces/ns/configmaps?limit=1").into(&list)
	const writes = 160 // of 256 KiB: more than the cache keeps of replaced values
	for i := range writes {
		s.change("configmaps", "ns", "large", func(obj kind.Object) {
			obj.(*corev1.ConfigMap).Data["large"] = fmt.Sprint(i, "x", incompressible(256<<10))
			obj.SetLabels(map[string]string{"app": "large", "digit": fmt.Sprint(i % 10)})
		})
	}
	s.change("configmaps", "ns", "b", func(obj kind.Object) { obj.(*corev1.ConfigMap).Data["key"] = "changed" })
	last := s.config.Cache.Revision()

	small := s.watch(fmt.Sprintf("/api/v1/configmaps?watch=true&resourceVersion=%d&labelSelector=app%%3Dsmall", begin))
	small.expect(fmt.Sprint("ADDED b@", begin+1), fmt.Sprint("MODIFIED b@", last))
	// Every tenth write selects the object and the next deselects it. It is then sent in its last state that matched.
	for _, accept := range []string{mediaJSON, mediaProtobuf + ";stream=watch"} {
		w := s.watch(fmt.Sprintf("/api/v1/configmaps?watch=true&resourceVersion=%d&labelSelector=digit%%3D0", begin+2), "Accept: "+accept)
		for i := range writes {
			want, state := "ADDED", i
			switch i % 10 {
			case 0:
			case 1:
				want, state = "DELETED", i-1
			default:
				continue
			}
			var got metav1.WatchEvent
			var cm corev1.ConfigMap
			var err error
			if accept == mediaJSON {
				err = json.Unmarshal([]byte(w.line()), &got)
				if err == nil {
					err = json.Unmarshal(got.Object.Raw, &cm)
				}
			} else if err = got.Unmarshal(w.frame()); err == nil {
				var e envelope
				if e, err = parseEnvelope(got.Object.Raw); err == nil {
					err = cm.Unmarshal(e.raw)
				}
			}
			text := cm.Data["large"]
			if err != nil || got.Type != want || cm.ResourceVersion != fmt.Sprint(begin+3+store.Revision(i)) || !strings.HasPrefix(text, fmt.Sprint(state, "x")) {
				t.Fatalf("event %d: %s at %s with %.5s, %v", i, got.Type, cm.ResourceVersion, text, err)
			}
		}
		w.close()
	}
	var rest corev1.ConfigMapList
	s.get("/api/v1/namespaces/ns/configmaps?limit=5&continue=" + list.Continue).into(&rest)
	if names(rest.Items) != "b large" || rest.Items[0].Data["key"] != "value of b" || rest.Items[1].Data["large"] != "" {
		t.Errorf("continued with %s", names(rest.Items))
	}
}

// A watcher of one node gets bookmarks while only the pods of other nodes change.
func TestBookmarksOfIndexedWatches(t *testing.T) {
	s := newTestServer(t, func(c *Config) { c.Limits.Bookmark = 20 * time.Millisecond })
	w := s.watch("/api/v1/pods?watch=true&resourceVersion=1&allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dnode-1")
	for i := range 3 {
		s.add("pods", pod("ns", fmt.Sprint("pod-", i), "node-2"))
		for {
			e, m := w.next()
			if e.Type != "BOOKMARK" {
				t.Fatalf("got %s %s", e.Type, e.Object)
			}
			if m.ResourceVersion == fmt.Sprint(i+2) {
				break
			}
		}
	}
	s.add("pods", pod("ns", "mine", "node-1"))
	s.change("pods", "ns", "mine", func(obj kind.Object) { obj.SetLabels(map[string]string{"a": "b"}) })
	s.remove("pods", "ns", "mine")
	for _, want := range []string{"ADDED", "MODIFIED", "DELETED"} {
		e, m := w.next()
		for e.Type == "BOOKMARK" {
			e, m = w.next()
		}
		if e.Type != want || m.Name != "mine" {
			t.Errorf("got %s %s, want %s", e.Type, m.Name, want)
		}
	}
}

// openCursors counts the cursors of a table, which are none of the package's business otherwise.
func openCursors(table *cache.Table) int64 {
	fields := reflect.ValueOf(table).Elem()
	return fields.FieldByName("whole").FieldByName("cursors").Int() + int64(fields.FieldByName("scopes").FieldByName("all").Len())
}

// A watch whose initial events fail leaves no cursor behind.
func TestFailedWatchClosesItsCursor(t *testing.T) {
	s := newTestServer(t)
	revision, err := s.store.Create(t.Context(), "/registry/pods/ns/broken", []byte("k8s\x00broken"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.config.Cache.WaitFor(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/v1/pods?watch=true", "/api/v1/namespaces/ns/pods?watch=true", "/api/v1/watch/namespaces/ns/pods/broken"} {
		got := s.get(path)
		if !strings.Contains(string(got.body), `"type":"ERROR"`) {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	if n := openCursors(s.find("pods").table); n != 0 {
		t.Errorf("%d cursors are open", n)
	}
}
