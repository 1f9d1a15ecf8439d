package apiextensions

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/webhookconfig"
	"skiff/internal/kind"
)

// maxSelectableFields is the number of selectable fields of a version.
const maxSelectableFields = 8

var (
	columnTypes   = []string{"boolean", "date", "integer", "number", "string"}
	columnFormats = []string{"byte", "date", "date-time", "double", "float", "int32", "int64", "password"}
	// reviewVersions are the versions of ConversionReview that the API server can send.
	reviewVersions = []string{"v1", "v1beta1"}
)

// hoisted returns the definition in the form with common fields at the top level. It shares memory with crd.
func hoisted(crd *definition) (*apiextensions.CustomResourceDefinition, error) {
	out := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, out, nil); err != nil {
		return nil, fmt.Errorf("convert definition: %w", err)
	}
	return out, nil
}

// validateDefinition validates a definition, and the change if old is not nil.
func validateDefinition(_ *kind.Request, crd, old *definition) field.ErrorList {
	if HasSimpleSchemas(crd) && !hasSelectableFields(crd) {
		// Without allowances and without schemas there are at least the errors besides those of schemas. Only the definition itself has their values.
		strict := &validator{allow: allowances{invalidCABundle: old == nil}}
		if next, err := hoisted(withSmallSchemas(crd)); err == nil && len(strict.definition(crd, old, next)) == 0 {
			return nil
		}
	}
	next, err := hoisted(crd)
	if err != nil {
		return field.ErrorList{field.Invalid(field.NewPath("spec"), "", err.Error())}
	}
	v := &validator{allow: allowances{invalidCABundle: true}}
	if old != nil {
		previous, err := hoisted(old)
		if err != nil {
			return field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
		}
		v.allow = allowancesFor(next, previous)
	}
	return v.definition(crd, old, next)
}

// definition validates a definition, of which next is the hoisted form, and the change if old is not nil.
func (v *validator) definition(crd, old *definition, next *apiextensions.CustomResourceDefinition) field.ErrorList {
	var errs field.ErrorList
	if old == nil && crd.Name != crd.Spec.Names.Plural+"."+crd.Spec.Group {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), crd.Name, `must be spec.names.plural+"."+spec.group`))
	}
	spec := field.NewPath("spec")
	if tooExpensive := v.compileCost(&next.Spec, spec); len(tooExpensive) > 0 {
		return append(errs, tooExpensive...)
	}
	errs = append(errs, v.spec(&next.Spec, spec)...)
	if old != nil {
		errs = append(errs, validateImmutable(crd, old, spec)...)
	}
	status := field.NewPath("status")
	errs = append(errs, validateNames(&next.Status.AcceptedNames, status.Child("acceptedNames"))...)
	errs = append(errs, validateStoredVersions(&next.Status, next.Spec.Versions, status.Child("storedVersions"))...)
	errs = append(errs, validateApproval(crd, old)...)
	if crd.Spec.PreserveUnknownFields && (old == nil || !old.Spec.PreserveUnknownFields) {
		errs = append(errs, field.Invalid(spec.Child("preserveUnknownFields"), true,
			"cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"))
	}
	return errs
}

// validateDefinitionStatus validates a new status.
func validateDefinitionStatus(_ *kind.Request, crd, _ *definition) field.ErrorList {
	names := &apiextensions.CustomResourceDefinitionNames{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinitionNames_To_apiextensions_CustomResourceDefinitionNames(&crd.Status.AcceptedNames, names, nil); err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("status", "acceptedNames"), err)}
	}
	return validateNames(names, field.NewPath("status", "acceptedNames"))
}

// validateImmutable validates that what objects in the store depend on has not changed.
func validateImmutable(crd, old *definition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if apihelpers.IsCRDConditionTrue(old, apiextensionsv1.Established) {
		errs = append(errs, validation.ValidateImmutableField(crd.Spec.Scope, old.Spec.Scope, path.Child("scope"))...)
		errs = append(errs, validation.ValidateImmutableField(crd.Spec.Names.Kind, old.Spec.Names.Kind, path.Child("names", "kind"))...)
	}
	errs = append(errs, validation.ValidateImmutableField(crd.Spec.Group, old.Spec.Group, path.Child("group"))...)
	return append(errs, validation.ValidateImmutableField(crd.Spec.Names.Plural, old.Spec.Names.Plural, path.Child("names", "plural"))...)
}

// validateStoredVersions validates that every version in which objects may be stored is still defined.
func validateStoredVersions(status *apiextensions.CustomResourceDefinitionStatus, versions []apiextensions.CustomResourceDefinitionVersion, path *field.Path) field.ErrorList {
	stored := status.StoredVersions
	if len(stored) == 0 {
		return field.ErrorList{field.Invalid(path, stored, "must have at least one stored version")}
	}
	var errs field.ErrorList
	defined := sets.New[string]()
	for _, version := range versions {
		defined.Insert(version.Name)
		if version.Storage && !slices.Contains(stored, version.Name) {
			errs = append(errs, field.Invalid(path, stored, "must have the storage version "+version.Name))
		}
	}
	for i, name := range stored {
		if !defined.Has(name) {
			errs = append(errs, field.Invalid(path.Index(i), name, fmt.Sprintf("missing from spec.versions; %[1]s was previously a storage version, "+
				"and must remain in spec.versions until a storage migration ensures no data remains persisted in %[1]s and removes %[1]s from status.storedVersions", name)))
		}
	}
	return errs
}

// validateApproval validates the annotation that definitions in the groups of the Kubernetes project need. A state that was stored is kept.
func validateApproval(crd, old *definition) field.ErrorList {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	state, reason := apihelpers.GetAPIApprovalState(crd.Annotations)
	if old != nil {
		if previous, _ := apihelpers.GetAPIApprovalState(old.Annotations); previous == state {
			return nil
		}
	}
	path := field.NewPath("metadata", "annotations").Key(apiextensionsv1.KubeAPIApprovedAnnotation)
	switch state {
	case apihelpers.APIApproved, apihelpers.APIApprovalBypassed:
		return nil
	case apihelpers.APIApprovalMissing:
		return field.ErrorList{field.Required(path, reason)}
	}
	return field.ErrorList{field.Invalid(path, crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation], reason)}
}

// validator validates one definition.
type validator struct {
	allow allowances
	// conversions is the number of schemas that were converted for themselves; see structuralOf.
	conversions int
}

// spec validates the specification.
func (v *validator) spec(spec *apiextensions.CustomResourceDefinitionSpec, path *field.Path) field.ErrorList {
	errs := validateGroup(spec.Group, path.Child("group"))
	switch scope := path.Child("scope"); spec.Scope {
	case "":
		errs = append(errs, field.Required(scope, ""))
	case apiextensions.ClusterScoped, apiextensions.NamespaceScoped:
	default:
		errs = append(errs, field.NotSupported(scope, string(spec.Scope), []string{string(apiextensions.ClusterScoped), string(apiextensions.NamespaceScoped)}))
	}
	preserves := spec.PreserveUnknownFields == nil || *spec.PreserveUnknownFields
	errs = append(errs, v.requireSchemas(spec, path)...)
	if specContains(spec, hasDefault) {
		v.allow.nonStructural = false
		if preserves {
			errs = append(errs, field.Invalid(path.Child("preserveUnknownFields"), true, "must be false in order to use defaults in the schema"))
		}
	}
	if specContains(spec, hasExtension) {
		v.allow.nonStructural = false
	}
	errs = append(errs, v.versions(spec, path)...)
	errs = append(errs, validateRequiredNames(&spec.Names, path.Child("names"))...)
	errs = append(errs, v.schemaOf(spec.Validation, anyStatus(spec), v.allow.unchangedSchemas.Has(spec.Version), path.Child("validation"))...)
	errs = append(errs, validateSubresources(spec.Subresources, path.Child("subresources"))...)
	errs = append(errs, validateColumns(spec.AdditionalPrinterColumns, path.Child("additionalPrinterColumns"))...)
	if len(spec.SelectableFields) > 0 {
		if spec.Validation == nil {
			errs = append(errs, field.Invalid(path.Child("selectableFields"), "", "may only be set when validations.schema is included"))
		} else {
			errs = append(errs, v.selectableFields(spec.SelectableFields, spec.Validation, "", path)...)
		}
	}
	if spec.Conversion != nil && spec.Conversion.Strategy != apiextensions.NoneConverter && preserves {
		errs = append(errs, field.Invalid(path.Child("conversion", "strategy"), spec.Conversion.Strategy, "must be None if spec.preserveUnknownFields is true"))
	}
	return append(errs, v.conversion(spec.Conversion, path.Child("conversion"))...)
}

func validateGroup(group string, path *field.Path) field.ErrorList {
	if group == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if messages := utilvalidation.IsDNS1123Subdomain(group); len(messages) > 0 {
		return field.ErrorList{field.Invalid(path, group, strings.Join(messages, ","))}
	}
	if !strings.Contains(group, ".") {
		return field.ErrorList{field.Invalid(path, group, "should be a domain with at least one dot")}
	}
	return nil
}

// requireSchemas validates that versions have schemas. Without preserveUnknownFields schemas must be structural.
func (v *validator) requireSchemas(spec *apiextensions.CustomResourceDefinitionSpec, path *field.Path) field.ErrorList {
	preserves := spec.PreserveUnknownFields != nil && *spec.PreserveUnknownFields
	if !preserves {
		v.allow.nonStructural = false
	}
	if spec.Validation != nil && spec.Validation.OpenAPIV3Schema != nil {
		return nil
	}
	var errs field.ErrorList
	for i, version := range spec.Versions {
		if version.Schema != nil && version.Schema.OpenAPIV3Schema != nil {
			continue
		}
		schema := path.Child("versions").Index(i).Child("schema", "openAPIV3Schema")
		switch {
		case !v.allow.noSchema:
			errs = append(errs, field.Required(schema, ""))
		case !preserves && version.Served:
			errs = append(errs, field.Required(schema, "because otherwise all fields are pruned"))
		}
	}
	return errs
}

// versions validates the list of versions.
func (v *validator) versions(spec *apiextensions.CustomResourceDefinitionSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	list := path.Child("versions")
	storage, names := 0, sets.New[string]()
	for i := range spec.Versions {
		version := &spec.Versions[i]
		if version.Storage {
			storage++
		}
		names.Insert(version.Name)
		if messages := utilvalidation.IsDNS1035Label(version.Name); len(messages) > 0 {
			errs = append(errs, field.Invalid(list.Index(i).Child("name"), version.Name, strings.Join(messages, ",")))
		}
		errs = append(errs, v.version(version, hasStatus(subresourcesOf(spec, version)), list.Index(i))...)
	}
	if names.Len() != len(spec.Versions) {
		errs = append(errs, field.Invalid(list, spec.Versions, "must contain unique version names"))
	}
	if storage != 1 {
		errs = append(errs, field.Invalid(list, spec.Versions, "must have exactly one version marked as storage version"))
	}
	if spec.Version != "" {
		if messages := utilvalidation.IsDNS1035Label(spec.Version); len(messages) > 0 {
			errs = append(errs, field.Invalid(path.Child("version"), spec.Version, strings.Join(messages, ",")))
		}
	}
	return errs
}

// subresourcesOf are the subresources of a version: its own, unless all versions have the same.
func subresourcesOf(spec *apiextensions.CustomResourceDefinitionSpec, version *apiextensions.CustomResourceDefinitionVersion) *apiextensions.CustomResourceSubresources {
	for i := range spec.Versions {
		if spec.Versions[i].Subresources != nil {
			return version.Subresources
		}
	}
	return spec.Subresources
}

func hasStatus(subresources *apiextensions.CustomResourceSubresources) bool {
	return subresources != nil && subresources.Status != nil
}

// anyStatus reports whether a version has the status subresource.
func anyStatus(spec *apiextensions.CustomResourceDefinitionSpec) bool {
	return hasStatus(spec.Subresources) || slices.ContainsFunc(spec.Versions, func(version apiextensions.CustomResourceDefinitionVersion) bool {
		return hasStatus(version.Subresources)
	})
}

// version validates what one version does not share with all others.
func (v *validator) version(version *apiextensions.CustomResourceDefinitionVersion, status bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, message := range validateDeprecationWarning(version.Deprecated, version.DeprecationWarning) {
		errs = append(errs, field.Invalid(path.Child("deprecationWarning"), version.DeprecationWarning, message))
	}
	errs = append(errs, v.schemaOf(version.Schema, status, v.allow.unchangedSchemas.Has(version.Name), path.Child("schema"))...)
	errs = append(errs, validateSubresources(version.Subresources, path.Child("subresources"))...)
	errs = append(errs, validateColumns(version.AdditionalPrinterColumns, path.Child("additionalPrinterColumns"))...)
	if len(version.SelectableFields) == 0 {
		return errs
	}
	if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
		return append(errs, field.Invalid(path.Child("selectableFields"), "", "may only be set when `version.schema.openAPIV3Schema` is not included"))
	}
	return append(errs, v.selectableFields(version.SelectableFields, version.Schema, version.Name, path)...)
}

func validateDeprecationWarning(deprecated bool, warning *string) (messages []string) {
	const printable = "must only contain printable UTF-8 characters"
	switch {
	case warning == nil:
		return nil
	case !deprecated:
		return []string{"can only be set for deprecated versions"}
	case len(*warning) > 256:
		messages = append(messages, "must be <= 256 characters long")
	case *warning == "":
		messages = append(messages, "must not be an empty string")
	}
	for i, r := range *warning {
		if !unicode.IsPrint(r) {
			messages = append(messages, fmt.Sprintf("%s; non-printable character found at index %d", printable, i))
			break
		}
	}
	if !utf8.ValidString(*warning) {
		messages = append(messages, printable)
	}
	return messages
}

func validateRequiredNames(names *apiextensions.CustomResourceDefinitionNames, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, required := range []struct{ name, value string }{
		{"plural", names.Plural}, {"singular", names.Singular}, {"kind", names.Kind}, {"listKind", names.ListKind},
	} {
		if required.value == "" {
			errs = append(errs, field.Required(path.Child(required.name), ""))
		}
	}
	return append(errs, validateNames(names, path)...)
}

// validateNames validates the names that are set.
func validateNames(names *apiextensions.CustomResourceDefinitionNames, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	label := func(value, text, prefix string, path *field.Path) {
		if messages := utilvalidation.IsDNS1035Label(text); len(messages) > 0 {
			errs = append(errs, field.Invalid(path, value, prefix+strings.Join(messages, ",")))
		}
	}
	const mixedCase = "may have mixed case, but should otherwise match: "
	for _, name := range []struct{ name, value, prefix string }{
		{"plural", names.Plural, ""}, {"singular", names.Singular, ""}, {"kind", names.Kind, mixedCase}, {"listKind", names.ListKind, mixedCase},
	} {
		text := name.value
		if name.prefix != "" {
			text = strings.ToLower(text)
		}
		if text != "" {
			label(name.value, text, name.prefix, path.Child(name.name))
		}
	}
	for i, short := range names.ShortNames {
		label(short, short, "", path.Child("shortNames").Index(i))
	}
	if names.Kind != "" && names.Kind == names.ListKind {
		errs = append(errs, field.Invalid(path.Child("listKind"), names.ListKind, "kind and listKind may not be the same"))
	}
	for i, category := range names.Categories {
		label(category, category, "", path.Child("categories").Index(i))
	}
	return errs
}

func validateColumns(columns []apiextensions.CustomResourceColumnDefinition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range columns {
		column, path := &columns[i], path.Index(i)
		if column.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
		}
		types := "must be one of " + strings.Join(columnTypes, ",")
		if column.Type == "" {
			errs = append(errs, field.Required(path.Child("type"), types))
		} else if !slices.Contains(columnTypes, column.Type) {
			errs = append(errs, field.Invalid(path.Child("type"), column.Type, types))
		}
		if column.Format != "" && !slices.Contains(columnFormats, column.Format) {
			errs = append(errs, field.Invalid(path.Child("format"), column.Format, "must be one of "+strings.Join(columnFormats, ",")))
		}
		if column.JSONPath == "" {
			errs = append(errs, field.Required(path.Child("JSONPath"), ""))
		} else {
			errs = append(errs, validateSimplePath(column.JSONPath, path.Child("JSONPath"))...)
		}
	}
	return errs
}

func validateSimplePath(text string, path *field.Path) field.ErrorList {
	if !strings.HasPrefix(text, ".") {
		return field.ErrorList{field.Invalid(path, text, "must be a simple json path starting with .")}
	}
	return nil
}

func validateSubresources(subresources *apiextensions.CustomResourceSubresources, path *field.Path) field.ErrorList {
	if subresources == nil || subresources.Scale == nil {
		return nil
	}
	scale := subresources.Scale
	errs := validateReplicasPath(scale.SpecReplicasPath, ".spec", path.Child("scale.specReplicasPath"))
	errs = append(errs, validateReplicasPath(scale.StatusReplicasPath, ".status", path.Child("scale.statusReplicasPath"))...)
	if scale.LabelSelectorPath == nil || *scale.LabelSelectorPath == "" {
		return errs
	}
	text, path := *scale.LabelSelectorPath, path.Child("scale.labelSelectorPath")
	if simple := validateSimplePath(text, path); len(simple) > 0 {
		return append(errs, simple...)
	}
	if !strings.HasPrefix(text, ".spec.") && !strings.HasPrefix(text, ".status.") {
		errs = append(errs, field.Invalid(path, scale.LabelSelectorPath, "should be a json path under either .spec or .status"))
	}
	return errs
}

// validateReplicasPath validates the path of a number below one of the object's fields.
func validateReplicasPath(text, below string, path *field.Path) field.ErrorList {
	if text == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if errs := validateSimplePath(text, path); len(errs) > 0 {
		return errs
	}
	if !strings.HasPrefix(text, below+".") {
		return field.ErrorList{field.Invalid(path, text, "should be a json path under "+below)}
	}
	return nil
}

// selectableFields validates the fields of field selectors. version is empty for those of all versions.
func (v *validator) selectableFields(fields []apiextensions.SelectableField, schema *apiextensions.CustomResourceValidation, version string, path *field.Path) field.ErrorList {
	structural, err := structuralschema.NewStructural(schema.OpenAPIV3Schema)
	if err != nil || structural == nil {
		// Paths cannot be checked without a schema.
		return field.ErrorList{field.Invalid(path.Child("schema.openAPIV3Schema"), "", fmt.Sprint(err))}
	}
	var errs field.ErrorList
	path = path.Child("selectableFields")
	unique := sets.New[string]()
	for i, selectable := range fields {
		text, path := selectable.JSONPath, path.Index(i).Child("jsonPath")
		if text == "" {
			errs = append(errs, field.Required(path, ""))
			continue
		}
		parsed, found, err := resolvePath(text, structural, cel.WithFieldPathAllowArrayNotation(false))
		if err != nil {
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("is an invalid path: %v", err)))
			continue
		}
		if parsed.Root().String() == "metadata" {
			errs = append(errs, field.Invalid(path, text, "must not point to fields in metadata"))
		}
		if found == nil || !slices.Contains([]string{"string", "boolean", "integer"}, found.Type) {
			errs = append(errs, field.Invalid(path, text, "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."))
		}
		if unique.Has(parsed.String()) {
			errs = append(errs, field.Duplicate(path, text))
		}
		unique.Insert(parsed.String())
	}
	if unique.Len() > maxSelectableFields && !v.allow.manySelectableFields.Has(version) {
		errs = append(errs, field.TooMany(path, unique.Len(), maxSelectableFields))
	}
	return errs
}

// conversion validates how objects are converted between versions.
func (v *validator) conversion(conversion *apiextensions.CustomResourceConversion, path *field.Path) field.ErrorList {
	if conversion == nil {
		return nil
	}
	var errs field.ErrorList
	client, reviews := path.Child("webhookClientConfig"), path.Child("conversionReviewVersions")
	switch conversion.Strategy {
	case apiextensions.WebhookConverter:
		errs = append(errs, v.clientConfig(conversion.WebhookClientConfig, client)...)
		return append(errs, v.reviewVersions(conversion.ConversionReviewVersions, reviews)...)
	case "":
		errs = append(errs, field.Required(path.Child("strategy"), ""))
	case apiextensions.NoneConverter:
	default:
		errs = append(errs, field.NotSupported(path.Child("strategy"), string(conversion.Strategy), []string{string(apiextensions.NoneConverter), string(apiextensions.WebhookConverter)}))
	}
	const forbidden = "should not be set when strategy is not set to Webhook"
	if conversion.WebhookClientConfig != nil {
		errs = append(errs, field.Forbidden(client, forbidden))
	}
	if len(conversion.ConversionReviewVersions) > 0 {
		errs = append(errs, field.Forbidden(reviews, forbidden))
	}
	return errs
}

func (v *validator) clientConfig(config *apiextensions.WebhookClientConfig, path *field.Path) field.ErrorList {
	if config == nil {
		return field.ErrorList{field.Required(path, "required when strategy is set to Webhook")}
	}
	var errs field.ErrorList
	switch {
	case (config.URL == nil) == (config.Service == nil):
		errs = append(errs, field.Required(path, "exactly one of url or service is required"))
	case config.URL != nil:
		errs = append(errs, webhookconfig.ValidateURL(*config.URL, path.Child("url"))...)
	default:
		service := webhookconfig.Service{Namespace: config.Service.Namespace, Name: config.Service.Name, Port: config.Service.Port}
		if config.Service.Path != nil {
			service.Path = *config.Service.Path
		}
		errs = append(errs, webhookconfig.ValidateService(service, path.Child("service"))...)
	}
	if len(config.CABundle) > 0 && !v.allow.invalidCABundle {
		errs = append(errs, webhookconfig.ValidateCABundle(config.CABundle, path.Child("caBundle"))...)
	}
	return errs
}

func (v *validator) reviewVersions(versions []string, path *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, version := range versions {
		if seen.Has(version) {
			errs = append(errs, field.Invalid(path.Index(i), version, "duplicate version"))
			continue
		}
		seen.Insert(version)
		errs = append(errs, kind.Invalid(path.Index(i), version, utilvalidation.IsDNS1035Label(version))...)
	}
	if !v.allow.unknownReviewVersions && !hasReviewVersion(versions) {
		errs = append(errs, field.Invalid(path, versions, "must include at least one of "+strings.Join(reviewVersions, ", ")))
	}
	return errs
}

func hasReviewVersion(versions []string) bool {
	return slices.ContainsFunc(versions, func(version string) bool { return slices.Contains(reviewVersions, version) })
}
