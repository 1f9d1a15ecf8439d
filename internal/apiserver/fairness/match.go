package fairness

import (
	"cmp"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"skiff/internal/apiserver/authz"
)

// schema is a FlowSchema compiled for matching.
type schema struct {
	name     string
	uid      []string // as header values
	levelUID []string
	level    *level
	stats    *stats // of the schema in its level
	rules    []rule

	byUser, byNamespace bool   // what distinguishes the flows of the schema
	seed                uint64 // hash of the name
}

// rule matches subjects and their requests.
type rule struct {
	everyone   bool
	users      []string
	groups     []string
	namespaces []string // of service accounts, as prefixes of their user names
	resources  []resourceRule
	paths      []pathRule
}

type resourceRule struct {
	verbs, groups, namespaces stringSet
	resources                 stringSet      // only "*" is used
	names                     []resourceName // otherwise
	cluster                   bool
}

// resourceName is a resource with or without a subresource.
type resourceName struct{ resource, subresource string }

type pathRule struct {
	verbs, exact stringSet
	prefixes     []string
}

// stringSet is a list of strings, or all strings.
type stringSet struct {
	all  bool
	list []string
}

func newStringSet(list []string) stringSet {
	if len(list) == 1 && list[0] == "*" {
		return stringSet{all: true}
	}
	return stringSet{list: list}
}

func (w *stringSet) has(s string) bool { return w.all || slices.Contains(w.list, s) }

// compareSchemas orders schemas by matching precedence.
func compareSchemas(a, b *flowcontrolv1.FlowSchema) int {
	return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence), strings.Compare(a.Name, b.Name))
}

func compile(object *flowcontrolv1.FlowSchema, l *level) *schema {
	s := &schema{
		name: object.Name, uid: []string{string(object.UID)}, levelUID: []string{string(l.object.UID)},
		level: l, stats: l.statsOf(object.Name), seed: hash(hash(hashBasis, object.Name), "\x00"),
	}
	if method := object.Spec.DistinguisherMethod; method != nil {
		s.byUser = method.Type == flowcontrolv1.FlowDistinguisherMethodByUserType
		s.byNamespace = method.Type == flowcontrolv1.FlowDistinguisherMethodByNamespaceType
	}
	for i := range object.Spec.Rules {
		s.rules = append(s.rules, compileRule(&object.Spec.Rules[i]))
	}
	return s
}

func compileRule(object *flowcontrolv1.PolicyRulesWithSubjects) rule {
	var r rule
	for _, subject := range object.Subjects {
		switch {
		case subject.Kind == flowcontrolv1.SubjectKindUser && subject.User != nil:
			r.everyone = r.everyone || subject.User.Name == flowcontrolv1.NameAll
			r.users = append(r.users, subject.User.Name)
		case subject.Kind == flowcontrolv1.SubjectKindGroup && subject.Group != nil:
			r.everyone = r.everyone || subject.Group.Name == flowcontrolv1.NameAll
			r.groups = append(r.groups, subject.Group.Name)
		case subject.Kind == flowcontrolv1.SubjectKindServiceAccount && subject.ServiceAccount != nil:
			prefix := "system:serviceaccount:" + subject.ServiceAccount.Namespace + ":"
			if subject.ServiceAccount.Name == flowcontrolv1.NameAll {
				r.namespaces = append(r.namespaces, prefix)
			} else {
				r.users = append(r.users, prefix+subject.ServiceAccount.Name)
			}
		}
	}
	for _, object := range object.ResourceRules {
		compiled := resourceRule{
			verbs: newStringSet(object.Verbs), groups: newStringSet(object.APIGroups), resources: newStringSet(object.Resources),
			namespaces: newStringSet(object.Namespaces), cluster: object.ClusterScope,
		}
		for _, name := range compiled.resources.list {
			resource, subresource, _ := strings.Cut(name, "/")
			compiled.names = append(compiled.names, resourceName{resource, subresource})
		}
		r.resources = append(r.resources, compiled)
	}
	for _, object := range object.NonResourceRules {
		compiled := pathRule{verbs: newStringSet(object.Verbs)}
		for _, path := range object.NonResourceURLs {
			if path == flowcontrolv1.NonResourceAll {
				compiled.exact.all = true
				continue
			}
			// A path matches itself and everything below it, with or without a trailing asterisk.
			compiled.exact.list = append(compiled.exact.list, path)
			prefix := strings.TrimSuffix(path, "*")
			if !strings.HasSuffix(prefix, "/") {
				prefix += "/"
			}
			compiled.prefixes = append(compiled.prefixes, prefix)
		}
		r.paths = append(r.paths, compiled)
	}
	return r
}

func (s *schema) matches(a *authz.Attributes) bool {
	for i := range s.rules {
		r := &s.rules[i]
		if r.matchesSubject(a.User.Username, a.User.Groups) && r.matchesRequest(a) {
			return true
		}
	}
	return false
}

func (r *rule) matchesSubject(user string, groups []string) bool {
	if r.everyone || slices.Contains(r.users, user) {
		return true
	}
	for _, group := range r.groups {
		if slices.Contains(groups, group) {
			return true
		}
	}
	for _, prefix := range r.namespaces {
		if strings.HasPrefix(user, prefix) {
			return true
		}
	}
	return false
}

func (r *rule) matchesRequest(a *authz.Attributes) bool {
	if a.ResourceRequest {
		for i := range r.resources {
			if r.resources[i].matchesRequest(a) {
				return true
			}
		}
		return false
	}
	for i := range r.paths {
		if r.paths[i].matchesRequest(a) {
			return true
		}
	}
	return false
}

func (r *resourceRule) matchesRequest(a *authz.Attributes) bool {
	if !r.verbs.has(a.Verb) || !r.groups.has(a.Group) {
		return false
	}
	if !r.resources.all && !slices.Contains(r.names, resourceName{a.Resource, a.Subresource}) {
		return false
	}
	if a.Namespace == "" {
		return r.cluster
	}
	return r.namespaces.has(a.Namespace)
}

func (r *pathRule) matchesRequest(a *authz.Attributes) bool {
	if !r.verbs.has(a.Verb) {
		return false
	}
	if r.exact.has(a.Path) {
		return true
	}
	for _, prefix := range r.prefixes {
		if strings.HasPrefix(a.Path, prefix) {
			return true
		}
	}
	return false
}

// flow returns the hash of a request's flow.
func (s *schema) flow(a *authz.Attributes) uint64 {
	sum := s.seed
	switch {
	case s.byUser:
		sum = hash(sum, a.User.Username)
	case s.byNamespace:
		sum = hash(sum, a.Namespace)
	}
	// Mix the last bytes into all bits: shuffle sharding uses all of them.
	sum ^= sum >> 33
	sum *= 0xff51afd7ed558ccd
	return sum ^ sum>>33
}

const hashBasis = 14695981039346656037

// hash continues an FNV-1a sum over the bytes of a string.
func hash(sum uint64, text string) uint64 {
	for i := range len(text) {
		sum = (sum ^ uint64(text[i])) * 1099511628211
	}
	return sum
}
