package encryption

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"

	"skiff/internal/configfile"
)

// defaultTimeout limits one call of a KMS plugin.
const defaultTimeout = 3 * time.Second

// parseConfiguration reads an EncryptionConfiguration in YAML or JSON.
func parseConfiguration(content []byte) (*transformers, error) {
	var c configv1.EncryptionConfiguration
	if err := configfile.Decode(content, &c); err != nil {
		return nil, err
	}
	if c.APIVersion != "apiserver.config.k8s.io/v1" || c.Kind != "EncryptionConfiguration" {
		return nil, fmt.Errorf("apiVersion and kind must be apiserver.config.k8s.io/v1 and EncryptionConfiguration, not %q and %q", c.APIVersion, c.Kind)
	}
	if errs := validate(&c); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return newTransformers(&c, content)
}

func newTransformers(c *configv1.EncryptionConfiguration, content []byte) (*transformers, error) {
	r := &transformers{byResource: map[schema.GroupResource]transformer{}, content: content}
	chains := map[schema.GroupResource]*chain{}
	for _, resources := range c.Resources {
		var members []prefixed
		for _, provider := range resources.Providers {
			member, err := r.provider(&provider)
			if err != nil {
				return nil, errors.Join(err, r.close())
			}
			members = append(members, member)
		}
		for _, name := range resources.Resources {
			gr := schema.ParseGroupResource(name)
			for _, wider := range []schema.GroupResource{{Group: gr.Group, Resource: "*"}, allResources} {
				if chains[wider] != nil {
					return nil, errors.Join(fmt.Errorf("resource %q is masked by earlier rule %q", configName(gr), configName(wider)), r.close())
				}
			}
			if chains[gr] == nil {
				chains[gr] = &chain{none: errors.New("no matching prefix found")}
				r.byResource[gr] = chains[gr]
			}
			chains[gr].members = append(chains[gr].members, members...)
		}
	}
	return r, nil
}

// configName is a resource as the configuration file writes it.
func configName(gr schema.GroupResource) string {
	if gr.Group == "" && gr.Resource == "*" {
		return "*."
	}
	return gr.String()
}

func (r *transformers) provider(p *configv1.ProviderConfiguration) (prefixed, error) {
	switch {
	case p.AESGCM != nil:
		return keyed("k8s:enc:aesgcm:v1:", p.AESGCM.Keys, "no matching key was found for the provided AES transformer", newGCM)
	case p.AESCBC != nil:
		return keyed("k8s:enc:aescbc:v1:", p.AESCBC.Keys, "no matching key was found for the provided AES transformer", newCBC)
	case p.Secretbox != nil:
		return keyed("k8s:enc:secretbox:v1:", p.Secretbox.Keys, "no matching key was found for the provided Secretbox transformer", newSecretbox)
	case p.KMS != nil:
		timeout := defaultTimeout
		if p.KMS.Timeout != nil {
			timeout = p.KMS.Timeout.Duration
		}
		s, err := newKMSProvider(p.KMS.Name, p.KMS.Endpoint, timeout)
		if err != nil {
			return prefixed{}, err
		}
		r.providers = append(r.providers, s)
		return prefixed{[]byte("k8s:enc:kms:v2:" + p.KMS.Name + ":"), s}, nil
	}
	return prefixed{nil, identity{}}, nil
}

// keyed is a provider with several keys; the name of the key is part of the prefix of the encrypted value.
func keyed(prefix string, keys []configv1.Key, none string, make func(key []byte) (transformer, error)) (prefixed, error) {
	c := &chain{none: errors.New(none)}
	for _, key := range keys {
		secret, err := base64.StdEncoding.DecodeString(key.Secret)
		if err != nil {
			return prefixed{}, fmt.Errorf("could not obtain secret for named key %s: %w", key.Name, err)
		}
		t, err := make(secret)
		if err != nil {
			return prefixed{}, fmt.Errorf("error while creating cipher for named key %s: %w", key.Name, err)
		}
		c.members = append(c.members, prefixed{[]byte(key.Name + ":"), t})
	}
	return prefixed{[]byte(prefix), c}, nil
}

func validate(c *configv1.EncryptionConfiguration) (errs field.ErrorList) {
	root := field.NewPath("resources")
	if len(c.Resources) == 0 {
		return field.ErrorList{field.Required(root, "at least one resources is required")}
	}
	var kmsNames []string
	for i := range c.Resources {
		of := &c.Resources[i]
		resources, providers := root.Index(i).Child("resources"), root.Index(i).Child("providers")
		if len(of.Resources) == 0 {
			errs = append(errs, field.Required(resources, fmt.Sprintf("at least one %s is required", resources)))
		}
		errs = append(errs, validateOverlap(of.Resources, resources)...)
		for j, name := range of.Resources {
			if problem := resourceNameError(name); problem != "" {
				errs = append(errs, field.Invalid(resources.Index(j), name, problem))
			}
		}
		if len(of.Providers) == 0 {
			errs = append(errs, field.Required(providers, fmt.Sprintf("at least one %s is required", providers)))
		}
		for j := range of.Providers {
			errs = append(errs, validateProvider(&of.Providers[j], providers.Index(j), &kmsNames)...)
		}
	}
	return errs
}

// resourceNameError returns the error text for an invalid resource name.
func resourceNameError(name string) string {
	gr := schema.ParseGroupResource(name)
	switch {
	case strings.ToLower(name) != name:
		return "resource name should not contain capital letters"
	case name == "*":
		return "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
	case name == "apiserveripinfo", name == "serviceipallocations", name == "servicenodeportallocations":
		return "resources which do not have REST API/s cannot be encrypted"
	case gr.Group == "events.k8s.io":
		return "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file"
	case gr.Group == "extensions":
		return "'extensions' group has been removed and cannot be used for encryption"
	case gr.Group == "*" && gr.Resource != "*":
		return "encrypting the same resource across groups is not supported"
	}
	return ""
}

func validateOverlap(names []string, path *field.Path) (errs field.ErrorList) {
	duplicate, overlap := false, false
	for i, first := range names {
		for j, second := range names {
			a, b := schema.ParseGroupResource(first), schema.ParseGroupResource(second)
			switch {
			case i == j:
			case a == b:
				duplicate = true
			case a == allResources, a.Group == b.Group && (a.Resource == "*" || b.Resource == "*"):
				overlap = true
			}
		}
	}
	if duplicate {
		errs = append(errs, field.Invalid(path, names, "the same resource cannot be specified multiple times"))
	}
	if overlap {
		errs = append(errs, field.Invalid(path, names, "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked"))
	}
	return errs
}

func validateProvider(p *configv1.ProviderConfiguration, path *field.Path, kmsNames *[]string) (errs field.ErrorList) {
	found := 0
	for _, given := range []bool{p.KMS != nil, p.AESGCM != nil, p.AESCBC != nil, p.Secretbox != nil, p.Identity != nil} {
		if given {
			found++
		}
	}
	switch {
	case found == 0:
		return field.ErrorList{field.Invalid(path, "", "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity")}
	case found > 1:
		return field.ErrorList{field.Invalid(path, "", "more than one provider specified in a single element, should split into different list elements")}
	case p.KMS != nil:
		errs = validateKMS(p.KMS, path.Child("kms"), *kmsNames)
		*kmsNames = append(*kmsNames, p.KMS.Name)
		return errs
	case p.AESGCM != nil:
		return validateKeys(p.AESGCM.Keys, path.Child("aesgcm", "keys"), 16, 24, 32)
	case p.AESCBC != nil:
		return validateKeys(p.AESCBC.Keys, path.Child("aescbc", "keys"), 16, 24, 32)
	case p.Secretbox != nil:
		return validateKeys(p.Secretbox.Keys, path.Child("secretbox", "keys"), 32)
	}
	return nil
}

// validateKeys never includes a key in an error.
func validateKeys(keys []configv1.Key, path *field.Path, sizes ...int) (errs field.ErrorList) {
	if len(keys) == 0 {
		return field.ErrorList{field.Required(path, "at least one keys is required")}
	}
	for i, key := range keys {
		idxPath := path.Index(i)
		if key.Name == "" {
			errs = append(errs, field.Required(idxPath.Child("name"), "name is a mandatory field for a key"))
		}
		if key.Secret == "" {
			errs = append(errs, field.Required(idxPath.Child("secret"), "secret is a mandatory field for a key"))
			continue
		}
		secret, err := base64.StdEncoding.DecodeString(key.Secret)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(idxPath.Child("secret"), "REDACTED", "secrets must be base64 encoded"))
		case !slices.Contains(sizes, len(secret)):
			errs = append(errs, field.Invalid(idxPath.Child("secret"), "REDACTED",
				fmt.Sprintf("secret is not of the expected length, got %d, expected one of %v", len(secret), sizes)))
		}
	}
	return errs
}

func validateKMS(c *configv1.KMSConfiguration, path *field.Path, taken []string) (errs field.ErrorList) {
	invalid := func(name string, value any, problem string) {
		errs = append(errs, field.Invalid(path.Child(name), value, problem))
	}
	switch {
	case c.Name == "":
		errs = append(errs, field.Required(path.Child("name"), "name is a mandatory field for a provider"))
	case strings.Contains(c.Name, ":"):
		invalid("name", c.Name, fmt.Sprintf("invalid KMS provider name %s, must not contain ':'", c.Name))
	case slices.Contains(taken, c.Name):
		invalid("name", c.Name, fmt.Sprintf("duplicate KMS provider name %s, names must be unique", c.Name))
	}
	if c.Timeout != nil && c.Timeout.Duration <= 0 {
		invalid("timeout", c.Timeout.Duration.String(), "timeout should be a positive value")
	}
	if endpoint, err := url.Parse(c.Endpoint); c.Endpoint == "" {
		invalid("endpoint", "", "endpoint is a mandatory field for a kms")
	} else if err != nil {
		invalid("endpoint", c.Endpoint, fmt.Sprintf("invalid endpoint for kms provider, error: %v", err))
	} else if endpoint.Scheme != "unix" {
		invalid("endpoint", c.Endpoint, fmt.Sprintf("unsupported scheme %q for KMS provider, only unix is supported", endpoint.Scheme))
	}
	if c.CacheSize != nil {
		invalid("cachesize", *c.CacheSize, "cachesize is not supported in v2")
	}
	if c.APIVersion != "v2" {
		// An empty apiVersion means v1, which upstream has disabled.
		invalid("apiVersion", c.APIVersion, "unsupported apiVersion for KMS provider, only v2 is supported")
	}
	return errs
}
