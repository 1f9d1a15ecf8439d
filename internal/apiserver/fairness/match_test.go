package fairness

import (
	"fmt"
	"slices"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

// standard is a Fairness with the objects of a new cluster.
func standard(seats int, more ...*flowcontrolv1.FlowSchema) *Fairness {
	f := New(seats)
	f.Configure(slices.Concat(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations),
		slices.Concat(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas, more))
	return f
}

// attributes is a request of a user for a resource.
func attributes(user string, groups []string, verb, group, resource, subresource, namespace, name string) *authz.Attributes {
	return &authz.Attributes{
		User: authn.User{Username: user, Groups: groups}, ResourceRequest: true, Verb: verb, Group: group, Version: "v1",
		Resource: resource, Subresource: subresource, Namespace: namespace, Name: name,
	}
}

func asksPath(user string, groups []string, verb, path string) *authz.Attributes {
	return &authz.Attributes{User: authn.User{Username: user, Groups: groups}, Verb: verb, Path: path}
}

var (
	authenticated = []string{authn.GroupAuthenticated}
	accounts      = []string{"system:serviceaccounts", authn.GroupAuthenticated}
	nodes         = []string{authn.GroupNodes, authn.GroupAuthenticated}
)

func TestStandardSchemas(t *testing.T) {
	f := standard(600)
	for _, test := range []struct {
		want       string
		attributes *authz.Attributes
	}{
		{"exempt", attributes("admin", []string{authn.GroupMasters, authn.GroupAuthenticated}, "list", "", "pods", "", "", "")},
		{"exempt", asksPath("admin", []string{authn.GroupMasters}, "get", "/healthz")},
		{"probes", asksPath("system:anonymous", []string{authn.GroupUnauthenticated}, "get", "/readyz")},
		{"probes", asksPath("jane", authenticated, "get", "/livez/etcd")},
		{"global-default", asksPath("jane", authenticated, "get", "/healthzzz")},
		{"global-default", asksPath("jane", authenticated, "post", "/readyz")},
		{"system-leader-election", attributes("system:kube-scheduler", authenticated, "update", "coordination.k8s.io", "leases", "", "kube-system", "kube-scheduler")},
		{"kube-scheduler", attributes("system:kube-scheduler", authenticated, "create", "", "pods", "binding", "ns", "p")},
		{"kube-controller-manager", attributes("system:kube-controller-manager", authenticated, "list", "", "nodes", "", "", "")},
		{"system-leader-election", attributes("system:serviceaccount:kube-system:x", accounts, "get", "coordination.k8s.io", "leases", "", "kube-system", "l")},
		{"kube-system-service-accounts", attributes("system:serviceaccount:kube-system:x", accounts, "get", "", "pods", "", "ns", "p")},
		{"service-accounts", attributes("system:serviceaccount:team:x", accounts, "get", "", "pods", "", "ns", "p")},
		{"system-node-high", attributes("system:node:a", nodes, "update", "", "nodes", "status", "", "a")},
		{"system-node-high", attributes("system:node:a", nodes, "update", "coordination.k8s.io", "leases", "", "kube-node-lease", "a")},
		{"system-nodes", attributes("system:node:a", nodes, "list", "", "pods", "", "", "")},
		{"global-default", attributes("jane", authenticated, "create", "", "pods", "", "ns", "")},
		{"global-default", attributes("system:anonymous", []string{authn.GroupUnauthenticated}, "get", "", "pods", "", "ns", "p")},
		{"catch-all", attributes("nobody", nil, "get", "", "pods", "", "ns", "p")},
	} {
		if got := f.classify(test.attributes).name; got != test.want {
			t.Errorf("%+v: %s, want %s", *test.attributes, got, test.want)
		}
	}
}

func TestMatching(t *testing.T) {
	user := func(name string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: "User", User: &flowcontrolv1.UserSubject{Name: name}}
	}
	group := func(name string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: name}}
	}
	account := func(namespace, name string) flowcontrolv1.Subject {
		return flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: namespace, Name: name}}
	}
	resources := func(verbs, groups, resources, namespaces []string, cluster bool) flowcontrolv1.PolicyRulesWithSubjects {
		return flowcontrolv1.PolicyRulesWithSubjects{ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
			Verbs: verbs, APIGroups: groups, Resources: resources, Namespaces: namespaces, ClusterScope: cluster,
		}}}
	}
	paths := func(verb string, urls ...string) flowcontrolv1.PolicyRulesWithSubjects {
		return flowcontrolv1.PolicyRulesWithSubjects{NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{verb}, NonResourceURLs: urls}}}
	}
	all := []string{"*"}
	everything := resources(all, all, all, all, true)
	get := attributes("jane", []string{"devs"}, "get", "apps", "deployments", "", "ns", "d")
	status := attributes("jane", []string{"devs"}, "get", "apps", "deployments", "status", "ns", "d")
	across := attributes("jane", []string{"devs"}, "list", "apps", "deployments", "", "", "")
	robot := attributes("system:serviceaccount:team-a:robot", nil, "get", "", "pods", "", "ns", "p")
	metrics := asksPath("jane", []string{"devs"}, "get", "/metrics")
	below := asksPath("jane", []string{"devs"}, "get", "/metrics/slis")
	for _, test := range []struct {
		name       string
		subject    flowcontrolv1.Subject
		rule       flowcontrolv1.PolicyRulesWithSubjects
		attributes *authz.Attributes
		want       bool
	}{
		{"user", user("jane"), everything, get, true},
		{"another user", user("joe"), everything, get, false},
		{"every user", user("*"), everything, get, true},
		{"group", group("devs"), everything, get, true},
		{"another group", group("ops"), everything, get, false},
		{"every group, of one who has none", group("*"), everything, robot, true},
		{"service account", account("team-a", "robot"), everything, robot, true},
		{"another account", account("team-a", "rob"), everything, robot, false},
		{"account of another namespace", account("team", "robot"), everything, robot, false},
		{"every account of the namespace", account("team-a", "*"), everything, robot, true},
		{"a namespace whose name begins alike", account("team", "*"), everything, robot, false},
		{"no account", account("team-a", "*"), everything, get, false},
		{"verb", user("*"), resources([]string{"list", "get"}, all, all, all, false), get, true},
		{"another verb", user("*"), resources([]string{"list"}, all, all, all, false), get, false},
		{"API group", user("*"), resources(all, []string{"apps"}, all, all, false), get, true},
		{"another API group", user("*"), resources(all, []string{""}, all, all, false), get, false},
		{"resource", user("*"), resources(all, all, []string{"deployments"}, all, false), get, true},
		{"subresource by its parent's name", user("*"), resources(all, all, []string{"deployments"}, all, false), status, false},
		{"subresource", user("*"), resources(all, all, []string{"deployments/status"}, all, false), status, true},
		{"resource by its subresource's name", user("*"), resources(all, all, []string{"deployments/status"}, all, false), get, false},
		{"subresource by the asterisk", user("*"), resources(all, all, all, all, false), status, true},
		{"namespace", user("*"), resources(all, all, all, []string{"ns"}, false), get, true},
		{"another namespace", user("*"), resources(all, all, all, []string{"other"}, false), get, false},
		{"all namespaces are not the cluster", user("*"), resources(all, all, all, all, false), across, false},
		{"cluster", user("*"), resources(all, all, all, nil, true), across, true},
		{"the cluster is no namespace", user("*"), resources(all, all, all, nil, true), get, false},
		{"resources are no paths", user("*"), everything, metrics, false},
		{"paths are no resources", user("*"), paths("get", "*"), get, false},
		{"every path", user("*"), paths("get", "*"), metrics, true},
		{"path", user("*"), paths("get", "/other", "/metrics"), metrics, true},
		{"below a path", user("*"), paths("get", "/metrics"), below, true},
		{"below a path with asterisk", user("*"), paths("get", "/metrics/*"), below, true},
		{"the path itself, with asterisk", user("*"), paths("get", "/metrics/*"), metrics, false},
		{"a path that begins alike", user("*"), paths("get", "/met"), metrics, false},
		{"another verb of a path", user("*"), paths("post", "/metrics"), metrics, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			rule := test.rule
			rule.Subjects = []flowcontrolv1.Subject{test.subject}
			f := standard(600, &flowcontrolv1.FlowSchema{
				ObjectMeta: metav1.ObjectMeta{Name: "mine"},
				Spec: flowcontrolv1.FlowSchemaSpec{
					PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "system"},
					MatchingPrecedence:         5, Rules: []flowcontrolv1.PolicyRulesWithSubjects{rule},
				},
			})
			if got := f.classify(test.attributes).name; (got == "mine") != test.want {
				t.Errorf("%s", got)
			}
		})
	}
}

// manySubjects are a schema with n subjects of each kind, and n schemas with one user each. All precede those of a new cluster but exempt.
func manySubjects(n int) (schemas []*flowcontrolv1.FlowSchema) {
	schema := func(name string, subjects ...flowcontrolv1.Subject) {
		s := bootstrap.MandatoryFlowSchemaCatchAll.DeepCopy()
		s.Name, s.Spec.MatchingPrecedence, s.Spec.Rules[0].Subjects = name, 5, subjects
		schemas = append(schemas, s)
	}
	var all []flowcontrolv1.Subject
	for i := range n {
		name := fmt.Sprint("subject-", i)
		user := flowcontrolv1.Subject{Kind: "User", User: &flowcontrolv1.UserSubject{Name: name}}
		all = append(all, user,
			flowcontrolv1.Subject{Kind: "Group", Group: &flowcontrolv1.GroupSubject{Name: name}},
			flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: name, Name: "*"}},
			flowcontrolv1.Subject{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: "team", Name: name}})
		schema("for-"+name, user)
	}
	schema("for-all", all...)
	return schemas
}

// The rules that a request is matched with do not depend on how many others there are, nor on how many subjects they list.
func TestMatchingDoesNotGrow(t *testing.T) {
	work := func(f *Fairness, user authn.User) (rules int) {
		for positions := range f.schemas.Load().index.candidates(&user) {
			rules += len(positions)
		}
		return rules
	}
	const n, factor = 50, 4
	one, many := standard(600, manySubjects(n)...), standard(600, manySubjects(n*factor)...)
	for name, user := range map[string]authn.User{
		"not listed":      {Username: "jane", Groups: authenticated},
		"user":            {Username: "subject-1", Groups: authenticated},
		"group":           {Username: "jane", Groups: []string{"subject-1", authn.GroupAuthenticated}},
		"account":         {Username: "system:serviceaccount:team:subject-1", Groups: accounts},
		"namespace":       {Username: "system:serviceaccount:subject-1:robot", Groups: accounts},
		"no such account": {Username: "system:serviceaccount:team", Groups: accounts},
		"a node":          {Username: "system:node:a", Groups: nodes},
	} {
		if small, large := work(one, user), work(many, user); small != large || small == 0 {
			t.Errorf("%s: matched with %d rules of %d schemas and with %d of %d", name, small, n, large, n*factor)
		}
	}
	if got := many.classify(attributes("subject-199", authenticated, "get", "", "pods", "", "ns", "")).name; got != "for-all" {
		t.Errorf("the last subject belongs to %s", got) // by name, before its own schema
	}
}

func TestPrecedence(t *testing.T) {
	schema := func(name string, precedence int32, level string) *flowcontrolv1.FlowSchema {
		s := bootstrap.MandatoryFlowSchemaCatchAll.DeepCopy()
		s.Name, s.Spec.MatchingPrecedence, s.Spec.PriorityLevelConfiguration.Name = name, precedence, level
		return s
	}
	jane := attributes("jane", authenticated, "get", "", "pods", "", "ns", "p")
	for _, test := range []struct {
		name    string
		schemas []*flowcontrolv1.FlowSchema
		want    string
	}{
		{"the smaller number", []*flowcontrolv1.FlowSchema{schema("a", 300, "system"), schema("b", 200, "system")}, "b"},
		{"the name among equals", []*flowcontrolv1.FlowSchema{schema("b", 200, "system"), schema("a", 200, "system")}, "a"},
		{"not without a level", []*flowcontrolv1.FlowSchema{schema("a", 300, "system"), schema("b", 200, "nowhere")}, "a"},
		{"the standard ones otherwise", []*flowcontrolv1.FlowSchema{schema("a", 9950, "system")}, "global-default"},
	} {
		if got := standard(600, test.schemas...).classify(jane).name; got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
	// What nothing matches is caught even when another schema is behind the one that catches all.
	if got := standard(600, schema("zz", 10000, "system")).classify(attributes("x", nil, "get", "", "pods", "", "ns", "")).name; got != "catch-all" {
		t.Errorf("unmatched: %s", got)
	}
}

func TestFlows(t *testing.T) {
	f := standard(600)
	flow := func(a *authz.Attributes) uint64 { return f.classify(a).flow(a) }
	jane, joe := attributes("jane", authenticated, "get", "", "pods", "", "one", ""), attributes("joe", authenticated, "get", "", "pods", "", "one", "")
	if flow(jane) == flow(joe) {
		t.Error("two users are one flow")
	}
	elsewhere := *jane
	elsewhere.Namespace = "two"
	if flow(jane) != flow(&elsewhere) {
		t.Error("one user is two flows")
	}
	scheduler := attributes("system:kube-scheduler", authenticated, "get", "", "pods", "", "one", "")
	elsewhere = *scheduler
	elsewhere.Namespace = "two"
	if flow(scheduler) == flow(&elsewhere) {
		t.Error("two namespaces are one flow")
	}
}
