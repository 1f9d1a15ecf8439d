package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// ClusterTrustBundle publishes trust anchors. The name of a signer's bundle contains the signer's name, so that permission
// to write it can be granted by name; therefore the name is validated together with the spec.
var ClusterTrustBundle = kind.Of(kind.Definition[*certificatesv1.ClusterTrustBundle]{
	GVK: certificatesv1.SchemeGroupVersion.WithKind("ClusterTrustBundle"), StorageVersion: "v1beta1", Plural: "clustertrustbundles",
	List:                    &certificatesv1.ClusterTrustBundleList{},
	ValidateName:            path.ValidatePathSegmentName,
	Validate:                validateTrustBundle,
	DenyUnconditionalUpdate: true,
	Fields: map[string]func(*certificatesv1.ClusterTrustBundle) string{
		"spec.signerName": func(bundle *certificatesv1.ClusterTrustBundle) string { return bundle.Spec.SignerName },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("SignerName", "string", certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"]),
	},
	Row: func(bundle *certificatesv1.ClusterTrustBundle, _ time.Time) []any {
		if bundle.Spec.SignerName == "" {
			return []any{bundle.Name, "<none>"}
		}
		return []any{bundle.Name, bundle.Spec.SignerName}
	},
})

func validateTrustBundle(_ *kind.Request, bundle, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
	var errs field.ErrorList
	meta := field.NewPath("metadata")
	if bundle.GenerateName != "" {
		for _, message := range bundleNameProblems(bundle.Spec.SignerName, bundle.GenerateName, true) {
			errs = append(errs, field.Invalid(meta.Child("generateName"), bundle.GenerateName, message))
		}
	}
	if bundle.Name != "" {
		for _, message := range bundleNameProblems(bundle.Spec.SignerName, bundle.Name, false) {
			errs = append(errs, field.Invalid(meta.Child("name"), bundle.Name, message))
		}
	}
	path := field.NewPath("spec")
	if bundle.Spec.SignerName != "" {
		errs = append(errs, validateSignerName(bundle.Spec.SignerName, path.Child("signerName"))...)
	}
	if old == nil || bundle.Spec.TrustBundle != old.Spec.TrustBundle {
		errs = append(errs, validateAnchors(bundle.Spec.TrustBundle, path.Child("trustBundle"))...)
	}
	if old != nil {
		errs = append(errs, validation.ValidateImmutableField(bundle.Spec.SignerName, old.Spec.SignerName, path.Child("signerName"))...)
	}
	return errs
}

func bundleNameProblems(signer, name string, prefix bool) []string {
	if signer == "" {
		if strings.Contains(name, ":") {
			return []string{"ClusterTrustBundle without signer name must not have \":\" in its name"}
		}
		return validation.NameIsDNSSubdomain(name, prefix)
	}
	start := strings.ReplaceAll(signer, "/", ":") + ":"
	rest, ok := strings.CutPrefix(name, start)
	if !ok {
		return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, start)}
	}
	return validation.NameIsDNSSubdomain(rest, prefix)
}

const maxTrustBundleSize = 1 << 20

func validateAnchors(bundle string, path *field.Path) field.ErrorList {
	if len(bundle) > maxTrustBundleSize {
		return field.ErrorList{field.TooLong(path, "", maxTrustBundleSize)}
	}
	var errs field.ErrorList
	places := map[string][]int{}
	rest := []byte(bundle)
	for i := 0; ; i++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if problem := anchorProblem(block); problem != "" {
			errs = append(errs, field.Invalid(path, "<value omitted>", fmt.Sprintf("entry %d %s", i, problem)))
			continue
		}
		places[string(block.Bytes)] = append(places[string(block.Bytes)], i)
	}
	if len(errs) > 0 {
		return errs
	}
	if len(places) == 0 {
		return field.ErrorList{field.Invalid(path, "<value omitted>", "at least one trust anchor must be provided")}
	}
	var repeated [][]int
	for _, indices := range places {
		if len(indices) > 1 {
			repeated = append(repeated, indices)
		}
	}
	slices.SortFunc(repeated, slices.Compare[[]int])
	for _, indices := range repeated {
		errs = append(errs, field.Invalid(path, "<value omitted>", fmt.Sprintf("duplicate trust anchor (indices %v)", indices)))
	}
	return errs
}

func anchorProblem(block *pem.Block) string {
	if block.Type != "CERTIFICATE" {
		return "has bad block type: " + block.Type
	}
	if len(block.Headers) != 0 {
		return "has PEM block headers"
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	switch {
	case err != nil:
		return "does not parse as X.509"
	case !cert.IsCA:
		return "does not have the CA bit set"
	case !cert.BasicConstraintsValid:
		return "has invalid basic constraints"
	}
	return ""
}
