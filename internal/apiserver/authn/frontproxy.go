package authn

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// ProxyHeaders are the headers a front proxy names the user in.
type ProxyHeaders struct {
	User, UID, Group []string // the first user and uid that is set counts; groups are collected
	ExtraPrefix      []string // what follows the prefix is the key, in lower case and %-encoded
}

var defaultProxyHeaders = ProxyHeaders{
	User: []string{"X-Remote-User"}, UID: []string{"X-Remote-Uid"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-Remote-Extra-"},
}

// FrontProxy believes a proxy that says who the user is, as the aggregation layer does towards extension servers. It does
// so only when the client's certificate is signed by the front proxy's own authority and has one of the allowed names:
// anybody can send the headers.
type FrontProxy struct {
	headers ProxyHeaders
	names   []string
	seen    verifiedCertificates[string] // the common name
}

// FrontProxyConfig says whom to believe. Headers left empty are the usual ones.
type FrontProxyConfig struct {
	CAs Pool
	// AllowedNames are the common names a proxy's certificate may have. Empty: any, as long as the authority signed it.
	AllowedNames []string
	Headers      ProxyHeaders
}

// NewFrontProxy makes an authenticator for requests through a proxy.
func NewFrontProxy(c FrontProxyConfig) (*FrontProxy, error) {
	h := c.Headers
	for _, names := range []struct {
		given    *[]string
		standard []string
	}{
		{&h.User, defaultProxyHeaders.User}, {&h.UID, defaultProxyHeaders.UID},
		{&h.Group, defaultProxyHeaders.Group}, {&h.ExtraPrefix, defaultProxyHeaders.ExtraPrefix},
	} {
		if len(*names.given) == 0 {
			*names.given = names.standard
			continue
		}
		trimmed := make([]string, len(*names.given))
		for i, name := range *names.given {
			if trimmed[i] = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); trimmed[i] == "" {
				return nil, fmt.Errorf("empty header %q", name)
			}
		}
		*names.given = trimmed
	}
	return &FrontProxy{headers: h, names: c.AllowedNames, seen: verifiedCertificates[string]{authorities: c.CAs}}, nil
}

// Authenticate implements Authenticator.
func (p *FrontProxy) Authenticate(r *http.Request) (User, bool, error) {
	username := firstHeader(r.Header, p.headers.User)
	if username == "" || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return User{}, false, nil
	}
	name, err := p.seen.verify(r.TLS.PeerCertificates, func(leaf *x509.Certificate) (string, error) { return leaf.Subject.CommonName, nil })
	if err != nil {
		return User{}, false, err
	}
	if len(p.names) > 0 && !slices.Contains(p.names, name) {
		return User{}, false, fmt.Errorf("x509: subject with cn=%s is not in the allowed list", name)
	}
	user := User{Username: username, UID: firstHeader(r.Header, p.headers.UID)}
	for _, header := range p.headers.Group {
		for _, group := range r.Header[header] {
			if group != "" {
				user.Groups = append(user.Groups, group)
			}
		}
	}
	for _, prefix := range p.headers.ExtraPrefix {
		for header, values := range r.Header {
			if hasPrefixFold(header, prefix) {
				if user.Extra == nil {
					user.Extra = map[string]authenticationv1.ExtraValue{}
				}
				key := UnescapeExtraKey(header[len(prefix):])
				user.Extra[key] = append(user.Extra[key], values...)
			}
		}
	}
	return user, true, nil
}

func (p *FrontProxy) dropHeaders(h http.Header) { p.headers.drop(h) }

// drop removes the headers.
func (p *ProxyHeaders) drop(h http.Header) {
	for _, names := range [...][]string{p.User, p.UID, p.Group} {
		for _, name := range names {
			h.Del(name)
		}
	}
	for _, prefix := range p.ExtraPrefix {
		for name := range h {
			if hasPrefixFold(name, prefix) {
				delete(h, name)
			}
		}
	}
}

func firstHeader(h http.Header, names []string) string {
	for _, name := range names {
		if value := h.Get(name); value != "" {
			return value
		}
	}
	return ""
}

// UnescapeExtraKey reads the key of an extra field from the rest of a header's name. What is not well encoded stands for itself.
func UnescapeExtraKey(encoded string) string {
	encoded = strings.ToLower(encoded)
	if key, err := url.PathUnescape(encoded); err == nil {
		return key
	}
	return encoded
}
