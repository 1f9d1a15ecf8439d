package fairness

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

// schema is a FlowSchema compiled for matching.
type schema struct {
	name     string
	uid      []string // as header values
	levelUID []string
	level    *level
	stats    *stats // of the schema in its level

	byUser, byNamespace bool   // what distinguishes the flows of the schema
	seed                uint64 // hash of the name
}

// rule matches the requests of the subjects that the index has it for.
type rule struct {
	schema    *schema
	resources []resourceRule
	paths     []pathRule
}

type resourceRule struct {
	verbs, groups, namespaces stringSet
	anyResource               bool
	names                     map[resourceName]struct{} // otherwise
	cluster                   bool
}

// resourceName is a resource with or without a subresource.
type resourceName struct{ resource, subresource string }

type pathRule struct {
	verbs, exact stringSet
	prefixes     []string
}

// stringSet is a set of strings, or all strings.
type stringSet struct {
	all     bool
	members map[string]struct{}
}

func newStringSet(list []string) stringSet {
	if len(list) == 1 && list[0] == "*" {
		return stringSet{all: true}
	}
	s := stringSet{members: make(map[string]struct{}, len(list))}
	for _, member := range list {
		s.members[member] = struct{}{}
	}
	return s
}

func (w *stringSet) has(s string) bool {
	if w.all {
		return true
	}
	_, found := w.members[s]
	return found
}

// ruleIndex finds the rules for a subject. A request is matched with the rules of its own user, groups and namespace, and with those of
// everyone: what other subjects are listed, and in how many schemas, costs it nothing.
type ruleIndex struct {
	rules []rule // of all schemas, in the order of matching
	// The positions of the rules of a subject, ascending. Service accounts are listed by their user name.
	users      map[string][]int
	groups     map[string][]int
	namespaces map[string][]int // of all service accounts in a namespace, by the prefix of their user names
	everyone   []int
}

func newRuleIndex() *ruleIndex {
	return &ruleIndex{users: map[string][]int{}, groups: map[string][]int{}, namespaces: map[string][]int{}}
}

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
	return s
}

// add adds the rules of a schema. Schemas are added in the order of matching.
func (x *ruleIndex) add(s *schema, rules []flowcontrolv1.PolicyRulesWithSubjects) {
	for i := range rules {
		position := len(x.rules)
		x.rules = append(x.rules, compileRule(s, &rules[i]))
		for _, subject := range rules[i].Subjects {
			x.addSubject(subject, position)
		}
	}
}

func (x *ruleIndex) addSubject(subject flowcontrolv1.Subject, position int) {
	switch {
	case subject.Kind == flowcontrolv1.SubjectKindUser && subject.User != nil:
		if subject.User.Name == flowcontrolv1.NameAll {
			x.everyone = addPosition(x.everyone, position)
		} else {
			x.users[subject.User.Name] = addPosition(x.users[subject.User.Name], position)
		}
	case subject.Kind == flowcontrolv1.SubjectKindGroup && subject.Group != nil:
		if subject.Group.Name == flowcontrolv1.NameAll {
			x.everyone = addPosition(x.everyone, position)
		} else {
			x.groups[subject.Group.Name] = addPosition(x.groups[subject.Group.Name], position)
		}
	case subject.Kind == flowcontrolv1.SubjectKindServiceAccount && subject.ServiceAccount != nil:
		prefix := serviceAccountPrefix + subject.ServiceAccount.Namespace + ":"
		if subject.ServiceAccount.Name == flowcontrolv1.NameAll {
			x.namespaces[prefix] = addPosition(x.namespaces[prefix], position)
		} else {
			user := prefix + subject.ServiceAccount.Name
			x.users[user] = addPosition(x.users[user], position)
		}
	}
}

const serviceAccountPrefix = "system:serviceaccount:"

// addPosition appends a position, unless the rule has listed the subject before.
func addPosition(positions []int, position int) []int {
	if n := len(positions); n > 0 && positions[n-1] == position {
		return positions
	}
	return append(positions, position)
}

// candidates yields the positions of all rules for a user: of its name, of each group, of its namespace and of everyone.
func (x *ruleIndex) candidates(user *authn.User) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		if !yield(x.users[user.Username]) {
			return
		}
		for _, group := range user.Groups {
			if !yield(x.groups[group]) {
				return
			}
		}
		if account, ok := strings.CutPrefix(user.Username, serviceAccountPrefix); ok {
			colon := strings.IndexByte(account, ':') // of an account without a name: -1, and the prefix has no namespace
			if !yield(x.namespaces[user.Username[:len(serviceAccountPrefix)+colon+1]]) {
				return
			}
		}
		yield(x.everyone)
	}
}

// find returns the schema of the first rule that matches, or nil.
func (x *ruleIndex) find(a *authz.Attributes) *schema {
	first := len(x.rules)
	for positions := range x.candidates(&a.User) {
		for _, position := range positions {
			if position >= first {
				break
			}
			if x.rules[position].matchesRequest(a) {
				first = position
			}
		}
	}
	if first == len(x.rules) {
		return nil
	}
	return x.rules[first].schema
}

func compileRule(s *schema, object *flowcontrolv1.PolicyRulesWithSubjects) rule {
	r := rule{schema: s}
	for _, object := range object.ResourceRules {
		compiled := resourceRule{
			verbs: newStringSet(object.Verbs), groups: newStringSet(object.APIGroups), namespaces: newStringSet(object.Namespaces),
			cluster: object.ClusterScope, anyResource: slices.Equal(object.Resources, []string{flowcontrolv1.ResourceAll}),
			names: make(map[resourceName]struct{}, len(object.Resources)),
		}
		for _, name := range object.Resources {
			resource, subresource, _ := strings.Cut(name, "/")
			compiled.names[resourceName{resource, subresource}] = struct{}{}
		}
		r.resources = append(r.resources, compiled)
	}
	for _, object := range object.NonResourceRules {
		compiled := pathRule{verbs: newStringSet(object.Verbs), exact: newStringSet(object.NonResourceURLs)}
		for _, path := range object.NonResourceURLs {
			if path == flowcontrolv1.NonResourceAll {
				compiled.exact.all = true
				continue
			}
			// A path matches itself and everything below it, with or without a trailing asterisk.
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
	if _, named := r.names[resourceName{a.Resource, a.Subresource}]; !named && !r.anyResource {
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
	sum := hash(s.seed, s.distinguisher(a))
	// Mix the last bytes into all bits: shuffle sharding uses all of them.
	sum ^= sum >> 33
	sum *= 0xff51afd7ed558ccd
	return sum ^ sum>>33
}

// distinguisher is what distinguishes the flow of a request from other flows of the schema.
func (s *schema) distinguisher(a *authz.Attributes) string {
	switch {
	case s.byUser:
		return a.User.Username
	case s.byNamespace:
		return a.Namespace
	}
	return ""
}

const hashBasis = 14695981039346656037

// hash continues an FNV-1a sum over the bytes of a string.
func hash(sum uint64, text string) uint64 {
	for i := range len(text) {
		sum = (sum ^ uint64(text[i])) * 1099511628211
	}
	return sum
}
