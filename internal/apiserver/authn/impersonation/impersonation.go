// Package impersonation serves requests as another user, whom the request has in its Impersonate- headers, if the authorizer
// allows it. Five modes are tried in order: four constrained modes, in which a user may be impersonated only for particular
// requests, and the legacy mode, in which a user may be impersonated for all requests. Each mode authorizes these verbs:
//
//	impersonate-on:<mode>:<verb>   make this request while impersonating in the mode
//	impersonate:<mode>             impersonate this user, these groups, this UID, these extra fields
//	impersonate                    the same in the legacy mode, for every request
package impersonation

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

// Impersonation authorizes impersonation.
type Impersonation struct {
	authorizer authz.Authorizer
	attributes func(*http.Request) authz.Attributes
}

// New makes an Impersonation. attributes returns the attributes of a request; its user is ignored.
func New(authorizer authz.Authorizer, attributes func(*http.Request) authz.Attributes) *Impersonation {
	return &Impersonation{authorizer: authorizer, attributes: attributes}
}

// Impersonate returns the user to serve the request as: the requestor, unless it impersonates another. constraint is the verb of
// the constrained mode that allowed it, empty for the legacy mode. The Impersonate- headers are removed. An error is a Status
// for the client: bad request or forbidden.
func (i *Impersonation) Impersonate(r *http.Request, requestor authn.User) (user authn.User, constraint string, err error) {
	wanted, err := requested(r.Header)
	if err != nil || wanted == nil {
		return requestor, "", err
	}
	a := i.attributes(r)
	a.User = requestor
	user, name, err := i.Check(r.Context(), wanted, &a)
	if m := (mode{name: name}); err == nil && m.constrained() {
		constraint = m.verb()
	}
	return user, constraint, err
}

// Check returns the complete user if the requestor, a.User, may impersonate wanted, and the mode that allowed it: "" for the
// legacy mode. If no mode allows it, the error is that of the first mode that applies.
func (i *Impersonation) Check(ctx context.Context, wanted *authn.User, a *authz.Attributes) (authn.User, string, error) {
	var first error
	for _, m := range modes {
		if m.applies != nil && !m.applies(wanted, &a.User) {
			continue
		}
		user, err := i.try(ctx, &m, wanted, a)
		if err == nil {
			return user, m.name, nil
		}
		if first == nil {
			first = err
		}
	}
	return authn.User{}, "", first
}

// requested returns the user of the Impersonate- headers, nil if there are none. The headers are removed, so that no later
// handler acts on them again.
func requested(h http.Header) (*authn.User, error) {
	found := false
	for name := range h {
		if hasPrefixFold(name, "Impersonate-") {
			found = true
			break
		}
	}
	if !found {
		return nil, nil
	}
	wanted := &authn.User{
		Username: h.Get(authenticationv1.ImpersonateUserHeader),
		UID:      h.Get(authenticationv1.ImpersonateUIDHeader),
		Groups:   slices.Clone(h[authenticationv1.ImpersonateGroupHeader]),
	}
	hasExtra := false
	for name, values := range h {
		if !hasPrefixFold(name, authenticationv1.ImpersonateUserExtraHeaderPrefix) {
			continue
		}
		if hasExtra = true; len(values) == 0 {
			continue
		}
		if wanted.Extra == nil {
			wanted.Extra = map[string]authenticationv1.ExtraValue{}
		}
		key := authn.UnescapeExtraKey(name[len(authenticationv1.ImpersonateUserExtraHeaderPrefix):])
		wanted.Extra[key] = append(wanted.Extra[key], values...)
	}
	if wanted.Username == "" {
		if wanted.UID == "" && len(wanted.Groups) == 0 && !hasExtra {
			return nil, nil
		}
		return nil, apierrors.NewBadRequest("requested " + describe(wanted) + " without impersonating a user name")
	}
	for name := range h {
		if strings.EqualFold(name, authenticationv1.ImpersonateUserHeader) || strings.EqualFold(name, authenticationv1.ImpersonateUIDHeader) ||
			strings.EqualFold(name, authenticationv1.ImpersonateGroupHeader) || hasPrefixFold(name, authenticationv1.ImpersonateUserExtraHeaderPrefix) {
			delete(h, name)
		}
	}
	return wanted, nil
}

// describe formats a user as upstream's message does.
func describe(u *authn.User) string {
	var extra map[string][]string
	for key, values := range u.Extra {
		if extra == nil {
			extra = map[string][]string{}
		}
		extra[key] = values
	}
	return fmt.Sprintf("&user.DefaultInfo{Name:%q, UID:%q, Groups:%#v, Extra:%#v}", u.Username, u.UID, u.Groups, extra)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
