package core

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
)

const enforceMountableSecrets = "kubernetes.io/enforce-mountable-secrets"

var ServiceAccount = kind.Of(kind.Definition[*corev1.ServiceAccount]{
	GVK: corev1.SchemeGroupVersion.WithKind("ServiceAccount"), Plural: "serviceaccounts", Short: []string{"sa"}, Namespaced: true,
	List: &corev1.ServiceAccountList{},

	ValidateName: apivalidation.ValidateServiceAccountName,
	Prepare: func(_ *kind.Request, obj, _ *corev1.ServiceAccount) {
		// Only the name of a reference to a secret is kept.
		for i, secret := range obj.Secrets {
			obj.Secrets[i] = corev1.ObjectReference{Name: secret.Name}
		}
	},
	Warn: func(obj, old *corev1.ServiceAccount) []string {
		if old != nil {
			if _, before := old.Annotations[enforceMountableSecrets]; before {
				return nil
			}
		}
		if _, set := obj.Annotations[enforceMountableSecrets]; set {
			return []string{fmt.Sprintf("metadata.annotations[%s]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets", enforceMountableSecrets)}
		}
		return nil
	},
	ReturnDeleted: true,
	Subresources: []kind.Subresource{{
		Name: "token", GVK: authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"), Verbs: []string{"create"}, StoresNothing: true,
		NewBody: func() kind.Object { return &authenticationv1.TokenRequest{} },
		Create: func(ctx context.Context, client kind.Client, req *kind.Request, parent types.NamespacedName, body kind.Object) (runtime.Object, error) {
			return requestToken(ctx, client, req, parent, body.(*authenticationv1.TokenRequest))
		},
	}},

	Columns: []metav1.TableColumnDefinition{kind.NameColumn(), kind.AgeColumn()},
	Row: func(obj *corev1.ServiceAccount, now time.Time) []any {
		return []any{obj.Name, kind.Age(obj.CreationTimestamp, now)}
	},
})
