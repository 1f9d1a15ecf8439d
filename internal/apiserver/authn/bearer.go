package authn

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"
)

// maxTokenBytes bounds what is decoded before authentication. It is far above the size of any real token.
const maxTokenBytes = 128 << 10

const warningSpaceBeforeToken = "the provided Authorization header contains extra space before the bearer token, and is ignored"

// bearer returns the token of the Authorization header, or "" and possibly a warning for the client.
func bearer(h http.Header) (token, warning string) {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(h.Get("Authorization")), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", ""
	}
	token, _, more := strings.Cut(rest, " ")
	if token == "" && more {
		return "", warningSpaceBeforeToken
	}
	return token, ""
}

// bearerHeader accepts tokens in the Authorization header.
type bearerHeader struct {
	tokens TokenAuthenticator
}

// Authenticate implements Authenticator.
func (b bearerHeader) Authenticate(r *http.Request) (User, bool, error) {
	id, ok, err := b.identify(r)
	return id.User, ok, err
}

func (b bearerHeader) identify(r *http.Request) (Identity, bool, error) {
	token, _ := bearer(r.Header)
	if token == "" {
		return Identity{}, false, nil
	}
	return identifyToken(r, b.tokens, token)
}

// identifyToken authenticates a bearer token of the request. A token that no authenticator recognises is an error.
func identifyToken(r *http.Request, tokens TokenAuthenticator, token string) (Identity, bool, error) {
	if len(token) > maxTokenBytes {
		return Identity{}, false, errBadToken
	}
	id, ok, err := tokens.IdentifyToken(r.Context(), token, nil)
	if !ok && err == nil {
		err = errBadToken
	}
	return id, ok, err
}

// webSocketProtocol accepts tokens in the subprotocols of a WebSocket request, since browsers cannot set its headers.
type webSocketProtocol struct {
	tokens TokenAuthenticator
}

const (
	protocolHeader       = "Sec-Websocket-Protocol"
	bearerProtocolPrefix = "base64url.bearer.authorization.k8s.io."
)

// Authenticate implements Authenticator.
func (p webSocketProtocol) Authenticate(r *http.Request) (User, bool, error) {
	id, ok, err := p.identify(r)
	return id.User, ok, err
}

func (p webSocketProtocol) identify(r *http.Request) (Identity, bool, error) {
	if r.Header[protocolHeader] == nil || !isWebSocket(r.Header) {
		return Identity{}, false, nil
	}
	token, others, err := tokenAmongProtocols(r.Header[protocolHeader])
	if err != nil || token == "" {
		return Identity{}, false, err
	}
	id, ok, err := identifyToken(r, p.tokens, token)
	if ok {
		r.Header.Set(protocolHeader, strings.Join(others, ","))
	}
	return id, ok, err
}

// tokenAmongProtocols separates the token from the real subprotocols, of which there must be at least one.
func tokenAmongProtocols(headers []string) (token string, others []string, err error) {
	seen := false
	for _, header := range headers {
		for protocol := range strings.SplitSeq(header, ",") {
			protocol = strings.TrimSpace(protocol)
			encoded, isToken := strings.CutPrefix(protocol, bearerProtocolPrefix)
			if !isToken {
				others = append(others, protocol)
				continue
			}
			if seen {
				return "", nil, errors.New("multiple base64.bearer.authorization tokens specified")
			}
			seen = true
			decoded, err := base64.RawURLEncoding.DecodeString(encoded)
			if err != nil {
				return "", nil, errors.New("invalid base64.bearer.authorization token encoding")
			}
			if !utf8.Valid(decoded) {
				return "", nil, errors.New("invalid base64.bearer.authorization token")
			}
			token = string(decoded)
		}
	}
	if token != "" && len(others) == 0 {
		return "", nil, errors.New("missing additional subprotocol")
	}
	return token, others, nil
}

func isWebSocket(h http.Header) bool {
	if !strings.EqualFold(h.Get("Upgrade"), "websocket") {
		return false
	}
	for _, header := range h["Connection"] {
		for value := range strings.SplitSeq(header, ",") {
			if strings.EqualFold(strings.TrimSpace(value), "upgrade") {
				return true
			}
		}
	}
	return false
}
