package authz

import (
	"context"
	"fmt"
	goruntime "runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/authn"
)

// largePolicy binds one role to n users in one binding, and to one user each in n others.
func largePolicy(n int) *RBAC {
	var objects PolicyObjects
	objects.ClusterRoles = []*rbacv1.ClusterRole{{
		ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	}}
	bind := func(name string, subjects ...rbacv1.Subject) {
		objects.ClusterRoleBindings = append(objects.ClusterRoleBindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"}, Subjects: subjects,
		})
	}
	var users []rbacv1.Subject
	for i := range n {
		users = append(users, rbacv1.Subject{Kind: rbacv1.UserKind, Name: fmt.Sprintf("node-%d", i)})
		bind(fmt.Sprintf("b-%d", i), rbacv1.Subject{Kind: rbacv1.UserKind, Name: fmt.Sprintf("user-%d", i)})
	}
	bind("all", users...)
	return NewRBAC(NewStaticPolicy(objects))
}

// TestAuthorizeDoesNotGrow: the work of a request does not depend on the number of bindings, nor on that of the subjects of a binding.
func TestAuthorizeDoesNotGrow(t *testing.T) {
	const small, factor, allowed = 2000, 4, 2.5
	measure := func(rbac *RBAC, user string) time.Duration {
		a := &Attributes{User: authn.User{Username: user, Groups: []string{"g"}}, Verb: "get", Resource: "pods", ResourceRequest: true}
		best := time.Hour
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		for range 7 {
			began := threadTime(t)
			for range 500 {
				if decision, _, _ := rbac.Authorize(context.Background(), a); decision != Allow {
					t.Fatalf("%s is not allowed", user)
				}
			}
			best = min(best, threadTime(t)-began)
		}
		return best
	}
	one, many := largePolicy(small), largePolicy(small*factor)
	for _, format := range []string{"node-%d", "user-%d"} {
		fast := measure(one, fmt.Sprintf(format, small-1))
		slow := measure(many, fmt.Sprintf(format, small*factor-1))
		if ratio := float64(slow) / float64(fast); ratio > allowed {
			t.Errorf(format+": %v with %d bindings and %v with %d", small, fast, small, slow, small*factor)
		}
	}
}

func threadTime(t *testing.T) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// TestReasonHasFirstSubject: a group before the user's own subject is the reason.
func TestReasonHasFirstSubject(t *testing.T) {
	subjects := []rbacv1.Subject{{Kind: rbacv1.GroupKind, Name: "g2"}, {Kind: rbacv1.UserKind, Name: "u"}, {Kind: rbacv1.GroupKind, Name: "g1"}}
	rbac := NewRBAC(NewStaticPolicy(PolicyObjects{
		ClusterRoles: []*rbacv1.ClusterRole{{
			ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}},
		}},
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{{
			ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"}, Subjects: subjects,
		}},
	}))
	for want, user := range map[string]authn.User{
		`Group "g2"`: {Username: "u", Groups: []string{"g1", "g2"}}, `User "u"`: {Username: "u", Groups: []string{"g1"}}, `Group "g1"`: {Username: "x", Groups: []string{"g1"}},
	} {
		_, reason, _ := rbac.Authorize(context.Background(), &Attributes{User: user, Verb: "get", Resource: "pods", ResourceRequest: true})
		if reason != `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to `+want {
			t.Errorf("%s, want %s", reason, want)
		}
	}
}
