package core

import (
	"crypto/tls"
	"encoding/json"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

var Secret = kind.Of(kind.Definition[*corev1.Secret]{
	GVK: corev1.SchemeGroupVersion.WithKind("Secret"), Plural: "secrets", Namespaced: true,
	List: &corev1.SecretList{},

	Default: func(obj *corev1.Secret) {
		// stringData is write-only: it is merged into data.
		for key, value := range obj.StringData {
			if obj.Data == nil {
				obj.Data = map[string][]byte{}
			}
			obj.Data[key] = []byte(value)
		}
		obj.StringData = nil
		if obj.Type == "" {
			obj.Type = corev1.SecretTypeOpaque
		}
	},
	Validate: validateSecret,
	Warn:     warnSecret,

	Fields: map[string]func(*corev1.Secret) string{
		"type": func(obj *corev1.Secret) string { return string(obj.Type) },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Type", "string", corev1.Secret{}.SwaggerDoc()["type"]),
		kind.Column("Data", "string", corev1.Secret{}.SwaggerDoc()["data"]),
		kind.AgeColumn(),
	},
	Row: func(obj *corev1.Secret, now time.Time) []any {
		return []any{obj.Name, string(obj.Type), int64(len(obj.Data)), kind.Age(obj.CreationTimestamp, now)}
	},
})

func validateSecret(_ *kind.Request, obj, old *corev1.Secret) (errs field.ErrorList) {
	if old != nil {
		errs = append(errs, apivalidation.ValidateImmutableField(obj.Type, old.Type, field.NewPath("type"))...)
		if old.Immutable != nil && *old.Immutable {
			if obj.Immutable == nil || !*obj.Immutable {
				errs = append(errs, field.Forbidden(field.NewPath("immutable"), frozen))
			}
			if !reflect.DeepEqual(obj.Data, old.Data) {
				errs = append(errs, field.Forbidden(field.NewPath("data"), frozen))
			}
		}
	}
	data, size := field.NewPath("data"), 0
	for key, value := range obj.Data {
		errs = append(errs, kind.Invalid(data.Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(value)
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "", corev1.MaxSecretSize))
	}
	return append(errs, validateSecretType(obj)...)
}

// validateSecretType requires the keys of the well-known types.
func validateSecretType(obj *corev1.Secret) (errs field.ErrorList) {
	data := field.NewPath("data")
	require := func(keys ...string) {
		for _, key := range keys {
			if _, found := obj.Data[key]; !found {
				errs = append(errs, field.Required(data.Key(key), ""))
			}
		}
	}
	requireJSON := func(key string) {
		require(key)
		if content, found := obj.Data[key]; found {
			if err := json.Unmarshal(content, &map[string]any{}); err != nil {
				errs = append(errs, field.Invalid(data.Key(key), "<secret contents redacted>", err.Error()))
			}
		}
	}
	switch obj.Type {
	case corev1.SecretTypeServiceAccountToken:
		if obj.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		requireJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		requireJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, user := obj.Data[corev1.BasicAuthUsernameKey]
		_, password := obj.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			require(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(obj.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		require(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return errs
}

func warnSecret(obj, _ *corev1.Secret) []string {
	if obj.Type != corev1.SecretTypeTLS {
		return nil
	}
	if _, err := tls.X509KeyPair(obj.Data[corev1.TLSCertKey], obj.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}
