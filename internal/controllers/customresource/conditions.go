package customresource

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	apiextensionskind "skiff/internal/api/apiextensions"
	"skiff/internal/api/webhookconfig"
)

type (
	status    = apiextensionsv1.CustomResourceDefinitionStatus
	condition = apiextensionsv1.CustomResourceDefinitionCondition
)

// view is what the conditions of a definition depend on.
type view struct {
	crd *definition
	// conflicts are the requested names that other definitions use.
	conflicts map[name]bool
	// unchecked: the schema or the approval may have changed since their conditions were computed.
	unchecked bool
	// served: this server serves the definition; servingErr is why it cannot.
	served     bool
	servingErr error
	delay      time.Duration
	now        metav1.Time
}

// reconcile returns the status of a definition, and when it has to be computed again; 0: only after a change.
func reconcile(v view) (next status, requeueAfter time.Duration) {
	next = *v.crd.Status.DeepCopy()
	if !equality.Semantic.DeepEqual(v.crd.Spec.Names, v.crd.Status.AcceptedNames) {
		v.acceptNames(&next)
	}
	if isTrue(&v.crd.Status, apiextensionsv1.NamesAccepted) && isTrue(&next, apiextensionsv1.NamesAccepted) && !isTrue(&next, apiextensionsv1.Established) {
		requeueAfter = v.establish(&next)
	}
	if v.unchecked {
		v.checkStructure(&next)
		if approval := approvalCondition(v.crd); approval != nil {
			v.set(&next, *approval)
		}
	}
	return next, requeueAfter
}

// acceptNames accepts the requested names as far as no other definition uses them.
func (v *view) acceptNames(next *status) {
	group, requested, accepted := v.crd.Spec.Group, &v.crd.Spec.Names, &next.AcceptedNames
	accepting := condition{
		Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found",
	}
	refuse := func(reason string, err error) {
		accepting.Status, accepting.Reason, accepting.Message = apiextensionsv1.ConditionFalse, reason, err.Error()
	}
	accept := func(to *string, requested string, isKind bool, reason string) {
		if *to != requested && v.conflicts[name{group, isKind, requested}] {
			refuse(reason, inUse(requested))
			return
		}
		*to = requested
	}
	accept(&accepted.Plural, requested.Plural, false, "PluralConflict")
	accept(&accepted.Singular, requested.Singular, false, "SingularConflict")
	var taken []error
	for _, short := range requested.ShortNames {
		if v.conflicts[name{group, false, short}] && !slices.Contains(accepted.ShortNames, short) {
			taken = append(taken, inUse(short))
		}
	}
	if err := utilerrors.NewAggregate(taken); err != nil {
		refuse("ShortNamesConflict", err)
	} else {
		accepted.ShortNames = slices.Clone(requested.ShortNames)
	}
	accept(&accepted.Kind, requested.Kind, true, "KindConflict")
	accept(&accepted.ListKind, requested.ListKind, true, "ListKindConflict")
	accepted.Categories = slices.Clone(requested.Categories)
	v.set(next, accepting)
	v.prepareEstablishing(next)
}

func inUse(name string) error { return fmt.Errorf("%q is already in use", name) }

// prepareEstablishing sets the condition Established after names were accepted or refused. A definition that is established stays so.
func (v *view) prepareEstablishing(next *status) {
	switch {
	case isTrue(next, apiextensionsv1.Established):
	case isTrue(next, apiextensionsv1.NamesAccepted):
		v.set(next, condition{
			Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse, Reason: "Installing", Message: "the initial names have been accepted",
		})
	case find(next, apiextensionsv1.Established) == nil:
		v.set(next, condition{
			Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse, Reason: "NotAccepted", Message: "not all names are accepted",
		})
	}
}

// establish sets the condition Established when the resource is served.
func (v *view) establish(next *status) (requeueAfter time.Duration) {
	established := condition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue, Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
	}
	switch {
	case hasInvalidCABundle(v.crd):
		established.Status, established.Reason, established.Message = apiextensionsv1.ConditionFalse, "InvalidCABundle", "The conversion webhook CABundle is invalid"
	case v.servingErr != nil:
		established.Status, established.Reason, established.Message = apiextensionsv1.ConditionFalse, "Installing", v.servingErr.Error()
	case !v.served:
		return 0 // the definition is enqueued when it is
	case v.delay > 0:
		// Timestamps have a resolution of a second.
		accepted := find(next, apiextensionsv1.NamesAccepted).LastTransitionTime
		if left := accepted.Add(v.delay + time.Second).Sub(v.now.Time); left > 0 {
			return left
		}
	}
	v.set(next, established)
	return 0
}

func hasInvalidCABundle(crd *definition) bool {
	conversion := crd.Spec.Conversion
	return conversion != nil && conversion.Webhook != nil && conversion.Webhook.ClientConfig != nil &&
		len(webhookconfig.ValidateCABundle(conversion.Webhook.ClientConfig.CABundle, field.NewPath("caBundle"))) > 0
}

// checkStructure sets the condition NonStructuralSchema if a schema is not structural, and removes it otherwise. Only definitions that are
// older than the requirement can have such schemas.
func (v *view) checkStructure(next *status) {
	violated := condition{Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue, Reason: "Violations"}
	var errs field.ErrorList
	simple := apiextensionskind.HasSimpleSchemas(v.crd)
	if v.crd.Spec.PreserveUnknownFields {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	for i := range v.crd.Spec.Versions {
		version := &v.crd.Spec.Versions[i]
		if simple || version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			continue
		}
		structural, err := structuralOf(version.Schema)
		if err != nil {
			violated.Status, violated.Reason = apiextensionsv1.ConditionUnknown, "StructuralError"
			violated.Message = fmt.Sprintf("failed to check validation schema for version %s: %v", version.Name, err)
			v.set(next, violated)
			return
		}
		errs = append(errs, structuralschema.ValidateStructural(field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"), structural)...)
	}
	if len(errs) == 0 {
		next.Conditions = slices.DeleteFunc(next.Conditions, func(c condition) bool { return c.Type == apiextensionsv1.NonStructuralSchema })
		return
	}
	violated.Message = errs.ToAggregate().Error()
	v.set(next, violated)
}

func structuralOf(schema *apiextensionsv1.CustomResourceValidation) (*structuralschema.Structural, error) {
	converted := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(schema, converted, nil); err != nil {
		return nil, err
	}
	return structuralschema.NewStructural(converted.OpenAPIV3Schema)
}

// approvalCondition tells whether a definition in a group of the Kubernetes project is approved; nil for other groups.
func approvalCondition(crd *definition) *condition {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	c := &condition{Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant, Status: apiextensionsv1.ConditionFalse, Message: message}
	switch state {
	case apihelpers.APIApproved:
		c.Status, c.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		c.Reason = "UnapprovedAnnotation"
	case apihelpers.APIApprovalMissing:
		c.Reason = "MissingAnnotation"
	default:
		c.Reason = "InvalidAnnotation"
	}
	return c
}

// hasCurrentConditions reports whether the conditions NonStructuralSchema and KubernetesAPIApprovalPolicyConformant of a definition, which may be trimmed, need not be computed.
// A schema that is not structural can only be replaced by one that is.
func hasCurrentConditions(crd *definition) bool {
	if find(&crd.Status, apiextensionsv1.NonStructuralSchema) != nil {
		return false
	}
	want, have := approvalCondition(crd), find(&crd.Status, apiextensionsv1.KubernetesAPIApprovalPolicyConformant)
	return want == nil || have != nil && have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message
}

// set sets a condition. The time changes with the status only.
func (v *view) set(s *status, c condition) { setCondition(s, c, v.now) }

func setCondition(s *status, c condition, now metav1.Time) {
	c.LastTransitionTime = now
	old := find(s, c.Type)
	if old == nil {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if old.Status == c.Status && !old.LastTransitionTime.IsZero() {
		c.LastTransitionTime = old.LastTransitionTime
	}
	c.ObservedGeneration = old.ObservedGeneration
	*old = c
}

func find(s *status, wanted apiextensionsv1.CustomResourceDefinitionConditionType) *condition {
	i := slices.IndexFunc(s.Conditions, func(c condition) bool { return c.Type == wanted })
	if i < 0 {
		return nil
	}
	return &s.Conditions[i]
}

func isTrue(s *status, wanted apiextensionsv1.CustomResourceDefinitionConditionType) bool {
	found := find(s, wanted)
	return found != nil && found.Status == apiextensionsv1.ConditionTrue
}
