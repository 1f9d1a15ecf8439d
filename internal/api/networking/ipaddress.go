package networking

import (
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// IPAddress records the owner of an address: its name is the address, so that it is unique.
var IPAddress = kind.Of(kind.Definition[*networkingv1.IPAddress]{
	GVK: networkingv1.SchemeGroupVersion.WithKind("IPAddress"), Plural: "ipaddresses", Short: []string{"ip"},
	List: &networkingv1.IPAddressList{},

	ValidateName: func(name string, _ bool) (messages []string) {
		for _, err := range validation.IsValidIP(&field.Path{}, name) {
			messages = append(messages, err.Detail)
		}
		return messages
	},
	Validate: validateIPAddress,

	// The rows have an age and the columns do not; clients expect it, because upstream has it so.
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("ParentRef", "string", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]),
	},
	Row: func(obj *networkingv1.IPAddress, now time.Time) []any {
		parent := "<none>"
		if ref := obj.Spec.ParentRef; ref != nil {
			parent = strings.ToLower(schema.GroupResource{Group: ref.Group, Resource: ref.Resource}.String())
			if ref.Namespace != "" {
				parent += "/" + ref.Namespace
			}
			parent += "/" + ref.Name
		}
		return []any{obj.Name, parent, kind.Age(obj.CreationTimestamp, now)}
	},
})

func validateIPAddress(_ *kind.Request, obj, old *networkingv1.IPAddress) (errs field.ErrorList) {
	path := field.NewPath("spec", "parentRef")
	if ref := obj.Spec.ParentRef; ref == nil {
		errs = append(errs, field.Required(path, ""))
	} else {
		if ref.Group != "" {
			errs = append(errs, kind.Invalid(path.Child("group"), ref.Group, validation.IsDNS1123Subdomain(ref.Group))...)
		}
		errs = append(errs, required(path.Child("resource"), ref.Resource, content.IsPathSegmentName)...)
		errs = append(errs, required(path.Child("name"), ref.Name, content.IsPathSegmentName)...)
		if ref.Namespace != "" {
			errs = append(errs, kind.Invalid(path.Child("namespace"), ref.Namespace, content.IsPathSegmentName(ref.Namespace))...)
		}
	}
	if old != nil && !equality.Semantic.DeepEqual(obj.Spec.ParentRef, old.Spec.ParentRef) {
		errs = append(errs, field.Invalid(path, nil, apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}
