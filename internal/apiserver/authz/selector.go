package authz

import (
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"skiff/internal/apiserver/authn"
)

// The requirements of a selector are joined by "and". A requirement that cannot be parsed is dropped: the request to authorize
// becomes wider, so that it is never allowed wrongly.

// FieldRequirements are the requirements of the request's field selector. Those that could be parsed are returned along with an error.
func (a *Attributes) FieldRequirements() (fields.Requirements, error) {
	if a.FieldSelector == "" {
		return a.Fields, nil
	}
	selector, err := fields.ParseSelector(a.FieldSelector)
	if err != nil {
		return nil, err
	}
	return selector.Requirements(), nil
}

// LabelRequirements are the requirements of the request's label selector.
func (a *Attributes) LabelRequirements() (labels.Requirements, error) {
	if a.LabelSelector == "" {
		return a.Labels, nil
	}
	selector, err := labels.Parse(a.LabelSelector)
	if err != nil {
		return nil, err
	}
	requirements, _ := selector.Requirements()
	return requirements, nil
}

// selects reports whether the request is limited to objects whose field has the value.
func (a *Attributes) selects(field, value string) bool {
	requirements, _ := a.FieldRequirements()
	for _, r := range requirements {
		if r.Field == field && r.Operator == selection.Equals && r.Value == value {
			return true
		}
	}
	return false
}

// ReviewAttributes are the attributes of an access review; one of resource and path is nil. The error describes requirements of
// selectors that could not be parsed and were dropped.
func ReviewAttributes(user authn.User, resource *authorizationv1.ResourceAttributes, path *authorizationv1.NonResourceAttributes) (*Attributes, error) {
	a := &Attributes{User: user}
	if resource == nil {
		a.Verb, a.Path = path.Verb, path.Path
		return a, nil
	}
	a.ResourceRequest, a.Verb, a.Group, a.Version = true, resource.Verb, resource.Group, resource.Version
	a.Resource, a.Subresource, a.Namespace, a.Name = resource.Resource, resource.Subresource, resource.Namespace, resource.Name
	if a.Version == "" {
		a.Version = "*"
	}
	var errs []error
	if s := resource.FieldSelector; s != nil {
		var err error
		if a.Fields, err = parseFieldRequirements(s); err != nil {
			errs = append(errs, fmt.Errorf("field selector: %w", err))
		}
	}
	if s := resource.LabelSelector; s != nil {
		var err error
		if a.Labels, err = parseLabelRequirements(s); err != nil {
			errs = append(errs, fmt.Errorf("label selector: %w", err))
		}
	}
	return a, utilerrors.NewAggregate(errs)
}

func parseFieldRequirements(s *authorizationv1.FieldSelectorAttributes) (fields.Requirements, error) {
	if len(s.Requirements) == 0 {
		return (&Attributes{FieldSelector: s.RawSelector}).FieldRequirements()
	}
	var result fields.Requirements
	var errs []error
	for _, r := range s.Requirements {
		operator := selection.Equals
		switch r.Operator {
		case metav1.FieldSelectorOpIn:
		case metav1.FieldSelectorOpNotIn:
			operator = selection.NotEquals
		case metav1.FieldSelectorOpExists, metav1.FieldSelectorOpDoesNotExist:
			errs = append(errs, fmt.Errorf("operator %s is not supported", r.Operator))
			continue
		default:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", r.Operator))
			continue
		}
		if len(r.Values) != 1 {
			errs = append(errs, fmt.Errorf("field %q must be compared with one value", r.Key))
			continue
		}
		result = append(result, fields.Requirement{Field: r.Key, Operator: operator, Value: r.Values[0]})
	}
	return result, utilerrors.NewAggregate(errs)
}

var labelOperators = map[metav1.LabelSelectorOperator]selection.Operator{
	metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
	metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
}

func parseLabelRequirements(s *authorizationv1.LabelSelectorAttributes) (labels.Requirements, error) {
	if len(s.Requirements) == 0 {
		return (&Attributes{LabelSelector: s.RawSelector}).LabelRequirements()
	}
	var result labels.Requirements
	var errs []error
	for _, r := range s.Requirements {
		operator, ok := labelOperators[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", r.Operator))
			continue
		}
		requirement, err := labels.NewRequirement(r.Key, operator, r.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		result = append(result, *requirement)
	}
	return result, utilerrors.NewAggregate(errs)
}

// Review converts the attributes to an access review, which is sent to webhooks.
func (a *Attributes) Review() authorizationv1.SubjectAccessReviewSpec {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: a.User.Username, UID: a.User.UID, Groups: a.User.Groups, Extra: reviewExtra(a.User.Extra),
	}
	if !a.ResourceRequest {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: a.Path, Verb: a.Verb}
		return spec
	}
	resource := &authorizationv1.ResourceAttributes{
		Namespace: a.Namespace, Verb: a.Verb, Group: a.Group, Version: a.Version,
		Resource: a.Resource, Subresource: a.Subresource, Name: a.Name,
	}
	if result := a.reviewFields(); len(result) > 0 {
		resource.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: result}
	}
	if result := a.reviewLabels(); len(result) > 0 {
		resource.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: result}
	}
	spec.ResourceAttributes = resource
	return spec
}

func (a *Attributes) reviewFields() []metav1.FieldSelectorRequirement {
	requirements, _ := a.FieldRequirements()
	var result []metav1.FieldSelectorRequirement
	for _, r := range requirements {
		w := metav1.FieldSelectorRequirement{Key: r.Field, Values: []string{r.Value}}
		switch r.Operator {
		case selection.Equals, selection.DoubleEquals, selection.In:
			w.Operator = metav1.FieldSelectorOpIn
		case selection.NotEquals, selection.NotIn:
			w.Operator = metav1.FieldSelectorOpNotIn
		default:
			continue
		}
		result = append(result, w)
	}
	return result
}

func (a *Attributes) reviewLabels() []metav1.LabelSelectorRequirement {
	requirements, _ := a.LabelRequirements()
	var result []metav1.LabelSelectorRequirement
	for _, r := range requirements {
		w := metav1.LabelSelectorRequirement{Key: r.Key()}
		if values := r.ValuesUnsorted(); len(values) > 0 {
			w.Values = values
		}
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			w.Operator = metav1.LabelSelectorOpIn
		case selection.NotEquals, selection.NotIn:
			w.Operator = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			w.Operator = metav1.LabelSelectorOpExists
		case selection.DoesNotExist:
			w.Operator = metav1.LabelSelectorOpDoesNotExist
		default:
			continue
		}
		result = append(result, w)
	}
	return result
}

func reviewExtra(extra map[string]authenticationv1.ExtraValue) map[string]authorizationv1.ExtraValue {
	if extra == nil {
		return nil
	}
	result := make(map[string]authorizationv1.ExtraValue, len(extra))
	for key, values := range extra {
		result[key] = authorizationv1.ExtraValue(values)
	}
	return result
}
