package impersonation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

const (
	nodePrefix         = "system:node:"
	associatedNodeKeys = "authentication.kubernetes.io/associated-node-keys"
	// wildcardThreshold is the number of groups or extra values from which on the wildcard is authorized first, to save calls.
	wildcardThreshold = 4
)

// mode is an impersonation mode.
type mode struct {
	name string // "" for the legacy mode
	// applies reports whether the mode is for this kind of user. nil: always.
	applies func(wanted, requestor *authn.User) bool
	// anyNode authorizes the node name "*" and omits the requestor's extra values: applies has checked that the node is the
	// requestor's own.
	anyNode bool
}

// modes in the order in which they are tried: the most specific first.
var modes = []mode{
	{name: "associated-node", applies: isOwnNode, anyNode: true},
	{name: "arbitrary-node", applies: func(wanted, _ *authn.User) bool { return isNode(wanted.Username) && onlyName(wanted) }},
	{name: "serviceaccount", applies: func(wanted, _ *authn.User) bool { return isServiceAccount(wanted.Username) && onlyName(wanted) }},
	{name: "user-info", applies: func(wanted, _ *authn.User) bool {
		return !isNode(wanted.Username) && !isServiceAccount(wanted.Username)
	}},
	{},
}

func (m *mode) constrained() bool { return m.name != "" }

func (m *mode) verb() string {
	if m.constrained() {
		return "impersonate:" + m.name
	}
	return "impersonate"
}

// try returns the complete user, or an error if the mode does not allow it.
func (i *Impersonation) try(ctx context.Context, m *mode, wanted *authn.User, a *authz.Attributes) (authn.User, error) {
	requestor := a.User
	if m.anyNode {
		requestor.Extra = map[string]authenticationv1.ExtraValue{associatedNodeKeys: slices.Sorted(maps.Keys(requestor.Extra))}
	}
	if m.constrained() {
		on := *a
		on.User, on.Verb = requestor, "impersonate-on:"+m.name+":"+a.Verb
		if err := i.authorize(ctx, &on); err != nil {
			return authn.User{}, err
		}
	}
	user := *wanted
	for _, check := range []func(context.Context, *mode, *authn.User, *authn.User) error{i.checkName, i.checkUID, i.checkGroups, i.checkExtra} {
		if err := check(ctx, m, &requestor, &user); err != nil {
			return authn.User{}, err
		}
	}
	// The groups of nodes and service accounts are added without authorization.
	namespace, _, serviceAccount := authn.SplitServiceAccountName(user.Username)
	switch {
	case serviceAccount && len(user.Groups) == 0:
		user.Groups = authn.ServiceAccountGroups(namespace)
	case m.constrained() && isNode(user.Username):
		user.Groups = []string{authn.GroupNodes}
	}
	group := authn.GroupAuthenticated
	if user.Username == authn.Anonymous {
		group = authn.GroupUnauthenticated
	}
	if !slices.Contains(user.Groups, authn.GroupUnauthenticated) && !slices.Contains(user.Groups, group) {
		user.Groups = append(slices.Clip(user.Groups), group)
	}
	return user, nil
}

func (i *Impersonation) checkName(ctx context.Context, m *mode, requestor, wanted *authn.User) error {
	q := m.attributes(requestor, "users", wanted.Username)
	if namespace, name, ok := authn.SplitServiceAccountName(wanted.Username); ok {
		q.Resource, q.Namespace, q.Name = "serviceaccounts", namespace, name
	} else if m.constrained() && isNode(wanted.Username) {
		if q.Resource, q.Name = "nodes", strings.TrimPrefix(wanted.Username, nodePrefix); m.anyNode {
			q.Name = "*"
		}
	}
	return i.authorize(ctx, q)
}

func (i *Impersonation) checkUID(ctx context.Context, m *mode, requestor, wanted *authn.User) error {
	if wanted.UID == "" {
		return nil
	}
	q := m.attributes(requestor, "uids", wanted.UID)
	q.Group, q.Version = authenticationv1.GroupName, "v1"
	return i.authorize(ctx, q)
}

func (i *Impersonation) checkGroups(ctx context.Context, m *mode, requestor, wanted *authn.User) error {
	if len(wanted.Groups) == 0 {
		return nil
	}
	q := m.attributes(requestor, "groups", "")
	if m.constrained() {
		if slices.Contains(wanted.Groups, "") {
			return forbidden(q, "impersonating the empty string group is not allowed")
		}
		if slices.Contains(wanted.Groups, authn.GroupMasters) {
			q.Name = authn.GroupMasters
			return forbidden(q, "impersonating the system:masters group is not allowed")
		}
		if q.Name = "*"; len(wanted.Groups) >= wildcardThreshold && i.authorize(ctx, q) == nil {
			return nil
		}
	}
	for _, group := range wanted.Groups {
		q.Name = group
		if err := i.authorize(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

func (i *Impersonation) checkExtra(ctx context.Context, m *mode, requestor, wanted *authn.User) error {
	if len(wanted.Extra) == 0 {
		return nil
	}
	q := m.attributes(requestor, "userextras", "")
	q.Group, q.Version = authenticationv1.GroupName, "v1"
	if m.constrained() {
		if err := validateExtra(wanted.Extra); err != nil {
			return forbidden(q, err.Error())
		}
		count := 0
		for _, values := range wanted.Extra {
			count += len(values)
		}
		if q.Subresource, q.Name = "*", "*"; count >= wildcardThreshold && i.authorize(ctx, q) == nil {
			return nil
		}
	}
	for _, key := range slices.Sorted(maps.Keys(wanted.Extra)) {
		for _, value := range wanted.Extra[key] {
			q.Subresource, q.Name = key, value
			if err := i.authorize(ctx, q); err != nil {
				return err
			}
		}
	}
	return nil
}

// attributes are those of a request for one field of the user. In the legacy mode, users, groups and service accounts are in the
// core group.
func (m *mode) attributes(requestor *authn.User, resource, name string) *authz.Attributes {
	q := &authz.Attributes{User: *requestor, Verb: m.verb(), ResourceRequest: true, Version: "v1", Resource: resource, Name: name}
	if m.constrained() {
		q.Group = authenticationv1.GroupName
	}
	return q
}

// authorize returns nil if the request is allowed. An authorizer may allow a request and return an error too.
func (i *Impersonation) authorize(ctx context.Context, q *authz.Attributes) error {
	decision, reason, err := i.authorizer.Authorize(ctx, q)
	switch {
	case decision == authz.Allow:
		return nil
	case apierrors.IsForbidden(err):
		return err
	case err != nil && reason != "":
		reason = err.Error() + ": " + reason
	case err != nil:
		reason = err.Error()
	}
	return forbidden(q, reason)
}

// htmlEscaper escapes the message as upstream does.
var htmlEscaper = strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;")

func forbidden(q *authz.Attributes, reason string) error {
	resource := q.Resource
	if q.Subresource != "" {
		resource += "/" + q.Subresource
	}
	text := fmt.Sprintf("User %q cannot %s path %q", q.User.Username, q.Verb, q.Path)
	if q.ResourceRequest {
		scope := "at the cluster scope"
		if q.Namespace != "" {
			scope = fmt.Sprintf("in the namespace %q", q.Namespace)
		}
		text = fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", q.User.Username, q.Verb, resource, q.Group, scope)
	}
	text = htmlEscaper.Replace(text)
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: q.Group, Resource: q.Resource}, q.Name, errors.New(text))
}

func validateExtra(extra map[string]authenticationv1.ExtraValue) error {
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		values := extra[key]
		if key == "" {
			return errors.New("impersonating the empty string key in extra is not allowed")
		}
		if err := validation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
			return fmt.Errorf("impersonating an invalid key in extra is not allowed: %w", err)
		}
		if key != strings.ToLower(key) {
			return fmt.Errorf("impersonating a non-lowercase key in extra is not allowed: %q", key)
		}
		if len(values) == 0 {
			return errors.New("impersonating empty values in extra is not allowed")
		}
		if slices.Contains(values, "") {
			return errors.New("impersonating the empty string value in extra is not allowed")
		}
	}
	return nil
}

func isServiceAccount(username string) bool {
	_, _, ok := authn.SplitServiceAccountName(username)
	return ok
}

func isNode(username string) bool {
	name, ok := strings.CutPrefix(username, nodePrefix)
	return ok && len(apivalidation.NameIsDNSSubdomain(name, false)) == 0
}

// isOwnNode reports whether wanted is the node that runs the pod of the requestor, a service account.
func isOwnNode(wanted, requestor *authn.User) bool {
	node := requestor.Extra[authn.ExtraNodeName]
	return onlyName(wanted) && isNode(wanted.Username) && isServiceAccount(requestor.Username) &&
		len(node) == 1 && nodePrefix+node[0] == wanted.Username
}

func onlyName(u *authn.User) bool { return u.UID == "" && len(u.Groups) == 0 && len(u.Extra) == 0 }
