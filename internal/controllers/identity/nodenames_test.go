package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/test/inprocess"
	"skiff/test/world"
)

// A name belongs to the host that requested it first, by the keys it had last.
func TestNodeNames(t *testing.T) {
	const token, admin = "system:bootstrap:abcdef", "admin"
	type step struct {
		user, node, key string
		denied          bool
	}
	for what, test := range map[string]struct {
		nodes []string // that exist without a record
		steps []step
	}{
		"a host joins, and again with its key": {steps: []step{{token, "one", "a", false}, {token, "one", "a", false}}},
		"another host with the name":           {steps: []step{{token, "one", "a", false}, {token, "one", "b", true}, {token, "one", "a", false}}},
		"another host with another name":       {steps: []step{{token, "one", "a", false}, {token, "two", "b", false}}},
		"a node that exists without a record":  {nodes: []string{"one"}, steps: []step{{token, "one", "a", true}, {"system:node:one", "one", "b", false}, {token, "one", "b", false}}},
		"a node renews its certificate":        {steps: []step{{token, "one", "a", false}, {"system:node:one", "one", "b", false}, {token, "one", "b", false}, {token, "one", "a", false}, {token, "one", "c", true}}},
		"and again, so that old keys are worth nothing": {steps: []step{
			{token, "one", "a", false}, {"system:node:one", "one", "b", false}, {"system:node:one", "one", "c", false}, {token, "one", "b", false}, {token, "one", "a", true},
		}},
		"another node is not the node itself, and no host that joins": {steps: []step{{token, "one", "a", false}, {"system:node:two", "one", "b", false}, {token, "one", "b", true}}},
		"an administrator": {nodes: []string{"one"}, steps: []step{{admin, "one", "a", false}, {token, "one", "a", true}}},
		"a long name":      {steps: []step{{token, strings.Repeat("n", 253), "a", false}, {token, strings.Repeat("n", 253), "b", true}, {token, strings.Repeat("m", 253), "b", false}}},
	} {
		t.Run(what, func(t *testing.T) {
			c := inprocess.Start(t, t.Context())
			for _, node := range test.nodes {
				create(t, c, &corev1.Node{ObjectMeta: named("", node)})
			}
			names := &nodeNames{records: client.For[*corev1.ConfigMap](c), nodes: client.For[*corev1.Node](c)}
			for i, s := range test.steps {
				request := &csr{Spec: certificatesv1.CertificateSigningRequestSpec{Username: s.user}}
				if s.user == token {
					request.Spec.Groups = []string{bootstrappersGroup, "system:authenticated"}
				}
				parsed := &x509.CertificateRequest{Subject: pkix.Name{CommonName: nodeUserPrefix + s.node}, RawSubjectPublicKeyInfo: []byte(s.key)}
				objection, err := names.bind(t.Context(), request, parsed)
				if err != nil {
					t.Fatal(err)
				}
				if (objection != "") != s.denied || s.denied && !strings.Contains(objection, fmt.Sprintf("the node name %s belongs to another host", s.node)) {
					t.Errorf("step %d, %s with key %s for %.10s: %q", i, s.user, s.key, s.node, objection)
				}
			}
		})
	}
}

// The request of a host for the name of another is denied, with the reason; without that node it is approved.
func TestNodeNameIsTaken(t *testing.T) {
	for _, exists := range []bool{true, false} {
		world.In(t, func(w *world.World) {
			if exists {
				if _, err := client.For[*corev1.Node](w.Client).Create(w.Ctx, &corev1.Node{ObjectMeta: named("", "one")}, client.WriteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			world.CreateAs(w, "system:bootstrap:abcdef", []string{bootstrappersGroup},
				requestOf(t, x509.CertificateRequest{Subject: nodeSubject}, kubeletSigner, signature, forClients))
			defer w.Run(CertificateApproving(true))()
			w.Pass(time.Second)
			conditions := world.Get[*csr](w, "", "request").Status.Conditions
			if len(conditions) != 1 {
				t.Fatalf("%+v", conditions)
			}
			got := conditions[0]
			if exists && (got.Type != certificatesv1.CertificateDenied || got.Reason != "NodeNameTaken" || !strings.Contains(got.Message, "belongs to another host")) {
				t.Errorf("%+v", got)
			}
			if !exists && got.Type != certificatesv1.CertificateApproved {
				t.Errorf("%+v", got)
			}
		})
	}
}
