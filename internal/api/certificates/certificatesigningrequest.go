package certificates

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

type signingRequest = certificatesv1.CertificateSigningRequest

// CertificateSigningRequest requests a certificate from a signer. The spec records the requester and never changes;
// approvers write the approval, signers the status, and neither can write the other's fields.
var CertificateSigningRequest = kind.Of(kind.Definition[*signingRequest]{
	GVK: certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest"), Plural: "certificatesigningrequests", Short: []string{"csr"},
	List:         &certificatesv1.CertificateSigningRequestList{},
	ValidateName: path.ValidatePathSegmentName,
	Prepare:      prepareSigningRequest,
	Validate: func(_ *kind.Request, csr, old *signingRequest) field.ErrorList {
		return validateWrite(csr, old, writes{})
	},
	CopyStatus:    func(to, from *signingRequest) { to.Status = from.Status },
	PrepareStatus: prepareStatus,
	ValidateStatus: func(_ *kind.Request, csr, old *signingRequest) field.ErrorList {
		return validateWrite(csr, old, writes{certificate: true})
	},
	Subresources: []kind.Subresource{{Name: "approval", Update: approval()}},
	Fields: map[string]func(*signingRequest) string{
		"spec.signerName": func(csr *signingRequest) string { return csr.Spec.SignerName },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.AgeColumn(),
		kind.Column("SignerName", "string", certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc()["signerName"]),
		kind.Column("Requestor", "string", certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc()["request"]),
		kind.Column("RequestedDuration", "string", certificatesv1beta1.CertificateSigningRequestSpec{}.SwaggerDoc()["expirationSeconds"]),
		kind.Column("Condition", "string", certificatesv1beta1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
	},
	Row: signingRequestRow,
})

func signingRequestRow(csr *signingRequest, now time.Time) []any {
	signer, lifetime, state := "<none>", "<none>", "Pending"
	if csr.Spec.SignerName != "" {
		signer = csr.Spec.SignerName
	}
	if seconds := csr.Spec.ExpirationSeconds; seconds != nil {
		lifetime = duration.HumanDuration(time.Duration(*seconds) * time.Second)
	}
	switch {
	case len(conditions(csr, certificatesv1.CertificateDenied)) > 0:
		state = "Denied"
	case len(conditions(csr, certificatesv1.CertificateApproved)) > 0:
		state = "Approved"
	}
	if len(conditions(csr, certificatesv1.CertificateFailed)) > 0 {
		state += ",Failed"
	}
	if len(csr.Status.Certificate) > 0 {
		state += ",Issued"
	}
	return []any{csr.Name, kind.Age(csr.CreationTimestamp, now), signer, csr.Spec.Username, lifetime, state}
}

// prepareSigningRequest records the requester, and keeps it.
func prepareSigningRequest(req *kind.Request, csr, old *signingRequest) {
	if old != nil {
		csr.Spec = *old.Spec.DeepCopy()
		return
	}
	user := req.User.DeepCopy()
	csr.Spec.Username, csr.Spec.UID, csr.Spec.Groups, csr.Spec.Extra = user.Username, user.UID, user.Groups, nil
	if len(user.Extra) > 0 {
		csr.Spec.Extra = make(map[string]certificatesv1.ExtraValue, len(user.Extra))
		for key, values := range user.Extra {
			csr.Spec.Extra[key] = certificatesv1.ExtraValue(values)
		}
	}
}

// prepareStatus keeps the approver's conditions: a signer that sends back an older version of them must not fail because
// of a different timestamp.
func prepareStatus(req *kind.Request, csr, old *signingRequest) {
	for _, typ := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied} {
		kept := conditions(old, typ)
		if len(kept) != len(conditions(csr, typ)) {
			continue
		}
		for i := range csr.Status.Conditions {
			if csr.Status.Conditions[i].Type == typ {
				csr.Status.Conditions[i], kept = kept[0], kept[1:]
			}
		}
	}
	stampConditions(req.Now, csr, old)
}

func stampConditions(now metav1.Time, csr, old *signingRequest) {
	for i := range csr.Status.Conditions {
		condition := &csr.Status.Conditions[i]
		if condition.LastUpdateTime.IsZero() {
			condition.LastUpdateTime = now
		}
		if !condition.LastTransitionTime.IsZero() {
			continue
		}
		condition.LastTransitionTime = now
		for _, before := range conditions(old, condition.Type) {
			if before.Status == condition.Status && !before.LastTransitionTime.IsZero() {
				condition.LastTransitionTime = before.LastTransitionTime
				break
			}
		}
	}
}

func approval() *kind.UpdateStrategy {
	part := kind.UpdateStrategyOf(func(req *kind.Request, csr, old *signingRequest) {
		given := csr.Status.Conditions
		old.DeepCopyInto(csr)
		csr.Status.Conditions = given
		stampConditions(req.Now, csr, old)
	}, func(_ *kind.Request, csr, old *signingRequest) field.ErrorList {
		return validateWrite(csr, old, writes{approval: true})
	})
	part.OwnedFields = []string{"status.conditions"}
	part.UpdatesMetadata = true
	return part
}

func conditions(csr *signingRequest, typ certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
	var found []certificatesv1.CertificateSigningRequestCondition
	for _, condition := range csr.Status.Conditions {
		if condition.Type == typ {
			found = append(found, condition)
		}
	}
	return found
}

// writes are the fields that the endpoint may change.
type writes struct{ approval, certificate bool }

func validateWrite(csr, old *signingRequest, may writes) field.ErrorList {
	errs := validateRequest(csr, old)
	errs = append(errs, validateConditions(csr, old)...)
	status := field.NewPath("status")
	unchanged := old != nil && bytes.Equal(csr.Status.Certificate, old.Status.Certificate)
	if !unchanged && (old == nil || certificateProblem(old.Status.Certificate) == nil) {
		if err := certificateProblem(csr.Status.Certificate); err != nil {
			errs = append(errs, field.Invalid(status.Child("certificate"), "<certificate data>", err.Error()))
		}
	}
	if old == nil {
		return errs
	}
	errs = append(errs, validateFinalConditions(csr, old, may.approval)...)
	switch {
	case unchanged:
	case !may.certificate:
		errs = append(errs, field.Forbidden(status.Child("certificate"), "updates may not set certificate content"))
	case len(old.Status.Certificate) > 0:
		errs = append(errs, field.Forbidden(status.Child("certificate"), "updates may not modify existing certificate content"))
	}
	return errs
}

var usages = []certificatesv1.KeyUsage{
	certificatesv1.UsageAny, certificatesv1.UsageCertSign, certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning,
	certificatesv1.UsageContentCommitment, certificatesv1.UsageCRLSign, certificatesv1.UsageDataEncipherment, certificatesv1.UsageDecipherOnly,
	certificatesv1.UsageDigitalSignature, certificatesv1.UsageEmailProtection, certificatesv1.UsageEncipherOnly, certificatesv1.UsageIPsecEndSystem,
	certificatesv1.UsageIPsecTunnel, certificatesv1.UsageIPsecUser, certificatesv1.UsageKeyAgreement, certificatesv1.UsageKeyEncipherment,
	certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC, certificatesv1.UsageOCSPSigning, certificatesv1.UsageSMIME,
	certificatesv1.UsageServerAuth, certificatesv1.UsageSigning, certificatesv1.UsageTimestamping,
}

// validateRequest validates the spec. Violations of newer validations that the stored request already has are allowed.
func validateRequest(csr, old *signingRequest) field.ErrorList {
	var errs field.ErrorList
	spec, path := &csr.Spec, field.NewPath("spec")
	if err := requestProblem(spec.Request); err != nil {
		errs = append(errs, field.Invalid(path.Child("request"), spec.Request, err.Error()))
	}
	if len(spec.Usages) == 0 {
		errs = append(errs, field.Required(path.Child("usages"), ""))
	}
	unknown := func(usage certificatesv1.KeyUsage) bool { return !slices.Contains(usages, usage) }
	if old == nil || !slices.ContainsFunc(old.Spec.Usages, unknown) {
		for i, usage := range spec.Usages {
			if unknown(usage) {
				errs = append(errs, field.NotSupported(path.Child("usages").Index(i), usage, usages))
			}
		}
	}
	if old == nil || !hasDuplicate(old.Spec.Usages) {
		seen := sets.New[certificatesv1.KeyUsage]()
		for i, usage := range spec.Usages {
			if seen.Has(usage) {
				errs = append(errs, field.Duplicate(path.Child("usages").Index(i), usage))
			}
			seen.Insert(usage)
		}
	}
	legacy := certificatesv1beta1.LegacyUnknownSignerName
	if spec.SignerName == legacy && (old == nil || old.Spec.SignerName != legacy) {
		errs = append(errs, field.Invalid(path.Child("signerName"), spec.SignerName, "the legacy signerName is not allowed via this API version"))
	} else {
		errs = append(errs, validateSignerName(spec.SignerName, path.Child("signerName"))...)
	}
	if seconds := spec.ExpirationSeconds; seconds != nil && *seconds < 600 {
		errs = append(errs, field.Invalid(path.Child("expirationSeconds"), *seconds, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	return errs
}

func hasDuplicate[T comparable](values []T) bool { return sets.New(values...).Len() < len(values) }

func validateConditions(csr, old *signingRequest) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "conditions")
	types, oldTypes := conditionTypes(csr), conditionTypes(old)
	oldDuplicate, oldEmpty := hasDuplicate(oldTypes), slices.Contains(oldTypes, "")
	seen := sets.New[certificatesv1.RequestConditionType]()
	anyStatus := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
	for i, condition := range csr.Status.Conditions {
		path := path.Index(i)
		if condition.Type == "" && !oldEmpty {
			errs = append(errs, field.Required(path.Child("type"), ""))
		}
		statuses := anyStatus
		switch condition.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			statuses = []corev1.ConditionStatus{corev1.ConditionTrue}
		}
		if condition.Status == "" {
			errs = append(errs, field.Required(path.Child("status"), ""))
		} else if !slices.Contains(statuses, condition.Status) {
			errs = append(errs, field.NotSupported(path.Child("status"), condition.Status, statuses))
		}
		if seen.Has(condition.Type) && !oldDuplicate {
			errs = append(errs, field.Duplicate(path.Child("type"), condition.Type))
		}
		seen.Insert(condition.Type)
	}
	both := func(types []certificatesv1.RequestConditionType) bool {
		return slices.Contains(types, certificatesv1.CertificateApproved) && slices.Contains(types, certificatesv1.CertificateDenied)
	}
	if both(types) && !both(oldTypes) {
		errs = append(errs, field.Invalid(path, `{conditions[{"type": "Approved"}], conditions[{"type": "Denied"}]}`,
			"must specify at most one of: `conditions[{\"type\": \"Approved\"}]`, `conditions[{\"type\": \"Denied\"}]`"))
	}
	return errs
}

func conditionTypes(csr *signingRequest) []certificatesv1.RequestConditionType {
	if csr == nil {
		return nil
	}
	types := make([]certificatesv1.RequestConditionType, len(csr.Status.Conditions))
	for i, condition := range csr.Status.Conditions {
		types[i] = condition.Type
	}
	return types
}

// validateFinalConditions: approval, denial and failure are final, and only the approval endpoint sets the first two.
func validateFinalConditions(csr, old *signingRequest, mayApprove bool) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "conditions")
	for _, typ := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		before, after := conditions(old, typ), conditions(csr, typ)
		switch {
		case len(after) < len(before):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not remove a condition of type %q", typ)))
		case mayApprove || typ == certificatesv1.CertificateFailed:
		case len(after) > len(before):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not add a condition of type %q", typ)))
		case !equality.Semantic.DeepEqual(before, after):
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("updates may not modify a condition of type %q\n%v", typ, diff.Diff(before, after))))
		}
	}
	return errs
}

func requestProblem(data []byte) error {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	return request.CheckSignature()
}

func certificateProblem(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	blocks := 0
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		blocks++
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) != 0 {
			return errors.New("no PEM block headers are permitted")
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err
		}
		if len(certs) == 0 {
			return errors.New("found CERTIFICATE PEM block containing 0 certificates")
		}
	}
	if blocks == 0 {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}
