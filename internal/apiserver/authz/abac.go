package authz

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/json"

	"skiff/internal/apiserver/authn"
)

// ABAC allows what the lines of a policy file allow.
type ABAC []abacRule

// abacRule allows a user or the members of a group to use a resource or a path, wholly or to read.
type abacRule struct {
	User            string `json:"user"`
	Group           string `json:"group"`
	Readonly        bool   `json:"readonly"`
	APIGroup        string `json:"apiGroup"`
	Resource        string `json:"resource"`
	Namespace       string `json:"namespace"`
	NonResourcePath string `json:"nonResourcePath"`
}

// LoadABAC reads a policy file: one JSON object per line; empty lines and those that begin with # are skipped.
func LoadABAC(path string) (ABAC, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	policy := ABAC{}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rule, err := readABACRule([]byte(line))
		if err != nil {
			return nil, fmt.Errorf("error reading policy file %s, line %d: %s: %w", path, number, line, err)
		}
		policy = append(policy, rule)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("error reading policy file %s: %w", path, err)
	}
	return policy, nil
}

const abacGroup = "abac.authorization.kubernetes.io"

func readABACRule(line []byte) (abacRule, error) {
	var policy struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Spec       abacRule `json:"spec"`
		abacRule            // of the oldest form, which has no version and no spec
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(line, &policy); err != nil {
		return abacRule{}, err
	}
	switch {
	case policy.APIVersion == "" || policy.Kind == "" || (policy.APIVersion == abacGroup+"/v0" && policy.Kind == "Policy"):
		return fromOldest(policy.abacRule), nil
	case policy.APIVersion == abacGroup+"/v1beta1" && policy.Kind == "Policy":
		return everyoneIsAuthenticated(policy.Spec), nil
	}
	return abacRule{}, fmt.Errorf("no kind %q is registered for version %q", policy.Kind, policy.APIVersion)
}

// everyoneIsAuthenticated: a star in place of a user or a group means everybody whose name is known.
func everyoneIsAuthenticated(rule abacRule) abacRule {
	if rule.User == "*" || rule.Group == "*" {
		rule.User, rule.Group = "", authn.GroupAuthenticated
	}
	return rule
}

// fromOldest: in the oldest form what is not said means all.
func fromOldest(rule abacRule) abacRule {
	rule = everyoneIsAuthenticated(rule)
	rule.APIGroup, rule.NonResourcePath = "*", ""
	if rule.User == "" && rule.Group == "" {
		rule.Group = authn.GroupAuthenticated
	}
	if rule.Namespace == "" && rule.Resource == "" {
		rule.NonResourcePath = "*"
	}
	if rule.Namespace == "" {
		rule.Namespace = "*"
	}
	if rule.Resource == "" {
		rule.Resource = "*"
	}
	return rule
}

// Authorize implements Authorizer.
func (p ABAC) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	reads := a.Verb == "get" || a.Verb == "list" || a.Verb == "watch"
	for i := range p {
		if rule := &p[i]; (reads || !rule.Readonly) && rule.isFor(&a.User) && rule.isAbout(a) {
			return Allow, "", nil
		}
	}
	return NoOpinion, "No policy matched.", nil
}

// isFor: a rule that names a user and a group is for that user as a member of that group.
func (r *abacRule) isFor(user *authn.User) bool {
	if r.User != "" && r.User != user.Username {
		return false
	}
	if r.Group != "" && !slices.Contains(user.Groups, r.Group) {
		return false
	}
	return r.User != "" || r.Group != ""
}

func (r *abacRule) isAbout(a *Attributes) bool {
	if a.ResourceRequest {
		return isOrAll(r.Namespace, a.Namespace) && isOrAll(r.Resource, a.Resource) && isOrAll(r.APIGroup, a.Group)
	}
	return r.NonResourcePath == a.Path ||
		(strings.HasSuffix(r.NonResourcePath, "*") && strings.HasPrefix(a.Path, strings.TrimRight(r.NonResourcePath, "*")))
}

func isOrAll(pattern, value string) bool { return pattern == "*" || pattern == value }

// RulesFor implements RuleResolver.
func (p ABAC) RulesFor(_ context.Context, user authn.User, namespace string) (Rules, error) {
	var rules Rules
	for i := range p {
		rule := &p[i]
		if !rule.isFor(&user) || !isOrAll(rule.Namespace, namespace) {
			continue
		}
		verbs := []string{"*"}
		if rule.Readonly {
			verbs = []string{"get", "list", "watch"}
		}
		if rule.Resource != "" {
			rules.Resources = append(rules.Resources, authorizationv1.ResourceRule{
				Verbs: verbs, APIGroups: []string{rule.APIGroup}, Resources: []string{rule.Resource},
			})
		}
		if rule.NonResourcePath != "" {
			rules.Paths = append(rules.Paths, authorizationv1.NonResourceRule{Verbs: verbs, NonResourceURLs: []string{rule.NonResourcePath}})
		}
	}
	return rules, nil
}
