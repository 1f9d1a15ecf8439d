package authn

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/go-jose/go-jose/v4"
)

// The paths of the discovery documents for service-account tokens.
const (
	OpenIDConfigurationPath = "/.well-known/openid-configuration"
	JWKSPath                = "/openid/v1/jwks"

	openIDCacheControl = "public, max-age=3600"
)

// Discovery serves the OpenID discovery documents of the issuer of service-account tokens.
type Discovery struct {
	issuer, jwksURL string
	keys            *Keys
	cached          atomic.Pointer[discoveryDocuments]
}

type discoveryDocuments struct {
	keySet              *jose.JSONWebKeySet // the documents describe
	configuration, jwks []byte
}

// NewDiscovery makes the documents of an issuer. jwksURL is the external URL of JWKSPath; if it is empty, it is built from
// address, the server's own host and port.
func NewDiscovery(issuer, jwksURL, address string, keys *Keys) (*Discovery, error) {
	u, err := url.Parse(issuer)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "https":
		return nil, fmt.Errorf("issuer URL must use https scheme, got: %s", issuer)
	case u.RawQuery != "":
		return nil, fmt.Errorf("issuer URL may not include a query, got: %s", issuer)
	case u.Fragment != "":
		return nil, fmt.Errorf("issuer URL may not include a fragment, got: %s", issuer)
	}
	if jwksURL == "" {
		if address == "" {
			return nil, errors.New("either the JWKS URI or the default external address, or both, must be set")
		}
		jwksURL = (&url.URL{Scheme: "https", Host: address, Path: JWKSPath}).String()
	}
	if u, err = url.Parse(jwksURL); err != nil {
		return nil, err
	} else if u.Scheme != "https" {
		return nil, fmt.Errorf("jwksURI requires https scheme, parsed as: %v", u)
	}
	d := &Discovery{issuer: issuer, jwksURL: jwksURL, keys: keys}
	_, err = d.documents()
	return d, err
}

// Configuration is the document at OpenIDConfigurationPath.
func (d *Discovery) Configuration() ([]byte, error) {
	documents, err := d.documents()
	if err != nil {
		return nil, err
	}
	return documents.configuration, nil
}

// Keys is the document at JWKSPath.
func (d *Discovery) Keys() ([]byte, error) {
	documents, err := d.documents()
	if err != nil {
		return nil, err
	}
	return documents.jwks, nil
}

// ServeHTTP serves both paths.
func (d *Discovery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	document, contentType := d.Configuration, "application/json"
	switch r.URL.Path {
	case OpenIDConfigurationPath:
	case JWKSPath:
		document, contentType = d.Keys, "application/jwk-set+json"
	default:
		http.NotFound(w, r)
		return
	}
	body, err := document()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", openIDCacheControl)
	_, _ = w.Write(body) // an error means that the client has disconnected
}

// documents returns both documents and encodes them again when the keys have changed.
func (d *Discovery) documents() (*discoveryDocuments, error) {
	set := d.keys.set.Load()
	if cached := d.cached.Load(); cached != nil && cached.keySet == set {
		return cached, nil
	}
	var algorithms []string
	for _, key := range set.Keys {
		algorithms = append(algorithms, key.Algorithm)
	}
	slices.Sort(algorithms)
	configuration, err := json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		JWKSURL       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{d.issuer, d.jwksURL, []string{"id_token"}, []string{"public"}, slices.Compact(algorithms)})
	if err != nil {
		return nil, fmt.Errorf("encode issuer metadata: %w", err)
	}
	jwks, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("encode issuer keys: %w", err)
	}
	documents := &discoveryDocuments{keySet: set, configuration: configuration, jwks: jwks}
	d.cached.Store(documents)
	return documents, nil
}
