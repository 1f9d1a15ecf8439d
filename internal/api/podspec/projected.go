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

// projected judges a volume that brings several sources together. No two may write the same file.
func (j *judge) projected(v *corev1.ProjectedVolumeSource, path *field.Path) {
	j.fileDefaults(v.DefaultMode, v.DefaultUser, path)
	volume, written := path, sets.New[string]()
	// write remembers a file; owner is what the complaint about a second one names.
	write := func(file, owner string) {
		if written.Has(file) {
			j.invalid(path, owner, "conflicting duplicate paths")
		}
		written.Insert(file)
	}
	for i := range v.Sources {
		source, path, count := &v.Sources[i], path.Child("sources").Index(i), 0
		if s := source.Secret; s != nil {
			count++
			j.projectedKeys(s.Name, s.Items, write, path.Child("secret"))
		}
		if s := source.ConfigMap; s != nil {
			count++
			j.projectedKeys(s.Name, s.Items, write, path.Child("configMap"))
		}
		if s := source.DownwardAPI; s != nil {
			count++
			for k := range s.Items {
				j.downwardFile(&s.Items[k], path.Child("downwardAPI"))
				if file := s.Items[k].Path; file != "" {
					write(file, file)
				}
			}
		}
		if s := source.ServiceAccountToken; s != nil {
			count++
			j.projectedToken(s, volume, path.Child("serviceAccountToken"))
		}
		if s := source.ClusterTrustBundle; s != nil {
			count++
			j.projectedTrustBundle(s, path.Child("clusterTrustBundle"))
			write(s.Path, s.Path)
		}
		if s := source.PodCertificate; s != nil {
			count++
			j.projectedCertificate(s, write, path.Child("podCertificate"))
		}
		if count > 1 {
			j.forbidden(path, "may not specify more than 1 volume type per source")
		}
	}
}

func (j *judge) projectedKeys(name string, items []corev1.KeyToPath, write func(file, owner string), path *field.Path) {
	j.nonEmpty(path.Child("name"), name)
	j.keysToPaths(items, path.Child("items"))
	for _, item := range items {
		if item.Path != "" {
			write(item.Path, name)
		}
	}
}

// projectedToken judges a token. Errors about its file carry the path of the volume.
func (j *judge) projectedToken(s *corev1.ServiceAccountTokenProjection, volume, path *field.Path) {
	expiration := path.Child("expirationSeconds")
	switch seconds := s.ExpirationSeconds; {
	case seconds == nil:
		j.required(expiration, "")
	case *seconds < 10*60:
		j.invalid(expiration, *seconds, "may not specify a duration less than 10 minutes")
	case *seconds > 1<<32:
		j.invalid(expiration, *seconds, "may not specify a duration larger than 2^32 seconds")
	}
	if s.Path == "" {
		j.required(volume.Child("path"), "")
	} else if !j.allow.nonLocalTokenPath {
		j.localFile(volume.Child("path"), s.Path)
	}
	j.userID(path.Child("user"), s.User)
}

func (j *judge) projectedTrustBundle(s *corev1.ClusterTrustBundleProjection, path *field.Path) {
	switch {
	case s.Name != nil && s.SignerName != nil:
		j.invalid(path, s, "only one of name and signerName may be used")
	case s.Name != nil:
		if *s.Name == "" {
			j.required(path.Child("name"), "must be a valid object name")
		}
		for _, text := range trustBundleName(*s.Name) {
			j.invalid(path.Child("name"), *s.Name, fmt.Sprintf("not a valid clustertrustbundlename: %v", text))
		}
		if s.LabelSelector != nil {
			j.invalid(path.Child("labelSelector"), s.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case s.SignerName != nil:
		if *s.SignerName == "" {
			j.required(path.Child("signerName"), "must be a valid signer name")
		}
		j.signerName(path.Child("signerName"), *s.SignerName)
		j.selector(path.Child("labelSelector"), s.LabelSelector, false)
	default:
		j.required(path, "either name or signerName must be specified")
	}
	j.nonEmpty(path.Child("path"), s.Path)
	j.userID(path.Child("user"), s.User)
	j.localFile(path.Child("path"), s.Path)
}

// trustBundleName judges the name of a trust bundle: one that belongs to a signer begins with the signer's name, the
// slash written as a colon, and a colon.
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

func (j *judge) projectedCertificate(s *corev1.PodCertificateProjection, write func(file, owner string), path *field.Path) {
	j.signerName(path.Child("signerName"), s.SignerName)
	if s.UserAnnotations != nil {
		annotations := path.Child("userAnnotations")
		for _, key := range sortedKeys(s.UserAnnotations) {
			j.add(utilvalidation.IsDomainPrefixedKey(annotations, strings.ToLower(key))...)
		}
		if validation.ValidateAnnotationsSize(s.UserAnnotations) != nil {
			j.add(field.TooLong(annotations, "", validation.TotalAnnotationSizeLimitB))
		}
	}
	j.userID(path.Child("user"), s.User)
	oneOf(j, path.Child("keyType"), s.KeyType, certificateKeyTypes...)
	if seconds := s.MaxExpirationSeconds; seconds != nil {
		const day = 24 * 60 * 60
		longest := int32(91 * day)
		if domain, _, _ := strings.Cut(s.SignerName, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
			longest = day
		}
		if *seconds < 3600 {
			j.invalid(path.Child("maxExpirationSeconds"), *seconds, "if provided, maxExpirationSeconds must be >= 3600")
		}
		if *seconds > longest {
			j.invalid(path.Child("maxExpirationSeconds"), *seconds, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", longest))
		}
	}
	files := 0
	for _, f := range []struct{ name, file string }{
		{"credentialBundlePath", s.CredentialBundlePath}, {"keyPath", s.KeyPath}, {"certificateChainPath", s.CertificateChainPath},
	} {
		if f.file != "" {
			files++
			j.localFile(path.Child(f.name), f.file)
			write(f.file, f.file)
		}
	}
	if files == 0 {
		j.required(path, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
}

// signerName requires the form example.com/signer-name.
func (j *judge) signerName(path *field.Path, name string) {
	if name == "" {
		j.required(path, "")
		return
	}
	segments := strings.Split(name, "/")
	if len(segments) != 2 {
		j.invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
		return
	}
	const longestDomain = utilvalidation.DNS1123SubdomainMaxLength
	if len(segments[0]) > longestDomain {
		j.add(field.TooLong(path, "", longestDomain))
	}
	j.eachLabel(path, segments[0], utilvalidation.IsDNS1123Label)
	if !strings.Contains(segments[0], ".") {
		j.invalid(path, segments[0], "should be a domain with at least two segments separated by dots")
	}
	j.eachLabel(path, segments[1], utilvalidation.IsDNS1123Subdomain)
	// The path may hold a namespace and a name.
	const longest = longestDomain + 1 + utilvalidation.DNS1123SubdomainMaxLength + utilvalidation.DNS1123LabelMaxLength + 1
	if len(name) > longest {
		j.add(field.TooLong(path, "", longest))
	}
}

// eachLabel judges the parts of a dotted name and stops at the first bad one.
func (j *judge) eachLabel(path *field.Path, name string, rule func(string) []string) {
	for _, label := range strings.Split(name, ".") {
		if texts := rule(label); len(texts) > 0 {
			for _, text := range texts {
				j.invalid(path, name, fmt.Sprintf("validating label %q: %s", label, text))
			}
			return
		}
	}
}
