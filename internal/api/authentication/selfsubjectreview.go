package authentication

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/kind"
)

func selfSubjectReview() *kind.Kind {
	return kind.Of(kind.Definition[*authenticationv1.SelfSubjectReview]{
		GVK: authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"), Plural: "selfsubjectreviews",
		Action: func(_ context.Context, _ kind.Client, req *kind.Request, _ *authenticationv1.SelfSubjectReview) (runtime.Object, error) {
			return &authenticationv1.SelfSubjectReview{
				ObjectMeta: metav1.ObjectMeta{CreationTimestamp: req.Now},
				Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: *req.User.DeepCopy()},
			}, nil
		},
	})
}
