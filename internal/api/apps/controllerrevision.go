package apps

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// ControllerRevision is the state of a workload at one time. Its data never changes.
var ControllerRevision = kind.Of(kind.Definition[*appsv1.ControllerRevision]{
	GVK: appsv1.SchemeGroupVersion.WithKind("ControllerRevision"), Plural: "controllerrevisions", Namespaced: true,
	List:     &appsv1.ControllerRevisionList{},
	Validate: validateControllerRevision,
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Controller", "string", "Controller of the object"),
		kind.Column("Revision", "string", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
		kind.AgeColumn(),
	},
	Row: func(revision *appsv1.ControllerRevision, now time.Time) []any {
		controller := "<none>"
		if owner := metav1.GetControllerOfNoCopy(revision); owner != nil {
			controller = owner.Name
			if gk := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind(); !gk.Empty() {
				controller = strings.ToLower(gk.String()) + "/" + owner.Name
			}
		}
		return []any{revision.Name, controller, revision.Revision, kind.Age(revision.CreationTimestamp, now)}
	},
})

func validateControllerRevision(_ *kind.Request, revision, old *appsv1.ControllerRevision) field.ErrorList {
	data := field.NewPath("data")
	errs := validation.ValidateNonnegativeField(revision.Revision, field.NewPath("revision"))
	if old != nil {
		return append(errs, validation.ValidateImmutableField(revision.Data, old.Data, data)...)
	}
	if revision.Data.Raw == nil {
		return append(errs, field.Required(data, "data is mandatory"))
	}
	var value any
	if err := json.Unmarshal(revision.Data.Raw, &value); err != nil {
		return append(errs, field.Invalid(data, "<value omitted>", fmt.Sprintf("error parsing data: %v", err)))
	}
	switch value.(type) {
	case nil:
		errs = append(errs, field.Required(data, "data is mandatory"))
	case map[string]any:
	default:
		errs = append(errs, field.Required(data, "data must be a valid JSON object"))
	}
	return errs
}
