package authz

import (
	"context"
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

const escalationPolicy = `
clusterrole pods
  get,list core pods
clusterrole escalator
  escalate rbac.authorization.k8s.io clusterroles,roles
clusterrole escalator-of-one
  escalate rbac.authorization.k8s.io clusterroles names=one
clusterrole binder
  bind rbac.authorization.k8s.io clusterroles names=secrets
clusterrole secrets
  * core secrets
clusterrole everything
  * * *
  * *
role n local
  get core configmaps
clusterrolebinding pods user:reader
clusterrolebinding escalator user:escalator
clusterrolebinding escalator-of-one user:escalator-of-one
clusterrolebinding binder user:binder
clusterrolebinding everything user:chief
clusterrolebinding gone user:lost
rolebinding n local user:reader
`

func rule(verb, resource string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{resource}}
}

func TestEscalation(t *testing.T) {
	rbac := NewRBAC(NewStaticPolicy(mustRead(t, escalationPolicy)))
	check := Escalation{RBAC: rbac, Authorizer: rbac}

	clusterRole := func(rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Rules: rules}
	}
	role := func(rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "new", Namespace: "n"}, Rules: rules}
	}
	bind := func(kind, name string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}}
	}
	bindIn := func(kind, name string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "n"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}}
	}
	owned := clusterRole(rule("*", "secrets"))
	owned.OwnerReferences = []metav1.OwnerReference{{Name: "o"}}
	aggregated := gathering(clusterRole(), map[string]string{"x": "y"})
	reader, chief := user("reader", "g1", "g2"), user("chief")
	const head = `"new" is forbidden: user "reader" (groups=["g1" "g2"]) is attempting to grant RBAC permissions not currently held:` + "\n"

	for _, test := range []struct {
		name      string
		user      authn.User
		request   string // name in the request
		obj, old  kind.Object
		namespace string
		want      string
	}{
		{name: "masters may everything", user: user("x", "system:masters"), obj: clusterRole(everything...)},
		{name: "what one has", user: reader, obj: clusterRole(rule("get", "pods"))},
		{
			name: "what one lacks", user: reader, obj: clusterRole(rule("get", "pods"), rbacv1.PolicyRule{Verbs: []string{"get", "watch", "delete"}, APIGroups: []string{""}, Resources: []string{"pods"}}, rule("get", "secrets")),
			want: `clusterroles.rbac.authorization.k8s.io ` + head + `{APIGroups:[""], Resources:["pods"], Verbs:["watch" "delete"]}` + "\n" + `{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}`,
		},
		{
			name: "what one has elsewhere", user: reader, obj: clusterRole(rule("get", "configmaps")),
			want: `clusterroles.rbac.authorization.k8s.io ` + head + `{APIGroups:[""], Resources:["configmaps"], Verbs:["get"]}`,
		},
		{name: "what one has in the namespace", user: reader, obj: role(rule("get", "configmaps"), rule("list", "pods")), namespace: "n"},
		{
			name: "what one has in another namespace", user: reader, obj: role(rule("get", "configmaps")), namespace: "m",
			want: `roles.rbac.authorization.k8s.io ` + head + `{APIGroups:[""], Resources:["configmaps"], Verbs:["get"]}`,
		},
		{name: "escalate", user: user("escalator"), obj: clusterRole(everything...)},
		{name: "escalate in a namespace", user: user("escalator"), obj: role(everything...), namespace: "n"},
		{name: "escalate one by PUT", user: user("escalator-of-one"), request: "one", obj: clusterRole(rule("get", "pods")), old: clusterRole()},
		{
			name: "escalate one by POST", user: user("escalator-of-one"), obj: clusterRole(rule("get", "pods")),
			want: `clusterroles.rbac.authorization.k8s.io "new" is forbidden: user "escalator-of-one" (groups=[]) is attempting to grant RBAC permissions not currently held:` + "\n" + `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`,
		},
		{name: "letting go", user: reader, obj: clusterRole(rule("*", "secrets")), old: owned},
		{name: "all one has to aggregate", user: chief, obj: aggregated},
		{name: "aggregating", user: reader, obj: aggregated, want: `clusterroles.rbac.authorization.k8s.io "new" is forbidden: must have cluster-admin privileges to use the aggregationRule`},
		{name: "no longer aggregating", user: reader, obj: clusterRole(), old: aggregated, want: `clusterroles.rbac.authorization.k8s.io "new" is forbidden: must have cluster-admin privileges to use the aggregationRule`},
		{
			name: "unresolved", user: user("lost"), obj: clusterRole(rule("get", "pods")),
			want: `clusterroles.rbac.authorization.k8s.io "new" is forbidden: user "lost" (groups=[]) is attempting to grant RBAC permissions not currently held:` + "\n" +
				`{APIGroups:[""], Resources:["pods"], Verbs:["get"]}; resolution errors: [clusterroles.rbac.authorization.k8s.io "gone" not found]`,
		},
		{name: "bind what one has", user: reader, obj: bind("ClusterRole", "pods")},
		{name: "bind what one has in a namespace", user: reader, obj: bindIn("Role", "local"), namespace: "n"},
		{name: "bind", user: user("binder"), obj: bind("ClusterRole", "secrets")},
		{name: "bind in a namespace", user: user("binder"), obj: bindIn("ClusterRole", "secrets"), namespace: "n"},
		{
			name: "bind what one lacks", user: reader, obj: bind("ClusterRole", "secrets"),
			want: `clusterrolebindings.rbac.authorization.k8s.io "b" is forbidden: user "reader" (groups=["g1" "g2"]) is attempting to grant RBAC permissions not currently held:` + "\n" + `{APIGroups:[""], Resources:["secrets"], Verbs:["*"]}`,
		},
		{name: "bind nothing", user: reader, obj: bind("ClusterRole", "nothing"), want: `clusterrolebindings.rbac.authorization.k8s.io "nothing" not found`},
		{name: "bind nothing local", user: reader, obj: bindIn("Role", "nothing"), namespace: "n", want: `rolebindings.rbac.authorization.k8s.io "nothing" not found`},
		{name: "bind what is no role", user: reader, obj: bindIn("Rule", "x"), namespace: "n", want: `unsupported role reference kind: "Rule"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			resource := map[string]string{"*v1.ClusterRole": "clusterroles", "*v1.Role": "roles", "*v1.ClusterRoleBinding": "clusterrolebindings", "*v1.RoleBinding": "rolebindings"}[fmt.Sprintf("%T", test.obj)]
			a := &Attributes{User: test.user, Verb: "create", ResourceRequest: true, Group: rbacv1.GroupName, Version: "v1", Resource: resource, Namespace: test.namespace, Name: test.request}
			err := check.Check(context.Background(), a, test.obj, test.old)
			if err == nil && test.want != "" || err != nil && err.Error() != test.want {
				t.Errorf("got  %v\nwant %v", err, test.want)
			}
		})
	}
	if err := check.Check(context.Background(), &Attributes{User: reader, Group: rbacv1.GroupName, Resource: "clusterroles"}, clusterRole(everything...), nil); !apierrors.IsForbidden(err) {
		t.Errorf("%v is not Forbidden", err)
	}
}
