package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// projected validates a projected volume. No two sources may write the same file.
func (val *validator) projected(v *corev1.ProjectedVolumeSource, path *field.Path) {
	val.fileDefaults(v.DefaultMode, v.DefaultUser, path)
	volume, written := path, sets.New[string]()
	// write records a file; owner is what the error about a second one names.
	write := func(file, owner string) {
		if written.Has(file) {
			val.invalid(path, owner, "conflicting duplicate paths")
		}
		written.Insert(file)
	}
	for i := range v.Sources {
		source, path, count := &v.Sources[i], path.Child("sources").Index(i), 0
		if s := source.Secret; s != nil {
			count++
			val.projectedKeys(s.Name, s.Items, write, path.Child("secret"))
		}
		if s := source.ConfigMap; s != nil {
			count++
			val.projectedKeys(s.Name, s.Items, write, path.Child("configMap"))
		}
		if s := source.DownwardAPI; s != nil {
			count++
			for k := range s.Items {
				val.downwardFile(&s.Items[k], path.Child("downwardAPI"))
				if file := s.Items[k].Path; file != "" {
					write(file, file)
				}
			}
		}
		if s := source.ServiceAccountToken; s != nil {
			count++
			val.projectedToken(s, volume, path.Child("serviceAccountToken"))
		}
		if s := source.ClusterTrustBundle; s != nil {
			count++
			val.projectedTrustBundle(s, path.Child("clusterTrustBundle"))
			write(s.Path, s.Path)
		}
		if s := source.PodCertificate; s != nil {
			count++
			val.projectedCertificate(s, write, path.Child("podCertificate"))
		}
		if count > 1 {
			val.forbidden(path, "may not specify more than 1 volume type per source")
		}
	}
}

func (val *validator) projectedKeys(name string, items []corev1.KeyToPath, write func(file, owner string), path *field.Path) {
	val.nonEmpty(path.Child("name"), name)
	val.keysToPaths(items, path.Child("items"))
	for _, item := range items {
		if item.Path != "" {
			write(item.Path, name)
		}
	}
}

// projectedToken validates a service account token. Errors about its file have the path of the volume.
func (val *validator) projectedToken(s *corev1.ServiceAccountTokenProjection, volume, path *field.Path) {
	expiration := path.Child("expirationSeconds")
	switch seconds := s.ExpirationSeconds; {
	case seconds == nil:
		val.required(expiration, "")
	case *seconds < 10*60:
		val.invalid(expiration, *seconds, "may not specify a duration less than 10 minutes")
	case *seconds > 1<<32:
		val.invalid(expiration, *seconds, "may not specify a duration larger than 2^32 seconds")
	}
	if s.Path == "" {
		val.required(volume.Child("path"), "")
	} else if !val.allow.nonLocalTokenPath {
		val.localFile(volume.Child("path"), s.Path)
	}
	val.userID(path.Child("user"), s.User)
}

func (val *validator) projectedTrustBundle(s *corev1.ClusterTrustBundleProjection, path *field.Path) {
	switch {
	case s.Name != nil && s.SignerName != nil:
		val.invalid(path, s, "only one of name and signerName may be used")
	case s.Name != nil:
		if *s.Name == "" {
			val.required(path.Child("name"), "must be a valid object name")
		}
		for _, msg := range trustBundleName(*s.Name) {
			val.invalid(path.Child("name"), *s.Name, fmt.Sprintf("not a valid clustertrustbundlename: %v", msg))
		}
		if s.LabelSelector != nil {
			val.invalid(path.Child("labelSelector"), s.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case s.SignerName != nil:
		if *s.SignerName == "" {
			val.required(path.Child("signerName"), "must be a valid signer name")
		}
		val.signerName(path.Child("signerName"), *s.SignerName)
		val.selector(path.Child("labelSelector"), s.LabelSelector, false)
	default:
		val.required(path, "either name or signerName must be specified")
	}
	val.nonEmpty(path.Child("path"), s.Path)
	val.userID(path.Child("user"), s.User)
	val.localFile(path.Child("path"), s.Path)
}

// trustBundleName validates the name of a trust bundle: one that belongs to a signer begins with the signer's name, in
// which the slash is written as a colon, and a colon.
func trustBundleName(name string) []string {
	end := strings.LastIndex(name, ":")
	if end < 0 {
		return validation.NameIsDNSSubdomain(name, false)
	}
	signer := strings.ReplaceAll(name[:end], ":", "/")
	prefix := strings.ReplaceAll(signer, "/", ":") + ":"
	if signer == "" {
		return []string{"ClusterTrustBundle without signer name must not have \":\" in its name"}
	}
	if !strings.HasPrefix(name, prefix) {
		return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, prefix)}
	}
	return validation.NameIsDNSSubdomain(strings.TrimPrefix(name, prefix), false)
}

var certificateKeyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}

func (val *validator) projectedCertificate(s *corev1.PodCertificateProjection, write func(file, owner string), path *field.Path) {
	val.signerName(path.Child("signerName"), s.SignerName)
	if s.UserAnnotations != nil {
		annotations := path.Child("userAnnotations")
		for _, key := range sortedKeys(s.UserAnnotations) {
			val.add(utilvalidation.IsDomainPrefixedKey(annotations, strings.ToLower(key))...)
		}
		if validation.ValidateAnnotationsSize(s.UserAnnotations) != nil {
			val.add(field.TooLong(annotations, "", validation.TotalAnnotationSizeLimitB))
		}
	}
	val.userID(path.Child("user"), s.User)
	oneOf(val, path.Child("keyType"), s.KeyType, certificateKeyTypes...)
	if seconds := s.MaxExpirationSeconds; seconds != nil {
		const day = 24 * 60 * 60
		longest := int32(91 * day)
		if domain, _, _ := strings.Cut(s.SignerName, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
			longest = day
		}
		if *seconds < 3600 {
			val.invalid(path.Child("maxExpirationSeconds"), *seconds, "if provided, maxExpirationSeconds must be >= 3600")
		}
		if *seconds > longest {
			val.invalid(path.Child("maxExpirationSeconds"), *seconds, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", longest))
		}
	}
	files := 0
	for _, f := range []struct{ name, file string }{
		{"credentialBundlePath", s.CredentialBundlePath}, {"keyPath", s.KeyPath}, {"certificateChainPath", s.CertificateChainPath},
	} {
		if f.file != "" {
			files++
			val.localFile(path.Child(f.name), f.file)
			write(f.file, f.file)
		}
	}
	if files == 0 {
		val.required(path, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
}

// signerName requires the form example.com/signer-name.
func (val *validator) signerName(path *field.Path, name string) {
	if name == "" {
		val.required(path, "")
		return
	}
	segments := strings.Split(name, "/")
	if len(segments) != 2 {
		val.invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return
	}
	const longestDomain = utilvalidation.DNS1123SubdomainMaxLength
	if len(segments[0]) > longestDomain {
		val.add(field.TooLong(path, "", longestDomain))
	}
	val.eachLabel(path, segments[0], utilvalidation.IsDNS1123Label)
	if !strings.Contains(segments[0], ".") {
		val.invalid(path, segments[0], "should be a domain with at least two segments separated by dots")
	}
	val.eachLabel(path, segments[1], utilvalidation.IsDNS1123Subdomain)
	// The path may contain a namespace and a name.
	const longest = longestDomain + 1 + utilvalidation.DNS1123SubdomainMaxLength + utilvalidation.DNS1123LabelMaxLength + 1
	if len(name) > longest {
		val.add(field.TooLong(path, "", longest))
	}
}

// eachLabel validates the labels of a dotted name and stops at the first invalid one.
func (val *validator) eachLabel(path *field.Path, name string, validate func(string) []string) {
	for _, label := range strings.Split(name, ".") {
		if texts := validate(label); len(texts) > 0 {
			for _, msg := range texts {
				val.invalid(path, name, fmt.Sprintf("validating label %q: %s", label, msg))
			}
			return
		}
	}
}
