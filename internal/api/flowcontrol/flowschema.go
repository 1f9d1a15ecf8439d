package flowcontrol

import (
	"fmt"
	"slices"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"skiff/internal/kind"
)

// FlowSchema assigns requests to flows of one priority level.
var FlowSchema = kind.Of(kind.Definition[*flowcontrolv1.FlowSchema]{
	GVK: flowcontrolv1.SchemeGroupVersion.WithKind("FlowSchema"), Plural: "flowschemas",
	List: &flowcontrolv1.FlowSchemaList{},
	Default: func(schema *flowcontrolv1.FlowSchema) {
		if schema.Spec.MatchingPrecedence == 0 {
			schema.Spec.MatchingPrecedence = 1000
		}
	},
	Validate:   validateFlowSchema,
	CopyStatus: func(to, from *flowcontrolv1.FlowSchema) { to.Status = from.Status },
	ValidateStatus: func(_ *kind.Request, schema, _ *flowcontrolv1.FlowSchema) field.ErrorList {
		return validateFlowSchemaStatus(schema)
	},
	StatusOnly: true,
	SpecChanged: func(schema, old *flowcontrolv1.FlowSchema) bool {
		return !equality.Semantic.DeepEqual(schema.Spec, old.Spec)
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("PriorityLevel", "string", flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]),
		kind.Column("MatchingPrecedence", "string", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["matchingPrecedence"]),
		kind.Column("DistinguisherMethod", "string", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["distinguisherMethod"]),
		kind.AgeColumn(),
		kind.Column("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration"),
	},
	Row: flowSchemaRow,
})

func flowSchemaRow(schema *flowcontrolv1.FlowSchema, now time.Time) []any {
	distinguisher, dangling := "<none>", "?"
	if method := schema.Spec.DistinguisherMethod; method != nil {
		distinguisher = string(method.Type)
	}
	for _, condition := range schema.Status.Conditions {
		if condition.Type == flowcontrolv1.FlowSchemaConditionDangling {
			dangling = string(condition.Status)
			break
		}
	}
	return []any{
		schema.Name, schema.Spec.PriorityLevelConfiguration.Name, int64(schema.Spec.MatchingPrecedence), distinguisher,
		kind.Age(schema.CreationTimestamp, now), dangling,
	}
}

func validateFlowSchema(_ *kind.Request, schema, _ *flowcontrolv1.FlowSchema) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateFlowSchemaSpec(schema, path)
	for _, fixed := range bootstrap.MandatoryFlowSchemas {
		if fixed.Name == schema.Name && !equality.Semantic.DeepEqual(schema.Spec, fixed.Spec) {
			errs = append(errs, field.Invalid(path, schema.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", schema.Name)))
		}
	}
	return append(errs, validateFlowSchemaStatus(schema)...)
}

func validateFlowSchemaStatus(schema *flowcontrolv1.FlowSchema) field.ErrorList {
	types := make([]string, len(schema.Status.Conditions))
	for i, condition := range schema.Status.Conditions {
		types[i] = string(condition.Type)
	}
	return validateConditionTypes(types)
}

// validateConditionTypes requires only that each condition type is set and unique.
func validateConditionTypes(types []string) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, typ := range types {
		path := field.NewPath("status", "conditions").Index(i).Child("type")
		if seen.Has(typ) {
			errs = append(errs, field.Duplicate(path, typ))
		}
		seen.Insert(typ)
		if typ == "" {
			errs = append(errs, field.Required(path, ""))
		}
	}
	return errs
}

var distinguishers = []string{string(flowcontrolv1.FlowDistinguisherMethodByNamespaceType), string(flowcontrolv1.FlowDistinguisherMethodByUserType)}

func validateFlowSchemaSpec(schema *flowcontrolv1.FlowSchema, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec := &schema.Spec
	precedence := path.Child("matchingPrecedence")
	if spec.MatchingPrecedence <= 0 {
		errs = append(errs, field.Invalid(precedence, spec.MatchingPrecedence, "must be a positive value"))
	}
	if spec.MatchingPrecedence > flowcontrolv1.FlowSchemaMaxMatchingPrecedence {
		errs = append(errs, field.Invalid(precedence, spec.MatchingPrecedence, fmt.Sprintf("must not be greater than %v", flowcontrolv1.FlowSchemaMaxMatchingPrecedence)))
	}
	if spec.MatchingPrecedence == 1 && schema.Name != flowcontrolv1.FlowSchemaNameExempt {
		errs = append(errs, field.Invalid(precedence, spec.MatchingPrecedence, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if method := spec.DistinguisherMethod; method != nil && !slices.Contains(distinguishers, string(method.Type)) {
		errs = append(errs, field.NotSupported(path.Child("distinguisherMethod", "type"), method, distinguishers))
	}
	level := path.Child("priorityLevelConfiguration", "name")
	if spec.PriorityLevelConfiguration.Name == "" {
		errs = append(errs, field.Required(level, "must reference a priority level"))
	} else {
		for _, message := range validation.NameIsDNSSubdomain(spec.PriorityLevelConfiguration.Name, false) {
			errs = append(errs, field.Invalid(level, spec.PriorityLevelConfiguration.Name, message))
		}
	}
	for i := range spec.Rules {
		errs = append(errs, validateRules(&spec.Rules[i], path.Child("rules").Index(i))...)
	}
	return errs
}

func validateRules(rules *flowcontrolv1.PolicyRulesWithSubjects, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(rules.Subjects) == 0 {
		errs = append(errs, field.Required(path.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range rules.Subjects {
		errs = append(errs, validateSubject(&rules.Subjects[i], path.Child("subjects").Index(i))...)
	}
	if len(rules.ResourceRules) == 0 && len(rules.NonResourceRules) == 0 {
		errs = append(errs, field.Required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range rules.ResourceRules {
		errs = append(errs, validateResourceRule(&rules.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i := range rules.NonResourceRules {
		errs = append(errs, validateNonResourceRule(&rules.NonResourceRules[i], path.Child("nonResourceRules").Index(i))...)
	}
	return errs
}

// validateSubject: the member for the subject's kind is required, the other two are forbidden.
func validateSubject(subject *flowcontrolv1.Subject, path *field.Path) field.ErrorList {
	members := []struct {
		kind   flowcontrolv1.SubjectKind
		member string
		set    bool
	}{
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", subject.ServiceAccount != nil},
		{flowcontrolv1.SubjectKindUser, "user", subject.User != nil},
		{flowcontrolv1.SubjectKindGroup, "group", subject.Group != nil},
	}
	var errs field.ErrorList
	known := false
	for _, m := range members {
		known = known || m.kind == subject.Kind
	}
	if !known {
		return field.ErrorList{field.NotSupported(path.Child("kind"), subject.Kind, []flowcontrolv1.SubjectKind{
			flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindServiceAccount, flowcontrolv1.SubjectKindUser})}
	}
	for _, m := range members {
		member := path.Child(m.member)
		switch {
		case m.kind != subject.Kind && m.set:
			errs = append(errs, field.Forbidden(member, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", m.member, m.kind)))
		case m.kind == subject.Kind && !m.set:
			errs = append(errs, field.Required(member, fmt.Sprintf("%s is required when subject kind is '%s'", m.member, m.kind)))
		case m.kind == subject.Kind:
			errs = append(errs, validateSubjectName(subject, member)...)
		}
	}
	return errs
}

func validateSubjectName(subject *flowcontrolv1.Subject, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch subject.Kind {
	case flowcontrolv1.SubjectKindUser:
		if subject.User.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
		}
	case flowcontrolv1.SubjectKindGroup:
		if subject.Group.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
		}
	case flowcontrolv1.SubjectKindServiceAccount:
		account := subject.ServiceAccount
		if account.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
		} else if account.Name != flowcontrolv1.NameAll {
			for _, message := range validation.ValidateServiceAccountName(account.Name, false) {
				errs = append(errs, field.Invalid(path.Child("name"), account.Name, message))
			}
		}
		if account.Namespace == "" {
			errs = append(errs, field.Required(path.Child("namespace"), "must specify namespace for service account"))
		} else {
			for _, message := range validation.ValidateNamespaceName(account.Namespace, false) {
				errs = append(errs, field.Invalid(path.Child("namespace"), account.Namespace, message))
			}
		}
	}
	return errs
}

var verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}

func validateVerbs(given []string, path *field.Path) field.ErrorList {
	if len(given) == 0 {
		return field.ErrorList{field.Required(path, "verbs must contain at least one value")}
	}
	if slices.Contains(given, flowcontrolv1.VerbAll) {
		return validateSingleAsterisk(given, "verbs", path)
	}
	for _, verb := range given {
		if !slices.Contains(verbs, verb) {
			return field.ErrorList{field.NotSupported(path, given, verbs)}
		}
	}
	return nil
}

// validateSingleAsterisk: an asterisk covers everything, so it must be the only entry.
func validateSingleAsterisk(given []string, what string, path *field.Path) field.ErrorList {
	if len(given) > 1 && slices.Contains(given, "*") {
		return field.ErrorList{field.Invalid(path, given, "if '*' is present, must not specify other "+what)}
	}
	return nil
}

func validateNonResourceRule(rule *flowcontrolv1.NonResourcePolicyRule, path *field.Path) field.ErrorList {
	errs := validateVerbs(rule.Verbs, path.Child("verbs"))
	urls := path.Child("nonResourceURLs")
	switch {
	case len(rule.NonResourceURLs) == 0:
		errs = append(errs, field.Required(urls, "nonResourceURLs must contain at least one value"))
	case slices.Contains(rule.NonResourceURLs, flowcontrolv1.NonResourceAll):
		errs = append(errs, validateSingleAsterisk(rule.NonResourceURLs, "non-resource URLs", urls)...)
	default:
		for i, url := range rule.NonResourceURLs {
			if problem := urlProblem(url); problem != "" {
				errs = append(errs, field.Invalid(urls.Index(i), url, problem))
			}
		}
	}
	return errs
}

func urlProblem(url string) string {
	asterisks := strings.Count(url, "*")
	switch {
	case url == "":
		return "must not be empty"
	case !strings.HasPrefix(url, "/"):
		return "must start with slash"
	case strings.Contains(url, " "):
		return "must not contain white-space"
	case strings.Contains(url, "//"):
		return "must not contain double slash"
	case asterisks > 1 || asterisks == 1 && !strings.HasSuffix(url, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}

func validateResourceRule(rule *flowcontrolv1.ResourcePolicyRule, path *field.Path) field.ErrorList {
	errs := validateVerbs(rule.Verbs, path.Child("verbs"))
	if len(rule.APIGroups) == 0 {
		errs = append(errs, field.Required(path.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	errs = append(errs, validateSingleAsterisk(rule.APIGroups, "api groups", path.Child("apiGroups"))...)
	if len(rule.Resources) == 0 {
		errs = append(errs, field.Required(path.Child("resources"), "resource rules must supply at least one resource"))
	}
	errs = append(errs, validateSingleAsterisk(rule.Resources, "resources", path.Child("resources"))...)
	namespaces := path.Child("namespaces")
	switch {
	case len(rule.Namespaces) == 0 && !rule.ClusterScope:
		errs = append(errs, field.Required(namespaces, "resource rules that are not cluster scoped must supply at least one namespace"))
	case slices.Contains(rule.Namespaces, flowcontrolv1.NamespaceEvery):
		errs = append(errs, validateSingleAsterisk(rule.Namespaces, "namespaces", namespaces)...)
	default:
		for i, namespace := range rule.Namespaces {
			for _, message := range validation.ValidateNamespaceName(namespace, false) {
				errs = append(errs, field.Invalid(namespaces.Index(i), namespace, "each member of this list must be '*' or a DNS-1123 label; "+message))
			}
		}
	}
	return errs
}
