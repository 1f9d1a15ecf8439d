// Package impersonation lets a user act as another, when the authorizer agrees. The request names the other user in
// Impersonate- headers. There are five ways to be allowed, asked in turn: four constrained ones, in which somebody may be
// impersonated only for the requests that are named, and the old one, in which it is all or nothing. What a way asks of the
// authorizer are ordinary questions, with verbs of its own:
//
//	impersonate-on:<mode>:<verb>   may the sender make this very request while impersonating that way?
//	impersonate:<mode>             may the sender be this user, these groups, this uid, these extra fields?
//	impersonate                    the same, the old way, for every request
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

// Impersonation decides who may act as whom.
type Impersonation struct {
	authorizer authz.Authorizer
	attributes func(*http.Request) authz.Attributes
}

// New makes an Impersonation. attributes tells what a request asks for; the user in it is not looked at.
func New(authorizer authz.Authorizer, attributes func(*http.Request) authz.Attributes) *Impersonation {
	return &Impersonation{authorizer: authorizer, attributes: attributes}
}

// Impersonate returns the user the request is to be served as: the sender, unless it asks for another. constraint is the
// verb of the constrained way by which that is allowed, empty for the old way. The headers that ask are removed. An error is
// one for the client: bad request or forbidden.
func (i *Impersonation) Impersonate(r *http.Request, sender authn.User) (user authn.User, constraint string, err error) {
	wanted, err := requested(r.Header)
	if err != nil || wanted == nil {
		return sender, "", err
	}
	a := i.attributes(r)
	a.User = sender
	user, name, err := i.Check(r.Context(), wanted, &a)
	if m := (mode{name: name}); err == nil && m.constrained() {
		constraint = m.verb()
	}
	return user, constraint, err
}

// Check returns the complete user when the sender of the request, a.User, may act as wanted, and the mode it may do so in: ""
// for the old way. When no way is open, the error is that of the first which applies.
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

// requested reads the headers, and removes them so that nobody further on acts on them again. It returns nil when nobody
// is to be impersonated.
func requested(h http.Header) (*authn.User, error) {
	asked := false
	for name := range h {
		if hasPrefixFold(name, "Impersonate-") {
			asked = true
			break
		}
	}
	if !asked {
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

// describe writes a user as clients are used to see it in this message.
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
