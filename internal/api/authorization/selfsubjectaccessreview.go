package authorization

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/kind"
)

func selfSubjectAccessReview(a Authorizer) *kind.Kind {
	return kind.Of(kind.Definition[*authorizationv1.SelfSubjectAccessReview]{
		GVK: authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), Plural: "selfsubjectaccessreviews",
		Action: func(ctx context.Context, _ kind.Client, req *kind.Request, review *authorizationv1.SelfSubjectAccessReview) (runtime.Object, error) {
			errs := append(validateAttributes(review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes),
				validateMetadataEmpty(review.ObjectMeta, "must be empty")...)
			if err := invalid(errs); err != nil {
				return nil, err
			}
			review = review.DeepCopy()
			review.Status = decide(ctx, a, req.User, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
			return review, nil
		},
	})
}
