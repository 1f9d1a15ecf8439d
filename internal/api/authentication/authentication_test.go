package authentication

import (
	"context"
	"errors"
	"reflect"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
)

var alice = authenticationv1.UserInfo{Username: "alice", UID: "1", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}

// fake accepts one token for the audience "api" and, wrongly, returns that audience for every request.
type fake struct{}

func (fake) AuthenticateToken(_ context.Context, token string, _ []string) (authenticationv1.UserInfo, []string, bool, error) {
	switch token {
	case "good":
		return alice, []string{"api"}, true, nil
	case "expired":
		return authenticationv1.UserInfo{}, nil, false, errors.New("token has expired")
	}
	return authenticationv1.UserInfo{}, nil, false, nil
}

func kindNamed(t *testing.T, plural string) *kind.Kind {
	for _, k := range Kinds(fake{}) {
		if k.Plural == plural {
			return k
		}
	}
	t.Fatalf("no kind %s", plural)
	return nil
}

func TestTokenReview(t *testing.T) {
	row := kindNamed(t, "tokenreviews")
	if !reflect.DeepEqual(row.Verbs, []string{"create"}) || row.Singular != "tokenreview" {
		t.Errorf("verbs %v, singular %q", row.Verbs, row.Singular)
	}
	for _, test := range []struct {
		name      string
		spec      authenticationv1.TokenReviewSpec
		want      authenticationv1.TokenReviewStatus
		wantError func(error) bool
	}{
		{name: "good", spec: authenticationv1.TokenReviewSpec{Token: "good"}, want: authenticationv1.TokenReviewStatus{Authenticated: true, User: alice, Audiences: []string{"api"}}},
		{name: "audience", spec: authenticationv1.TokenReviewSpec{Token: "good", Audiences: []string{"x", "api"}}, want: authenticationv1.TokenReviewStatus{Authenticated: true, User: alice, Audiences: []string{"api"}}},
		{name: "broken authenticator", spec: authenticationv1.TokenReviewSpec{Token: "good", Audiences: []string{"x"}}, wantError: apierrors.IsInternalError},
		{name: "unknown", spec: authenticationv1.TokenReviewSpec{Token: "bad"}},
		{name: "expired", spec: authenticationv1.TokenReviewSpec{Token: "expired"}, want: authenticationv1.TokenReviewStatus{Error: "token has expired"}},
		{name: "empty", wantError: apierrors.IsBadRequest},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := row.Action(t.Context(), nil, &kind.Request{}, &authenticationv1.TokenReview{Spec: test.spec})
			if test.wantError != nil {
				if err == nil || !test.wantError(err) {
					t.Fatalf("error = %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			review := got.(*authenticationv1.TokenReview)
			if !reflect.DeepEqual(review.Status, test.want) || !reflect.DeepEqual(review.Spec, test.spec) {
				t.Errorf("review = %+v, want status %+v", review, test.want)
			}
		})
	}
}

func TestSelfSubjectReview(t *testing.T) {
	now := metav1.Unix(5, 0)
	got, err := kindNamed(t, "selfsubjectreviews").Action(t.Context(), nil, &kind.Request{User: alice, Now: now}, &authenticationv1.SelfSubjectReview{})
	if err != nil {
		t.Fatal(err)
	}
	review := got.(*authenticationv1.SelfSubjectReview)
	if !reflect.DeepEqual(review.Status.UserInfo, alice) || !review.CreationTimestamp.Equal(&now) {
		t.Errorf("review = %+v", review)
	}
}
