// Package webhookconfig validates how the API server reaches a webhook: by a URL or through a Service, and with which CA. The
// configurations of admission webhooks and the conversion of custom resources share it.
package webhookconfig

import (
	"fmt"
	"net/url"
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/transport"
)

// Service is a reference to the Service of a webhook.
type Service struct {
	Namespace, Name string
	Path            string
	Port            int32
}

// ValidateURL validates the URL of a webhook.
func ValidateURL(text string, path *field.Path) field.ErrorList {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(text)
	if err != nil {
		return field.ErrorList{field.Required(path, "url must be a valid URL: "+err.Error()+form)}
	}
	var errs field.ErrorList
	if u.Scheme != "https" {
		errs = append(errs, field.Invalid(path, u.Scheme, "'https' is the only allowed URL scheme"+form))
	}
	if u.Host == "" {
		errs = append(errs, field.Invalid(path, u.Host, "host must be specified"+form))
	}
	if u.User != nil {
		errs = append(errs, field.Invalid(path, u.User.String(), "user information is not permitted in the URL"))
	}
	if u.Fragment != "" {
		errs = append(errs, field.Invalid(path, u.Fragment, "fragments are not permitted in the URL"))
	}
	if u.RawQuery != "" {
		errs = append(errs, field.Invalid(path, u.RawQuery, "query parameters are not permitted in the URL"))
	}
	return errs
}

// ValidateService validates the reference to a Service.
func ValidateService(service Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if service.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	if service.Namespace == "" {
		errs = append(errs, field.Required(path.Child("namespace"), ""))
	}
	if messages := utilvalidation.IsValidPortNum(int(service.Port)); messages != nil {
		errs = append(errs, field.Invalid(path.Child("port"), service.Port, "port is not valid: "+strings.Join(messages, ", ")))
	}
	return append(errs, validatePath(service.Path, path.Child("path"))...)
}

func validatePath(text string, path *field.Path) field.ErrorList {
	if text == "" || text == "/" {
		return nil
	}
	if text == "//" {
		return field.ErrorList{field.Invalid(path, text, "segment[0] may not be empty")}
	}
	var errs field.ErrorList
	if !strings.HasPrefix(text, "/") {
		errs = append(errs, field.Invalid(path, text, "must start with a '/'"))
	}
	for i, segment := range strings.Split(strings.TrimSuffix(text[1:], "/"), "/") {
		if segment == "" {
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("segment[%d] may not be empty", i)))
			continue
		}
		for _, message := range utilvalidation.IsDNS1123Subdomain(segment) {
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("segment[%d]: %v", i, message)))
		}
	}
	return errs
}

// ValidateCABundle validates the certificates in PEM that a webhook's certificate is verified with.
func ValidateCABundle(bundle []byte, path *field.Path) field.ErrorList {
	if _, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{CAData: bundle}}); err != nil {
		return field.ErrorList{field.Invalid(path, bundle, err.Error())}
	}
	return nil
}
