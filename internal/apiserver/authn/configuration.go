package authn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
)

// Configuration is an AuthenticationConfiguration (apiserver.config.k8s.io): identity providers and anonymous requests.
type Configuration = apiserver.AuthenticationConfiguration

// configurationPoll is how often the file is checked for changes.
const configurationPoll = 10 * time.Second

var configurationCodecs = sync.OnceValue(func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
})

// ReadConfiguration reads an AuthenticationConfiguration file, strictly: an unknown field is an error.
func ReadConfiguration(path string) (*Configuration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := parseConfiguration(data)
	if err != nil {
		return nil, fmt.Errorf("failed to load authentication configuration from file %q: %w", path, err)
	}
	return c, nil
}

func parseConfiguration(data []byte) (*Configuration, error) {
	if len(data) == 0 {
		return nil, errors.New("empty config data")
	}
	obj, err := runtime.Decode(configurationCodecs().UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	c, ok := obj.(*Configuration)
	if !ok {
		return nil, fmt.Errorf("expected AuthenticationConfiguration, got %T", obj)
	}
	return c, nil
}

// AnonymousFrom is the authenticator of anonymous requests that a configuration enables, nil if it disables them. enabled is
// the default of a configuration without this setting.
func AnonymousFrom(c *Configuration, enabled bool) *AnonymousUser {
	if c == nil || c.Anonymous == nil {
		if !enabled {
			return nil
		}
		return &AnonymousUser{}
	}
	if !c.Anonymous.Enabled {
		return nil
	}
	a := &AnonymousUser{}
	for _, condition := range c.Anonymous.Conditions {
		a.Paths = append(a.Paths, condition.Path)
	}
	return a
}

// WatchFile replaces the identity providers whenever the file changes, until ctx is done. An invalid file changes nothing.
func (p *IdentityProviders) WatchFile(ctx context.Context, path string, log *slog.Logger) error {
	var last []byte
	ticker := time.NewTicker(configurationPoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		data, err := os.ReadFile(path)
		if err != nil || bytes.Equal(data, last) {
			continue
		}
		last = data
		c, err := parseConfiguration(data)
		if err == nil && reflect.DeepEqual(c, p.configuration.Load()) {
			continue
		}
		if err == nil {
			err = p.Replace(c)
		}
		p.options.Reloads.Record(err)
		if err != nil {
			log.Error("failed to reload authentication configuration", "file", path, "error", err)
			continue
		}
		log.Info("reloaded authentication configuration", "file", path)
	}
}

// OIDCFlags are the --oidc-* flags, which configure a single identity provider.
type OIDCFlags struct {
	IssuerURL, ClientID, CAFile, UsernameClaim, UsernamePrefix, GroupsClaim, GroupsPrefix string
	RequiredClaims                                                                        map[string]string
}

// Configuration converts the flags to a Configuration.
func (f OIDCFlags) Configuration() (*Configuration, error) {
	if f.UsernameClaim == "" {
		f.UsernameClaim = "sub"
	}
	prefix := f.UsernamePrefix
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && f.UsernameClaim != "email":
		prefix = f.IssuerURL + "#"
	}
	provider := apiserver.JWTAuthenticator{
		Issuer:        apiserver.Issuer{URL: f.IssuerURL, Audiences: []string{f.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{Username: apiserver.PrefixedClaimOrExpression{Claim: f.UsernameClaim, Prefix: &prefix}},
	}
	if f.GroupsClaim != "" {
		provider.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: f.GroupsClaim, Prefix: &f.GroupsPrefix}
	}
	if f.CAFile != "" {
		data, err := os.ReadFile(f.CAFile)
		if err != nil {
			return nil, err
		}
		provider.Issuer.CertificateAuthority = string(data)
	}
	for claim, value := range f.RequiredClaims {
		provider.ClaimValidationRules = append(provider.ClaimValidationRules, apiserver.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	slices.SortFunc(provider.ClaimValidationRules, func(a, b apiserver.ClaimValidationRule) int { return bytes.Compare([]byte(a.Claim), []byte(b.Claim)) })
	return &Configuration{JWT: []apiserver.JWTAuthenticator{provider}}, nil
}
