package apiregistration

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
	"skiff/internal/kind/kindtest"
)

func local(change ...func(*apiService)) *apiService {
	obj := &apiService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.example.com"},
		Spec:       apiregistrationv1.APIServiceSpec{Group: "example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 10},
	}
	for _, c := range change {
		c(obj)
	}
	return obj
}

func remote(change ...func(*apiService)) *apiService {
	return local(append([]func(*apiService){func(obj *apiService) {
		obj.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "team", Name: "api"}
	}}, change...)...)
}

func TestValidation(t *testing.T) {
	for _, test := range []struct {
		name string
		obj  *apiService
		want []string
	}{
		{"local", local(), nil},
		{"remote", remote(), nil},
		{"core", local(func(o *apiService) { o.Name, o.Spec.Group = "v1.", "" }), nil},
		{"other name", local(func(o *apiService) { o.Name = "v2.example.com" }), []string{"metadata.name: Invalid value: must be `spec.version+\".\"+spec.group`: \"v1.example.com\""}},
		{"empty group", local(func(o *apiService) { o.Name, o.Spec.Group, o.Spec.Version = "v2.", "", "v2" }), []string{"spec.group: Required value: only v1 may have an empty group and it better be legacy kube"}},
		{"invalid group", local(func(o *apiService) { o.Name, o.Spec.Group = "v1.Bad", "Bad" }), []string{"spec.group: Invalid value"}},
		{"invalid version", local(func(o *apiService) { o.Name, o.Spec.Version = "1.example.com", "1" }), []string{"spec.version: Invalid value"}},
		{"priorities", local(func(o *apiService) { o.Spec.GroupPriorityMinimum, o.Spec.VersionPriority = 20001, 0 }), []string{
			"spec.groupPriorityMinimum: Invalid value: must be positive and less than 20000", "spec.versionPriority: Invalid value: must be positive and less than 1000",
		}},
		{"local with TLS", local(func(o *apiService) { o.Spec.CABundle, o.Spec.InsecureSkipTLSVerify = []byte("ca"), true }), []string{
			"spec.caBundle: Invalid value: local APIServices may not have a caBundle", "spec.insecureSkipTLSVerify: Invalid value: local APIServices may not have insecureSkipTLSVerify",
		}},
		{"empty service", remote(func(o *apiService) { o.Spec.Service = &apiregistrationv1.ServiceReference{Port: ptr.To[int32](70000)} }), []string{
			"spec.service.namespace: Required value", "spec.service.name: Required value",
			"spec.service.port: Invalid value: port is not valid: must be between 1 and 65535, inclusive",
		}},
		{"insecure with CA", remote(func(o *apiService) { o.Spec.CABundle, o.Spec.InsecureSkipTLSVerify = []byte("ca"), true }), []string{
			"spec.insecureSkipTLSVerify: Invalid value: may not be true if caBundle is present",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.Create(APIService, &kind.Request{}, test.obj)
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestDefaultsAndStatus(t *testing.T) {
	now := metav1.Now()
	created, errs := kindtest.Create(APIService, &kind.Request{Now: now}, local())
	kindtest.Errors(t, errs)
	if want := []apiregistrationv1.APIServiceCondition{LocalCondition(now)}; !reflect.DeepEqual(created.Status.Conditions, want) {
		t.Errorf("a local APIService is available at once: %+v", created.Status)
	}
	created, errs = kindtest.Create(APIService, &kind.Request{Now: now}, remote())
	kindtest.Errors(t, errs)
	if len(created.Status.Conditions) != 0 || *created.Spec.Service.Port != 443 {
		t.Errorf("%+v", created)
	}
	changed := created.DeepCopy()
	changed.Labels = map[string]string{"a": "b"}
	changed.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: "Available", Status: "Maybe"}}
	updated, errs := kindtest.UpdateSubresource(APIService, "status", nil, changed, created)
	kindtest.Errors(t, errs, "status.conditions[0].status: Unsupported value")
	if updated.Spec.Service == nil {
		t.Error("a status update changes the specification")
	}
	if APIService.AllowUnconditionalUpdate {
		t.Error("updates need a resourceVersion")
	}
}

func TestConditions(t *testing.T) {
	var status apiregistrationv1.APIServiceStatus
	first, later := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	set := func(value apiregistrationv1.ConditionStatus, reason string, at metav1.Time) apiregistrationv1.APIServiceCondition {
		SetCondition(&status, apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: value, Reason: reason, LastTransitionTime: at})
		return *Condition(&status, apiregistrationv1.Available)
	}
	set(apiregistrationv1.ConditionFalse, "ServiceNotFound", first)
	if c := set(apiregistrationv1.ConditionFalse, "MissingEndpoints", later); c.Reason != "MissingEndpoints" || c.LastTransitionTime != first {
		t.Errorf("%+v", c)
	}
	if c := set(apiregistrationv1.ConditionTrue, "Passed", later); c.LastTransitionTime != later || len(status.Conditions) != 1 {
		t.Errorf("%+v", status)
	}
}

func TestRows(t *testing.T) {
	now := time.Now()
	available := func(status apiregistrationv1.ConditionStatus, reason string) func(*apiService) {
		return func(o *apiService) {
			o.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
			o.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: status, Reason: reason}}
		}
	}
	for _, test := range []struct {
		obj  *apiService
		want []any
	}{
		{local(available("True", "Local")), []any{"v1.example.com", "Local", "True", "60s"}},
		{remote(available("False", "MissingEndpoints")), []any{"v1.example.com", "team/api", "False (MissingEndpoints)", "60s"}},
		{remote(available("Unknown", "")), []any{"v1.example.com", "team/api", "Unknown", "60s"}},
		{remote(), []any{"v1.example.com", "team/api", "Unknown", "<unknown>"}},
	} {
		if got := APIService.Row(test.obj, now); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%v, want %v", got, test.want)
		}
	}
}

// TestRoundTrip: both encodings have everything. The module has no example objects.
func TestRoundTrip(t *testing.T) {
	obj := remote(func(o *apiService) {
		o.Spec.CABundle, o.Spec.Service.Port = []byte("ca"), ptr.To[int32](8443)
		o.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: "Available", Status: "True", Reason: "Passed", Message: "all checks passed", LastTransitionTime: metav1.Unix(1, 0)}}
	})
	message, err := obj.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var fromMessage, fromText apiService
	if err := fromMessage.Unmarshal(message); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &fromText); err != nil {
		t.Fatal(err)
	}
	for _, decoded := range []*apiService{&fromMessage, &fromText} {
		if again, err := json.Marshal(decoded); err != nil || string(again) != string(text) {
			t.Errorf("%s %v, want %s", again, err, text)
		}
	}
}

func TestPriorities(t *testing.T) {
	if PriorityOf(schema.GroupVersion{Group: "autoscaling", Version: "v2"}).Version <= PriorityOf(schema.GroupVersion{Group: "autoscaling", Version: "v1"}).Version {
		t.Error("autoscaling/v2 is preferred")
	}
	order := []schema.GroupVersion{
		{Group: "apiregistration.k8s.io", Version: "v1"}, {Version: "v1"}, {Group: "apps", Version: "v1"}, {Group: "storagemigration.k8s.io", Version: "v1"},
		{Group: "example.com", Version: "v1"}, {Group: "metrics.k8s.io", Version: "v1beta1"},
	}
	for i := range order[1:] {
		if PriorityOf(order[i]).Group <= PriorityOf(order[i+1]).Group {
			t.Errorf("%s comes before %s", order[i], order[i+1])
		}
	}
	for _, gv := range []schema.GroupVersion{order[0], order[4], order[5]} {
		if _, ok := RegisteredPriority(gv); ok {
			t.Errorf("%s has no APIService of its own", gv)
		}
	}
}
