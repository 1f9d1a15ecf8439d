package fairness

import (
	"cmp"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"skiff/internal/apiserver/authz"
)

// schema is a FlowSchema made ready to be compared with requests.
type schema struct {
	name     string
	uid      []string // as header values
	levelUID []string
	level    *level
	stats    *stats // of the schema in its level
	rules    []rule

	byUser, byNamespace bool   // what tells flows of the schema apart
	seed                uint64 // hash of the name
}

// rule says who may ask for what.
type rule struct {
	everyone   bool
	users      []string
	groups     []string
	namespaces []string // of service accounts, as the beginning of their user names
	resources  []resourceRule
	paths      []pathRule
}

type resourceRule struct {
	verbs, groups, namespaces words
	resources                 words     // "*" or nothing
	names                     []subname // otherwise
	cluster                   bool
}

// subname is a resource with its subresource or without.
type subname struct{ resource, subresource string }

type pathRule struct {
	verbs, exact words
	prefixes     []string
}

// words is a list that may stand for everything.
type words struct {
	all  bool
	list []string
}

func newWords(list []string) words {
	if len(list) == 1 && list[0] == "*" {
		return words{all: true}
	}
	return words{list: list}
}

func (w *words) has(word string) bool { return w.all || slices.Contains(w.list, word) }

// compareSchemas puts the schema first that is tried first.
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
			verbs: newWords(object.Verbs), groups: newWords(object.APIGroups), resources: newWords(object.Resources),
			namespaces: newWords(object.Namespaces), cluster: object.ClusterScope,
		}
		for _, name := range compiled.resources.list {
			resource, subresource, _ := strings.Cut(name, "/")
			compiled.names = append(compiled.names, subname{resource, subresource})
		}
		r.resources = append(r.resources, compiled)
	}
	for _, object := range object.NonResourceRules {
		compiled := pathRule{verbs: newWords(object.Verbs)}
		for _, path := range object.NonResourceURLs {
			if path == flowcontrolv1.NonResourceAll {
				compiled.exact.all = true
				continue
			}
			// A path stands for itself and for what is below it, with an asterisk at its end or without.
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
		if r.isFor(a.User.Username, a.User.Groups) && r.covers(a) {
			return true
		}
	}
	return false
}

func (r *rule) isFor(user string, groups []string) bool {
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

func (r *rule) covers(a *authz.Attributes) bool {
	if a.ResourceRequest {
		for i := range r.resources {
			if r.resources[i].covers(a) {
				return true
			}
		}
		return false
	}
	for i := range r.paths {
		if r.paths[i].covers(a) {
			return true
		}
	}
	return false
}

func (r *resourceRule) covers(a *authz.Attributes) bool {
	if !r.verbs.has(a.Verb) || !r.groups.has(a.Group) {
		return false
	}
	if !r.resources.all && !slices.Contains(r.names, subname{a.Resource, a.Subresource}) {
		return false
	}
	if a.Namespace == "" {
		return r.cluster
	}
	return r.namespaces.has(a.Namespace)
}

func (r *pathRule) covers(a *authz.Attributes) bool {
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

// flow is the hash of the flow that a request of the schema belongs to.
func (s *schema) flow(a *authz.Attributes) uint64 {
	sum := s.seed
	switch {
	case s.byUser:
		sum = hash(sum, a.User.Username)
	case s.byNamespace:
		sum = hash(sum, a.Namespace)
	}
	// The last bytes must reach all bits: hands are dealt from all of them.
	sum ^= sum >> 33
	sum *= 0xff51afd7ed558ccd
	return sum ^ sum>>33
}

const hashBasis = 14695981039346656037

// hash goes on with a sum over the bytes of a text (FNV-1a).
func hash(sum uint64, text string) uint64 {
	for i := range len(text) {
		sum = (sum ^ uint64(text[i])) * 1099511628211
	}
	return sum
}
