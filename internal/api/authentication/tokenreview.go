package authentication

import (
	"context"
	"errors"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/kind"
)

func tokenReview(a Authenticator) *kind.Kind {
	return kind.Of(kind.Definition[*authenticationv1.TokenReview]{
		GVK: authenticationv1.SchemeGroupVersion.WithKind("TokenReview"), Plural: "tokenreviews",
		Action: func(ctx context.Context, _ kind.Client, _ *kind.Request, review *authenticationv1.TokenReview) (runtime.Object, error) {
			return reviewToken(ctx, a, review)
		},
	})
}

func reviewToken(ctx context.Context, a Authenticator, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	if review.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	review = review.DeepCopy()
	wanted := review.Spec.Audiences
	user, accepted, ok, err := a.AuthenticateToken(ctx, review.Spec.Token, wanted)
	review.Status.Authenticated = ok
	if err != nil {
		review.Status.Error = err.Error()
	}
	if !ok {
		return review, nil
	}
	// An authenticator that accepts a token for other than the requested audiences is broken; its result must not be used.
	if len(wanted) > 0 && !slices.ContainsFunc(wanted, func(audience string) bool { return slices.Contains(accepted, audience) }) {
		return nil, apierrors.NewInternalError(errors.New("error validating audiences"))
	}
	review.Status.User, review.Status.Audiences = user, accepted
	return review, nil
}
