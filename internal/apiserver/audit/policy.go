package audit

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"skiff/internal/apiserver/authz"
	"skiff/internal/configfile"
)

// level is how much of a request is recorded.
type level uint8

const (
	levelNone level = iota
	levelMetadata
	levelRequest
	levelRequestResponse
)

// levelNames are the names of the levels in policies and events.
var levelNames = [...]string{"None", "Metadata", "Request", "RequestResponse"}

// stage is a stage of a request, or a set of stages: each has a bit.
type stage uint8

const (
	stageReceived stage = 1 << iota
	stageStarted
	stageComplete
	stagePanic
)

var stages = map[string]stage{
	"RequestReceived": stageReceived, "ResponseStarted": stageStarted, "ResponseComplete": stageComplete, "Panic": stagePanic,
}

// stageNames are all stages, in the order of their bits.
var stageNames = []string{"RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"}

func (s stage) String() string { return stageNames[bits.TrailingZeros8(uint8(s))] }

// Policy decides which requests are recorded and at which level: the first matching rule decides.
type Policy struct {
	rules []rule
}

// rule is a compiled rule of a policy.
type rule struct {
	auditv1.PolicyRule
	auditConfig auditConfig
}

// auditConfig is the result of evaluating a policy for a request.
type auditConfig struct {
	level             level
	omitted           stage // stages without events
	omitManagedFields bool
}

// ReadPolicy reads a file with a Policy of audit.k8s.io/v1. warnings are about unknown and duplicate fields.
func ReadPolicy(path string) (policy *Policy, warnings []error, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read audit policy: %w", err)
	}
	policy, warnings, err = ParsePolicy(text)
	if err != nil {
		return nil, nil, fmt.Errorf("audit policy %s: %w", path, err)
	}
	return policy, warnings, nil
}

// ParsePolicy parses a Policy in YAML or JSON.
func ParsePolicy(text []byte) (*Policy, []error, error) {
	var parsed auditv1.Policy
	warnings, err := configfile.DecodeLenient(text, &parsed)
	if err != nil {
		return nil, nil, err
	}
	if parsed.APIVersion != "audit.k8s.io/v1" || parsed.Kind != "Policy" {
		return nil, nil, fmt.Errorf("apiVersion and kind must be audit.k8s.io/v1 and Policy, not %q and %q", parsed.APIVersion, parsed.Kind)
	}
	if errs := validatePolicy(&parsed); len(errs) > 0 {
		return nil, nil, errs.ToAggregate()
	}
	if len(parsed.Rules) == 0 {
		return nil, nil, errors.New("rules: a policy without rules records nothing")
	}
	policy := &Policy{}
	for _, r := range parsed.Rules {
		compiled := rule{PolicyRule: r, auditConfig: auditConfig{
			level:             level(slices.Index(levelNames[:], string(r.Level))),
			omitted:           stagesOf(parsed.OmitStages) | stagesOf(r.OmitStages),
			omitManagedFields: parsed.OmitManagedFields,
		}}
		if r.OmitManagedFields != nil {
			compiled.auditConfig.omitManagedFields = *r.OmitManagedFields
		}
		policy.rules = append(policy.rules, compiled)
	}
	return policy, warnings, nil
}

func stagesOf(names []auditv1.Stage) (set stage) {
	for _, name := range names {
		set |= stages[string(name)]
	}
	return set
}

func validatePolicy(p *auditv1.Policy) field.ErrorList {
	errs := validateStages(p.OmitStages, field.NewPath("omitStages"))
	for i := range p.Rules {
		errs = append(errs, validateRule(&p.Rules[i], field.NewPath("rules").Index(i))...)
	}
	return errs
}

func validateRule(r *auditv1.PolicyRule, path *field.Path) (errs field.ErrorList) {
	switch {
	case r.Level == "":
		errs = append(errs, field.Required(path.Child("level"), ""))
	case !slices.Contains(levelNames[:], string(r.Level)):
		errs = append(errs, field.NotSupported(path.Child("level"), r.Level, levelNames[:]))
	}
	for i, url := range r.NonResourceURLs {
		idxPath := path.Child("nonResourceURLs").Index(i)
		if url == "*" {
			continue
		}
		if !strings.HasPrefix(url, "/") {
			errs = append(errs, field.Invalid(idxPath, url, "non-resource URL rules must begin with a '/' character"))
		}
		if url != "" && strings.Contains(url[:len(url)-1], "*") {
			errs = append(errs, field.Invalid(idxPath, url, "non-resource URL wildcards '*' must be the final character of the rule"))
		}
	}
	for i, group := range r.Resources {
		idxPath := path.Child("resources").Index(i)
		if group.Group != "" && group.Group != "*" {
			if problems := validation.NameIsDNSSubdomain(group.Group, false); len(problems) > 0 {
				errs = append(errs, field.Invalid(idxPath.Child("group"), group.Group, strings.Join(problems, ",")))
			}
		}
		if len(group.ResourceNames) > 0 && len(group.Resources) == 0 {
			errs = append(errs, field.Invalid(idxPath.Child("resourceNames"), group.ResourceNames, "using resourceNames requires at least one resource"))
		}
	}
	errs = append(errs, validateStages(r.OmitStages, path.Child("omitStages"))...)
	if len(r.NonResourceURLs) > 0 && len(r.Resources)+len(r.Namespaces) > 0 {
		errs = append(errs, field.Invalid(path.Child("nonResourceURLs"), r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
	}
	return errs
}

func validateStages(names []auditv1.Stage, path *field.Path) (errs field.ErrorList) {
	for i, name := range names {
		if stages[string(name)] == 0 {
			errs = append(errs, field.Invalid(path.Index(i), string(name), "allowed stages are "+strings.Join(stageNames, ",")))
		}
	}
	return errs
}

// evaluate returns the level and options for a request. a.User is empty if the request is not authenticated. Requests with
// credentials are never recorded with their bodies, whatever the policy says.
func (p *Policy) evaluate(a *authz.Attributes) auditConfig {
	for i := range p.rules {
		if r := &p.rules[i]; r.matches(a) {
			v := r.auditConfig
			if v.level > levelMetadata && carriesSecrets(a) {
				v.level = levelMetadata
			}
			return v
		}
	}
	return auditConfig{level: levelNone}
}

// carriesSecrets reports whether the body of the request or of its response contains credentials.
func carriesSecrets(a *authz.Attributes) bool {
	switch a.Resource {
	case "secrets":
		return a.Group == ""
	case "serviceaccounts":
		return a.Group == "" && a.Subresource == "token"
	case "tokenreviews":
		return a.Group == "authentication.k8s.io"
	}
	return false
}

func (r *rule) matches(a *authz.Attributes) bool {
	if len(r.Users) > 0 && (a.User.Username == "" || !slices.Contains(r.Users, a.User.Username)) {
		return false
	}
	if len(r.UserGroups) > 0 && !slices.ContainsFunc(a.User.Groups, func(g string) bool { return slices.Contains(r.UserGroups, g) }) {
		return false
	}
	if len(r.Verbs) > 0 && !slices.Contains(r.Verbs, a.Verb) {
		return false
	}
	switch {
	case len(r.Namespaces) > 0 || len(r.Resources) > 0:
		return a.ResourceRequest && r.matchesResource(a)
	case len(r.NonResourceURLs) > 0:
		return !a.ResourceRequest && slices.ContainsFunc(r.NonResourceURLs, func(url string) bool { return matchesPath(a.Path, url) })
	}
	return true
}

func matchesPath(path, wanted string) bool {
	if prefix, wild := strings.CutSuffix(wanted, "*"); wild {
		return strings.HasPrefix(path, prefix)
	}
	return path == wanted
}

func (r *rule) matchesResource(a *authz.Attributes) bool {
	if len(r.Namespaces) > 0 && !slices.Contains(r.Namespaces, a.Namespace) {
		return false
	}
	if len(r.Resources) == 0 {
		return true
	}
	for i := range r.Resources {
		group := &r.Resources[i]
		if group.Group != a.Group && group.Group != "*" {
			continue
		}
		if len(group.Resources) == 0 {
			return true
		}
		if len(group.ResourceNames) > 0 && !slices.Contains(group.ResourceNames, a.Name) {
			continue
		}
		for _, wanted := range group.Resources {
			if matchesName(wanted, a.Resource, a.Subresource) {
				return true
			}
		}
	}
	return false
}

// matchesName matches a resource with the resource of a rule: "pods", "pods/log", "pods/*", "*/log" or "*". "pods/*" includes the
// resource itself.
func matchesName(wanted, resource, subresource string) bool {
	if wanted == "*" {
		return true
	}
	name, sub, isSub := strings.Cut(wanted, "/")
	switch {
	case !isSub:
		return subresource == "" && name == resource
	case sub == "*" && name == resource:
		return true
	case name == "*":
		return subresource != "" && sub == subresource
	}
	return name == resource && subresource != "" && sub == subresource
}
