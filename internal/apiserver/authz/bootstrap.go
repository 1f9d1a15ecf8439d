package authz

import (
	_ "embed" // for bootstrapTable
	"fmt"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/rbacrules"
)

// bootstrapTable is parsed once, on first use.
//
//go:embed bootstrap.txt
var bootstrapTable string

// PolicyObjects are roles and bindings of all four kinds.
type PolicyObjects struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
	Roles               []*rbacv1.Role
	RoleBindings        []*rbacv1.RoleBinding
}

var readBootstrap = sync.OnceValue(func() PolicyObjects {
	p, err := readPolicy(bootstrapTable)
	if err != nil {
		panic(fmt.Sprintf("read the bootstrap policy: %v", err))
	}
	return p
})

// BootstrapPolicy are the default roles and bindings of a cluster. The aggregated roles have their rules already. The caller owns
// the objects.
func BootstrapPolicy() PolicyObjects {
	read := readBootstrap()
	p := PolicyObjects{}
	for _, o := range read.ClusterRoles {
		p.ClusterRoles = append(p.ClusterRoles, o.DeepCopy())
	}
	for _, o := range read.ClusterRoleBindings {
		p.ClusterRoleBindings = append(p.ClusterRoleBindings, o.DeepCopy())
	}
	for _, o := range read.Roles {
		p.Roles = append(p.Roles, o.DeepCopy())
	}
	for _, o := range read.RoleBindings {
		p.RoleBindings = append(p.RoleBindings, o.DeepCopy())
	}
	return p
}

// nodeRules are the rules of all nodes.
func nodeRules() []rbacv1.PolicyRule {
	for _, role := range readBootstrap().ClusterRoles {
		if role.Name == "system:node" {
			return role.Rules
		}
	}
	panic("the bootstrap policy has no role system:node")
}

const (
	bootstrapLabel       = "kubernetes.io/bootstrapping"
	aggregateLabelPrefix = rbacv1.GroupName + "/aggregate-to-"
	controllerPrefix     = "system:controller:"
)

// policyParser parses bootstrap.txt.
type policyParser struct {
	policy PolicyObjects
	rules  *[]rbacv1.PolicyRule // of the role that is being parsed
}

func readPolicy(table string) (PolicyObjects, error) {
	var r policyParser
	var pending string
	for number, line := range strings.Split(table, "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		// A line that ends with a comma is continued.
		if line = pending + strings.TrimRight(line, " "); strings.HasSuffix(line, ",") {
			pending = line
			continue
		}
		if pending != "" {
			line, pending = strings.ReplaceAll(line, ",      ", ","), ""
		}
		if err := r.read(line); err != nil {
			return PolicyObjects{}, fmt.Errorf("line %d: %w", number+1, err)
		}
	}
	if pending != "" {
		return PolicyObjects{}, fmt.Errorf("unterminated rule %q", pending)
	}
	for _, changed := range rbacrules.Aggregate(r.policy.ClusterRoles) {
		i := slices.IndexFunc(r.policy.ClusterRoles, func(role *rbacv1.ClusterRole) bool { return role.Name == changed.Name })
		r.policy.ClusterRoles[i] = changed
	}
	return r.policy, nil
}

func (p *policyParser) read(line string) error {
	fields := strings.Fields(line)
	switch {
	case len(fields) == 0:
		return nil
	case strings.HasPrefix(line, " "):
		return p.rule(fields)
	case len(fields) < 2:
		return fmt.Errorf("%q lacks a name", line)
	}
	switch fields[0] {
	case "clusterrole":
		return p.clusterRole(fields[1], fields[2:])
	case "controller":
		name := controllerPrefix + fields[1]
		if err := p.clusterRole(name, nil); err != nil {
			return err
		}
		return p.clusterRoleBinding(name, []string{"account:kube-system/" + fields[1]})
	case "clusterrolebinding":
		return p.clusterRoleBinding(fields[1], fields[2:])
	}
	if len(fields) < 3 {
		return fmt.Errorf("%q lacks a name", line)
	}
	switch fields[0] {
	case "role":
		role := &rbacv1.Role{ObjectMeta: bootstrapMeta(fields[1], fields[2])}
		p.policy.Roles, p.rules = append(p.policy.Roles, role), &role.Rules
		return nil
	case "rolebinding":
		return p.roleBinding(fields[1], fields[2], fields[3:])
	}
	return fmt.Errorf("%q is none of the known words", fields[0])
}

func bootstrapMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		Labels:      map[string]string{bootstrapLabel: "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

// rule reads "VERBS URLS" or "VERBS GROUPS RESOURCES [names=NAMES]".
func (p *policyParser) rule(fields []string) error {
	if p.rules == nil {
		return fmt.Errorf("a rule without a role")
	}
	rule := rbacv1.PolicyRule{Verbs: strings.Split(fields[0], ",")}
	switch len(fields) {
	case 2:
		rule.NonResourceURLs = strings.Split(fields[1], ",")
	case 4:
		names, ok := strings.CutPrefix(fields[3], "names=")
		if !ok {
			return fmt.Errorf("%q should begin with names=", fields[3])
		}
		rule.ResourceNames = strings.Split(names, ",")
		fallthrough
	case 3:
		for group := range strings.SplitSeq(fields[1], ",") {
			if group == "core" {
				group = ""
			}
			rule.APIGroups = append(rule.APIGroups, group)
		}
		rule.Resources = strings.Split(fields[2], ",")
	default:
		return fmt.Errorf("a rule of %d words", len(fields))
	}
	*p.rules = append(*p.rules, rule)
	return nil
}

func (p *policyParser) clusterRole(name string, options []string) error {
	role := &rbacv1.ClusterRole{ObjectMeta: bootstrapMeta("", name)}
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "aggregate-to":
			role.Labels[aggregateLabelPrefix+value] = "true"
		case "aggregates":
			role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
				{MatchLabels: map[string]string{aggregateLabelPrefix + value: "true"}},
			}}
		default:
			return fmt.Errorf("%q is no option of a cluster role", option)
		}
	}
	p.policy.ClusterRoles, p.rules = append(p.policy.ClusterRoles, role), &role.Rules
	return nil
}

func (p *policyParser) clusterRoleBinding(name string, words []string) error {
	subjects, err := readSubjects(words)
	p.policy.ClusterRoleBindings = append(p.policy.ClusterRoleBindings, &rbacv1.ClusterRoleBinding{
		ObjectMeta: bootstrapMeta("", name), Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
	})
	return err
}

func (p *policyParser) roleBinding(namespace, name string, words []string) error {
	role := name
	if len(words) > 0 && strings.HasPrefix(words[0], "role=") {
		role, words = strings.TrimPrefix(words[0], "role="), words[1:]
	}
	subjects, err := readSubjects(words)
	p.policy.RoleBindings = append(p.policy.RoleBindings, &rbacv1.RoleBinding{
		ObjectMeta: bootstrapMeta(namespace, name), Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
	})
	return err
}

// readSubjects reads user:NAME, group:NAME and account:NAMESPACE/NAME.
func readSubjects(words []string) ([]rbacv1.Subject, error) {
	var subjects []rbacv1.Subject
	for _, word := range words {
		kind, name, _ := strings.Cut(word, ":")
		switch kind {
		case "user":
			subjects = append(subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name})
		case "group":
			subjects = append(subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name})
		case "account":
			namespace, account, _ := strings.Cut(name, "/")
			subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account})
		default:
			return nil, fmt.Errorf("%q is no subject", word)
		}
	}
	return subjects, nil
}
