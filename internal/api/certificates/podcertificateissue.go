package certificates

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// outcomes are the conditions that complete a pod's request.
var outcomes = []string{
	certificatesv1.PodCertificateRequestConditionTypeIssued,
	certificatesv1.PodCertificateRequestConditionTypeDenied,
	certificatesv1.PodCertificateRequestConditionTypeFailed,
}

func isOutcome(condition string) bool { return slices.Contains(outcomes, condition) }

func outcomeOf(req *podRequest) string {
	for _, condition := range req.Status.Conditions {
		if isOutcome(condition.Type) && condition.Status == metav1.ConditionTrue {
			return condition.Type
		}
	}
	return ""
}

// validatePodRequestStatus lets a request complete once: issued, with a certificate that matches the request, or denied or
// failed, with only the condition.
func validatePodRequestStatus(r *kind.Request, req, old *podRequest) field.ErrorList {
	errs := validateOutcomes(req.Status.Conditions)
	errs = append(errs, metavalidation.ValidateConditions(req.Status.Conditions, field.NewPath("status", "conditions"))...)
	if len(errs) > 0 {
		return errs
	}
	same := func(want certificatesv1.PodCertificateRequestStatus, rule string) field.ErrorList {
		if equality.Semantic.DeepEqual(req.Status, want) {
			return nil
		}
		return field.ErrorList{field.Invalid(field.NewPath("status"), field.OmitValueType{}, rule)}
	}
	if outcomeOf(old) != "" {
		return same(old.Status, "immutable after PodCertificateRequest is issued, denied, or failed")
	}
	switch outcomeOf(req) {
	case certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed:
		return same(certificatesv1.PodCertificateRequestStatus{Conditions: req.Status.Conditions},
			"non-condition status fields must be empty when denying or failing the PodCertificateRequest")
	case certificatesv1.PodCertificateRequestConditionTypeIssued:
		return validateIssued(req, old, r.Now.Time)
	}
	return same(old.Status, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
}

func validateOutcomes(conditions []metav1.Condition) field.ErrorList {
	var errs field.ErrorList
	known := 0
	for i, condition := range conditions {
		path := field.NewPath("status", "conditions", fmt.Sprintf("[%d]", i))
		if !isOutcome(condition.Type) {
			errs = append(errs, field.NotSupported(path.Child("type"), condition.Type, outcomes))
			continue
		}
		if known++; known > 1 {
			errs = append(errs, field.Invalid(path.Child("type"), condition.Type, `There may be at most one condition with type "Issued", "Denied", or "Failed"`))
		}
		if condition.Status != metav1.ConditionTrue {
			errs = append(errs, field.NotSupported(path.Child("status"), condition.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
		}
	}
	return errs
}

func validateIssued(req, old *podRequest, now time.Time) field.ErrorList {
	path := field.NewPath("status", "certificateChain")
	chain := req.Status.CertificateChain
	refuse := func(rule string) field.ErrorList { return field.ErrorList{field.Invalid(path, chain, rule)} }
	if len(chain) > maxChainSize {
		return field.ErrorList{field.TooLong(path, chain, maxChainSize)}
	}
	block, rest := pem.Decode([]byte(chain))
	if block == nil {
		return refuse("issued certificate chain must contain at least one certificate")
	}
	if block.Type != "CERTIFICATE" {
		return refuse("issued certificate chain must consist entirely of CERTIFICATE PEM blocks")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return refuse("leaf certificate does not parse as valid X.509")
	}
	errs := validateLeafNames(leaf, path)
	request, err := x509.ParseCertificateRequest(old.Spec.StubPKCS10Request)
	if err != nil {
		return append(errs, field.Invalid(field.NewPath("spec", "stubPKCS10Request"), field.OmitValueType{}, "must be a valid PKCS#10 CSR"))
	}
	if key, ok := request.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); ok && !key.Equal(leaf.PublicKey) {
		return append(errs, refuse("leaf certificate was not issued to the requested public key")...)
	}
	errs = append(errs, validateTimesSet(&req.Status)...)
	if len(errs) > 0 {
		return errs
	}
	if err := timesProblem(req, leaf, now); err != nil {
		return field.ErrorList{err}
	}
	for {
		if block, rest = pem.Decode(rest); block == nil {
			return nil
		}
		if block.Type != "CERTIFICATE" {
			return refuse("issued certificate chain must consist entirely of CERTFICATE PEM blocks")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return refuse("intermediate certificate does not parse as valid X.509")
		}
	}
}

// validateLeafNames refuses names that other programs cannot parse.
func validateLeafNames(leaf *x509.Certificate, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range leaf.DNSNames {
		if name == "" {
			errs = append(errs, field.Invalid(path, name, "leaf certificate should not contain empty DNSName"))
		}
		if strings.Contains(name, "..") {
			errs = append(errs, field.Invalid(path, name, "leaf certificate's DNSName should not contain '..'"))
		}
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			errs = append(errs, field.Invalid(path, name, "leaf certificate's DNSName should not start or end with '.'"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			errs = append(errs, field.Invalid(path, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return errs
}

func validateTimesSet(status *certificatesv1.PodCertificateRequestStatus) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status")
	if status.NotBefore == nil {
		errs = append(errs, field.Required(path.Child("notBefore"), "must be present and consistent with the issued certificate"))
	}
	if status.NotAfter == nil {
		errs = append(errs, field.Required(path.Child("notAfter"), "must be present and consistent with the issued certificate"))
	}
	if status.BeginRefreshAt == nil {
		errs = append(errs, field.Required(path.Child("beginRefreshAt"), "must be present and in the range [notbefore+10min, notafter-10min]"))
	}
	return errs
}

func timesProblem(req *podRequest, leaf *x509.Certificate, now time.Time) *field.Error {
	const skew, margin = 5 * time.Minute, 10 * time.Minute
	path := field.NewPath("status")
	start, end, refresh := req.Status.NotBefore.Time, req.Status.NotAfter.Time, req.Status.BeginRefreshAt.Time
	lifetime, longest := leaf.NotAfter.Sub(leaf.NotBefore), *req.Spec.MaxExpirationSeconds
	switch {
	case !start.Equal(leaf.NotBefore):
		return field.Invalid(path.Child("notBefore"), start, "must be set to the NotBefore time encoded in the leaf certificate")
	case start.Sub(now).Abs() >= skew:
		return field.Invalid(path.Child("notBefore"), start, "must be set to within 5 minutes of kube-apiserver's current time")
	case !end.Equal(leaf.NotAfter):
		return field.Invalid(path.Child("notAfter"), end, "must be set to the NotAfter time encoded in the leaf certificate")
	case lifetime < time.Hour:
		return field.Invalid(path.Child("certificateChain"), lifetime, "leaf certificate lifetime must be >= 1 hour")
	case lifetime > time.Duration(longest)*time.Second:
		return field.Invalid(path.Child("certificateChain"), lifetime, fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)", longest))
	case refresh.Before(start.Add(margin)):
		return field.Invalid(path.Child("beginRefreshAt"), refresh, "must be at least 10 minutes after status.notBefore")
	case refresh.After(end.Add(-margin)):
		return field.Invalid(path.Child("beginRefreshAt"), refresh, "must be at least 10 minutes before status.notAfter")
	}
	return nil
}
