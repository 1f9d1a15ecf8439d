package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authz"
	"skiff/internal/store"
	"skiff/internal/store/cache"
)

// Messages of upstream's that clients match or show.
const (
	textPanicked        = "This request caused apiserver to panic. Look in the logs for details."
	textModified        = "the object has been modified; please apply your changes to the latest version and try again"
	textListExpired     = "The resourceVersion for the provided list is too old."
	textWatchExpired    = "The resourceVersion for the provided watch is too old."
	textContinueExpired = "The provided continue parameter is too old to display a consistent list result. You can start a new " +
		"list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. " +
		"Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted " +
		"between the time the first chunk was returned and now may show up in the list."
)

// reasonInsufficientStorage is the reason of status 507, which has none in Kubernetes.
const reasonInsufficientStorage metav1.StatusReason = "InsufficientStorage"

// IsNoSpace reports whether a write failed because the store has no space.
func IsNoSpace(err error) bool {
	return errors.Is(err, store.ErrNoSpace) || apierrors.ReasonForError(err) == reasonInsufficientStorage
}

// apiError converts an error of a handler into one with a Status. It is the only place where errors of the store and the cache are
// mapped to API errors. name may be empty.
func apiError(err error, res schema.GroupResource, name string) apierrors.APIStatus {
	var status apierrors.APIStatus
	var conflict *cache.Conflict
	var storeConflict *store.ConflictError
	var encrypted *store.EncryptionError
	var tooOld *cache.ExpiredError
	var noSpace *store.NoSpaceError
	switch {
	case errors.As(err, &status):
		return status
	case errors.As(err, &conflict), errors.As(err, &storeConflict):
		return apierrors.NewConflict(res, name, errors.New(textModified))
	case errors.As(err, &encrypted):
		return encryptionStatus(encrypted, res, name)
	case errors.Is(err, store.ErrExists):
		return apierrors.NewAlreadyExists(res, name)
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(res, name)
	case errors.As(err, &tooOld):
		return apierrors.NewResourceExpired(tooOld.Error())
	case errors.Is(err, cache.ErrExpired), errors.Is(err, store.ErrCompacted):
		return apierrors.NewResourceExpired(textListExpired)
	case errors.Is(err, cache.ErrRemoved):
		return errNoRoute()
	case errors.Is(err, cache.ErrReplaced):
		return apierrors.NewServerTimeout(res, "requested", 1)
	case errors.Is(err, cache.ErrFuture), errors.Is(err, store.ErrFuture):
		return apierrors.NewTimeoutError(err.Error(), 1)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, cache.ErrTimeout):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	case errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("request was cancelled by the client", 0)
	case errors.As(err, &noSpace):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: reasonInsufficientStorage, Message: noSpace.Error(),
			Details: &metav1.StatusDetails{Group: res.Group, Kind: res.Resource, Name: name},
		}}
	case errors.Is(err, store.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, store.ErrUnavailable):
		return apierrors.NewServiceUnavailable(err.Error())
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error(),
	}}
}

// encryptionStatus is the error for an object that cannot be decrypted. name is empty for a list.
func encryptionStatus(encrypted *store.EncryptionError, res schema.GroupResource, name string) apierrors.APIStatus {
	if encrypted.Key == "" {
		return apierrors.NewInternalError(encrypted) // it could not be encrypted
	}
	describe := func(key string) string {
		return fmt.Sprintf("StorageError: corrupt object, Code: 7, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: "+
			"data from the storage is not transformable revision=0: %v", key, encrypted.Err)
	}
	if name != "" {
		return apierrors.NewInternalError(errors.New(describe(strings.TrimPrefix(encrypted.Key, "/registry"))))
	}
	text := describe(encrypted.Key)
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Message: fmt.Sprintf("failed to read one or more %s from the storage: %s", res, text),
		Details: &metav1.StatusDetails{Group: res.Group, Kind: res.Resource, Name: "/" + res.Resource, Causes: []metav1.StatusCause{
			{Type: metav1.CauseTypeUnexpectedServerResponse, Field: encrypted.Key, Message: text},
		}},
	}}
}

// statusOf is the Status for an error, complete with kind and code.
func statusOf(err error, res schema.GroupResource, name string) *metav1.Status {
	status := apiError(err, res, name).Status()
	if status.Status == "" {
		status.Status = metav1.StatusFailure
	}
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
		if status.Status == metav1.StatusSuccess {
			status.Code = http.StatusOK
		}
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return &status
}

// errPanicked: the request ended in a panic, which was logged.
func errPanicked() error {
	return apierrors.NewInternalError(errors.New(textPanicked))
}

// errTooLarge: the requested resourceVersion is newer than the server's.
func errTooLarge(wanted, current store.Revision) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", wanted, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
	}}
	return err
}

// errNoRoute: 404 for a path within a served group version.
func errNoRoute() *apierrors.StatusError {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false)
}

// errNoMethod: 405, the path exists but not with this method.
func errNoMethod() error {
	return apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false)
}

// forbiddenEscapes escapes HTML in names that are part of the message.
var forbiddenEscapes = strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;")

// ForbiddenError is the error for a request that the authorizer denies, for other users of the authorizer.
func ForbiddenError(a *authz.Attributes, reason string) error { return errForbidden(a, reason) }

// errForbidden names the denied access and the reason.
func errForbidden(a *authz.Attributes, reason string) error {
	text := forbiddenEscapes.Replace(forbiddenText(a))
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name, errors.New(text))
}

func forbiddenText(a *authz.Attributes) string {
	if !a.ResourceRequest {
		return fmt.Sprintf("User %q cannot %s path %q", a.User.Username, a.Verb, a.Path)
	}
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	scope := "at the cluster scope"
	if a.Namespace != "" {
		scope = fmt.Sprintf("in the namespace %q", a.Namespace)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", a.User.Username, a.Verb, resource, a.Group, scope)
}

// errNotAcceptable and errUnsupportedMediaType list the supported media types.
func errNotAcceptable(accepted ...string) error {
	return errNotAcceptableMessage("only the following media types are accepted: " + strings.Join(accepted, ", "))
}

func errNotAcceptableMessage(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: text,
	}}
}

func errUnsupportedMediaType(accepted ...string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "the body of the request was in an unknown format - accepted media types include: " + strings.Join(accepted, ", "),
	}}
}
