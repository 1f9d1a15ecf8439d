package certificates

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

type podRequest = certificatesv1.PodCertificateRequest

// PodCertificateRequest is a kubelet's request for a certificate of one of its pods.
var PodCertificateRequest = kind.Of(kind.Definition[*podRequest]{
	GVK: certificatesv1.SchemeGroupVersion.WithKind("PodCertificateRequest"), StorageVersion: "v1beta1", Plural: "podcertificaterequests", Namespaced: true,
	List: &certificatesv1.PodCertificateRequestList{},
	Default: func(req *podRequest) {
		if req.Spec.MaxExpirationSeconds == nil {
			req.Spec.MaxExpirationSeconds = ptr.To[int32](24 * 60 * 60)
		}
	},
	Validate: func(_ *kind.Request, req, old *podRequest) field.ErrorList {
		if old != nil {
			return validation.ValidateImmutableField(req.Spec, old.Spec, field.NewPath("spec"))
		}
		return validatePodRequest(&req.Spec, field.NewPath("spec"))
	},
	CopyStatus:              func(to, from *podRequest) { to.Status = from.Status },
	ValidateStatus:          validatePodRequestStatus,
	StatusOnly:              true,
	DenyUnconditionalUpdate: true,
	Fields: map[string]func(*podRequest) string{
		"spec.signerName": func(req *podRequest) string { return req.Spec.SignerName },
		"spec.podName":    func(req *podRequest) string { return req.Spec.PodName },
		"spec.nodeName":   func(req *podRequest) string { return string(req.Spec.NodeName) },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("PodName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["podName"]),
		kind.Column("ServiceAccountName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["serviceAccountName"]),
		kind.Column("NodeName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["nodeName"]),
		kind.Column("SignerName", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["signerName"]),
		kind.Column("State", "string", "Is the request Pending, Issued, Denied, or Failed?"),
		kind.Column("UnverifiedUserAnnotations", "string", certificatesv1.PodCertificateRequestSpec{}.SwaggerDoc()["unverifiedUserAnnotations"]),
	},
	Row: func(req *podRequest, _ time.Time) []any {
		state := "Pending"
		for _, condition := range req.Status.Conditions {
			if isOutcome(condition.Type) {
				state = condition.Type
			}
		}
		return []any{
			req.Name, req.Spec.PodName, req.Spec.ServiceAccountName, string(req.Spec.NodeName), req.Spec.SignerName, state,
			labels.FormatLabels(req.Spec.UnverifiedUserAnnotations),
		}
	},
})

const (
	minLifetime           = 60 * 60
	maxLifetime           = 91 * 24 * 60 * 60
	maxKubernetesLifetime = 24 * 60 * 60
	maxStubSize           = 10 * 1024
	maxChainSize          = 100 * 1024
)

func validatePodRequest(spec *certificatesv1.PodCertificateRequestSpec, path *field.Path) field.ErrorList {
	errs := validateSignerName(spec.SignerName, path.Child("signerName"))
	errs = append(errs, validateUserAnnotations(spec.UnverifiedUserAnnotations, path.Child("unverifiedUserAnnotations"))...)
	for _, reference := range []struct {
		prefix, name string
		uid          types.UID
	}{
		{"pod", spec.PodName, spec.PodUID},
		{"serviceAccount", spec.ServiceAccountName, spec.ServiceAccountUID},
		{"node", string(spec.NodeName), spec.NodeUID},
	} {
		for _, message := range validation.NameIsDNSSubdomain(reference.name, false) {
			errs = append(errs, field.Invalid(path.Child(reference.prefix+"Name"), reference.name, message))
		}
		uid := path.Child(reference.prefix + "UID")
		if reference.uid == "" {
			errs = append(errs, field.Invalid(uid, reference.uid, "must not be empty"))
		}
		if len(reference.uid) > 128 {
			errs = append(errs, field.TooLong(uid, reference.uid, 128))
		}
	}
	if spec.MaxExpirationSeconds == nil {
		return append(errs, field.Required(path.Child("maxExpirationSeconds"), "must be set"))
	}
	longest := int32(maxLifetime)
	if isKubernetesSigner(spec.SignerName) {
		longest = maxKubernetesLifetime
	}
	if seconds := *spec.MaxExpirationSeconds; seconds < minLifetime || seconds > longest {
		errs = append(errs, field.Invalid(path.Child("maxExpirationSeconds"), seconds, fmt.Sprintf("must be in the range [%d, %d]", minLifetime, longest)))
	}
	if len(spec.StubPKCS10Request) == 0 {
		return append(errs, field.Invalid(path, field.OmitValueType{}, "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"))
	}
	if err := stubRequestError(spec.StubPKCS10Request, path.Child("stubPKCS10Request")); err != nil {
		errs = append(errs, err)
	}
	return errs
}

func validateUserAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key := range annotations {
		errs = append(errs, utilvalidation.IsDomainPrefixedKey(path, strings.ToLower(key))...)
	}
	if validation.ValidateAnnotationsSize(annotations) != nil {
		errs = append(errs, field.TooLong(path, "", validation.TotalAnnotationSizeLimitB))
	}
	return errs
}

// stubRequestError: the stub request contains only the pod's public key, and proves possession by its signature.
func stubRequestError(stub []byte, path *field.Path) *field.Error {
	if len(stub) > maxStubSize {
		return field.TooLong(path, stub, maxStubSize)
	}
	request, err := x509.ParseCertificateRequest(stub)
	if err != nil {
		return field.Invalid(path, field.OmitValueType{}, "must be a valid PKCS#10 CSR")
	}
	switch key := request.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return field.Invalid(path, "curve "+key.Curve.Params().Name, "elliptic public keys must use curve P256, P384, or P521")
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != 3072 && bits != 4096 {
			return field.Invalid(path, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")
		}
	default:
		return field.Invalid(path, field.OmitValueType{}, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")
	}
	if request.CheckSignature() != nil {
		return field.Invalid(path, field.OmitValueType{}, "invalid signature")
	}
	return nil
}
