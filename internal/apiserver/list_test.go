package apiserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

func TestGet(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", "n1"))
	path := "/api/v1/namespaces/ns/pods/a"
	for _, query := range []string{"", "?resourceVersion=0", "?resourceVersion=2"} {
		var got corev1.Pod
		s.get(path + query).into(&got)
		if got.Name != "a" || got.Kind != "Pod" || got.APIVersion != "v1" || got.ResourceVersion != "2" {
			t.Errorf("%s: %+v", query, got)
		}
	}
	proto := s.get(path, "Accept: application/vnd.kubernetes.protobuf, application/json")
	if proto.header.Get("Content-Type") != mediaProtobuf {
		t.Errorf("content type %s", proto.header.Get("Content-Type"))
	}
	envelope, err := parseEnvelope(proto.body)
	if err != nil || envelope.kind != "Pod" || envelope.apiVersion != "v1" {
		t.Fatalf("%+v %v", envelope, err)
	}
	var decoded corev1.Pod
	if err := decoded.Unmarshal(envelope.raw); err != nil || decoded.ResourceVersion != "2" || decoded.Spec.NodeName != "n1" {
		t.Errorf("%+v %v", decoded, err)
	}
	var fromYAML corev1.Pod
	text := s.get(path, "Accept: application/yaml")
	if err := yaml.Unmarshal(text.body, &fromYAML); err != nil || fromYAML.Name != "a" || !bytes.HasPrefix(text.body, []byte("apiVersion: v1\n")) {
		t.Errorf("%v: %s", err, text.body)
	}
	if pretty := s.get(path + "?pretty=true"); !bytes.HasPrefix(pretty.body, []byte("{\n  \"kind\": \"Pod\",\n")) {
		t.Errorf("pretty: %s", pretty.body)
	}
	if pretty := s.get(path, "User-Agent: curl/8"); !bytes.HasPrefix(pretty.body, []byte("{\n")) {
		t.Errorf("for curl: %s", pretty.body)
	}
	s.get(path+"?resourceVersion=x").status(400, "BadRequest",
		`invalid resource version: resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax`)
	s.get("/api/v1/namespaces/other/pods/a").status(404, "NotFound", `pods "a" not found`)
}

func TestGetInAnotherVersion(t *testing.T) {
	s := newTestServer(t)
	s.add("events", &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e"}, Message: "hello"})
	var got eventsv1.Event
	s.get("/apis/events.k8s.io/v1/namespaces/ns/events/e").into(&got)
	if got.Note != "hello" || got.APIVersion != "events.k8s.io/v1" || got.ResourceVersion != "2" {
		t.Errorf("%+v", got)
	}
	answer := s.get("/apis/events.k8s.io/v1/events", "Accept: "+mediaProtobuf)
	envelope, err := parseEnvelope(answer.body)
	if err != nil || envelope.apiVersion != "events.k8s.io/v1" || envelope.kind != "EventList" {
		t.Fatalf("%+v %v", envelope, err)
	}
	var list eventsv1.EventList
	if err := list.Unmarshal(envelope.raw); err != nil || len(list.Items) != 1 || list.Items[0].Note != "hello" || list.Items[0].ResourceVersion != "2" {
		t.Errorf("%+v %v", list, err)
	}
	var selected eventsv1.EventList
	s.get("/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Dx").into(&selected)
	if len(selected.Items) != 0 {
		t.Errorf("selected %v", selected.Items)
	}
}

func TestListForms(t *testing.T) {
	s := newTestServer(t)
	empty := s.get("/api/v1/configmaps")
	if want := `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}` + "\n"; string(empty.body) != want {
		t.Errorf("empty list: %s", empty.body)
	}
	for i := range 3 {
		s.add("configmaps", configMap("ns", fmt.Sprint("cm", i)))
	}
	var list corev1.ConfigMapList
	answer := s.get("/api/v1/namespaces/ns/configmaps")
	answer.into(&list)
	if names(list.Items) != "cm0 cm1 cm2" || list.ResourceVersion != "4" || list.Items[2].ResourceVersion != "4" || list.Items[0].Kind != "" {
		t.Errorf("%s", answer.body)
	}
	var inYAML corev1.ConfigMapList
	if err := yaml.Unmarshal(s.get("/api/v1/configmaps", "Accept: application/yaml").body, &inYAML); err != nil || names(inYAML.Items) != "cm0 cm1 cm2" {
		t.Errorf("%v %v", err, inYAML)
	}
	envelope, err := parseEnvelope(s.get("/api/v1/configmaps", "Accept: "+mediaProtobuf).body)
	if err != nil || envelope.kind != "ConfigMapList" {
		t.Fatalf("%+v %v", envelope, err)
	}
	var proto corev1.ConfigMapList
	if err := proto.Unmarshal(envelope.raw); err != nil {
		t.Fatal(err)
	}
	list.TypeMeta = metav1.TypeMeta{}
	if fmt.Sprint(proto) != fmt.Sprint(list) {
		t.Errorf("protobuf %v\nJSON %v", proto, list)
	}
	other := s.get("/api/v1/namespaces/other/configmaps")
	if !strings.Contains(string(other.body), `"items":[]`) {
		t.Errorf("another namespace: %s", other.body)
	}
}

func TestListSelectors(t *testing.T) {
	s := newTestServer(t)
	s.add("pods", pod("ns", "a", "n1", "app=web", "tier=front"))
	s.add("pods", pod("ns", "b", "n2", "app=web"))
	s.add("pods", pod("other", "c", "n1", "app=db"))
	s.add("configmaps", configMap("ns", "a"))
	tests := []struct{ query, want string }{
		{"labelSelector=app%3Dweb", "a b"},
		{"labelSelector=app+in+(web,db),!tier", "b c"},
		{"fieldSelector=spec.nodeName%3Dn1", "a c"},
		{"fieldSelector=spec.nodeName%3Dn1,metadata.namespace%3Dother", "c"},
		{"fieldSelector=status.phase!%3DRunning", ""},
		{"fieldSelector=metadata.name%3Db", "b"},
		{"fieldSelector=metadata.name%3Db,spec.nodeName%3Dn1", ""},
		{"fieldSelector=metadata.name%3Da,metadata.namespace%3Dns&labelSelector=app%3Dweb", "a"},
		{"fieldSelector=metadata.name%3Da,metadata.namespace%3Dns&labelSelector=app%3Ddb", ""},
	}
	for _, test := range tests {
		var list corev1.PodList
		s.get("/api/v1/pods?" + test.query).into(&list)
		if got := names(list.Items); got != test.want {
			t.Errorf("%s: %q, want %q", test.query, got, test.want)
		}
	}
	s.get("/api/v1/pods?fieldSelector=spec.hat%3Dx").status(400, "BadRequest", "field label not supported: spec.hat")
	s.get("/api/v1/configmaps?fieldSelector=spec.hat%3Dx").status(400, "BadRequest",
		`"spec.hat" is not a known field selector: only "metadata.name", "metadata.namespace"`)
	s.get("/api/v1/pods?fieldSelector=x").status(400, "BadRequest", `invalid selector: 'x'; can't understand 'x'`)
	s.get("/api/v1/pods?labelSelector=%3D%3D").status(400, "BadRequest",
		`found '==', expected: !, identifier, or 'end of string'`)
}

func TestListOptionsValidation(t *testing.T) {
	s := newTestServer(t)
	tests := []struct{ query, message string }{
		{"resourceVersionMatch=Exact", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided`},
		{"resourceVersion=0&resourceVersionMatch=Exact", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"`},
		{"resourceVersion=1&resourceVersionMatch=Foo", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Unsupported value: "Foo": supported values: "Exact", "NotOlderThan", ""`},
		{"resourceVersion=1&resourceVersionMatch=Exact&continue=x", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided`},
		{"sendInitialEvents=true", `ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list`},
		{"watch=true&sendInitialEvents=true", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan`},
		{"watch=true&resourceVersion=1&resourceVersionMatch=NotOlderThan", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided`},
	}
	for _, test := range tests {
		s.get("/api/v1/pods?"+test.query).status(422, "Invalid", test.message)
	}
	s.get("/api/v1/pods?limit=x").status(400, "BadRequest", `strconv.ParseInt: parsing "x": invalid syntax`)
	s.get("/api/v1/pods?continue=x").status(400, "BadRequest", "invalid continue token: continue key is not valid: illegal base64 data at input byte 0")
}

func TestListPages(t *testing.T) {
	s := newTestServer(t)
	for i := range 7 {
		s.add("pods", pod("ns", fmt.Sprint("p", i), "", fmt.Sprint("odd=", i%2 == 1)))
	}
	var list corev1.PodList
	s.get("/api/v1/namespaces/ns/pods?limit=3").into(&list)
	if names(list.Items) != "p0 p1 p2" || list.RemainingItemCount == nil || *list.RemainingItemCount != 4 || list.ResourceVersion != "8" {
		t.Fatalf("%+v", list.ListMeta)
	}
	// What happens meanwhile is not seen by the pages that follow.
	s.add("pods", pod("ns", "p3x", ""))
	s.remove("pods", "ns", "p4")
	next := list.Continue
	list = corev1.PodList{}
	s.get("/api/v1/namespaces/ns/pods?limit=3&continue=" + next).into(&list)
	if names(list.Items) != "p3 p4 p5" || *list.RemainingItemCount != 1 || list.ResourceVersion != "8" {
		t.Fatalf("%s %+v", names(list.Items), list.ListMeta)
	}
	next = list.Continue
	list = corev1.PodList{}
	s.get("/api/v1/namespaces/ns/pods?limit=3&continue=" + next).into(&list)
	if names(list.Items) != "p6" || list.RemainingItemCount != nil || list.Continue != "" {
		t.Fatalf("%s %+v", names(list.Items), list.ListMeta)
	}
	// With a selector nobody knows how many remain.
	list = corev1.PodList{}
	s.get("/api/v1/pods?limit=2&labelSelector=odd%3Dtrue").into(&list)
	if names(list.Items) != "p1 p3" || list.RemainingItemCount != nil || list.Continue == "" {
		t.Fatalf("%s %+v", names(list.Items), list.ListMeta)
	}
	// At resourceVersion 0 a limit means nothing.
	list = corev1.PodList{}
	s.get("/api/v1/pods?limit=2&resourceVersion=0").into(&list)
	if len(list.Items) != 7 || list.Continue != "" {
		t.Fatalf("%s %+v", names(list.Items), list.ListMeta)
	}
	s.get("/api/v1/pods?limit=2&resourceVersion=3&continue="+next).status(400, "BadRequest", "specifying resource version is not allowed when using continue")
}

func TestListAtRevision(t *testing.T) {
	s := newTestServer(t)
	for i := range 4 {
		s.add("pods", pod("ns", fmt.Sprint("p", i), ""))
	}
	tests := []struct{ query, want, version string }{
		{"resourceVersion=3&resourceVersionMatch=Exact", "p0 p1", "3"},
		{"resourceVersion=3&limit=10", "p0 p1", "3"},
		{"resourceVersion=3&resourceVersionMatch=NotOlderThan&limit=1", "p0", "5"},
		{"resourceVersion=3", "p0 p1 p2 p3", "5"},
		{"resourceVersion=0", "p0 p1 p2 p3", "5"},
		{"", "p0 p1 p2 p3", "5"},
	}
	for _, test := range tests {
		var list corev1.PodList
		s.get("/api/v1/pods?" + test.query).into(&list)
		if names(list.Items) != test.want || list.ResourceVersion != test.version {
			t.Errorf("%s: %s at %s", test.query, names(list.Items), list.ResourceVersion)
		}
	}
	status := s.get("/api/v1/pods?resourceVersion=99&timeout=10ms").status(504, "Timeout", "Timeout: Too large resource version: 99, current: 5")
	if status.Details == nil || len(status.Details.Causes) != 1 || status.Details.Causes[0].Type != metav1.CauseTypeResourceVersionTooLarge || status.Details.RetryAfterSeconds != 1 {
		t.Errorf("details %+v", status.Details)
	}
}

// A state that has left the cache is read from the store until the store compacts it.
func TestContinueAfterHistoryIsGone(t *testing.T) {
	s := newTestServer(t)
	for i := range 4 {
		s.add("configmaps", configMap("ns", fmt.Sprint("cm", i), fmt.Sprint("odd=", i%2)))
	}
	s.add("configmaps", configMap("other", "cm0"))
	var list corev1.ConfigMapList
	s.get("/api/v1/namespaces/ns/configmaps?limit=2").into(&list)
	at := list.ResourceVersion
	s.remove("configmaps", "ns", "cm2")
	for range 20000 { // more than the cache undoes
		s.change("configmaps", "ns", "cm0", func(obj kind.Object) {
			obj.(*corev1.ConfigMap).Data["n"] = fmt.Sprint(rand.Int())
		})
	}
	exact := func(query string) *corev1.ConfigMapList {
		t.Helper()
		var list corev1.ConfigMapList
		s.get("/api/v1/namespaces/ns/configmaps?" + query).into(&list)
		if list.ResourceVersion != at {
			t.Errorf("%s: at %s, want %s", query, list.ResourceVersion, at)
		}
		return &list
	}
	query := "resourceVersionMatch=Exact&resourceVersion=" + at
	for selection, want := range map[string]string{
		"": "cm0 cm1 cm2 cm3", "&labelSelector=odd%3D0": "cm0 cm2", "&fieldSelector=metadata.name%3Dcm2": "cm2", "&fieldSelector=metadata.name%3Dcm": "",
		"&labelSelector=odd%3D1&limit=1": "cm1", "&labelSelector=odd%3D0&limit=9": "cm0 cm2",
	} {
		if got := exact(query + selection); names(got.Items) != want || len(got.Items) > 0 && got.Items[0].Data["n"] != "" {
			t.Errorf("%s: %v", selection, got.Items)
		}
	}
	first := exact(query + "&limit=3")
	if names(first.Items) != "cm0 cm1 cm2" || first.RemainingItemCount == nil || *first.RemainingItemCount != 1 || first.Continue == "" {
		t.Errorf("%s with %v", names(first.Items), first.ListMeta)
	}
	for _, token := range []string{first.Continue, exact(query + "&limit=3&labelSelector=odd").Continue} {
		if rest := exact("limit=3&continue=" + token); names(rest.Items) != "cm3" || rest.Continue != "" || rest.RemainingItemCount != nil {
			t.Errorf("continued with %s %v", names(rest.Items), rest.ListMeta)
		}
	}
	if rest := exact("limit=2&continue=" + list.Continue); names(rest.Items) != "cm2 cm3" {
		t.Errorf("continued with %s", names(rest.Items))
	}

	if err := s.store.Compact(t.Context(), s.config.Cache.Revision()); err != nil {
		t.Fatal(err)
	}
	status := s.get("/api/v1/namespaces/ns/configmaps?limit=2&continue="+list.Continue).status(410, "Expired", textContinueExpired)
	if status.Continue == "" {
		t.Fatal("no token to go on with")
	}
	var rest corev1.ConfigMapList
	s.get("/api/v1/namespaces/ns/configmaps?limit=2&continue=" + status.Continue).into(&rest)
	if names(rest.Items) != "cm3" {
		t.Errorf("went on with %s", names(rest.Items))
	}
	s.get("/api/v1/configmaps?resourceVersion=3&resourceVersionMatch=Exact").status(410, "Expired", textListExpired)
}

func TestContinueTokenIsUpstreams(t *testing.T) {
	got := encodeContinue("/registry/pods/ns/a\x00", "/registry/pods/ns/", 5)
	if want := "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0"; got != want {
		t.Errorf("token %s, want %s", got, want)
	}
}

func TestComputedKind(t *testing.T) {
	s := newTestServer(t)
	var list corev1.ComponentStatusList
	s.get("/api/v1/componentstatuses").into(&list)
	if names(list.Items) != "etcd-0 scheduler" || list.Kind != "ComponentStatusList" {
		t.Errorf("%+v", list)
	}
	var one corev1.ComponentStatus
	s.get("/api/v1/componentstatuses/scheduler").into(&one)
	if one.Name != "scheduler" || one.Kind != "ComponentStatus" {
		t.Errorf("%+v", one)
	}
	s.get("/api/v1/componentstatuses/x").status(404, "NotFound", `componentstatuses "x" not found`)
	s.get("/api/v1/componentstatuses?watch=true").status(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
	var table metav1.Table
	s.get("/api/v1/componentstatuses", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io").into(&table)
	if len(table.Rows) != 2 || table.Rows[1].Cells[0] != "scheduler" {
		t.Errorf("%+v", table)
	}
}

// gunzip is the standard library's opinion of a gzip stream.
func gunzip(t testing.TB, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	r.Multistream(false)
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return text
}

func TestPackedListEqualsPlainList(t *testing.T) {
	s := newTestServer(t)
	for i := range 300 {
		cm := configMap("ns", fmt.Sprint("cm", i))
		cm.Annotations = map[string]string{"note": strings.Repeat(fmt.Sprint(rand.Int()), 30)}
		cm.Data["more"] = strings.Repeat(fmt.Sprint(rand.Int()), 50)
		s.add("configmaps", cm)
	}
	for _, accept := range []string{
		mediaJSON, mediaProtobuf, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "application/json;as=Table;g=meta.k8s.io;v=v1",
	} {
		for range 2 { // made, and remembered
			plain := s.get("/api/v1/configmaps", "Accept: "+accept)
			compressed := s.get("/api/v1/configmaps", "Accept: "+accept, "Accept-Encoding: gzip")
			if compressed.header.Get("Content-Encoding") != "gzip" || compressed.header.Get("Vary") != "Accept-Encoding" {
				t.Errorf("%s: not packed: %v", accept, compressed.header)
				continue
			}
			if !bytes.Equal(gunzip(t, compressed.body), plain.body) {
				t.Errorf("%s: the packed list differs", accept)
			}
		}
	}
	for i := range 20 {
		s.change("configmaps", "ns", fmt.Sprint("cm", 200+rand.IntN(100)), func(obj kind.Object) { obj.SetGeneration(int64(i + 1)) })
		s.remove("configmaps", "ns", fmt.Sprint("cm", 100+i))
		for _, query := range []string{"", "?labelSelector=!x", "?limit=200"} {
			plain := s.get("/api/v1/configmaps" + query)
			compressed := s.get("/api/v1/configmaps"+query, "Accept-Encoding: gzip")
			if !bytes.Equal(gunzip(t, compressed.body), plain.body) {
				t.Fatalf("after %d changes the packed list %s differs", i, query)
			}
		}
	}
	small := s.get("/api/v1/configmaps?limit=5", "Accept-Encoding: gzip")
	if small.header.Get("Content-Encoding") != "" || !json.Valid(small.body) {
		t.Errorf("a small list was packed")
	}
}

// TestRememberedListsFollowChanges: whatever is remembered of a list, it shows what single reads show.
func TestRememberedListsFollowChanges(t *testing.T) {
	s := newTestServer(t)
	for i := range 150 {
		s.add("configmaps", configMap([]string{"a", "b"}[i%2], fmt.Sprintf("cm%03d", i)))
	}
	items := func(path string) (found []string) {
		for next := ""; ; {
			var list corev1.ConfigMapList
			answer := s.get(path + next)
			if err := json.Unmarshal(answer.body, &list); err != nil {
				t.Fatal(err)
			}
			for _, item := range list.Items {
				found = append(found, fmt.Sprint(item.Namespace, "/", item.Name, "@", item.ResourceVersion))
			}
			if list.Continue == "" {
				return found
			}
			next = "&continue=" + list.Continue
		}
	}
	res := s.find("configmaps")
	for round := range 30 {
		for range rand.IntN(3) {
			i := 100 + rand.IntN(50)
			s.change("configmaps", []string{"a", "b"}[i%2], fmt.Sprintf("cm%03d", i), func(obj kind.Object) { obj.SetGeneration(int64(round + 1)) })
		}
		s.remove("configmaps", []string{"a", "b"}[round%2], fmt.Sprintf("cm%03d", round))
		for path, prefix := range map[string]string{"/api/v1/configmaps": "", "/api/v1/namespaces/b/configmaps": "b"} {
			var want []string
			res.table.Snapshot().Ascend(res.kind.KeyPrefix(prefix), "", func(e *cache.Entry) bool {
				namespace, name := splitKey(res.kind, e.Key())
				want = append(want, fmt.Sprint(namespace, "/", name, "@", e.Revision()))
				return true
			})
			for _, query := range []string{"?", "?limit=40", "?limit=41", "?labelSelector=!x"} {
				if got := items(path + query); !slices.Equal(got, want) {
					t.Fatalf("round %d: %s%s shows\n%v, want\n%v", round, path, query, got, want)
				}
			}
		}
	}
}

func FuzzChecksumOfPieces(f *testing.F) {
	f.Add([]byte("hello"), []byte("world"))
	f.Add([]byte(""), []byte(strings.Repeat("x", 70000)))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var sum checksum
		for _, text := range [][]byte{a, b} {
			compressed, err := compress(text)
			if err != nil {
				t.Fatal(err)
			}
			sum.add(compressed)
		}
		sum.addText([]byte("]}"))
		whole := append(append(bytes.Clone(a), b...), "]}"...)
		if sum.crc != crc32.ChecksumIEEE(whole) || sum.length != len(whole) {
			t.Errorf("checksum %x of %d bytes, want %x of %d", sum.crc, sum.length, crc32.ChecksumIEEE(whole), len(whole))
		}
	})
}

func TestListOfAnUnreachableRevisionEndsWithTheRequest(t *testing.T) {
	s := newTestServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.waitFor(ctx, 1000); err == nil {
		t.Error("waited for nothing")
	}
}
