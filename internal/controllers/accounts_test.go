package controllers_test

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/controller"
	"skiff/internal/controllers"
	"skiff/test/world"
)

// bootstrapped is the RBAC policy of a new cluster.
type bootstrapped struct{ authz.PolicyObjects }

func (p bootstrapped) ClusterRole(name string) *rbacv1.ClusterRole {
	for _, r := range p.ClusterRoles {
		if r.Name == name {
			return r
		}
	}
	return nil
}

func (p bootstrapped) Role(namespace, name string) *rbacv1.Role {
	for _, r := range p.Roles {
		if r.Namespace == namespace && r.Name == name {
			return r
		}
	}
	return nil
}

func (p bootstrapped) ClusterRoleBindings() []*rbacv1.ClusterRoleBinding {
	return p.PolicyObjects.ClusterRoleBindings
}

func (p bootstrapped) RoleBindings(namespace string) (bindings []*rbacv1.RoleBinding) {
	for _, b := range p.PolicyObjects.RoleBindings {
		if b.Namespace == namespace {
			bindings = append(bindings, b)
		}
	}
	return bindings
}

func (p bootstrapped) Revisions() authz.PolicyRevisions { return authz.PolicyRevisions{} }

// attributes parses a request as the API server does, as far as controllers send such requests.
func attributes(method, path string) *authz.Attributes {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	a := &authz.Attributes{ResourceRequest: true}
	switch {
	case parts[0] == "api" && len(parts) > 2:
		a.Version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		a.Group, a.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return &authz.Attributes{Verb: "get", Path: path} // discovery
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		if a.Namespace = parts[1]; len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
		}
	}
	a.Resource = parts[0]
	if len(parts) > 1 {
		a.Name = parts[1]
	}
	if len(parts) > 2 {
		a.Subresource = parts[2]
	}
	a.Verb = map[string]string{"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
	if a.Name == "" && method == "GET" {
		a.Verb = "list"
	}
	if a.Name == "" && method == "DELETE" {
		a.Verb = "deletecollection"
	}
	return a
}

// TestAccountsMayWhatTheirControllersDo runs every scenario and checks that the roles of a new cluster allow each controller's
// service account all requests of the controller.
func TestAccountsMayWhatTheirControllersDo(t *testing.T) {
	policy := authz.NewRBAC(bootstrapped{authz.BootstrapPolicy()})
	refused := map[string]bool{}
	for _, s := range scenarios() {
		var calm world.Faults
		s.end(t, s.name, &calm)
		for _, line := range calm.Asked() {
			who, request, _ := strings.Cut(line, ": ")
			method, path, _ := strings.Cut(request, " ")
			account := controllers.Accounts[who]
			if account == "" {
				continue
			}
			a := attributes(method, path)
			a.User = authn.User{Username: "system:serviceaccount:kube-system:" + account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}}
			if decision, _, err := policy.Authorize(t.Context(), a); err != nil || decision != authz.Allow {
				if id := strings.Join([]string{who, a.Verb, a.Group, a.Resource, a.Subresource}, " "); !refused[id] {
					refused[id] = true
					t.Errorf("%s may not %s %s.%s %s (%s)", account, a.Verb, a.Resource, a.Group, a.Subresource, line)
				}
			}
		}
	}
}

// TestEveryControllerHasAnAccount, except those that upstream does not have, the one that creates tokens, and those that patch
// volumes.
func TestEveryControllerHasAnAccount(t *testing.T) {
	without := []string{"serviceaccount-token-controller", "apiserver-lease-cleaner-controller", "kubelet-serving-approving-controller", "local-path-provisioner", "local-path-cleaner", "service-lb-controller",
		"persistentvolume-binder-controller", "persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller", "volumeattributesclass-protection-controller"}
	all := controllers.All(allSettings())
	for _, d := range all {
		if (controllers.Accounts[d.Name] == "") != slices.Contains(without, d.Name) {
			t.Errorf("%s acts as %q", d.Name, controllers.Accounts[d.Name])
		}
	}
	for name := range controllers.Accounts {
		if !slices.ContainsFunc(all, func(d controller.Definition) bool { return d.Name == name }) {
			t.Errorf("%s is not a controller", name)
		}
	}
}
