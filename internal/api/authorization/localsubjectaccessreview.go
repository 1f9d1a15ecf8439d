package authorization

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// A local review covers one namespace, so that permission to create it can be granted in one namespace.
func localSubjectAccessReview(a Authorizer) *kind.Kind {
	return kind.Of(kind.Definition[*authorizationv1.LocalSubjectAccessReview]{
		GVK: authorizationv1.SchemeGroupVersion.WithKind("LocalSubjectAccessReview"), Plural: "localsubjectaccessreviews", Namespaced: true,
		Action: func(ctx context.Context, _ kind.Client, _ *kind.Request, review *authorizationv1.LocalSubjectAccessReview) (runtime.Object, error) {
			if err := invalid(validateLocal(review)); err != nil {
				return nil, err
			}
			if review.Namespace == "" {
				return nil, apierrors.NewBadRequest("namespace is required on this type: ")
			}
			review = review.DeepCopy()
			review.Status = decide(ctx, a, subjectOf(&review.Spec), review.Spec.ResourceAttributes, nil)
			return review, nil
		},
	})
}

func validateLocal(review *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
	errs := validateSubject(&review.Spec)
	meta := review.ObjectMeta
	meta.Namespace = ""
	errs = append(errs, validateMetadataEmpty(meta, "must be empty except for namespace")...)
	path := field.NewPath("spec")
	if resource := review.Spec.ResourceAttributes; resource != nil && resource.Namespace != review.Namespace {
		errs = append(errs, field.Invalid(path.Child("resourceAttributes", "namespace"), resource.Namespace, "must match metadata.namespace"))
	}
	if review.Spec.NonResourceAttributes != nil {
		errs = append(errs, field.Invalid(path.Child("nonResourceAttributes"), review.Spec.NonResourceAttributes, "disallowed on this kind of request"))
	}
	return errs
}
