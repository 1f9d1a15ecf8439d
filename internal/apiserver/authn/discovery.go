package authn

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
)

// Where others find out how to verify the tokens of this cluster's service accounts.
const (
	OpenIDConfigurationPath = "/.well-known/openid-configuration"
	JWKSPath                = "/openid/v1/jwks"

	openIDCacheControl = "public, max-age=3600"
)

// Discovery is what the world is told about the issuer of service-account tokens.
type Discovery struct {
	issuer, keysURL string
	keys            *Keys
	made            atomic.Pointer[discoveryDocuments]
}

type discoveryDocuments struct {
	of                  *keySet
	configuration, keys []byte
}

// NewDiscovery makes the documents for an issuer. keysURL is where others reach JWKSPath; when it is empty, it is
// made of address, the server's own host and port.
func NewDiscovery(issuer, keysURL, address string, keys *Keys) (*Discovery, error) {
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
	if keysURL == "" {
		if address == "" {
			return nil, errors.New("either the JWKS URI or the default external address, or both, must be set")
		}
		keysURL = (&url.URL{Scheme: "https", Host: address, Path: JWKSPath}).String()
	}
	if u, err = url.Parse(keysURL); err != nil {
		return nil, err
	} else if u.Scheme != "https" {
		return nil, fmt.Errorf("jwksURI requires https scheme, parsed as: %v", u)
	}
	d := &Discovery{issuer: issuer, keysURL: keysURL, keys: keys}
	_, err = d.documents()
	return d, err
}

// Configuration is the document at OpenIDConfigurationPath.
func (d *Discovery) Configuration() ([]byte, error) {
	made, err := d.documents()
	if err != nil {
		return nil, err
	}
	return made.configuration, nil
}

// Keys is the document at JWKSPath.
func (d *Discovery) Keys() ([]byte, error) {
	made, err := d.documents()
	if err != nil {
		return nil, err
	}
	return made.keys, nil
}

// ServeHTTP answers for both paths.
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
	_, _ = w.Write(body) // the client may have gone
}

// documents makes both, again when the keys have changed.
func (d *Discovery) documents() (*discoveryDocuments, error) {
	set := d.keys.set.Load()
	if made := d.made.Load(); made != nil && made.of == set {
		return made, nil
	}
	var keys jsonWebKeys
	var algorithms []string
	for _, key := range set.all {
		keys.Keys = append(keys.Keys, newJSONWebKey(key))
		algorithms = append(algorithms, key.algorithm)
	}
	slices.Sort(algorithms)
	configuration, err := json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		KeysURL       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{d.issuer, d.keysURL, []string{"id_token"}, []string{"public"}, slices.Compact(algorithms)})
	if err != nil {
		return nil, fmt.Errorf("encode issuer metadata: %w", err)
	}
	keysJSON, err := json.Marshal(keys)
	if err != nil {
		return nil, fmt.Errorf("encode issuer keys: %w", err)
	}
	made := &discoveryDocuments{of: set, configuration: configuration, keys: keysJSON}
	d.made.Store(made)
	return made, nil
}
