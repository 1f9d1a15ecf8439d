package authorization

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/kind"
)

func subjectAccessReview(a Authorizer) *kind.Kind {
	return kind.Of(kind.Definition[*authorizationv1.SubjectAccessReview]{
		GVK: authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"), Plural: "subjectaccessreviews",
		Action: func(ctx context.Context, _ kind.Client, _ *kind.Request, review *authorizationv1.SubjectAccessReview) (runtime.Object, error) {
			errs := append(validateSubject(&review.Spec), validateMetadataEmpty(review.ObjectMeta, "must be empty")...)
			if err := invalid(errs); err != nil {
				return nil, err
			}
			review = review.DeepCopy()
			review.Status = decide(ctx, a, subjectOf(&review.Spec), review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
			return review, nil
		},
	})
}
