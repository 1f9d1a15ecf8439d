package apiserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

const (
	acceptTable        = "application/json;as=Table;g=meta.k8s.io;v=v1"
	acceptPartial      = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	acceptPartialProto = mediaProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	acceptTableYAML    = "application/yaml;as=Table;g=meta.k8s.io;v=v1"
	acceptPartialYAML  = "application/yaml;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// upstreamEncoding is a list as upstream's serializer writes it.
func upstreamEncoding(t *testing.T, list runtime.Object, gvk schema.GroupVersionKind, out output) []byte {
	t.Helper()
	list.GetObjectKind().SetGroupVersionKind(gvk)
	var encoder runtime.Encoder = kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, nil, nil, kjson.SerializerOptions{
		Yaml: out.format == formatYAML, Pretty: out.pretty, StreamingCollectionsEncoding: true,
	})
	if out.format == formatProtobuf {
		encoder = protobuf.NewSerializer(nil, nil)
	}
	var b bytes.Buffer
	if err := encoder.Encode(list, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// typedList is the expected list of all objects of a resource.
func (s *testServer) typedList(resource string, list runtime.Object, convert func(kind.Object) runtime.Object) runtime.Object {
	s.t.Helper()
	snapshot := s.find(resource).table.Snapshot()
	items := []runtime.Object{}
	snapshot.Ascend("", "", func(e *cache.Entry) bool {
		obj, err := e.Object()
		if err != nil {
			s.t.Fatal(err)
		}
		items = append(items, convert(obj))
		return true
	})
	if err := meta.SetList(list, items); err != nil {
		s.t.Fatal(err)
	}
	list.(metav1.ListInterface).SetResourceVersion(fmt.Sprint(snapshot.Revision()))
	return list
}

// TestListEqualsUpstreams compares every encoding of lists of several sizes, byte by byte.
func TestListEqualsUpstreams(t *testing.T) {
	itself := func(obj kind.Object) runtime.Object { return obj }
	toPartial := func(obj kind.Object) runtime.Object {
		partial := *toPartialMetadata(obj)
		partial.SetGroupVersionKind(partialKind("v1"))
		return &partial
	}
	for _, count := range []int{0, 1, 120} {
		s := newTestServer(t)
		for i := range count {
			p := benchPod(i)
			p.Annotations["text"] = strings.Repeat(`"quoted" <&> `+"\u2028 line\nnext: line \t#", i%20) + strings.Repeat("y", i%7*300)
			s.add("pods", p)
			s.add("events", &corev1.Event{ObjectMeta: testMeta("ns", fmt.Sprint("e", i), nil), Message: strings.Repeat("happened ", i)})
		}
		partialList := metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList")
		toEvent := func(obj kind.Object) runtime.Object {
			converted, err := s.resource(schema.GroupResource{Group: "events.k8s.io", Resource: "events"}).fromStorageVersion(t.Context(), obj)
			if err != nil {
				t.Fatal(err)
			}
			return converted
		}
		tests := []struct {
			path, accept string
			out          output
			list         runtime.Object
			gvk          schema.GroupVersionKind
			convert      func(kind.Object) runtime.Object
		}{
			{"/api/v1/pods", mediaJSON, output{}, &corev1.PodList{}, corev1.SchemeGroupVersion.WithKind("PodList"), itself},
			{"/api/v1/pods?pretty=true", mediaJSON, output{pretty: true}, &corev1.PodList{}, corev1.SchemeGroupVersion.WithKind("PodList"), itself},
			{"/api/v1/pods", mediaYAML, output{format: formatYAML}, &corev1.PodList{}, corev1.SchemeGroupVersion.WithKind("PodList"), itself},
			{"/api/v1/pods", mediaProtobuf, output{format: formatProtobuf}, &corev1.PodList{}, corev1.SchemeGroupVersion.WithKind("PodList"), itself},
			{"/api/v1/pods", acceptPartial, output{}, &metav1.PartialObjectMetadataList{}, partialList, toPartial},
			{"/api/v1/pods", acceptPartialYAML, output{format: formatYAML}, &metav1.PartialObjectMetadataList{}, partialList, toPartial},
			{"/api/v1/pods", acceptPartialProto, output{format: formatProtobuf}, &metav1.PartialObjectMetadataList{}, partialList, toPartial},
			{"/apis/events.k8s.io/v1/events", mediaJSON, output{}, &eventsv1.EventList{}, eventsv1.SchemeGroupVersion.WithKind("EventList"), toEvent},
			{"/apis/events.k8s.io/v1/events", mediaProtobuf, output{format: formatProtobuf}, &eventsv1.EventList{}, eventsv1.SchemeGroupVersion.WithKind("EventList"), toEvent},
		}
		for _, test := range tests {
			resource := "pods"
			if strings.Contains(test.path, "events") {
				resource = "events"
			}
			want := upstreamEncoding(t, s.typedList(resource, test.list, test.convert), test.gvk, test.out)
			s.checkBody(t, test.path, test.accept, want)
		}
		for _, test := range []struct{ query, accept string }{
			{"", acceptTable}, {"?includeObject=Object", acceptTable}, {"?includeObject=None&pretty=true", acceptTable}, {"", acceptTableYAML},
		} {
			s.checkTable(t, "/api/v1/pods"+test.query, test.accept, count)
		}
	}
}

// checkBody requests a list plain and compressed, made and cached.
func (s *testServer) checkBody(t *testing.T, path, accept string, want []byte) {
	t.Helper()
	for range 2 {
		plain := s.get(path, "Accept: "+accept)
		if !bytes.Equal(plain.body, want) {
			t.Errorf("%s as %s: %d bytes\n%.2000s\nwant %d bytes\n%.2000s", path, accept, len(plain.body), plain.body, len(want), want)
			return
		}
		large := len(want) > gzipThreshold
		if got := plain.header.Get("Content-Length"); (got == "") != large {
			t.Errorf("%s as %s: %d bytes have Content-Length %q", path, accept, len(want), got)
		}
		compressed := s.get(path, "Accept: "+accept, "Accept-Encoding: gzip")
		if got := compressed.header.Get("Content-Encoding"); (got == "gzip") != large {
			t.Errorf("%s as %s: %d bytes have Content-Encoding %q", path, accept, len(want), got)
		}
		if large {
			compressed.body = gunzip(t, compressed.body)
		}
		if !bytes.Equal(compressed.body, want) {
			t.Errorf("%s as %s: the compressed list differs", path, accept)
		}
	}
}

// checkTable compares a table with what upstream's serializer makes of its content. Ages are computed for each request, so the compressed
// table is checked on its own.
func (s *testServer) checkTable(t *testing.T, path, accept string, rows int) {
	t.Helper()
	for _, encoding := range []string{"identity", "gzip"} {
		got := s.get(path, "Accept: "+accept, "Accept-Encoding: "+encoding)
		if got.header.Get("Content-Encoding") == "gzip" {
			got.body = gunzip(t, got.body)
		}
		var table metav1.Table
		text := got.body
		out := output{pretty: strings.Contains(path, "pretty")}
		if strings.Contains(accept, "yaml") {
			out.format = formatYAML
			var err error
			if text, err = yaml.YAMLToJSON(text); err != nil {
				t.Fatal(err)
			}
		}
		if err := json.Unmarshal(text, &table); err != nil {
			t.Fatalf("%s: %v in %.2000s", path, err, text)
		}
		if len(table.Rows) != rows {
			t.Errorf("%s: %d rows, want %d", path, len(table.Rows), rows)
		}
		want := upstreamEncoding(t, &table, metav1.SchemeGroupVersion.WithKind("Table"), out)
		if !bytes.Equal(got.body, want) {
			t.Errorf("%s as %s: %d bytes\n%.2000s\nwant %d bytes\n%.2000s", path, accept, len(got.body), got.body, len(want), want)
		}
	}
}

// transports are the protocols over which lists are tested. A client buffers little: what it does not read stays with the server.
var transports = []struct {
	name  string
	major int
	make  func() *http.Transport
}{
	{overHTTP1, 1, func() *http.Transport {
		return &http.Transport{TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
	}},
	{overHTTP2, 2, func() *http.Transport {
		return &http.Transport{
			ForceAttemptHTTP2: true,
			HTTP2:             &http.HTTP2Config{MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 64 << 10},
		}
	}},
}

// listReader is a client that reads a list on a connection of its own.
type listReader struct {
	*http.Response
	transport *http.Transport
}

func (r *listReader) close() {
	r.Body.Close()
	r.transport.CloseIdleConnections()
}

// beginList sends a LIST and returns when the response's header has arrived.
func beginList(t testing.TB, front *httptest.Server, transport *http.Transport, path string, headers ...string) *listReader {
	t.Helper()
	transport.TLSClientConfig = &tls.Config{RootCAs: front.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	req, err := http.NewRequest("GET", front.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	req.Header.Set("Accept-Encoding", "identity")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	r := &listReader{resp, transport}
	t.Cleanup(r.close)
	return r
}

// inProcess accepts requests of components in the same process.
func inProcess(c *Config) { c.Authenticator = authn.Chain{authn.InProcess{}, c.Authenticator} }

// heap is the size of the live heap.
func heap() int {
	var m goruntime.MemStats
	goruntime.GC()
	goruntime.GC() // what was in pools is freed by the second
	goruntime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// heldSince waits until the live heap has grown by no more than limit since it was before, and returns by how much. It returns more if
// that takes too long: a handler that is still making its list holds garbage, too, but soon it waits for its client.
func heldSince(before, limit int) int {
	for deadline := time.Now().Add(10 * time.Second); ; {
		if grown := heap() - before; grown <= limit || time.Now().After(deadline) {
			return grown
		}
	}
}

// addLarge adds config maps of 60 KB that hardly compress.
func (s *testServer) addLarge(count int) {
	noise := make([]byte, 45<<10)
	source := rand.NewChaCha8([32]byte{})
	for i := range count {
		_, _ = source.Read(noise)
		cm := configMap("ns", fmt.Sprintf("cm%05d", i))
		cm.Data["noise"] = base64.StdEncoding.EncodeToString(noise)
		s.add("configmaps", cm)
	}
}

func (s *testServer) touch(i, generation int) {
	s.change("configmaps", "ns", fmt.Sprintf("cm%05d", i), func(obj kind.Object) { obj.SetGeneration(int64(generation)) })
}

// largeFormats are the encodings in which a list of large config maps is large.
var largeFormats = [][]string{
	{"", "Accept: " + mediaJSON},
	{"", "Accept: " + mediaProtobuf},
	{"", "Accept: " + mediaJSON, "Accept-Encoding: gzip"},
	{"", "Accept: " + mediaProtobuf, "Accept-Encoding: gzip"},
	{"", "Accept: " + mediaYAML},
	{"?pretty=true", "Accept: " + mediaJSON},
	{"?includeObject=Object", "Accept: " + acceptTable},
	{"?labelSelector=!x", "Accept: " + mediaJSON, "Accept-Encoding: gzip"},
}

// TestStalledListsHoldLittle: clients that request a list and do not read it, while the table changes, cost no more than their
// connections and the cache's budget.
func TestStalledListsHoldLittle(t *testing.T) {
	const count, readers, limit = 1030, 30, 100 << 20
	s := newTestServer(t)
	s.addLarge(count)
	for _, transport := range transports {
		t.Run(transport.name, func(t *testing.T) {
			front := s.serveOver(transport.name)
			before := heap()
			for i := range readers {
				format := largeFormats[i%len(largeFormats)]
				r := beginList(t, front, transport.make(), "/api/v1/configmaps"+format[0], format[1:]...)
				if r.ProtoMajor != transport.major || r.StatusCode != http.StatusOK {
					t.Fatalf("%s over %s", r.Status, r.Proto)
				}
				for j := range 3 {
					s.touch((i*37+j*300)%count, i+2)
				}
				if grown := heldSince(before, limit); grown > limit {
					t.Fatalf("%d stalled readers hold %d MB", i+1, grown>>20)
				}
			}
			t.Logf("%d stalled readers hold %d KB", readers, (heap()-before)>>10)
		})
	}
}

// TestSlowListsHoldLittle: clients that slowly read a list, all of whose objects were changed meanwhile, hold no encodings of it but the
// one being sent.
func TestSlowListsHoldLittle(t *testing.T) {
	const count, readers, perReader = 100, 8, 2 << 20
	s := newTestServer(t)
	s.addLarge(count)
	old := s.find("configmaps").table.Snapshot().Revision()
	for i := range count {
		s.touch(i, 2)
	}
	for _, transport := range transports {
		t.Run(transport.name, func(t *testing.T) {
			front := s.serveOver(transport.name)
			before := heap()
			var all []*listReader
			for i := range readers {
				format := largeFormats[i%len(largeFormats)]
				path := fmt.Sprintf("/api/v1/configmaps?resourceVersion=%d&resourceVersionMatch=Exact&%s", old, strings.TrimPrefix(format[0], "?"))
				all = append(all, beginList(t, front, transport.make(), path, format[1:]...))
			}
			for read := 1; len(all) > 0; read++ {
				var more []*listReader
				for _, r := range all {
					switch _, err := io.CopyN(io.Discard, r.Body, 1<<20); {
					case err == nil:
						more = append(more, r)
					case !errors.Is(err, io.EOF) || r.StatusCode != http.StatusOK:
						t.Fatal(r.Status, err)
					}
				}
				if grown := heldSince(before, readers*perReader); grown > readers*perReader {
					t.Fatalf("after %d MB %d readers hold %d KB each", read, readers, grown/readers>>10)
				}
				all = more
			}
		})
	}
}

// TestBrokenListIsCutOff: a list in which an item cannot be encoded is never taken for a whole one.
func TestBrokenListIsCutOff(t *testing.T) {
	s := newTestServer(t, inProcess)
	s.addLarge(20)
	res := s.find("configmaps")
	broken := append(bytes.Clone(res.codec.prefix), tagField2, 3, tagField1, 200, 1) // ends within a field
	broken = append(broken, envelopeTail...)
	revision, err := s.store.Create(context.Background(), res.kind.Key("ns", "cm00015x"), broken, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.config.Cache.WaitFor(context.Background(), revision); err != nil {
		t.Fatal(err)
	}
	fronts := map[string]*httptest.Server{}
	for _, transport := range transports {
		fronts[transport.name] = s.serveOver(transport.name)
	}
	local := s.Local(authn.User{Username: "admin", Groups: []string{authn.GroupMasters}})
	cut := 0 // the length of a protobuf list is computed first, so its error is a response
	for _, format := range largeFormats {
		for _, transport := range transports {
			r := beginList(t, fronts[transport.name], transport.make(), "/api/v1/configmaps"+format[0], format[1:]...)
			if n, err := io.Copy(io.Discard, r.Body); err == nil && r.StatusCode == http.StatusOK {
				t.Errorf("%s over %s: %d bytes, and no error", format, transport.name, n)
			}
		}
		req, _ := http.NewRequest("GET", "https://local/api/v1/configmaps"+format[0], nil)
		for _, header := range format[1:] {
			name, value, _ := strings.Cut(header, ": ")
			req.Header.Set(name, value)
		}
		resp, err := local.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode == http.StatusOK {
			cut++
			if n, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s in the process: %d bytes, and %v", format, n, err)
			}
		}
		resp.Body.Close()
	}
	// The beginning of a list is made before it is sent: an error there is a response.
	if cut == 0 {
		t.Error("no list was cut off")
	}
	if got := s.get("/api/v1/configmaps?limit=3&continue=" + encodeContinue(res.kind.Key("ns", "cm00015\x00"), res.kind.KeyPrefix(""), -1)); got.code != http.StatusInternalServerError {
		t.Errorf("code %d: %.200s", got.code, got.body)
	}
}

// TestListWithAnEncryptedEntryFailsAtOnce: the error names the entry, however long the list is.
func TestListWithAnEncryptedEntryFailsAtOnce(t *testing.T) {
	s := newTestServer(t)
	s.addLarge(20)
	res := s.find("configmaps")
	key := res.kind.Key("ns", "cm99999")
	revision, err := s.store.Create(context.Background(), key, []byte("k8s:enc:aescbc:v1:key1:secret"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.config.Cache.WaitFor(context.Background(), revision); err != nil {
		t.Fatal(err)
	}
	for _, format := range largeFormats {
		if got := s.get("/api/v1/configmaps"+format[0], format[1:]...); got.code != http.StatusInternalServerError || !strings.Contains(string(got.body), key) {
			t.Errorf("%s: code %d: %.300s", format, got.code, got.body)
		}
	}
}

// TestListEndsWithItsClient: when the client disconnects or the deadline passes, the rest of the list is not made.
func TestListEndsWithItsClient(t *testing.T) {
	s := newTestServer(t)
	s.addLarge(1000)
	idle := func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); s.readOnly.inFlight.Load() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the request does not end")
			}
		}
	}
	for _, transport := range transports {
		front := s.serveOver(transport.name)
		for _, format := range largeFormats {
			beginList(t, front, transport.make(), "/api/v1/configmaps"+format[0], format[1:]...).close()
			idle()
		}
		deadline := time.After(time.Second)
		r := beginList(t, front, transport.make(), "/api/v1/configmaps?timeout=1s")
		<-deadline // it passes while the client does not read
		if n, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Errorf("%s: %d bytes after the deadline, and no error", transport.name, n)
		}
		idle()
	}
}

// TestLocalListIsReadAsItIsMade: a caller in the process that does not read holds little.
func TestLocalListIsReadAsItIsMade(t *testing.T) {
	s := newTestServer(t, inProcess)
	s.addLarge(500)
	local := s.Local(authn.User{Username: "admin", Groups: []string{authn.GroupMasters}})
	request := func(ctx context.Context) *http.Response {
		req, _ := http.NewRequestWithContext(ctx, "GET", "https://local/api/v1/configmaps?labelSelector=!x", nil)
		resp, err := local.RoundTrip(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		return resp
	}
	before := heap()
	var all []*http.Response
	for range 8 {
		all = append(all, request(context.Background()))
	}
	const limit = 16 << 20
	if grown := heldSince(before, limit); grown > limit {
		t.Errorf("callers that do not read hold %d MB", grown>>20)
	}
	var lengths sync.Map
	var reading sync.WaitGroup
	for _, resp := range all {
		reading.Go(func() {
			n, err := io.Copy(io.Discard, resp.Body)
			if err != nil {
				t.Error(err)
			}
			lengths.Store(n, true)
			resp.Body.Close()
		})
	}
	reading.Wait()
	different := 0
	lengths.Range(func(any, any) bool { different++; return true })
	if different != 1 {
		t.Errorf("%d different lengths of one list", different)
	}
	// A caller that is gone does not leave the handler behind.
	ctx, cancel := context.WithCancel(context.Background())
	resp := request(ctx)
	cancel()
	for s.readOnly.inFlight.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
	resp.Body.Close()
}
