package core

import (
	"context"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

type issuingClient struct {
	*memoryClient
	issued kind.TokenClaims
}

func (c *issuingClient) Audiences() []string { return []string{"https://api"} }

func (c *issuingClient) IssueToken(_ context.Context, claims kind.TokenClaims) (string, int64, error) {
	c.issued = claims
	return "token", min(claims.ExpirationSeconds, 7200), nil
}

func TestTokenRequest(t *testing.T) {
	ctx := context.Background()
	client := &issuingClient{memoryClient: newMemoryClient()}
	for _, seed := range []struct {
		resource string
		obj      kind.Object
	}{
		{"serviceaccounts", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sa", Namespace: "ns", UID: "u"}}},
		{"pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mine", Namespace: "ns", UID: "p"}, Spec: corev1.PodSpec{ServiceAccountName: "sa", NodeName: "n"}}},
		{"pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "ns"}, Spec: corev1.PodSpec{ServiceAccountName: "x"}}},
	} {
		if _, err := client.Create(ctx, corev1.Resource(seed.resource), seed.obj); err != nil {
			t.Fatal(err)
		}
	}
	token := ServiceAccount.Subresources[0]
	bound := func(kind, name, uid string) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name, UID: types.UID(uid)}}}
	}
	for _, test := range []struct {
		name, account string
		body          *authenticationv1.TokenRequest
		seconds       int64
		err           string
	}{
		{name: "plain", account: "sa", body: &authenticationv1.TokenRequest{}, seconds: 3600},
		{name: "too long is shortened", account: "sa", body: &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](86400)}}, seconds: 7200},
		{name: "too short", account: "sa", body: &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](60)}}, err: "may not specify a duration less than 10 minutes"},
		{name: "no account", account: "none", body: &authenticationv1.TokenRequest{}, err: "not found"},
		{name: "other name", account: "sa", body: &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, err: "must match the service account name if specified"},
		{name: "other uid", account: "sa", body: &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: "b"}}, err: "does not match the UID of the service account"},
		{name: "pod", account: "sa", body: bound("Pod", "mine", "p"), seconds: 3600},
		{name: "recreated pod", account: "sa", body: bound("Pod", "mine", "q"), err: "does not match the UID in record"},
		{name: "pod of another account", account: "sa", body: bound("Pod", "other", ""), err: "different serviceaccount name"},
		{name: "config map", account: "sa", body: bound("ConfigMap", "c", ""), err: "cannot bind token to object of type"},
		{name: "absent secret", account: "sa", body: bound("Secret", "s", ""), err: "not found"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var warnings []string
			request := *request
			request.Warn = func(text string) { warnings = append(warnings, text) }
			got, err := token.Create(ctx, client, &request, types.NamespacedName{Namespace: "ns", Name: test.account}, test.body)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			response := got.(*authenticationv1.TokenRequest)
			if response.Status.Token != "token" || *response.Spec.ExpirationSeconds != test.seconds || response.Status.ExpirationTimestamp.Sub(request.Now.Time).Seconds() != float64(test.seconds) || response.UID != "u" {
				t.Errorf("%+v", response)
			}
			if shortened := test.seconds == 7200; shortened != (len(warnings) == 1 && warnings[0] == "requested expiration of 86400 seconds shortened to 7200 seconds") {
				t.Errorf("warnings %q", warnings)
			}
			if test.name == "pod" && (client.issued.Pod.GetName() != "mine" || client.issued.Node.GetName() != "n") {
				t.Errorf("claims %+v", client.issued)
			}
		})
	}
	if _, err := token.Create(ctx, client.memoryClient, request, types.NamespacedName{Namespace: "ns", Name: "sa"}, &authenticationv1.TokenRequest{}); err == nil {
		t.Error("a token without an issuer")
	}
}
