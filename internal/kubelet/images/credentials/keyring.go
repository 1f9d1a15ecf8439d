// Package credentials finds the credentials for pulling an image: in the image pull secrets of the pod, in the node's docker configuration,
// and with credential plugins (CredentialProviderConfig).
package credentials

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Credential is a username and password for a registry, and its source.
type Credential struct {
	Username, Password string
	Source             Source
}

// Source is where a credential comes from. The zero value is the node, whose credentials all pods may use.
type Source struct {
	// Kind is Secret or ServiceAccount.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// The kinds of sources that belong to a pod.
const (
	KindSecret         = "Secret"
	KindServiceAccount = "ServiceAccount"
)

// Hash identifies a credential without revealing it.
func (c Credential) Hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(c.Username), c.Username, c.Password))
	return hex.EncodeToString(sum[:])
}

// keyring has credentials by registry, or by a path in one.
type keyring map[string][]Credential

// dockerEntry is one registry in a docker configuration.
type dockerEntry struct {
	Username, Password, Auth string
}

// dockerConfig is the file that `docker login` writes, and the content of a kubernetes.io/dockerconfigjson secret.
type dockerConfig struct {
	Auths map[string]dockerEntry `json:"auths"`
}

// add adds the entries of a docker configuration.
func (k keyring) add(source Source, entries map[string]dockerEntry) error {
	for registry, entry := range entries {
		credential := Credential{Username: entry.Username, Password: entry.Password, Source: source}
		if entry.Auth != "" {
			var err error
			if credential.Username, credential.Password, err = decodeAuth(entry.Auth); err != nil {
				return err
			}
		}
		key, err := keyOf(registry)
		if err != nil {
			continue // not the address of a registry
		}
		k[key] = append(k[key], credential)
	}
	return nil
}

// keyOf returns the key of a registry: host and path, without the scheme and the API version.
func keyOf(registry string) (string, error) {
	if !strings.HasPrefix(registry, "https://") && !strings.HasPrefix(registry, "http://") {
		registry = "https://" + registry
	}
	parsed, err := url.Parse(registry)
	if err != nil {
		return "", err
	}
	path := parsed.Path
	if strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/v2/") {
		path = path[len("/v1"):]
	}
	if path == "/" {
		path = ""
	}
	return parsed.Host + path, nil
}

// decodeAuth reads base64 of user:password, padded or not.
func decodeAuth(auth string) (username, password string, err error) {
	encoding := base64.RawStdEncoding
	if strings.HasSuffix(strings.TrimSpace(auth), "=") {
		encoding = base64.StdEncoding
	}
	decoded, err := encoding.DecodeString(auth)
	if err != nil {
		return "", "", err
	}
	username, password, ok := strings.Cut(string(decoded), ":")
	if !ok {
		return "", "", errors.New("unable to parse auth field, must be formatted as base64(username:password)")
	}
	return username, password, nil
}

// defaultRegistry is the key of credentials for images without a registry.
const defaultRegistry = "index.docker.io"

// lookup returns the credentials for a repository, those with longer paths first.
func (k keyring) lookup(repository string) []Credential {
	keys := make([]string, 0, len(k))
	for key := range k {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	slices.Reverse(keys)
	var found []Credential
	for _, key := range keys {
		if matches(key, repository) {
			found = append(found, k[key]...)
		}
	}
	if len(found) == 0 && inDefaultRegistry(repository) {
		return k[defaultRegistry]
	}
	return found
}

func inDefaultRegistry(repository string) bool {
	host, _, more := strings.Cut(repository, "/")
	switch {
	case host == "":
		return false
	case !more, host == "docker.io", host == defaultRegistry:
		return true
	}
	return !strings.ContainsAny(host, ".:")
}

// matches reports whether a repository matches a pattern: each label of the host matches, with * as a wildcard, the ports are equal, and the
// pattern's path is a prefix of the repository's.
func matches(pattern, repository string) bool {
	p, err := url.Parse("https://" + pattern)
	if err != nil {
		return false
	}
	r, err := url.Parse("https://" + repository)
	if err != nil || p.Port() != r.Port() || !strings.HasPrefix(r.Path, p.Path) {
		return false
	}
	globs, parts := strings.Split(p.Hostname(), "."), strings.Split(r.Hostname(), ".")
	if len(globs) != len(parts) {
		return false
	}
	for i := range globs {
		if ok, err := filepath.Match(globs[i], parts[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// FromSecrets returns the credentials for a repository in image pull secrets. Secrets of other types are ignored.
func FromSecrets(secrets []*corev1.Secret, repository string) ([]Credential, error) {
	ring := keyring{}
	for _, secret := range secrets {
		var entries map[string]dockerEntry
		switch secret.Type {
		case corev1.SecretTypeDockerConfigJson:
			data := secret.Data[corev1.DockerConfigJsonKey]
			if len(data) == 0 {
				continue
			}
			var config dockerConfig
			if err := json.Unmarshal(data, &config); err != nil {
				return nil, err
			}
			entries = config.Auths
		case corev1.SecretTypeDockercfg:
			data := secret.Data[corev1.DockerConfigKey]
			if len(data) == 0 {
				continue
			}
			if err := json.Unmarshal(data, &entries); err != nil {
				return nil, err
			}
		default:
			continue
		}
		source := Source{Kind: KindSecret, Namespace: secret.Namespace, Name: secret.Name, UID: string(secret.UID)}
		if err := ring.add(source, entries); err != nil {
			return nil, err
		}
	}
	return ring.lookup(repository), nil
}

// FromFiles returns the node's credentials for a repository, from the first docker configuration file that can be read.
func FromFiles(files []string, repository string) []Credential {
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		var config dockerConfig
		ring := keyring{}
		if json.Unmarshal(data, &config) == nil && ring.add(Source{}, config.Auths) == nil {
			return ring.lookup(repository)
		}
	}
	return nil
}
