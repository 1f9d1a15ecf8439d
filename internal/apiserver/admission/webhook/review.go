package webhook

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"skiff/internal/apiserver/admission"
)

// encoder encodes the objects of a write, each at most once for each version.
type encoder struct {
	attributes *admission.Attributes
	objects    map[schema.GroupVersionKind][]byte
	old        map[schema.GroupVersionKind][]byte
}

func newEncoder(a *admission.Attributes) *encoder {
	return &encoder{attributes: a, objects: map[schema.GroupVersionKind][]byte{}, old: map[schema.GroupVersionKind][]byte{}}
}

// object is the JSON of the written object, or nil if there is none.
func (e *encoder) object(kind schema.GroupVersionKind) ([]byte, error) {
	return e.encode(e.attributes.Object, kind, e.objects)
}

// oldObject is the JSON of the existing object, or nil if there is none.
func (e *encoder) oldObject(kind schema.GroupVersionKind) ([]byte, error) {
	return e.encode(e.attributes.Old, kind, e.old)
}

func (e *encoder) encode(obj runtime.Object, kind schema.GroupVersionKind, made map[schema.GroupVersionKind][]byte) ([]byte, error) {
	if obj == nil {
		return nil, nil
	}
	if data, ok := made[kind]; ok {
		return data, nil
	}
	data, err := e.attributes.Versions.Encode(obj, kind)
	if err != nil {
		return nil, err
	}
	made[kind] = data
	return data, nil
}

// changed forgets the encodings of the written object.
func (e *encoder) changed() { clear(e.objects) }

// newReview makes the AdmissionReview for a webhook. v1 and v1beta1 differ in apiVersion only.
func newReview(e *encoder, v *invocation) (body []byte, uid types.UID, err error) {
	a := e.attributes
	if v.reviewVersion == "" {
		return nil, "", errors.New("webhook does not accept known AdmissionReview versions (v1, v1beta1)")
	}
	object, err := e.object(v.equivalent.Kind)
	if err != nil {
		return nil, "", err
	}
	old, err := e.oldObject(v.equivalent.Kind)
	if err != nil {
		return nil, "", err
	}
	uid = types.UID(uuid.NewString())
	requestKind, requestResource := metav1.GroupVersionKind(a.Kind), metav1.GroupVersionResource(a.Resource)
	dryRun := a.DryRun
	review := &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.GroupName + "/" + v.reviewVersion, Kind: reviewKind},
		Request: &admissionv1.AdmissionRequest{
			UID:  uid,
			Kind: metav1.GroupVersionKind(v.equivalent.Kind), Resource: metav1.GroupVersionResource(v.equivalent.Resource), SubResource: a.Subresource,
			RequestKind: &requestKind, RequestResource: &requestResource, RequestSubResource: a.Subresource,
			Name: a.Name, Namespace: a.Namespace, Operation: admissionv1.Operation(a.Operation),
			UserInfo: userInfo(a), Object: runtime.RawExtension{Raw: object}, OldObject: runtime.RawExtension{Raw: old},
			DryRun: &dryRun, Options: runtime.RawExtension{Object: a.Options},
		},
	}
	body, err = json.Marshal(review)
	return body, uid, err
}

func userInfo(a *admission.Attributes) authenticationv1.UserInfo {
	return authenticationv1.UserInfo{Username: a.User.Username, UID: a.User.UID, Groups: a.User.Groups, Extra: a.User.Extra}
}

const reviewKind = "AdmissionReview"

// verify decodes and checks the response to a review. v1beta1 is not checked as strictly, as upstream.
func verify(answer []byte, v *invocation, uid types.UID, mutating bool) (*admissionv1.AdmissionResponse, error) {
	var review admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(answer, &review); err != nil {
		return nil, &callError{fmt.Errorf("failed to call webhook: couldn't get version/kind; json parse error: %w", err), nil}
	}
	response := review.Response
	if response == nil {
		return nil, errors.New("webhook response was absent")
	}
	if v.reviewVersion == "v1beta1" {
		if !mutating {
			response.Patch = nil
		}
		if response.PatchType = nil; len(response.Patch) > 0 {
			patchType := admissionv1.PatchTypeJSONPatch
			response.PatchType = &patchType
		}
		return response, nil
	}
	if response.UID != uid {
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, response.UID)
	}
	if want := admissionv1.SchemeGroupVersion.WithKind(reviewKind); review.GroupVersionKind() != want {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want, review.GroupVersionKind())
	}
	if mutating {
		return response, verifyPatch(response)
	}
	if len(response.Patch) > 0 {
		return nil, errors.New("validating webhook may not return response.patch")
	}
	if response.PatchType != nil {
		return nil, errors.New("validating webhook may not return response.patchType")
	}
	return response, nil
}

func verifyPatch(response *admissionv1.AdmissionResponse) error {
	switch {
	case len(response.Patch) > 0 && response.PatchType == nil:
		return errors.New("webhook returned response.patch but not response.patchType")
	case len(response.Patch) == 0 && response.PatchType != nil:
		return errors.New("webhook returned response.patchType but not response.patch")
	case response.PatchType != nil && *response.PatchType == "":
		return fmt.Errorf("webhook returned invalid response.patchType of %q", *response.PatchType)
	}
	return nil
}
