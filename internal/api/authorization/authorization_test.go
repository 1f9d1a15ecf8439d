package authorization

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
)

// fake allows get, denies delete, fails for explode and records its arguments.
type fake struct {
	user     authenticationv1.UserInfo
	resource *authorizationv1.ResourceAttributes
}

func (f *fake) Authorize(_ context.Context, user authenticationv1.UserInfo, resource *authorizationv1.ResourceAttributes, nonResource *authorizationv1.NonResourceAttributes) (bool, bool, string, error) {
	f.user, f.resource = user, resource
	verb := ""
	if resource != nil {
		verb = resource.Verb
	} else {
		verb = nonResource.Verb
	}
	if verb == "explode" {
		return false, false, "", errors.New("boom")
	}
	return verb == "get", verb == "delete", "because", nil
}

func (f *fake) RulesFor(_ context.Context, _ authenticationv1.UserInfo, namespace string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool, error) {
	if namespace == "empty" {
		return nil, nil, true, errors.New("no rules")
	}
	return []authorizationv1.ResourceRule{{Verbs: []string{"get"}}}, nil, false, nil
}

func ask(t *testing.T, f *fake, plural string, obj kind.Object) (kind.Object, error) {
	t.Helper()
	for _, k := range Kinds(f) {
		if k.Plural == plural {
			got, err := k.Action(t.Context(), nil, &kind.Request{User: authenticationv1.UserInfo{Username: "me"}}, obj)
			if err != nil {
				return nil, err
			}
			return got.(kind.Object), nil
		}
	}
	t.Fatalf("no kind %s", plural)
	return nil, nil
}

func resource(verb string) *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{Verb: verb, Resource: "pods", Namespace: "ns"}
}

func TestSubjectAccessReview(t *testing.T) {
	for _, test := range []struct {
		name string
		obj  *authorizationv1.SubjectAccessReview
		want authorizationv1.SubjectAccessReviewStatus
		errs []string
	}{
		{name: "allowed", obj: &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: resource("get")}},
			want: authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "because"}},
		{name: "denied", obj: &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{Groups: []string{"g"}, ResourceAttributes: resource("delete")}},
			want: authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "because"}},
		{name: "error", obj: &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "explode"}}},
			want: authorizationv1.SubjectAccessReviewStatus{EvaluationError: "boom"}},
		{name: "neither", obj: &authorizationv1.SubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
			errs: []string{"spec: Invalid value", "exactly one of nonResourceAttributes or resourceAttributes", "spec.user: Invalid value", "metadata: Invalid value", "must be empty"}},
		{name: "both", obj: &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: resource("get"), NonResourceAttributes: &authorizationv1.NonResourceAttributes{}}},
			errs: []string{"exactly one of"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ask(t, &fake{}, "subjectaccessreviews", test.obj)
			if checkInvalid(t, err, test.errs) {
				return
			}
			if status := got.(*authorizationv1.SubjectAccessReview).Status; status != test.want {
				t.Errorf("status = %+v, want %+v", status, test.want)
			}
		})
	}
}

func checkInvalid(t *testing.T, err error, parts []string) bool {
	t.Helper()
	if len(parts) == 0 {
		if err != nil {
			t.Fatal(err)
		}
		return false
	}
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Code != http.StatusUnprocessableEntity {
		t.Fatalf("error = %v, want an invalid object", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
	return true
}

func TestWhatTheAuthorizerIsAsked(t *testing.T) {
	f := &fake{}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "u", UID: "1", Groups: []string{"g"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}}, ResourceAttributes: resource("get")}}
	got, err := ask(t, f, "subjectaccessreviews", review)
	if err != nil {
		t.Fatal(err)
	}
	want := authenticationv1.UserInfo{Username: "u", UID: "1", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
	if !reflect.DeepEqual(f.user, want) {
		t.Errorf("user = %+v, want %+v", f.user, want)
	}
	if f.resource.Version != "*" || got.(*authorizationv1.SubjectAccessReview).Spec.ResourceAttributes.Version != "" {
		t.Error("an absent version means every version to the authorizer and stays absent in the response")
	}
}

func TestSelectors(t *testing.T) {
	fieldIn := metav1.FieldSelectorRequirement{Key: "spec.nodeName", Operator: "In", Values: []string{"n"}}
	labelIn := metav1.LabelSelectorRequirement{Key: "a", Operator: "In", Values: []string{"n"}}
	for _, test := range []struct {
		name   string
		fields *authorizationv1.FieldSelectorAttributes
		labels *authorizationv1.LabelSelectorAttributes
		want   string
		errs   []string
	}{
		{name: "good", fields: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{fieldIn}}, labels: &authorizationv1.LabelSelectorAttributes{RawSelector: "a=b"}},
		{name: "empty", fields: &authorizationv1.FieldSelectorAttributes{}, labels: &authorizationv1.LabelSelectorAttributes{},
			errs: []string{"spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified", "spec.resourceAttributes.labelSelector.requirements: Required value"}},
		{name: "both", fields: &authorizationv1.FieldSelectorAttributes{RawSelector: "a=b", Requirements: []metav1.FieldSelectorRequirement{fieldIn}},
			errs: []string{"spec.resourceAttributes.fieldSelector.rawSelector: Invalid value", "may not specified at the same time as requirements"}},
		{name: "raw", fields: &authorizationv1.FieldSelectorAttributes{RawSelector: "a"}, labels: &authorizationv1.LabelSelectorAttributes{RawSelector: "(("},
			want: "spec.resourceAttributes.fieldSelector ignored due to parse error; spec.resourceAttributes.labelSelector ignored due to parse error"},
		{name: "partly", labels: &authorizationv1.LabelSelectorAttributes{Requirements: []metav1.LabelSelectorRequirement{labelIn, {Key: "a", Operator: "Near"}}},
			want: "spec.resourceAttributes.labelSelector partially ignored due to parse error"},
		{name: "exists", fields: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{{Key: "a", Operator: "Exists"}}},
			want: "spec.resourceAttributes.fieldSelector ignored due to parse error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			attributes := resource("get")
			attributes.FieldSelector, attributes.LabelSelector = test.fields, test.labels
			got, err := ask(t, &fake{}, "selfsubjectaccessreviews", &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}})
			if checkInvalid(t, err, test.errs) {
				return
			}
			if status := got.(*authorizationv1.SelfSubjectAccessReview).Status; status.EvaluationError != test.want {
				t.Errorf("evaluation error = %q, want %q", status.EvaluationError, test.want)
			}
		})
	}
}

func TestSelfSubjectAccessReview(t *testing.T) {
	f := &fake{}
	got, err := ask(t, f, "selfsubjectaccessreviews", &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: resource("get")}})
	if err != nil || !got.(*authorizationv1.SelfSubjectAccessReview).Status.Allowed || f.user.Username != "me" {
		t.Errorf("response %v, error %v, user %v", got, err, f.user)
	}
}

func TestLocalSubjectAccessReview(t *testing.T) {
	local := func(namespace string, spec authorizationv1.SubjectAccessReviewSpec) *authorizationv1.LocalSubjectAccessReview {
		spec.User = "u"
		return &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: spec}
	}
	got, err := ask(t, &fake{}, "localsubjectaccessreviews", local("ns", authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: resource("get")}))
	if err != nil || !got.(*authorizationv1.LocalSubjectAccessReview).Status.Allowed {
		t.Errorf("response %v, error %v", got, err)
	}
	_, err = ask(t, &fake{}, "localsubjectaccessreviews", local("other", authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: resource("get")}))
	checkInvalid(t, err, []string{"spec.resourceAttributes.namespace: Invalid value", "must match metadata.namespace"})
	_, err = ask(t, &fake{}, "localsubjectaccessreviews", local("ns", authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/"}}))
	checkInvalid(t, err, []string{"spec.nonResourceAttributes: Invalid value", "disallowed on this kind of request"})
	named := local("ns", authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: resource("get")})
	named.Name = "n"
	_, err = ask(t, &fake{}, "localsubjectaccessreviews", named)
	checkInvalid(t, err, []string{"metadata: Invalid value", "must be empty except for namespace"})
}

func TestSelfSubjectRulesReview(t *testing.T) {
	review := func(namespace string) *authorizationv1.SelfSubjectRulesReview {
		return &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	}
	if _, err := ask(t, &fake{}, "selfsubjectrulesreviews", review("")); !apierrors.IsBadRequest(err) {
		t.Errorf("error = %v", err)
	}
	got, err := ask(t, &fake{}, "selfsubjectrulesreviews", review("empty"))
	if err != nil {
		t.Fatal(err)
	}
	want := authorizationv1.SubjectRulesReviewStatus{ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}, Incomplete: true, EvaluationError: "no rules"}
	if status := got.(*authorizationv1.SelfSubjectRulesReview).Status; !reflect.DeepEqual(status, want) {
		t.Errorf("status = %#v, want %#v", status, want)
	}
	got, err = ask(t, &fake{}, "selfsubjectrulesreviews", review("ns"))
	if err != nil || len(got.(*authorizationv1.SelfSubjectRulesReview).Status.ResourceRules) != 1 {
		t.Errorf("response %v, error %v", got, err)
	}
}
