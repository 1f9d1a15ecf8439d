package apiserver

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"skiff/internal/kind"
)

// fullPod has something in every corner that an encoder can get wrong.
func fullPod() *corev1.Pod {
	grace := int64(30)
	deleted := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	p := pod("ns", "full", "node-1", "a=b", "c=d")
	p.GenerateName = "fu"
	p.Generation = 7
	p.DeletionTimestamp = &deleted
	p.DeletionGracePeriodSeconds = &grace
	p.Annotations = map[string]string{"resourceVersion": `"resourceVersion":"1"`, "html": "<&>"}
	p.Finalizers = []string{"x/y"}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u"}}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update", APIVersion: "v1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:a":{}}`)}}}
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": quantity.MustParse("100m")}
	return p
}

// upstream is the protobuf encoding that defines the form.
func upstream(t testing.TB, obj runtime.Object) []byte {
	t.Helper()
	s := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme)
	data, err := runtime.Encode(clientscheme.Codecs.EncoderForVersion(s, corev1.SchemeGroupVersion), obj)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestStoredFormIsUpstreams(t *testing.T) {
	k := readKinds()[1]
	codec := newStoreCodec(k)
	p := fullPod()
	want := upstream(t, p)
	stored := p.DeepCopy()
	stored.ResourceVersion = "77"
	stored.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	got, err := codec.Encode(stored)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("stored form differs from upstream's:\n%q\n%q", got, want)
	}
	back, err := codec.Decode(got, 12)
	if err != nil {
		t.Fatal(err)
	}
	p.ResourceVersion = "12"
	if !equality.Semantic.DeepEqual(back, p) {
		t.Errorf("decoded %+v, want %+v", back, p)
	}
}

func TestDecodeOtherVersion(t *testing.T) {
	codec := newStoreCodec(eventKind())
	event := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "n"}, Note: "hello"}
	value, err := appendEnvelope(nil, envelopePrefix(eventsv1.SchemeGroupVersion.WithKind("Event")), event)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := codec.Decode(value, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := obj.(*corev1.Event); got.Message != "hello" || got.ResourceVersion != "3" {
		t.Errorf("decoded %+v", got)
	}
	for stored, want := range map[string]string{
		`{"apiVersion":"events.k8s.io/v1","kind":"Event","note":"hello"}`: "hello",
		`{"apiVersion":"v1","kind":"Event","message":"hello"}`:            "hello",
		`{"message":"hello"}`: "hello",
		`{"apiVersion":"events.k8s.io/v0","kind":"Event","note":"hello"}`: "error",
		`{"apiVersion":"v1","kind":"Other","message":"hello"}`:            "error",
	} {
		got := "error"
		if obj, err := codec.Decode([]byte(stored), 3); err == nil {
			got = obj.(*corev1.Event).Message
			if !obj.GetObjectKind().GroupVersionKind().Empty() {
				t.Errorf("%s: the type is left in the object", stored)
			}
		}
		if got != want {
			t.Errorf("%s is decoded as %s", stored, got)
		}
	}
	for _, broken := range [][]byte{nil, []byte("k8s\x00"), value[:20], []byte("k8s\x00\xff\xff\xff"), []byte("{")} {
		if obj, err := codec.Decode(broken, 1); err == nil && len(broken) > 4 {
			t.Errorf("%q was decoded as %+v", broken, obj)
		}
	}
}

func TestSpliceEqualsEncoding(t *testing.T) {
	s := newTestServer(t)
	long := pod("ns", strings.Repeat("x", 127), "")
	cases := map[string]kind.Object{"full": fullPod(), "small": pod("ns", "small", ""), "long metadata": long}
	for name, obj := range cases {
		t.Run(name, func(t *testing.T) {
			entry := s.add("pods", obj)
			p, err := entry.Object()
			if err != nil {
				t.Fatal(err)
			}
			if p.GetResourceVersion() == "" {
				t.Fatal("the object has no resourceVersion")
			}
			want := upstream(t, p)
			got, err := s.find("pods").appendProto(nil, entry)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("spliced form differs from the encoded one:\n%q\n%q", got, want)
			}
			item, err := s.find("pods").proto(entry)
			if err != nil {
				t.Fatal(err)
			}
			if item.encoded != nil {
				t.Error("the stored bytes were not spliced")
			}
			if got := len(item.append(nil)); got != item.size() {
				t.Errorf("size %d, appended %d", item.size(), got)
			}
		})
	}
}

func TestSpliceWithoutTheField(t *testing.T) {
	// Another encoder may leave the empty string away, or have nothing behind it.
	meta := []byte{0x0a, 1, 'n'}
	raw := append([]byte{0x0a, byte(len(meta))}, meta...)
	prefix := envelopePrefix(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	stored := appendBytes(append(bytes.Clone(prefix), tagField2), raw)
	s, ok := newSplice(stored, prefix, 42)
	if !ok {
		t.Fatal("not spliced")
	}
	var got corev1.ConfigMap
	if err := got.Unmarshal(s.append(nil)); err != nil {
		t.Fatal(err)
	}
	if got.Name != "n" || got.ResourceVersion != "42" {
		t.Errorf("got %+v", got)
	}
}

func FuzzSplice(f *testing.F) {
	k := readKinds()[1]
	codec := newStoreCodec(k)
	value, err := codec.Encode(fullPod())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(value[len(codec.prefix):], int64(5))
	f.Add([]byte{0x12, 3, 0x0a, 1, 0x32}, int64(1<<40))
	f.Fuzz(func(t *testing.T, rest []byte, revision int64) {
		stored := append(bytes.Clone(codec.prefix), rest...)
		s, ok := newSplice(stored, codec.prefix, revision)
		if !ok {
			return
		}
		got := s.append(nil)
		if len(got) != s.size() {
			t.Fatalf("size %d, appended %d", s.size(), len(got))
		}
		raw, _ := storedMessage(stored, codec.prefix)
		var before, after corev1.Pod
		if before.Unmarshal(raw) != nil {
			return
		}
		if err := after.Unmarshal(got); err != nil {
			t.Fatalf("splicing broke the message: %v", err)
		}
		if partial := s.metadataOnly(); len(partial.append(nil)) != partial.size() {
			t.Fatal("size of the metadata is wrong")
		}
	})
}

func TestJSONOfEntry(t *testing.T) {
	s := newTestServer(t)
	entry := s.add("configmaps", &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", ResourceVersion: "999"},
	})
	got, err := s.find("configmaps").appendJSON(nil, entry)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"ns","resourceVersion":"2"}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
