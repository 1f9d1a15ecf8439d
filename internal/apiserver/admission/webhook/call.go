package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/apiserver/admission"
)

// maxResponse bounds the response of a webhook in bytes: a patch that replaces the largest object, in base64, and audit annotations.
const maxResponse = 8 << 20

// callError is a failed call, as opposed to a rejection. The webhook's failurePolicy decides about the write.
type callError struct {
	reason error
	status *apierrors.StatusError // what it counts as in metrics; nil: 503
}

func (e *callError) Error() string { return e.reason.Error() }

func (e *callError) Unwrap() error { return e.reason }

func (e *callError) code() int {
	if e.status == nil {
		return http.StatusServiceUnavailable
	}
	return int(e.status.ErrStatus.Code)
}

// rejection is the webhook's own decision.
type rejection struct{ *apierrors.StatusError }

// call sends a review to a webhook and returns the checked response. The error is a *callError, a *rejection, or an error of the server.
func (p *plugin) call(ctx context.Context, v *invocation, r *review) (*admissionv1.AdmissionResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	if v.invalid != nil {
		return nil, &callError{fmt.Errorf("could not get REST client: %w", v.invalid), apierrors.NewInternalError(v.invalid)}
	}
	answer, err := v.client.Review(ctx, r.body)
	if err != nil {
		var status *apierrors.StatusError
		errors.As(err, &status)
		return nil, &callError{fmt.Errorf("failed to call webhook: %w", err), status}
	}
	response, err := verify(answer, v, r.uid, p.step == stepMutating)
	if err != nil {
		var failed *callError
		if errors.As(err, &failed) {
			return nil, failed
		}
		return nil, &callError{fmt.Errorf("received invalid webhook response: %w", err), nil}
	}
	return response, nil
}

// review is an encoded AdmissionReview.
type review struct {
	body []byte
	uid  types.UID
}

// prepare makes the review for a webhook.
func prepare(e *encoder, v *invocation) (*review, error) {
	if e.attributes.DryRun {
		if !v.hasSideEffects {
			return nil, &callError{errors.New("Webhook SideEffects is nil"), apierrors.NewBadRequest("Webhook SideEffects is nil")} //nolint:staticcheck // upstream's text
		}
		if !v.noSideEffects {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", v.name))
		}
	}
	body, uid, err := newReview(e, v)
	if err != nil {
		return nil, &callError{fmt.Errorf("could not create admission objects: %w", err), apierrors.NewBadRequest("error creating admission objects")}
	}
	return &review{body, uid}, nil
}

// accept passes the response's annotations and warnings on. The error is a *rejection.
func accept(a *admission.Attributes, v *invocation, response *admissionv1.AdmissionResponse) error {
	if a.Annotate != nil {
		for key, value := range response.AuditAnnotations {
			if key != "" && !strings.Contains(key, "/") {
				a.Annotate(v.name+"/"+key, value)
			}
		}
	}
	if a.Warn != nil {
		for _, text := range response.Warnings {
			a.Warn(text)
		}
	}
	if response.Allowed {
		return nil
	}
	return &rejection{denied(v.name, response.Result)}
}

// denied is the error for a rejection: the Status of the webhook, if it is one of an error.
func denied(name string, result *metav1.Status) *apierrors.StatusError {
	var status metav1.Status
	if result != nil {
		status = *result
	}
	if status.Code < http.StatusBadRequest {
		status.Code = http.StatusBadRequest
	}
	if status.Status == "" || status.Status == metav1.StatusSuccess {
		status.Status = metav1.StatusFailure
	}
	prefix := fmt.Sprintf("admission webhook %q denied the request", name)
	switch {
	case status.Message != "":
		status.Message = prefix + ": " + status.Message
	case status.Reason != "":
		status.Message = prefix + ": " + string(status.Reason)
	default:
		status.Message = prefix + " without explanation"
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// finish counts a call and decides about the write: nil lets it continue. failedOpen: a failed call was ignored.
func (p *plugin) finish(v *invocation, operation admission.Operation, elapsed time.Duration, err error) (failedOpen bool, _ error) {
	record := &callRecord{name: v.name, step: p.step, operation: operation, elapsed: elapsed, rejected: err != nil}
	defer func() { p.Metrics.call(record) }()
	var failed *callError
	var rejected *rejection
	switch {
	case err == nil:
		record.code = http.StatusOK
		return false, nil
	case errors.As(err, &rejected):
		record.code, record.errorType = int(rejected.ErrStatus.Code), "no_error"
		return false, rejected.StatusError
	case !errors.As(err, &failed):
		record.errorType = "apiserver_internal_error"
		return false, err
	}
	canceled := errors.Is(failed, context.Canceled)
	record.code, record.rejected = failed.code(), !v.failOpen
	if !v.failOpen {
		if !canceled {
			record.errorType = "calling_webhook_error"
		}
		p.Log.Warn("failed to call webhook, request rejected", "webhook", v.name, "error", failed)
		return false, apierrors.NewInternalError(fmt.Errorf("failed calling webhook %q: %w", v.name, failed.reason))
	}
	p.Log.Warn("failed to call webhook, request allowed", "webhook", v.name, "error", failed)
	if canceled {
		return false, nil
	}
	p.Metrics.failOpen.WithLabelValues(v.name, p.step).Inc()
	return true, nil
}

// errTimeout is the error when the request's own time is over.
func errTimeout() error {
	return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
}
