package authz

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
)

// memory is a store that records writes.
type memory struct {
	objects map[string]kind.Object
	writes  []string
	fail    string // resource whose creation fails
}

func key(resource schema.GroupResource, namespace, name string) string {
	return resource.Resource + " " + namespace + "/" + name
}

func (m *memory) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	if obj := m.objects[key(resource, namespace, name)]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (m *memory) List(_ context.Context, resource schema.GroupResource, _ string) ([]kind.Object, error) {
	var names []string
	for k := range m.objects {
		if strings.HasPrefix(k, resource.Resource+" ") {
			names = append(names, k)
		}
	}
	sort.Strings(names)
	var found []kind.Object
	for _, k := range names {
		found = append(found, m.objects[k])
	}
	return found, nil
}

func (m *memory) Create(_ context.Context, resource schema.GroupResource, obj kind.Object) (kind.Object, error) {
	if resource.Resource == m.fail {
		return nil, errors.New("the store is full")
	}
	k := key(resource, obj.GetNamespace(), obj.GetName())
	if m.objects[k] != nil {
		return nil, apierrors.NewAlreadyExists(resource, obj.GetName())
	}
	obj.SetUID(types.UID(fmt.Sprint(len(m.writes))))
	m.objects[k] = obj
	m.writes = append(m.writes, "create "+k)
	return obj, nil
}

func (m *memory) Update(_ context.Context, resource schema.GroupResource, namespace, name string, change func(kind.Object) error) (kind.Object, error) {
	k := key(resource, namespace, name)
	if m.objects[k] == nil {
		return nil, apierrors.NewNotFound(resource, name)
	}
	obj := m.objects[k].DeepCopyObject().(kind.Object)
	if err := change(obj); err != nil {
		return nil, fmt.Errorf("update: %w", err)
	}
	m.objects[k] = obj
	m.writes = append(m.writes, "update "+k)
	return obj, nil
}

func (m *memory) Delete(_ context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions) error {
	k := key(resource, namespace, name)
	if m.objects[k] == nil {
		return apierrors.NewNotFound(resource, name)
	}
	if *options.Preconditions.UID != m.objects[k].GetUID() {
		return apierrors.NewConflict(resource, name, errors.New("another uid"))
	}
	delete(m.objects, k)
	m.writes = append(m.writes, "delete "+k)
	return nil
}

func reconciled(t *testing.T) *memory {
	t.Helper()
	m := &memory{objects: make(map[string]kind.Object)}
	if err := Reconcile(context.Background(), m, BootstrapPolicy()); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestReconcileFresh(t *testing.T) {
	m := reconciled(t)
	if len(m.writes) != 141 {
		t.Errorf("%d writes for 141 objects", len(m.writes))
	}
	m.writes = nil
	if err := Reconcile(context.Background(), m, BootstrapPolicy()); err != nil || len(m.writes) > 0 {
		t.Errorf("the second time writes %v, error %v", m.writes, err)
	}
}

func TestReconcile(t *testing.T) {
	secrets := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}}
	for _, test := range []struct {
		name   string
		change func(m *memory)
		writes []string
		check  func(t *testing.T, m *memory)
	}{
		{
			name: "missing rules are added, others stay",
			change: func(m *memory) {
				role := m.objects["clusterroles /system:kube-dns"].(*rbacv1.ClusterRole)
				role.Rules = []rbacv1.PolicyRule{secrets, {Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"endpoints"}}}
			},
			writes: []string{"update clusterroles /system:kube-dns"},
			check: func(t *testing.T, m *memory) {
				rules := m.objects["clusterroles /system:kube-dns"].(*rbacv1.ClusterRole).Rules
				if len(rules) != 5 || !reflect.DeepEqual(rules[0], secrets) || rules[2].Resources[0] != "endpoints" || rules[2].Verbs[0] != "watch" {
					t.Errorf("rules %+v", rules)
				}
			},
		},
		{
			name: "what is protected stays",
			change: func(m *memory) {
				role := m.objects["clusterroles /system:kube-dns"].(*rbacv1.ClusterRole)
				role.Rules, role.Annotations[rbacv1.AutoUpdateAnnotationKey] = nil, "false"
				binding := m.objects["clusterrolebindings /system:kube-dns"].(*rbacv1.ClusterRoleBinding)
				binding.RoleRef.Name, binding.Annotations[rbacv1.AutoUpdateAnnotationKey] = "other", "false"
			},
		},
		{
			name: "labels come back",
			change: func(m *memory) {
				m.objects["roles kube-system/system:controller:cloud-provider"].SetLabels(map[string]string{"own": "x"})
			},
			writes: []string{"update roles kube-system/system:controller:cloud-provider"},
			check: func(t *testing.T, m *memory) {
				labels := m.objects["roles kube-system/system:controller:cloud-provider"].GetLabels()
				if labels["own"] != "x" || labels[bootstrapLabel] != "rbac-defaults" {
					t.Errorf("labels %v", labels)
				}
			},
		},
		{
			name: "missing subjects are added",
			change: func(m *memory) {
				binding := m.objects["rolebindings kube-system/system::leader-locking-kube-scheduler"].(*rbacv1.RoleBinding)
				binding.Subjects = []rbacv1.Subject{{Kind: "User", Name: "me"}, binding.Subjects[0]}
			},
			writes: []string{"update rolebindings kube-system/system::leader-locking-kube-scheduler"},
			check: func(t *testing.T, m *memory) {
				subjects := m.objects["rolebindings kube-system/system::leader-locking-kube-scheduler"].(*rbacv1.RoleBinding).Subjects
				if len(subjects) != 3 || subjects[0].Name != "me" || subjects[2].Kind != "ServiceAccount" {
					t.Errorf("subjects %+v", subjects)
				}
			},
		},
		{
			name: "a binding of another role is made anew",
			change: func(m *memory) {
				m.objects["clusterrolebindings /system:basic-user"].(*rbacv1.ClusterRoleBinding).RoleRef.Name = "cluster-admin"
			},
			writes: []string{"delete clusterrolebindings /system:basic-user", "create clusterrolebindings /system:basic-user"},
		},
		{
			name: "deleted objects come back",
			change: func(m *memory) {
				delete(m.objects, "roles kube-public/system:controller:bootstrap-signer")
			},
			writes: []string{"create roles kube-public/system:controller:bootstrap-signer"},
		},
		{
			name: "a new role is aggregated",
			change: func(m *memory) {
				m.objects["clusterroles /widgets"] = labelled("widgets", map[string]string{aggregateLabelPrefix + "view": "true"}, secrets)
			},
			writes: []string{"update clusterroles /admin", "update clusterroles /edit", "update clusterroles /view"},
			check: func(t *testing.T, m *memory) {
				rules := m.objects["clusterroles /admin"].(*rbacv1.ClusterRole).Rules
				if len(rules) == 0 || !strings.Contains(fmt.Sprint(rules), fmt.Sprint(secrets)) {
					t.Errorf("admin does not have the rule: %v", rules)
				}
			},
		},
		{
			name: "the selector of an aggregated role comes back",
			change: func(m *memory) {
				m.objects["clusterroles /view"].(*rbacv1.ClusterRole).AggregationRule = nil
			},
			writes: []string{"update clusterroles /view"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := reconciled(t)
			test.change(m)
			m.writes = nil
			if err := Reconcile(context.Background(), m, BootstrapPolicy()); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(m.writes, test.writes) {
				t.Errorf("writes %q, want %q", m.writes, test.writes)
			}
			if test.check != nil {
				test.check(t, m)
			}
		})
	}
}

func TestReconcileContinuesAfterError(t *testing.T) {
	m := &memory{objects: make(map[string]kind.Object), fail: "roles"}
	err := Reconcile(context.Background(), m, BootstrapPolicy())
	if err == nil || !strings.Contains(err.Error(), "create roles.rbac.authorization.k8s.io kube-system/system:controller:cloud-provider: the store is full") {
		t.Errorf("error %v", err)
	}
	if len(m.writes) != 134 {
		t.Errorf("%d writes for the 134 other objects", len(m.writes))
	}
}
