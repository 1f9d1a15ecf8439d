package authorization

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/kind"
)

func selfSubjectRulesReview(a Authorizer) *kind.Kind {
	return kind.Of(kind.Definition[*authorizationv1.SelfSubjectRulesReview]{
		GVK: authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectRulesReview"), Plural: "selfsubjectrulesreviews",
		Action: func(ctx context.Context, _ kind.Client, req *kind.Request, review *authorizationv1.SelfSubjectRulesReview) (runtime.Object, error) {
			if review.Spec.Namespace == "" {
				return nil, apierrors.NewBadRequest("no namespace on request")
			}
			resources, nonResources, incomplete, err := a.RulesFor(ctx, req.User, review.Spec.Namespace)
			// The schema requires the lists: empty, never null.
			response := &authorizationv1.SelfSubjectRulesReview{Status: authorizationv1.SubjectRulesReviewStatus{
				ResourceRules:    append([]authorizationv1.ResourceRule{}, resources...),
				NonResourceRules: append([]authorizationv1.NonResourceRule{}, nonResources...),
				Incomplete:       incomplete,
			}}
			if err != nil {
				response.Status.EvaluationError = err.Error()
			}
			return response, nil
		},
	})
}
