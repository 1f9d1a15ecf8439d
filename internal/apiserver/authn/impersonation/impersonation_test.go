package impersonation

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

// rules allow requests listed as "verb group/resource/subresource namespace name"; trailing fields are optional.
type rules struct {
	allowed  []string
	requests []string
	users    []authn.User
	err      error
}

func (r *rules) Authorize(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	question := strings.Join([]string{a.Verb, a.Group + "/" + resource, a.Namespace, a.Name}, " ")
	r.requests, r.users = append(r.requests, question), append(r.users, a.User)
	for _, allowed := range r.allowed {
		if question == allowed || strings.HasPrefix(question, allowed+" ") {
			return authz.Allow, "", r.err
		}
	}
	return authz.NoOpinion, "no rule", r.err
}

func getPod(*http.Request) authz.Attributes {
	return authz.Attributes{Verb: "get", ResourceRequest: true, Version: "v1", Resource: "pods", Namespace: "ns", Name: "p"}
}

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestImpersonate(t *testing.T) {
	agent := authn.User{Username: "system:serviceaccount:ns:agent", Extra: map[string]authenticationv1.ExtraValue{authn.ExtraNodeName: {"n1"}, "other": {"x"}}}
	admin := authn.User{Username: "admin", Groups: []string{"ops"}}
	for _, test := range []struct {
		name     string
		sender   authn.User
		headers  http.Header
		allowed  []string
		want     authn.User
		err      string
		requests []string // when given, exactly these are authorized
	}{
		{name: "nobody", sender: admin, want: admin, requests: []string{}},
		{
			name: "a user, the old way", sender: admin, headers: headers("Impersonate-User", "jane"),
			allowed:  []string{"impersonate /users  jane"},
			want:     authn.User{Username: "jane", Groups: []string{authn.GroupAuthenticated}},
			requests: []string{"impersonate-on:user-info:get /pods ns p", "impersonate /users  jane"},
		},
		{
			name: "a user, the old way, with everything", sender: admin,
			headers: headers("Impersonate-User", "jane", "Impersonate-Uid", "u1", "Impersonate-Group", "a", "Impersonate-Group", "b",
				"Impersonate-Extra-Scopes", "view", "Impersonate-Extra-Acme.com%2fProject", "p1"),
			allowed: []string{"impersonate /users", "impersonate /groups", "impersonate authentication.k8s.io/uids",
				"impersonate authentication.k8s.io/userextras/scopes", "impersonate authentication.k8s.io/userextras/acme.com/project"},
			want: authn.User{Username: "jane", UID: "u1", Groups: []string{"a", "b", authn.GroupAuthenticated},
				Extra: map[string]authenticationv1.ExtraValue{"scopes": {"view"}, "acme.com/project": {"p1"}}},
			requests: []string{"impersonate-on:user-info:get /pods ns p", "impersonate /users  jane", "impersonate authentication.k8s.io/uids  u1",
				"impersonate /groups  a", "impersonate /groups  b",
				"impersonate authentication.k8s.io/userextras/acme.com/project  p1", "impersonate authentication.k8s.io/userextras/scopes  view"},
		},
		{
			name: "one group too many", sender: admin, headers: headers("Impersonate-User", "jane", "Impersonate-Group", "a", "Impersonate-Group", "system:masters"),
			allowed: []string{"impersonate /users", "impersonate /groups  a"},
			err:     `pods "p" is forbidden: User "admin" cannot impersonate-on:user-info:get resource "pods" in API group "" in the namespace "ns": no rule`,
		},
		{
			name: "extra that is not allowed", sender: admin, headers: headers("Impersonate-User", "jane", "Impersonate-Extra-Scopes", "admin"),
			allowed: []string{"impersonate /users", "impersonate authentication.k8s.io/userextras/scopes  view"},
			err:     `pods "p" is forbidden`,
		},
		{
			name: "a service account, the old way", sender: admin, headers: headers("Impersonate-User", "system:serviceaccount:ns:robot"),
			allowed: []string{"impersonate /serviceaccounts ns robot"},
			want:    authn.User{Username: "system:serviceaccount:ns:robot", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns", authn.GroupAuthenticated}},
		},
		{
			name: "a service account with groups, the old way", sender: admin, headers: headers("Impersonate-User", "system:serviceaccount:ns:robot", "Impersonate-Group", "a"),
			allowed: []string{"impersonate /serviceaccounts ns robot", "impersonate /groups  a"},
			want:    authn.User{Username: "system:serviceaccount:ns:robot", Groups: []string{"a", authn.GroupAuthenticated}},
		},
		{
			name: "anonymous", sender: admin, headers: headers("Impersonate-User", authn.Anonymous),
			allowed: []string{"impersonate /users"},
			want:    authn.User{Username: authn.Anonymous, Groups: []string{authn.GroupUnauthenticated}},
		},
		{
			name: "unauthenticated by choice", sender: admin, headers: headers("Impersonate-User", "jane", "Impersonate-Group", authn.GroupUnauthenticated),
			allowed: []string{"impersonate /users", "impersonate /groups"},
			want:    authn.User{Username: "jane", Groups: []string{authn.GroupUnauthenticated}},
		},
		{
			name: "a user, for this request", sender: admin, headers: headers("Impersonate-User", "jane", "Impersonate-Group", "a"),
			allowed: []string{"impersonate-on:user-info:get /pods", "impersonate:user-info authentication.k8s.io/users  jane", "impersonate:user-info authentication.k8s.io/groups  a"},
			want:    authn.User{Username: "jane", Groups: []string{"a", authn.GroupAuthenticated}},
		},
		{
			name: "a user, for another request", sender: admin, headers: headers("Impersonate-User", "jane"),
			allowed: []string{"impersonate-on:user-info:list /pods", "impersonate:user-info authentication.k8s.io/users"},
			err:     `pods "p" is forbidden: User "admin" cannot impersonate-on:user-info:get resource "pods" in API group "" in the namespace "ns": no rule`,
		},
		{
			name: "another user, for this request", sender: admin, headers: headers("Impersonate-User", "joe"),
			allowed: []string{"impersonate-on:user-info:get /pods", "impersonate:user-info authentication.k8s.io/users  jane"},
			err:     `users.authentication.k8s.io "joe" is forbidden: User "admin" cannot impersonate:user-info resource "users" in API group "authentication.k8s.io" at the cluster scope: no rule`,
		},
		{
			name: "system:masters, for this request", sender: admin, headers: headers("Impersonate-User", "jane", "Impersonate-Group", "system:masters"),
			allowed: []string{"impersonate-on:user-info:get /pods", "impersonate:user-info authentication.k8s.io/users", "impersonate:user-info authentication.k8s.io/groups"},
			err:     `groups.authentication.k8s.io "system:masters" is forbidden: User "admin" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope: impersonating the system:masters group is not allowed`,
		},
		{
			name: "a bad extra key, for this request", sender: admin, headers: headers("Impersonate-User", "jane", "Impersonate-Extra-Scopes", "x"),
			allowed: []string{"impersonate-on:user-info:get /pods", "impersonate:user-info"},
			err:     `impersonating an invalid key in extra is not allowed: extra.key: Invalid value: "scopes"`,
		},
		{
			name: "many groups, all allowed", sender: admin, headers: headers("Impersonate-User", "jane", "Impersonate-Group", "a", "Impersonate-Group", "b", "Impersonate-Group", "c", "Impersonate-Group", "d"),
			allowed: []string{"impersonate-on:user-info:get /pods", "impersonate:user-info authentication.k8s.io/users", "impersonate:user-info authentication.k8s.io/groups  *"},
			want:    authn.User{Username: "jane", Groups: []string{"a", "b", "c", "d", authn.GroupAuthenticated}},
		},
		{
			name: "a node, for this request", sender: admin, headers: headers("Impersonate-User", "system:node:n1"),
			allowed: []string{"impersonate-on:arbitrary-node:get /pods", "impersonate:arbitrary-node authentication.k8s.io/nodes  n1"},
			want:    authn.User{Username: "system:node:n1", Groups: []string{authn.GroupNodes, authn.GroupAuthenticated}},
		},
		{
			name: "a node, the old way", sender: admin, headers: headers("Impersonate-User", "system:node:n1"),
			allowed: []string{"impersonate /users  system:node:n1"},
			want:    authn.User{Username: "system:node:n1", Groups: []string{authn.GroupAuthenticated}},
		},
		{
			name: "its own node", sender: agent, headers: headers("Impersonate-User", "system:node:n1"),
			allowed: []string{"impersonate-on:associated-node:get /pods", "impersonate:associated-node authentication.k8s.io/nodes  *"},
			want:    authn.User{Username: "system:node:n1", Groups: []string{authn.GroupNodes, authn.GroupAuthenticated}},
		},
		{
			name: "another's node", sender: agent, headers: headers("Impersonate-User", "system:node:n2"),
			allowed: []string{"impersonate-on:associated-node:get /pods", "impersonate:associated-node authentication.k8s.io/nodes  *"},
			err:     `pods "p" is forbidden: User "system:serviceaccount:ns:agent" cannot impersonate-on:arbitrary-node:get resource "pods"`,
		},
		{
			name: "a service account, for this request", sender: admin, headers: headers("Impersonate-User", "system:serviceaccount:ns:robot"),
			allowed: []string{"impersonate-on:serviceaccount:get /pods", "impersonate:serviceaccount authentication.k8s.io/serviceaccounts ns robot"},
			want:    authn.User{Username: "system:serviceaccount:ns:robot", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns", authn.GroupAuthenticated}},
		},
		{
			name: "groups without a user", sender: admin, headers: headers("Impersonate-Group", "a"), allowed: []string{"impersonate"},
			err: `requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"a"}, Extra:map[string][]string(nil)} without impersonating a user name`,
		},
		{name: "extra without a user", sender: admin, headers: headers("Impersonate-Extra-Scopes", "a"), err: "without impersonating a user name"},
		{name: "uid without a user", sender: admin, headers: headers("Impersonate-Uid", "a"), err: "without impersonating a user name"},
		{
			name: "markup", sender: authn.User{Username: "<b>"}, headers: headers("Impersonate-User", "jane"),
			err: `User "&lt;b&gt;" cannot`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &rules{allowed: test.allowed}
			if test.headers == nil {
				test.headers = headers("Accept", "x")
			}
			request := &http.Request{URL: &url.URL{Path: "/"}, Header: test.headers}
			got, _, err := New(r, getPod).Impersonate(request, test.sender)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("%+v, error %v, want %s", got, err, test.err)
				}
				if !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err) {
					t.Errorf("%T", err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Fatalf("%+v, %v", got, err)
			}
			if test.requests != nil && !slices.Equal(r.requests, test.requests) {
				t.Errorf("authorized %q, want %q", r.requests, test.requests)
			}
			for name := range request.Header {
				if strings.HasPrefix(name, "Impersonate-") {
					t.Errorf("header %s is still there", name)
				}
			}
		})
	}
}

// TestAuthorizedUser: the requestor is authorized; for its own node without the extra values that identify its pod.
func TestAuthorizedUser(t *testing.T) {
	sender := authn.User{Username: "system:serviceaccount:ns:agent", Extra: map[string]authenticationv1.ExtraValue{authn.ExtraNodeName: {"n1"}, "b": {"x"}}}
	r := &rules{allowed: []string{"impersonate-on:associated-node:get", "impersonate:associated-node"}}
	request := &http.Request{Header: headers("Impersonate-User", "system:node:n1")}
	if _, _, err := New(r, getPod).Impersonate(request, sender); err != nil {
		t.Fatal(err)
	}
	want := authn.User{Username: sender.Username, Extra: map[string]authenticationv1.ExtraValue{associatedNodeKeys: {authn.ExtraNodeName, "b"}}}
	for _, user := range r.users {
		if !reflect.DeepEqual(user, want) {
			t.Errorf("authorized %+v", user)
		}
	}
	if len(r.users) != 2 {
		t.Errorf("authorized %d times", len(r.users))
	}
}

func TestAuthorizerErrors(t *testing.T) {
	r := &rules{allowed: []string{"impersonate /users"}, err: errors.New("broken rule")}
	request := &http.Request{Header: headers("Impersonate-User", "jane")}
	if _, _, err := New(r, getPod).Impersonate(request, authn.User{}); err != nil {
		t.Errorf("allowed in spite of an error, but: %v", err)
	}
	r.allowed = nil
	request.Header = headers("Impersonate-User", "jane")
	if _, _, err := New(r, getPod).Impersonate(request, authn.User{}); err == nil || !strings.HasSuffix(err.Error(), "broken rule: no rule") {
		t.Error(err)
	}
}
