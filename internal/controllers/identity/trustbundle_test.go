package identity

import (
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"skiff/internal/controller"
	"skiff/internal/pki"
	"skiff/test/world"
)

func TestTrustBundle(t *testing.T) {
	c := &trustBundle{content: "content"}
	// The first 12 bytes of the SHA-256 of "content".
	const name = "kubernetes.io:kube-apiserver-serving:ed7002b439e9ac845f22357d"
	if got := c.name(); got != name {
		t.Fatalf("its name is %s, want %s", got, name)
	}
	bundle := func(name, content string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: named("", name), Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "kubernetes.io/kube-apiserver-serving", TrustBundle: content}}
	}
	former := strings.Replace(name, "ed70", "0000", 1)
	for _, test := range []struct {
		what string
		has  []*certificatesv1.ClusterTrustBundle
		want string
	}{
		{"nothing is published", nil, "create " + name},
		{"all is right", []*certificatesv1.ClusterTrustBundle{bundle(name, "content")}, ""},
		{"other content under its name", []*certificatesv1.ClusterTrustBundle{bundle(name, "x")}, "update " + name},
		{"a former one", []*certificatesv1.ClusterTrustBundle{bundle(former, "x")}, "create " + name + ", delete " + former},
		{"a former one beside it", []*certificatesv1.ClusterTrustBundle{bundle(former, "x"), bundle(name, "content")}, "delete " + former},
		{"the same content under another name goes", []*certificatesv1.ClusterTrustBundle{bundle(former, "content"), bundle(name, "content")}, "delete " + former},
		{"two former ones, and other content", []*certificatesv1.ClusterTrustBundle{bundle(former, "x"), bundle(name, "x"), bundle(former+"1", "x")}, "update " + name + ", delete " + former + ", delete " + former + "1"},
	} {
		var got []string
		for _, step := range c.Reconcile(test.has).Steps {
			for _, w := range step.Writes {
				got = append(got, string(w.Verb)+" "+w.Object.GetName())
				if b := w.Object.(*certificatesv1.ClusterTrustBundle); w.Verb != controller.Delete && (b.Spec.TrustBundle != "content" || b.Spec.SignerName != "kubernetes.io/kube-apiserver-serving") {
					t.Errorf("%s: %+v", test.what, b.Spec)
				}
			}
		}
		if text := strings.Join(got, ", "); text != test.want {
			t.Errorf("%s: %s\nwant %s", test.what, text, test.want)
		}
	}
}

// TestTrustBundleInAWorld: a new authority takes the place of the former; bundles of other signers stay.
func TestTrustBundleInAWorld(t *testing.T) {
	authority := func(name string) *trustBundle {
		a, err := pki.NewCA(name, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return &trustBundle{content: string(a.Cert)}
	}
	first, second := authority("first"), authority("second")
	world.In(t, func(w *world.World) {
		world.Create(w, &certificatesv1.ClusterTrustBundle{ObjectMeta: named("", "example.com:signer:mine"), Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/signer", TrustBundle: first.content}})
		world.Create(w, &certificatesv1.ClusterTrustBundle{ObjectMeta: named("", "anybody"), Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: first.content}})
		stop := w.Run(TrustBundle([]byte(first.content)))
		w.Pass(time.Second)
		if got := world.Get[*certificatesv1.ClusterTrustBundle](w, "", first.name()); got.Spec.TrustBundle != first.content {
			t.Errorf("%+v", got)
		}
		world.Edit(w, "", first.name(), func(b *certificatesv1.ClusterTrustBundle) { b.Spec.TrustBundle = second.content })
		w.Pass(time.Second)
		if got := world.Get[*certificatesv1.ClusterTrustBundle](w, "", first.name()); got.Spec.TrustBundle != first.content {
			t.Error("what somebody changed is not put right")
		}
		w.Remove(&certificatesv1.ClusterTrustBundle{ObjectMeta: named("", first.name())})
		w.Pass(time.Second)
		world.Get[*certificatesv1.ClusterTrustBundle](w, "", first.name())
		stop()
		stop = w.Run(TrustBundle([]byte(second.content)))
		w.Pass(time.Second)
		stop()
		if world.Gone[*certificatesv1.ClusterTrustBundle](w, "", second.name()) || !world.Gone[*certificatesv1.ClusterTrustBundle](w, "", first.name()) || len(world.List[*certificatesv1.ClusterTrustBundle](w)) != 3 {
			t.Errorf("%+v", world.List[*certificatesv1.ClusterTrustBundle](w))
		}
		w.AssertSettled(TrustBundle([]byte(second.content)))
	})
}
