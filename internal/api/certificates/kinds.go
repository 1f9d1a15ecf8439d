// Package certificates has the kinds of certificates.k8s.io: certificate requests of users and of pods, and the trust
// anchors of signers. Admission and authorization decide who may approve, sign or attest; the kinds validate requests and
// their results.
package certificates

import (
	"fmt"
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{CertificateSigningRequest, ClusterTrustBundle, PodCertificateRequest}
}

// validateSignerName requires the form example.com/name, where the name may itself be namespace.resource.
func validateSignerName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	parts := strings.Split(name, "/")
	if len(parts) != 2 {
		return field.ErrorList{field.Invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	domain, rest := parts[0], parts[1]
	var errs field.ErrorList
	if len(domain) > utilvalidation.DNS1123SubdomainMaxLength {
		errs = append(errs, field.TooLong(path, "", utilvalidation.DNS1123SubdomainMaxLength))
	}
	labels := strings.Split(domain, ".")
	errs = append(errs, firstLabelError(labels, domain, utilvalidation.IsDNS1123Label, path)...)
	if len(labels) < 2 {
		errs = append(errs, field.Invalid(path, domain, "should be a domain with at least two segments separated by dots"))
	}
	errs = append(errs, firstLabelError(strings.Split(rest, "."), rest, utilvalidation.IsDNS1123Subdomain, path)...)
	if longest := 571; len(name) > longest {
		errs = append(errs, field.TooLong(path, "", longest))
	}
	return errs
}

// firstLabelError reports only the first invalid label, because the errors of all would be the same.
func firstLabelError(labels []string, whole string, check func(string) []string, path *field.Path) field.ErrorList {
	for _, label := range labels {
		messages := check(label)
		if len(messages) == 0 {
			continue
		}
		var errs field.ErrorList
		for _, message := range messages {
			errs = append(errs, field.Invalid(path, whole, fmt.Sprintf("validating label %q: %s", label, message)))
		}
		return errs
	}
	return nil
}

// isKubernetesSigner reports whether the signer is one of Kubernetes itself, for which stricter limits apply.
func isKubernetesSigner(name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	return domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
}
