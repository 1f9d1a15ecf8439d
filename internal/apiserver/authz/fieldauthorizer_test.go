package authz

import (
	"context"
	"errors"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

const fieldPolicy = `
clusterrole signer
  sign certificates.k8s.io signers names=example.com/one
clusterrole domain-signer
  sign certificates.k8s.io signers names=example.com/*
clusterrole binder
  update resource.k8s.io resourceclaims/binding
clusterrole driver
  associated-node:update resource.k8s.io resourceclaims/driver names=d1
clusterrole drivers
  arbitrary-node:update resource.k8s.io resourceclaims/driver
clusterrole reader
  get core configmaps
clusterrole one-reader
  get core configmaps names=one
clusterrolebinding signer user:signer
clusterrolebinding domain-signer user:domain-signer
clusterrolebinding binder user:binder
clusterrolebinding driver user:system:serviceaccount:n:driver
clusterrolebinding drivers user:drivers
clusterrolebinding reader user:reader
clusterrolebinding one-reader user:one-reader
`

func TestFieldAuthorizer(t *testing.T) {
	rbac := NewRBAC(NewStaticPolicy(mustRead(t, fieldPolicy)))
	params := &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	authorizer := &FieldAuthorizer{
		Authorizer: rbac,
		Objects: func(_ context.Context, resource schema.GroupResource, name string) (kind.Object, error) {
			if name != "policy" || resource.Resource != "validatingadmissionpolicies" {
				return nil, errors.New("not found")
			}
			return &admissionregistrationv1.ValidatingAdmissionPolicy{Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{ParamKind: params}}, nil
		},
		Resource: func(gvk schema.GroupVersionKind) (string, bool) { return "configmaps", gvk.Kind == "ConfigMap" },
		Forbidden: func(a *Attributes, _ string) error {
			return errors.New("no " + a.Verb + " " + a.Subresource + " " + a.Name)
		},
	}
	request := func(reason string) *certificatesv1.PodCertificateRequest {
		return &certificatesv1.PodCertificateRequest{
			Spec:   certificatesv1.PodCertificateRequestSpec{SignerName: "example.com/one"},
			Status: certificatesv1.PodCertificateRequestStatus{Conditions: []metav1.Condition{{Type: "Denied", Reason: reason}}},
		}
	}
	on := &resourcev1.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}}},
	}}}
	claim := func(allocation *resourcev1.AllocationResult, drivers ...string) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{Status: resourcev1.ResourceClaimStatus{Allocation: allocation}}
		for _, driver := range drivers {
			c.Status.Devices = append(c.Status.Devices, resourcev1.AllocatedDeviceStatus{Driver: driver, Pool: "p", Device: "d"})
		}
		return c
	}
	policy := func(param *admissionregistrationv1.ParamKind) kind.Object {
		return &admissionregistrationv1.ValidatingAdmissionPolicy{Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{ParamKind: param}}
	}
	binding := func(policy, namespace, name string) kind.Object {
		return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy, ParamRef: &admissionregistrationv1.ParamRef{Namespace: namespace, Name: name},
		}}
	}
	driver := func(node string) authn.User {
		return authn.User{Username: "system:serviceaccount:n:driver", Extra: map[string]authenticationv1.ExtraValue{authn.ExtraNodeName: {node}}}
	}
	for _, test := range []struct {
		name     string
		user     authn.User
		sub      string
		obj, old kind.Object
		want     string // part of the error; empty: no error
	}{
		{"signer", authn.User{Username: "signer"}, "status", request("a"), request("b"), ""},
		{"signer of the domain", authn.User{Username: "domain-signer"}, "status", request("a"), request("b"), ""},
		{"no signer", authn.User{Username: "eve"}, "status", request("a"), request("b"), `spec.signerName: Forbidden: User "eve" is not permitted to "sign" for signer "example.com/one"`},
		{"no signer changes nothing", authn.User{Username: "eve"}, "status", request("a"), request("a"), ""},
		{"not the status", authn.User{Username: "eve"}, "", request("a"), request("b"), ""},

		{"binder", authn.User{Username: "binder"}, "status", claim(on), claim(nil), ""},
		{"no binder", authn.User{Username: "eve"}, "status", claim(on), claim(nil), `status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="update" permission: no update binding `},
		{"driver on its node", driver("n1"), "status", claim(on, "d1"), claim(on), ""},
		{"driver of another", driver("n1"), "status", claim(on, "d1", "d2"), claim(on), `verb="[associated-node:update arbitrary-node:update]" permission: no associated-node:update driver d2`},
		{"driver on another node", driver("n2"), "status", claim(on, "d1"), claim(on), `status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", verb="[arbitrary-node:update]"`},
		{"a device that is gone", driver("n2"), "status", claim(on), claim(on, "d1"), "arbitrary-node:update driver d1"},
		{"drivers anywhere", authn.User{Username: "drivers"}, "status", claim(on, "d1", "d2"), claim(on), ""},
		{"devices without an allocation", authn.User{Username: "eve"}, "status", claim(nil), claim(nil, "d1"), ""},

		{"policy without parameters", authn.User{Username: "eve"}, "", policy(nil), nil, ""},
		{"policy of a reader", authn.User{Username: "reader"}, "", policy(params), nil, ""},
		{"policy of a reader of one", authn.User{Username: "one-reader"}, "", policy(params), nil, `spec.paramKind: Forbidden: user &{one-reader  [] map[]} must have "get" permission on all objects of the referenced paramKind (kind=ConfigMap, apiVersion=v1)`},
		{"policy with an unknown kind", authn.User{Username: "reader"}, "", policy(&admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "Thing"}), nil, "kind=Thing"},
		{"policy that keeps its parameters", authn.User{Username: "eve"}, "", policy(params), policy(params), ""},
		{"policy that gets parameters", authn.User{Username: "eve"}, "", policy(params), policy(nil), "spec.paramKind: Forbidden"},
		{"policy of an administrator", authn.User{Username: "root", Groups: []string{authn.GroupMasters}}, "", policy(params), nil, ""},

		{"binding of a reader", authn.User{Username: "reader"}, "", binding("policy", "n", "one"), nil, ""},
		{"binding of a reader of one", authn.User{Username: "one-reader"}, "", binding("policy", "n", "one"), nil, ""},
		{"binding to another", authn.User{Username: "one-reader"}, "", binding("policy", "n", "two"), nil, `spec.paramRef: Forbidden: user &{one-reader  [] map[]} does not have "get" permission on the object referenced by paramRef`},
		{"binding to many", authn.User{Username: "reader"}, "", binding("policy", "n", ""), nil, `does not have "list" permission`},
		{"binding without a policy", authn.User{Username: "reader"}, "", binding("none", "n", "one"), nil, `unable to get policy none to determine minimum required permissions and user &{reader  [] map[]} does not have "get" permission for all groups, versions and resources`},
		{"binding that stays", authn.User{Username: "eve"}, "", binding("policy", "n", "one"), binding("policy", "n", "one"), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &Attributes{User: test.user, Verb: "update", ResourceRequest: true, Group: resourcev1.GroupName, Version: "v1", Resource: "resourceclaims", Subresource: test.sub, Namespace: "n", Name: "x"}
			errs := authorizer.Check(t.Context(), a, test.obj, test.old)
			if got := errs.ToAggregate(); test.want == "" && got != nil || test.want != "" && (got == nil || !strings.Contains(got.Error(), test.want)) {
				t.Errorf("%v, want %q", got, test.want)
			}
		})
	}
}
