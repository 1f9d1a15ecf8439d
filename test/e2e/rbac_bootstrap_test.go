package e2e

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/internal/apiserver/authz"
	"skiff/test/cluster"
)

// TestBootstrapPolicy compares skiff's bootstrap roles and bindings with those upstream's API server creates and its controller
// manager aggregates: the same objects with the same content.
func TestBootstrapPolicy(t *testing.T) {
	t.Parallel()
	upstream, err := cluster.UpstreamAPI(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	if err := upstream.ControllerManager("--controllers=clusterrole-aggregation-controller"); err != nil {
		t.Fatal(err)
	}
	config, err := upstream.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ours := authz.BootstrapPolicy()
	rulesOf := make(map[string]int)
	for _, role := range ours.ClusterRoles {
		rulesOf[role.Name] = len(role.Rules)
	}
	eventually(ctx, t, "upstream has aggregated its roles", func(ctx context.Context) (bool, error) {
		for _, name := range []string{"admin", "edit", "view"} {
			role, err := k.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
			if err != nil || len(role.Rules) < rulesOf[name] {
				return false, err
			}
		}
		return true, nil
	})
	theirs := policyOf(ctx, t, k)
	compareObjects(t, "ClusterRole", ours.ClusterRoles, theirs.ClusterRoles)
	compareObjects(t, "ClusterRoleBinding", ours.ClusterRoleBindings, theirs.ClusterRoleBindings)
	compareObjects(t, "Role", ours.Roles, theirs.Roles)
	compareObjects(t, "RoleBinding", ours.RoleBindings, theirs.RoleBindings)
}

// policyOf reads all roles and bindings of a cluster.
func policyOf(ctx context.Context, t *testing.T, k clientset.Interface) authz.PolicyObjects {
	t.Helper()
	var p authz.PolicyObjects
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	clusterRoles, err := k.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	fail(err)
	p.ClusterRoles = pointers(clusterRoles.Items)
	clusterRoleBindings, err := k.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	fail(err)
	p.ClusterRoleBindings = pointers(clusterRoleBindings.Items)
	roles, err := k.RbacV1().Roles("").List(ctx, metav1.ListOptions{})
	fail(err)
	p.Roles = pointers(roles.Items)
	roleBindings, err := k.RbacV1().RoleBindings("").List(ctx, metav1.ListOptions{})
	fail(err)
	p.RoleBindings = pointers(roleBindings.Items)
	return p
}

func pointers[T any](items []T) []*T {
	found := make([]*T, len(items))
	for i := range items {
		found[i] = &items[i]
	}
	return found
}

type roleOrBinding interface {
	runtime.Object
	metav1.Object
}

// compareObjects compares by namespace and name, without what a server adds.
func compareObjects[T roleOrBinding](t *testing.T, kind string, ours, theirs []T) {
	t.Helper()
	want := make(map[string]string)
	for _, obj := range theirs {
		want[obj.GetNamespace()+"/"+obj.GetName()] = bare(t, obj)
	}
	for _, obj := range ours {
		name := obj.GetNamespace() + "/" + obj.GetName()
		if got := bare(t, obj); want[name] != got {
			t.Errorf("%s %s:\n ours   %s\n theirs %s", kind, name, got, want[name])
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("%s %s is missing", kind, name)
	}
}

func bare(t *testing.T, obj roleOrBinding) string {
	t.Helper()
	copied := obj.DeepCopyObject().(roleOrBinding)
	copied.SetUID("")
	copied.SetResourceVersion("")
	copied.SetCreationTimestamp(metav1.Time{})
	copied.SetManagedFields(nil)
	// Nil and empty lists of rules are equal.
	switch o := copied.(type) {
	case *rbacv1.ClusterRole:
		o.Rules = append([]rbacv1.PolicyRule{}, o.Rules...)
	case *rbacv1.Role:
		o.Rules = append([]rbacv1.PolicyRule{}, o.Rules...)
	}
	data, err := json.Marshal(copied)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
