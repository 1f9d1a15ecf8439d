package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/pki"
	"skiff/test/inprocess"
	"skiff/test/world"
)

func TestGrounds(t *testing.T) {
	node := x509.CertificateRequest{Subject: nodeSubject}
	client, rsa, serving := usages(signature, forClients), usages(signature, encipher, forClients), usages(signature, forServers)
	for _, test := range []struct {
		what, username, signer string
		changes                []csrChange
		usages                 []certificatesv1.KeyUsage
		want                   string
	}{
		{"a node for itself", "system:node:one", kubeletSigner, nil, client, "selfnodeclient,nodeclient"},
		{"a node for itself, with RSA", "system:node:one", kubeletSigner, nil, rsa, "selfnodeclient,nodeclient"},
		{"a node for another", "system:node:two", kubeletSigner, nil, client, "nodeclient"},
		{"a bootstrap token for a node", "system:bootstrap:abc", kubeletSigner, nil, client, "nodeclient"},
		{"nobody for a node", "", kubeletSigner, nil, client, "nodeclient"},
		{"another signer", "system:node:one", apiClientSigner, nil, client, ""},
		{"the signer of what kubelets serve with", "system:node:one", servingSigner, []csrChange{withIP}, serving, ""},
		{"to serve with", "system:node:one", kubeletSigner, nil, serving, ""},
		{"with a name", "system:node:one", kubeletSigner, []csrChange{withDNS}, client, ""},
		{"of another group", "system:node:one", kubeletSigner, []csrChange{inGroups("system:masters")}, client, ""},
		{"somebody else for himself", "jane", kubeletSigner, []csrChange{calledName("jane")}, client, ""},
	} {
		template := changed(node, test.changes...)
		request := &csr{Spec: certificatesv1.CertificateSigningRequestSpec{Username: test.username, SignerName: test.signer, Usages: test.usages}}
		var got []string
		for _, ground := range recognizersFor(request, &template) {
			got = append(got, ground.subresource)
		}
		if text := strings.Join(got, ","); text != test.want {
			t.Errorf("%s: %q, want %q", test.what, text, test.want)
		}
	}
}

func TestWhatIsAskedOfTheServer(t *testing.T) {
	request := &csr{Spec: certificatesv1.CertificateSigningRequestSpec{Username: "u", UID: "1", Groups: []string{"a", "b"}, Extra: map[string]certificatesv1.ExtraValue{"k": {"x", "y"}}}}
	want := authorizationv1.SubjectAccessReviewSpec{User: "u", UID: "1", Groups: []string{"a", "b"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"x", "y"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "certificates.k8s.io", Version: "*", Resource: "certificatesigningrequests", Subresource: "nodeclient", Verb: "create"}}
	if got := review(request, "nodeclient").Spec; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// TestApprovals: who may what, and what becomes of the request.
func TestApprovals(t *testing.T) {
	const self, any = "Auto approving self kubelet client certificate after SubjectAccessReview.", "Auto approving kubelet client certificate after SubjectAccessReview."
	const approved, denied, failed = certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed
	for _, test := range []struct {
		what       string
		username   string
		may        []string
		conditions []certificatesv1.CertificateSigningRequestCondition
		want       string // the message of the approval
		asked      string
		later      bool
	}{
		{"a node that may for itself", "system:node:one", []string{"selfnodeclient"}, nil, self, "selfnodeclient", false},
		{"a node that may for any", "system:node:one", []string{"nodeclient"}, nil, any, "selfnodeclient nodeclient", false},
		{"a node that may both", "system:node:one", []string{"nodeclient", "selfnodeclient"}, nil, self, "selfnodeclient", false},
		{"a node that may not", "system:node:one", nil, nil, "", "selfnodeclient nodeclient", true},
		{"another that may", "robot", []string{"nodeclient"}, nil, any, "nodeclient", false},
		{"another that may only for itself", "robot", []string{"selfnodeclient"}, nil, "", "nodeclient", true},
		{"approved already", "robot", []string{"nodeclient"}, is(approved), "", "", false},
		{"denied", "robot", []string{"nodeclient"}, is(denied), "", "", false},
		{"failed, but nobody has decided", "robot", []string{"nodeclient"}, is(failed), any, "nodeclient", false},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				var asked []string
				later := false
				d := controller.Definition{Name: "approving", New: func(s *controller.Setup) (controller.Syncer, error) {
					a := &approver{
						requests: client.InformerFor[*csr](s.Informers), write: client.For[*csr](s.Client), retryLater: func(controller.Key) { later = true },
						authorize: func(_ context.Context, review *authorizationv1.SubjectAccessReview) (bool, error) {
							asked = append(asked, review.Spec.ResourceAttributes.Subresource)
							return slices.Contains(test.may, review.Spec.ResourceAttributes.Subresource), nil
						},
					}
					return a, controller.WatchPrimary[*csr](s)
				}}
				request := world.CreateAs(w, test.username, nil, requestOf(t, x509.CertificateRequest{Subject: nodeSubject}, kubeletSigner, signature, forClients))
				if test.conditions != nil {
					next := request.DeepCopy()
					next.Status.Conditions = test.conditions
					subresource := "approval"
					if test.conditions[0].Type == failed {
						subresource = "status"
					}
					if _, err := client.For[*csr](w.Client).Update(w.Ctx, next, client.WriteOptions{Subresource: subresource}); err != nil {
						t.Fatal(err)
					}
				}
				defer w.Run(d)()
				w.Pass(time.Second)
				got := world.Get[*csr](w, "", "request")
				conditions := got.Status.Conditions[len(test.conditions):]
				if test.want == "" && len(conditions) != 0 || test.want != "" && (len(conditions) != 1 || conditions[0].Message != test.want || conditions[0].Reason != "AutoApproved" || conditions[0].Type != approved || conditions[0].Status != corev1.ConditionTrue) {
					t.Errorf("%+v", conditions)
				}
				if strings.Join(asked, " ") != test.asked || later != test.later {
					t.Errorf("asked for %q, later %v; want %q, %v", asked, later, test.asked, test.later)
				}
			})
		})
	}
}

// TestAServerThatDoesNotAnswer: nothing is approved, and it is asked again.
func TestAServerThatDoesNotAnswer(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	answers := make(chan error, 2)
	answers <- errors.New("no answer")
	answers <- nil
	d := controller.Definition{Name: "approving", New: func(s *controller.Setup) (controller.Syncer, error) {
		a := &approver{requests: client.InformerFor[*csr](s.Informers), write: client.For[*csr](s.Client), retryLater: func(controller.Key) {},
			authorize: func(context.Context, *authorizationv1.SubjectAccessReview) (bool, error) {
				err := <-answers
				return err == nil, err
			}}
		return a, controller.WatchPrimary[*csr](s)
	}}
	run(t, c, d)
	create(t, c, requestOf(t, x509.CertificateRequest{Subject: nodeSubject}, kubeletSigner, signature, forClients))
	await(t, c, "", "request", func(r *csr) bool { return hasCondition(r, certificatesv1.CertificateApproved) })
	if len(answers) != 0 {
		t.Error("it was approved before the server answered")
	}
}

// TestCertificateOfANode goes the whole way with the controllers as they run: requested, approved, signed.
func TestCertificateOfANode(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	authority, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	run(t, c, CertificateApproving(false), CertificateSigning(SigningCAs{KubeletClient: authority}))
	create(t, c, requestOf(t, x509.CertificateRequest{Subject: nodeSubject}, kubeletSigner, signature, forClients))
	request := await(t, c, "", "request", func(r *csr) bool { return len(r.Status.Certificate) > 0 })
	if len(request.Status.Conditions) != 1 || request.Status.Conditions[0].Message != "Auto approving kubelet client certificate after SubjectAccessReview." {
		t.Errorf("%+v", request.Status.Conditions)
	}
	certificates, err := pki.ParseCertificates(request.Status.Certificate)
	if err != nil || time.Until(certificates[0].NotAfter) < 364*24*time.Hour || time.Until(certificates[0].NotAfter) > 365*24*time.Hour {
		t.Errorf("it ends at %v, %v", certificates[0].NotAfter, err)
	}
}
