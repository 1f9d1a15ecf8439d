package webhook

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func respond(response *admissionv1.AdmissionResponse) answer {
	return func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse { return response }
}

func deny(status *metav1.Status) answer {
	return respond(&admissionv1.AdmissionResponse{Result: status})
}

// TestValidating: what the responses of a validating webhook mean, with upstream's texts.
func TestValidating(t *testing.T) {
	const denied = `admission webhook "a" denied the request`
	for name, test := range map[string]struct {
		answer   answer
		raw      http.HandlerFunc
		change   func(*definition)
		write    *recorded
		err      string
		code     int
		rejected string // in metrics
	}{
		"allowed":                 {answer: allow},
		"denied":                  {answer: deny(nil), err: denied + " without explanation", code: 400, rejected: "no_error"},
		"denied with message":     {answer: deny(&metav1.Status{Message: "no", Code: 403, Reason: "Forbidden"}), err: denied + ": no", code: 403, rejected: "no_error"},
		"denied with reason":      {answer: deny(&metav1.Status{Reason: "why"}), err: denied + ": why", code: 400, rejected: "no_error"},
		"denied with success":     {answer: deny(&metav1.Status{Status: "Success", Code: 200, Message: "ok"}), err: denied + ": ok", code: 400, rejected: "no_error"},
		"denied with a huge code": {answer: deny(&metav1.Status{Code: 100000}), err: denied, code: 100000, rejected: "no_error"},
		"no response":             {answer: respond(nil), err: `failed calling webhook "a": received invalid webhook response: webhook response was absent`, code: 500, rejected: "calling_webhook_error"},
		"other uid": {answer: respond(&admissionv1.AdmissionResponse{UID: "x", Allowed: true}),
			err: `received invalid webhook response: expected response.uid=`, code: 500, rejected: "calling_webhook_error"},
		"patch":      {answer: patching("[]"), err: "validating webhook may not return response.patch", code: 500, rejected: "calling_webhook_error"},
		"patch type": {answer: respond(&admissionv1.AdmissionResponse{Allowed: true, PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}), err: "validating webhook may not return response.patchType", code: 500, rejected: "calling_webhook_error"},
		"garbage": {raw: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
			err: `failed calling webhook "a": failed to call webhook: couldn't get version/kind; json parse error: `, code: 500, rejected: "calling_webhook_error"},
		"other review": {raw: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v2","response":{"allowed":true,"uid":""}}`)
		}, err: "received invalid webhook response: expected response.uid=", code: 500, rejected: "calling_webhook_error"},
		"status 500": {raw: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", 500) },
			err: `failed to call webhook: an error on the server ("broken") has prevented the request from succeeding`, code: 500, rejected: "calling_webhook_error"},
		"hang": {raw: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, change: func(d *definition) { d.TimeoutSeconds = ptr.To[int32](1) },
			err: "context deadline exceeded", code: 500, rejected: "calling_webhook_error"},
		"huge": {raw: func(w http.ResponseWriter, _ *http.Request) {
			chunk := []byte(strings.Repeat(" ", 1<<20))
			for range 100 {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, err: "the webhook's response is too large", code: 500, rejected: "calling_webhook_error"},
		"redirect": {raw: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/b", http.StatusTemporaryRedirect) },
			err: "redirects are not followed", code: 500, rejected: "calling_webhook_error"},
		"wrong certificate": {answer: allow, change: func(d *definition) { d.ClientConfig.CABundle = nil }, err: "certificate signed by unknown authority", code: 500, rejected: "calling_webhook_error"},
		"no known review version": {answer: allow, change: func(d *definition) { d.AdmissionReviewVersions = []string{"v7"} },
			err: "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)", code: 500, rejected: "calling_webhook_error"},
		"dry run": {answer: allow, write: writing(dryRun)},
		"dry run with side effects": {answer: allow, write: writing(dryRun), change: func(d *definition) { d.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassSome) },
			err: `admission webhook "a" does not support dry run`, code: 400, rejected: "apiserver_internal_error"},
		"dry run, unknown side effects": {answer: allow, write: writing(dryRun), change: func(d *definition) { d.SideEffects = nil },
			err: "Webhook SideEffects is nil", code: 500, rejected: "calling_webhook_error"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, open := range []bool{false, true} {
				h, w := newHooks(t), &world{}
				change := func(d *definition) {
					if test.change != nil {
						test.change(d)
					}
					if open {
						failOpen(d)
					}
				}
				definition := h.hook("a", test.answer, change)
				h.answers["b"] = allow
				h.raw["a"] = test.raw
				w.set(validating("c", definition))
				p, a := NewValidating(newOptions(w)), writing()
				if test.write != nil {
					a.DryRun = test.write.DryRun
				}
				err := try(t.Context(), p, a.Attributes)
				ignored := open && test.rejected == "calling_webhook_error"
				if ignored || test.err == "" {
					if err != nil {
						t.Errorf("open %t: %v", open, err)
					}
					want := ""
					if ignored {
						want = "failed-open.validating.webhook.admission.k8s.io/round_0_index_0"
					}
					if got := keys(a.annotations); got != want || ignored && a.annotations[want] != "a" {
						t.Errorf("open %t: annotations %v", open, a.annotations)
					}
					if n := testutil.ToFloat64(p.Metrics.failOpen.WithLabelValues("a", "validating")); (n == 1) != ignored {
						t.Errorf("open %t: %v ignored calls counted", open, n)
					}
					continue
				}
				if err == nil || !strings.Contains(err.Error(), test.err) || statusCode(err) != test.code {
					t.Errorf("open %t: %v with code %d, want %s with %d", open, err, statusCode(err), test.err, test.code)
				}
				if n := testutil.CollectAndCount(p.Metrics.rejections); n != 1 || testutil.CollectAndCount(p.Metrics.requests) != 1 {
					t.Errorf("open %t: %d rejections counted", open, n)
				}
				if strings.Contains(h.calls(), "b") {
					t.Error("a redirect was followed")
				}
			}
		})
	}
}

func statusCode(err error) int {
	for {
		if status, ok := err.(apierrors.APIStatus); ok {
			return int(status.Status().Code)
		}
		switch wrapped := err.(type) {
		case interface{ Unwrap() error }:
			err = wrapped.Unwrap()
		case interface{ Unwrap() []error }:
			err = wrapped.Unwrap()[0]
		default:
			return 0
		}
	}
}

// TestValidatingInParallel: all webhooks are called at the same time, and the first in order decides.
func TestValidatingInParallel(t *testing.T) {
	const count = 5
	h, w := newHooks(t), &world{}
	arrived := make(chan struct{}, count)
	all := make(chan struct{})
	go func() {
		for range count {
			<-arrived
		}
		close(all)
	}()
	var definitions []definition
	for i := range count {
		name := fmt.Sprint("h", i)
		definitions = append(definitions, h.hook(name, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			arrived <- struct{}{}
			<-all
			return &admissionv1.AdmissionResponse{Allowed: i == 0, Warnings: []string{"from " + name}, AuditAnnotations: map[string]string{"key": name, "bad/key": ""}}
		}))
	}
	w.set(validating("c", definitions...))
	a := writing()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := try(ctx, NewValidating(newOptions(w)), a.Attributes)
	if err == nil || !strings.Contains(err.Error(), `admission webhook "h1" denied the request`) {
		t.Errorf("%v", err)
	}
	if got := strings.Join(a.warnings, ","); got != "from h0,from h1,from h2,from h3,from h4" {
		t.Errorf("warnings %s", got)
	}
	if got := keys(a.annotations); got != "h0/key h1/key h2/key h3/key h4/key" {
		t.Errorf("annotations %s", got)
	}
}

// TestCanceled: a client that goes away ends the calls and counts as no failure of the webhook.
func TestCanceled(t *testing.T) {
	h, w := newHooks(t), &world{}
	ctx, cancel := context.WithCancel(t.Context())
	definition := h.hook("a", nil)
	h.raw["a"] = func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}
	w.set(validating("c", definition))
	p := NewValidating(newOptions(w))
	if err := try(ctx, p, writing().Attributes); err == nil {
		t.Error("allowed")
	}
	if n := testutil.CollectAndCount(p.Metrics.rejections); n != 0 {
		t.Errorf("%d rejections counted", n)
	}
}
