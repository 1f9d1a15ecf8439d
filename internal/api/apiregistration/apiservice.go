// Package apiregistration has the kind of apiregistration.k8s.io: APIService, which says who serves a group version. It also has the
// priorities of the group versions that the API server serves itself.
package apiregistration

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"skiff/internal/kind"
)

type apiService = apiregistrationv1.APIService

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind { return []*kind.Kind{APIService} }

// APIService registers a group version of this server or of one behind a Service.
var APIService = kind.Of(kind.Definition[*apiService]{
	GVK: apiregistrationv1.SchemeGroupVersion.WithKind("APIService"), Plural: "apiservices", Categories: []string{"api-extensions"},
	Prefix:                  "apiregistration.k8s.io/apiservices",
	List:                    &apiregistrationv1.APIServiceList{},
	ValidateName:            path.ValidatePathSegmentName,
	Default:                 apiregistrationv1.SetObjectDefaults_APIService,
	Prepare:                 prepare,
	Validate:                validateAPIService,
	CopyStatus:              func(to, from *apiService) { to.Status = from.Status },
	StatusOnly:              true,
	ValidateStatus:          validateStatus,
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Service", "string", "The reference to the service that hosts this API endpoint."),
		kind.Column("Available", "string", "Whether this service is available."),
		kind.AgeColumn(),
	},
	Row: func(obj *apiService, now time.Time) []any {
		return []any{obj.Name, serviceOf(obj), availability(obj), kind.Age(obj.CreationTimestamp, now)}
	},
})

// prepare makes a new local APIService available at once.
func prepare(req *kind.Request, obj, old *apiService) {
	if old == nil && obj.Spec.Service == nil {
		SetCondition(&obj.Status, LocalCondition(req.Now))
	}
}

func serviceOf(obj *apiService) string {
	if s := obj.Spec.Service; s != nil {
		return s.Namespace + "/" + s.Name
	}
	return "Local"
}

func availability(obj *apiService) string {
	c := Condition(&obj.Status, apiregistrationv1.Available)
	switch {
	case c == nil:
		return string(apiregistrationv1.ConditionUnknown)
	case c.Status != apiregistrationv1.ConditionTrue && c.Reason != "":
		return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
	}
	return string(c.Status)
}

// NameOf is the name of the APIService of a group version.
func NameOf(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

// LocalCondition is the condition Available of every local APIService.
func LocalCondition(now metav1.Time) apiregistrationv1.APIServiceCondition {
	return apiregistrationv1.APIServiceCondition{
		Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, LastTransitionTime: now,
		Reason: "Local", Message: "Local APIServices are always available",
	}
}

// Condition returns the condition of a type, nil if there is none.
func Condition(status *apiregistrationv1.APIServiceStatus, wanted apiregistrationv1.APIServiceConditionType) *apiregistrationv1.APIServiceCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == wanted {
			return &status.Conditions[i]
		}
	}
	return nil
}

// SetCondition adds or replaces a condition. It keeps the time of the last transition unless the status changes.
func SetCondition(status *apiregistrationv1.APIServiceStatus, c apiregistrationv1.APIServiceCondition) {
	found := Condition(status, c.Type)
	if found == nil {
		status.Conditions = append(status.Conditions, c)
		return
	}
	if found.Status == c.Status {
		c.LastTransitionTime = found.LastTransitionTime
	}
	*found = c
}
