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

// ABAC authorizes requests by the lines of a policy file.
type ABAC []abacRule

// abacRule allows a user or group access to a resource or path, or only to read it.
type abacRule struct {
	User            string `json:"user"`
	Group           string `json:"group"`
	Readonly        bool   `json:"readonly"`
	APIGroup        string `json:"apiGroup"`
	Resource        string `json:"resource"`
	Namespace       string `json:"namespace"`
	NonResourcePath string `json:"nonResourcePath"`
}

// LoadABAC reads a policy file: one JSON object per line; empty lines and comments (#) are skipped.
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
		abacRule            // of v0, which has no version and no spec
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(line, &policy); err != nil {
		return abacRule{}, err
	}
	switch {
	case policy.APIVersion == "" || policy.Kind == "" || (policy.APIVersion == abacGroup+"/v0" && policy.Kind == "Policy"):
		return fromV0(policy.abacRule), nil
	case policy.APIVersion == abacGroup+"/v1beta1" && policy.Kind == "Policy":
		return expandWildcard(policy.Spec), nil
	}
	return abacRule{}, fmt.Errorf("no kind %q is registered for version %q", policy.Kind, policy.APIVersion)
}

// expandWildcard replaces the user or group "*" by system:authenticated.
func expandWildcard(rule abacRule) abacRule {
	if rule.User == "*" || rule.Group == "*" {
		rule.User, rule.Group = "", authn.GroupAuthenticated
	}
	return rule
}

// fromV0 sets the defaults of v0: an empty field matches all.
func fromV0(rule abacRule) abacRule {
	rule = expandWildcard(rule)
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
		if rule := &p[i]; (reads || !rule.Readonly) && rule.matchesSubject(&a.User) && rule.matchesRequest(a) {
			return Allow, "", nil
		}
	}
	return NoOpinion, "No policy matched.", nil
}

// matchesSubject: a rule with a user and a group matches that user as a member of that group.
func (r *abacRule) matchesSubject(user *authn.User) bool {
	if r.User != "" && r.User != user.Username {
		return false
	}
	if r.Group != "" && !slices.Contains(user.Groups, r.Group) {
		return false
	}
	return r.User != "" || r.Group != ""
}

func (r *abacRule) matchesRequest(a *Attributes) bool {
	if a.ResourceRequest {
		return matchesOrWildcard(r.Namespace, a.Namespace) && matchesOrWildcard(r.Resource, a.Resource) && matchesOrWildcard(r.APIGroup, a.Group)
	}
	return r.NonResourcePath == a.Path ||
		(strings.HasSuffix(r.NonResourcePath, "*") && strings.HasPrefix(a.Path, strings.TrimRight(r.NonResourcePath, "*")))
}

func matchesOrWildcard(pattern, value string) bool { return pattern == "*" || pattern == value }

// RulesFor implements RuleResolver.
func (p ABAC) RulesFor(_ context.Context, user authn.User, namespace string) (Rules, error) {
	var rules Rules
	for i := range p {
		rule := &p[i]
		if !rule.matchesSubject(&user) || !matchesOrWildcard(rule.Namespace, namespace) {
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
