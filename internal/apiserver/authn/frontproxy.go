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

// ProxyHeaders are the names of the request headers in which a front proxy sends the user.
type ProxyHeaders struct {
	User, UID, Group []string // the first user and UID that is set is used; groups are collected
	ExtraPrefix      []string // the rest of the header name is the key, in lower case and percent-encoded
}

var defaultProxyHeaders = ProxyHeaders{
	User: []string{"X-Remote-User"}, UID: []string{"X-Remote-Uid"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-Remote-Extra-"},
}

// FrontProxy authenticates the user whom a trusted proxy sends in request headers, as the aggregation layer does for extension
// API servers. The client certificate must be signed by a front-proxy CA and have one of the allowed names, because any client
// can send the headers.
type FrontProxy struct {
	headers      ProxyHeaders
	allowedNames []string
	verified     verifiedCertificates[string] // the common name
}

// FrontProxyConfig configures FrontProxy. Empty headers have the defaults X-Remote-User and so on.
type FrontProxyConfig struct {
	CAs Pool
	// AllowedNames are the common names a proxy's certificate may have. Empty: any name.
	AllowedNames []string
	Headers      ProxyHeaders
}

// NewFrontProxy makes an authenticator of requests through a front proxy.
func NewFrontProxy(c FrontProxyConfig) (*FrontProxy, error) {
	h := c.Headers
	for _, names := range []struct {
		configured *[]string
		defaults   []string
	}{
		{&h.User, defaultProxyHeaders.User}, {&h.UID, defaultProxyHeaders.UID},
		{&h.Group, defaultProxyHeaders.Group}, {&h.ExtraPrefix, defaultProxyHeaders.ExtraPrefix},
	} {
		if len(*names.configured) == 0 {
			*names.configured = names.defaults
			continue
		}
		trimmed := make([]string, len(*names.configured))
		for i, name := range *names.configured {
			if trimmed[i] = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); trimmed[i] == "" {
				return nil, fmt.Errorf("empty header %q", name)
			}
		}
		*names.configured = trimmed
	}
	return &FrontProxy{headers: h, allowedNames: c.AllowedNames, verified: verifiedCertificates[string]{cas: c.CAs}}, nil
}

// Authenticate implements Authenticator.
func (p *FrontProxy) Authenticate(r *http.Request) (User, bool, error) {
	username := firstHeader(r.Header, p.headers.User)
	if username == "" || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return User{}, false, nil
	}
	name, err := p.verified.verify(r.TLS.PeerCertificates, func(leaf *x509.Certificate) (string, error) { return leaf.Subject.CommonName, nil })
	if err != nil {
		return User{}, false, err
	}
	if len(p.allowedNames) > 0 && !slices.Contains(p.allowedNames, name) {
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

// UnescapeExtraKey decodes the key of an extra field from a header name without its prefix. An invalid encoding is kept as it is.
func UnescapeExtraKey(encoded string) string {
	encoded = strings.ToLower(encoded)
	if key, err := url.PathUnescape(encoded); err == nil {
		return key
	}
	return encoded
}
