package credentials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"skiff/internal/configfile"
)

// pluginTimeout bounds a run of a plugin.
const pluginTimeout = time.Minute

// globalKey is the cache key of responses for all images.
const globalKey = "<global>"

// Accounts provides service accounts and their tokens.
type Accounts interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Token(ctx context.Context, namespace, name string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// Plugins are the configured credential plugins. The zero value has none.
type Plugins struct {
	plugins []*plugin
}

// LoadPlugins reads a CredentialProviderConfig, from a file or from the files of a directory, and checks that every plugin is in bin.
func LoadPlugins(config, bin string, accounts Accounts, log *slog.Logger) (*Plugins, error) {
	if _, err := os.Stat(bin); err != nil {
		return nil, fmt.Errorf("find credential plugins: %w", err)
	}
	providers, err := readConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read credential provider configuration: %w", err)
	}
	if err := validate(providers); err != nil {
		return nil, fmt.Errorf("credential provider configuration %s: %w", config, err)
	}
	p := &Plugins{}
	for _, provider := range providers {
		program := filepath.Join(bin, provider.Name)
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("find credential plugin: %w", err)
		}
		p.plugins = append(p.plugins, &plugin{CredentialProvider: provider, program: program, accounts: accounts, log: log, cache: map[string]cachedResponse{}})
	}
	return p, nil
}

// readConfig reads the providers of a file, or of all configuration files of a directory in order of their names.
func readConfig(path string) ([]kubeletconfig.CredentialProvider, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		files = nil
		for _, entry := range entries {
			if !entry.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(entry.Name())) {
				files = append(files, filepath.Join(path, entry.Name()))
			}
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("no configuration files in %s", path)
		}
	}
	var providers []kubeletconfig.CredentialProvider
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var config kubeletconfig.CredentialProviderConfig
		if err := configfile.Decode(data, &config); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		group, version, _ := strings.Cut(config.APIVersion, "/")
		if config.Kind != "CredentialProviderConfig" || group != kubeletconfig.GroupName || !slices.Contains([]string{"v1", "v1beta1", "v1alpha1"}, version) {
			return nil, fmt.Errorf("%s: %s %s is not a CredentialProviderConfig", file, config.APIVersion, config.Kind)
		}
		providers = append(providers, config.Providers...)
	}
	return providers, nil
}

// validate returns all errors in the providers.
func validate(providers []kubeletconfig.CredentialProvider) error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if len(providers) == 0 {
		problem("providers: at least one is required")
	}
	seen := map[string]bool{}
	for _, p := range providers {
		if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ ") {
			problem("providers.name: %q is not the name of a program", p.Name)
		}
		if seen[p.Name] {
			problem("providers.name: duplicate provider name %q", p.Name)
		}
		seen[p.Name] = true
		group, version, _ := strings.Cut(p.APIVersion, "/")
		if group != credentialprovider.GroupName || !slices.Contains([]string{"v1", "v1beta1", "v1alpha1"}, version) {
			problem("providers.apiVersion of %s: %q is not a version of %s", p.Name, p.APIVersion, credentialprovider.GroupName)
		}
		if len(p.MatchImages) == 0 {
			problem("providers.matchImages of %s: at least one is required", p.Name)
		}
		if p.DefaultCacheDuration == nil || p.DefaultCacheDuration.Duration < 0 {
			problem("providers.defaultCacheDuration of %s: must be given and not negative", p.Name)
		}
		if t := p.TokenAttributes; t != nil {
			if version != "v1" {
				problem("providers.tokenAttributes of %s: only with %s/v1", p.Name, credentialprovider.GroupName)
			}
			if t.ServiceAccountTokenAudience == "" || t.RequireServiceAccount == nil {
				problem("providers.tokenAttributes of %s: serviceAccountTokenAudience and requireServiceAccount are required", p.Name)
			}
			if t.CacheType != kubeletconfig.TokenServiceAccountTokenCacheType && t.CacheType != kubeletconfig.ServiceAccountServiceAccountTokenCacheType {
				problem("providers.tokenAttributes.cacheType of %s: %q is neither Token nor ServiceAccount", p.Name, t.CacheType)
			}
			if t.RequireServiceAccount != nil && !*t.RequireServiceAccount && len(t.RequiredServiceAccountAnnotationKeys) > 0 {
				problem("providers.tokenAttributes of %s: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set", p.Name)
			}
		}
	}
	return errors.Join(problems...)
}

// Lookup returns the credentials of the plugins that match a repository. Failures are logged, because another credential may suffice.
func (p *Plugins) Lookup(ctx context.Context, pod *corev1.Pod, repository string) []Credential {
	if p == nil {
		return nil
	}
	var found []Credential
	for _, plugin := range p.plugins {
		credentials, err := plugin.lookup(ctx, pod, repository)
		if err != nil {
			plugin.log.Error("credential plugin failed", "plugin", plugin.Name, "image", repository, "pod", pod.Namespace+"/"+pod.Name, "error", err)
		}
		found = append(found, credentials...)
	}
	return found
}

// plugin is one credential plugin and its cached responses.
type plugin struct {
	kubeletconfig.CredentialProvider
	program  string
	accounts Accounts
	log      *slog.Logger
	requests singleflight.Group

	mu    sync.Mutex
	cache map[string]cachedResponse
}

// cachedResponse is a response of a plugin, and when it expires.
type cachedResponse struct {
	entries map[string]dockerEntry
	until   time.Time
}

// identity is the service account a plugin acts for.
type identity struct {
	source      Source
	token       string
	annotations map[string]string
	key         string // separates the cached responses of service accounts
}

func (p *plugin) lookup(ctx context.Context, pod *corev1.Pod, repository string) ([]Credential, error) {
	if !slices.ContainsFunc(p.MatchImages, func(pattern string) bool { return matches(pattern, repository) }) {
		return nil, nil
	}
	who, wanted, err := p.identify(ctx, pod)
	if err != nil || !wanted {
		return nil, err
	}
	entries, ok := p.cached(repository, who.key)
	if !ok {
		// Concurrent requests for one image are made once.
		given, err, _ := p.requests.Do(repository+"\n"+who.token, func() (any, error) { return p.request(ctx, repository, who) })
		if err != nil {
			return nil, err
		}
		entries = given.(map[string]dockerEntry)
	}
	ring := keyring{}
	if err := ring.add(who.source, entries); err != nil {
		return nil, err
	}
	return ring.lookup(repository), nil
}

// identify requests a token of the pod's service account, if the plugin is configured to use one. wanted is false if the plugin must not be
// run: for pods without a required service account, or whose service account lacks a required annotation.
func (p *plugin) identify(ctx context.Context, pod *corev1.Pod) (who identity, wanted bool, err error) {
	attributes, name := p.TokenAttributes, pod.Spec.ServiceAccountName
	if attributes == nil {
		return identity{}, true, nil
	}
	if name == "" {
		return identity{}, !*attributes.RequireServiceAccount, nil
	}
	account, err := p.accounts.ServiceAccount(ctx, pod.Namespace, name)
	if err != nil {
		return identity{}, false, fmt.Errorf("get service account: %w", err)
	}
	annotations := map[string]string{}
	for _, key := range attributes.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return identity{}, false, nil
		}
		annotations[key] = value
	}
	for _, key := range attributes.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			annotations[key] = value
		}
	}
	request, err := p.accounts.Token(ctx, pod.Namespace, name, &authenticationv1.TokenRequest{
		ObjectMeta: metav1.ObjectMeta{UID: account.UID},
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{attributes.ServiceAccountTokenAudience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		},
	})
	if err != nil {
		return identity{}, false, fmt.Errorf("get service account token: %w", err)
	}
	who = identity{
		source:      Source{Kind: KindServiceAccount, Namespace: pod.Namespace, Name: name, UID: string(account.UID)},
		token:       request.Status.Token,
		annotations: annotations,
	}
	parts := []string{pod.Namespace, name, string(account.UID)}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		parts = append(parts, key, annotations[key])
	}
	if attributes.CacheType == kubeletconfig.TokenServiceAccountTokenCacheType {
		parts = append(parts, who.token)
	}
	who.key = fmt.Sprintf("%q", parts)
	return who, true, nil
}

// cached returns an cachedResponse that has not expired: for the image, its registry, or all images.
func (p *plugin) cached(repository, identity string) (map[string]dockerEntry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.cache, func(_ string, a cachedResponse) bool { return now.After(a.until) })
	registry, _, _ := strings.Cut(repository, "/")
	for _, key := range []string{repository, registry, globalKey} {
		if a, ok := p.cache[key+"\n"+identity]; ok {
			return a.entries, true
		}
	}
	return nil, false
}

// request runs the plugin and caches its response.
func (p *plugin) request(ctx context.Context, repository string, who identity) (map[string]dockerEntry, error) {
	response, err := p.run(ctx, credentialprovider.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: p.APIVersion, Kind: "CredentialProviderRequest"},
		Image:    repository, ServiceAccountToken: who.token, ServiceAccountAnnotations: who.annotations,
	})
	if err != nil {
		return nil, err
	}
	entries := map[string]dockerEntry{}
	for registry, auth := range response.Auth {
		if who.token != "" && auth.Password == who.token && p.TokenAttributes.CacheType != kubeletconfig.TokenServiceAccountTokenCacheType {
			return nil, errors.New("credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'")
		}
		entries[registry] = dockerEntry{Username: auth.Username, Password: auth.Password}
	}
	key := ""
	switch response.CacheKeyType {
	case credentialprovider.ImagePluginCacheKeyType:
		key = repository
	case credentialprovider.RegistryPluginCacheKeyType:
		key, _, _ = strings.Cut(repository, "/")
	case credentialprovider.GlobalPluginCacheKeyType:
		key = globalKey
	default:
		return nil, fmt.Errorf("credential provider plugin did not return a valid cacheKeyType: %s", response.CacheKeyType)
	}
	duration := p.DefaultCacheDuration.Duration
	if response.CacheDuration != nil {
		duration = response.CacheDuration.Duration
	}
	if duration > 0 {
		p.mu.Lock()
		p.cache[key+"\n"+who.key] = cachedResponse{entries, time.Now().Add(duration)}
		p.mu.Unlock()
	}
	return entries, nil
}

// run starts the program, with the request on its standard input, and reads the response from its standard output.
func (p *plugin) run(ctx context.Context, request credentialprovider.CredentialProviderRequest) (*credentialprovider.CredentialProviderResponse, error) {
	data, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.program, p.Args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), &stdout, &stderr
	cmd.WaitDelay = time.Second
	cmd.Env = os.Environ()
	for _, variable := range p.Env {
		cmd.Env = append(cmd.Env, variable.Name+"="+variable.Value)
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("error execing credential provider plugin %s for image %s: %w: %s", p.Name, request.Image, err, stderr.String())
	}
	var response credentialprovider.CredentialProviderResponse
	if err := json.Unmarshal(stdout.Bytes(), &response); err != nil {
		// The error could contain the response, and so credentials.
		return nil, errors.New("error decoding credential provider plugin response from stdout")
	}
	if response.APIVersion != p.APIVersion {
		return nil, fmt.Errorf("apiVersion from credential plugin response did not match expected apiVersion:%s, actual apiVersion:%s", p.APIVersion, response.APIVersion)
	}
	return &response, nil
}
