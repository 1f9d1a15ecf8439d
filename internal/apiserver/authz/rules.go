package authz

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// target is the group and resource of a rule. The group "*" matches all groups. The resource "*" without a subresource matches
// all resources and subresources, with one that subresource of all resources.
type target struct {
	group, resource, subresource string
}

// splitResource splits "resource/subresource".
func splitResource(name string) (resource, subresource string) {
	resource, subresource, _ = strings.Cut(name, "/")
	return resource, subresource
}

// verbs is a set of verbs: a bit for each common verb, and a list of the others.
type verbs struct {
	bits   uint32
	others []string
}

const everyVerb = 1 << 31

// verbBit is the bit of a common verb, or zero.
func verbBit(verb string) uint32 {
	switch verb {
	case "get":
		return 1 << 0
	case "list":
		return 1 << 1
	case "watch":
		return 1 << 2
	case "create":
		return 1 << 3
	case "update":
		return 1 << 4
	case "patch":
		return 1 << 5
	case "delete":
		return 1 << 6
	case "deletecollection":
		return 1 << 7
	case "post":
		return 1 << 8
	case "put":
		return 1 << 9
	case "*":
		return everyVerb
	}
	return 0
}

func newVerbs(names []string) verbs {
	var v verbs
	for _, name := range names {
		if bit := verbBit(name); bit != 0 {
			v.bits |= bit
		} else {
			v.others = append(v.others, name)
		}
	}
	return v
}

// has reports whether a verb is in the set. bit is verbBit(verb).
func (v *verbs) has(bit uint32, verb string) bool {
	return v.bits&(bit|everyVerb) != 0 || (bit == 0 && slices.Contains(v.others, verb))
}

// permission is what one rule allows on a target: verbs on all objects, or on some by name.
type permission struct {
	verbs verbs
	names []string
}

type pathPermission struct {
	verbs  verbs
	path   string
	prefix bool
}

// ruleSet is a compiled list of rules.
type ruleSet struct {
	resources map[target][]permission
	paths     []pathPermission
	// Which wildcards of target occur. Most roles have none; then one map lookup is enough.
	anyGroup, anyResource, anySubresource bool
}

func compile(rules []rbacv1.PolicyRule) *ruleSet {
	s := &ruleSet{resources: make(map[target][]permission)}
	for i := range rules {
		rule := &rules[i]
		v := newVerbs(rule.Verbs)
		for _, group := range rule.APIGroups {
			for _, name := range rule.Resources {
				t := target{group: group}
				t.resource, t.subresource = splitResource(name)
				s.anyGroup = s.anyGroup || group == "*"
				s.anyResource = s.anyResource || name == "*"
				s.anySubresource = s.anySubresource || (t.resource == "*" && t.subresource != "")
				s.resources[t] = append(s.resources[t], permission{verbs: v, names: rule.ResourceNames})
			}
		}
		for _, path := range rule.NonResourceURLs {
			s.paths = append(s.paths, pathPermission{verbs: v, path: strings.TrimRight(path, "*"), prefix: strings.HasSuffix(path, "*")})
		}
	}
	return s
}

// query is a request in the form that rule sets match.
type query struct {
	*Attributes
	bit    uint32
	target target // its subresource is everything after the first slash
}

func newQuery(a *Attributes) query {
	q := query{Attributes: a, bit: verbBit(a.Verb), target: target{a.Group, a.Resource, a.Subresource}}
	// The resource of an access review may contain a slash: rules match the whole of "resource/subresource".
	if strings.IndexByte(a.Resource, '/') >= 0 {
		whole := a.Resource
		if a.Subresource != "" {
			whole += "/" + a.Subresource
		}
		q.target.resource, q.target.subresource = splitResource(whole)
	}
	return q
}

// allows reports whether one of the rules allows the request.
func (s *ruleSet) allows(q *query) bool {
	if !q.ResourceRequest {
		return s.allowsPath(q)
	}
	if s.allowsTarget(q, q.target) {
		return true
	}
	if s.anyGroup && s.allowsTarget(q, target{"*", q.target.resource, q.target.subresource}) {
		return true
	}
	if s.anyResource && (s.allowsTarget(q, target{q.Group, "*", ""}) || (s.anyGroup && s.allowsTarget(q, target{"*", "*", ""}))) {
		return true
	}
	return s.anySubresource && q.Subresource != "" &&
		(s.allowsTarget(q, target{q.Group, "*", q.Subresource}) || (s.anyGroup && s.allowsTarget(q, target{"*", "*", q.Subresource})))
}

func (s *ruleSet) allowsTarget(q *query, t target) bool {
	found := s.resources[t]
	for i := range found {
		p := &found[i]
		if p.verbs.has(q.bit, q.Verb) && (len(p.names) == 0 || slices.Contains(p.names, q.Name)) {
			return true
		}
	}
	return false
}

func (s *ruleSet) allowsPath(q *query) bool {
	for i := range s.paths {
		p := &s.paths[i]
		if !p.verbs.has(q.bit, q.Verb) {
			continue
		}
		if q.Path == p.path && !p.prefix || p.prefix && strings.HasPrefix(q.Path, p.path) {
			return true
		}
	}
	return false
}
