package core

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

var tokenRequestKind = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest").GroupKind()

// requestToken issues a token for the service account, bound to the object in the request: the token becomes invalid when
// that object is deleted.
func requestToken(ctx context.Context, client kind.Client, req *kind.Request, parent types.NamespacedName, body *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	issuer, ok := client.(kind.TokenIssuer)
	if !ok {
		return nil, apierrors.NewServiceUnavailable("this server issues no tokens")
	}
	request := body.DeepCopy()
	namespace, name := parent.Namespace, parent.Name
	metadata := field.NewPath("metadata")
	if request.Name != "" && request.Name != name {
		return nil, kind.NewInvalid(tokenRequestKind, name, field.ErrorList{field.Invalid(metadata.Child("name"), request.Name, "must match the service account name if specified")})
	}
	if request.Namespace != "" && request.Namespace != namespace {
		return nil, kind.NewInvalid(tokenRequestKind, name, field.ErrorList{field.Invalid(metadata.Child("namespace"), request.Namespace, "must match the service account namespace if specified")})
	}
	account, err := client.Get(ctx, corev1.Resource("serviceaccounts"), namespace, name)
	if err != nil {
		return nil, err
	}
	if request.UID != "" && request.UID != account.GetUID() {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: tokenRequestKind.Group, Resource: tokenRequestKind.Kind}, name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", request.UID, account.GetUID()))
	}
	request.Name, request.Namespace, request.UID = name, namespace, account.GetUID()
	request.CreationTimestamp, request.Status = req.Now, authenticationv1.TokenRequestStatus{}
	if len(request.Spec.Audiences) == 0 {
		request.Spec.Audiences = issuer.Audiences()
	}
	if request.Spec.ExpirationSeconds == nil {
		hour := int64(time.Hour / time.Second)
		request.Spec.ExpirationSeconds = &hour
	}
	if errs := validateTokenExpiration(*request.Spec.ExpirationSeconds, field.NewPath("spec", "expirationSeconds")); len(errs) > 0 {
		return nil, kind.NewInvalid(tokenRequestKind, "", errs)
	}
	claims := kind.TokenClaims{ServiceAccount: account, Audiences: request.Spec.Audiences, ExpirationSeconds: *request.Spec.ExpirationSeconds, Annotate: req.Annotate}
	if err := bindToken(ctx, client, &claims, request.Spec.BoundObjectRef); err != nil {
		return nil, err
	}
	token, seconds, err := issuer.IssueToken(ctx, claims)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err))
	}
	if requested := claims.ExpirationSeconds; seconds < requested && req.Warn != nil {
		req.Warn(fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", requested, seconds))
	}
	request.Spec.ExpirationSeconds = &seconds
	request.Status = authenticationv1.TokenRequestStatus{
		Token: token, ExpirationTimestamp: metav1.NewTime(req.Now.Add(time.Duration(seconds) * time.Second)),
	}
	return request, nil
}

func validateTokenExpiration(seconds int64, path *field.Path) (errs field.ErrorList) {
	if seconds < 10*60 {
		errs = append(errs, field.Invalid(path, seconds, "may not specify a duration less than 10 minutes"))
	}
	if seconds > 1<<32 {
		errs = append(errs, field.Invalid(path, seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	return errs
}

// bindToken reads the object that the token will be bound to. A pod must run as the service account.
func bindToken(ctx context.Context, client kind.Client, claims *kind.TokenClaims, ref *authenticationv1.BoundObjectReference) (err error) {
	if ref == nil {
		return nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	name, namespace := claims.ServiceAccount.GetName(), claims.ServiceAccount.GetNamespace()
	var bound kind.Object
	switch gvk.GroupKind() {
	case schema.GroupKind{Kind: "Pod"}:
		if bound, err = client.Get(ctx, corev1.Resource("pods"), namespace, ref.Name); err != nil {
			return err
		}
		pod := bound.(*corev1.Pod)
		if pod.Spec.ServiceAccountName != name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", name))
		}
		claims.Pod = pod
		if node := pod.Spec.NodeName; node != "" {
			claims.Node, err = client.Get(ctx, corev1.Resource("nodes"), "", node)
			if apierrors.IsNotFound(err) {
				claims.Node, err = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, nil
			}
		}
	case schema.GroupKind{Kind: "Node"}:
		bound, err = client.Get(ctx, corev1.Resource("nodes"), "", ref.Name)
		claims.Node = bound
	case schema.GroupKind{Kind: "Secret"}:
		bound, err = client.Get(ctx, corev1.Resource("secrets"), namespace, ref.Name)
		claims.Secret = bound
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk.String()))
	}
	if err != nil {
		return err
	}
	if ref.UID != "" && bound.GetUID() != ref.UID {
		return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}
