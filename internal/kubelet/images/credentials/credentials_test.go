package credentials

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLookup(t *testing.T) {
	for _, row := range []struct {
		name       string
		registries []string
		repository string
		want       []string
	}{
		{"the registry", []string{"quay.io"}, "quay.io/x/y", []string{"quay.io"}},
		{"another registry", []string{"quay.io"}, "gcr.io/x/y", nil},
		{"scheme and version do not matter", []string{"https://quay.io/v2/", "http://quay.io/v1/"}, "quay.io/x", []string{"http://quay.io/v1/", "https://quay.io/v2/"}},
		{"a longer path comes first", []string{"quay.io", "quay.io/x", "quay.io/z"}, "quay.io/x/y", []string{"quay.io/x", "quay.io"}},
		{"wild cards", []string{"*.azure.io", "*.*.azure.io", "reg*.azure.io"}, "reg1.azure.io/x", []string{"reg*.azure.io", "*.azure.io"}},
		{"the port counts", []string{"localhost", "localhost:5000"}, "localhost:5000/x", []string{"localhost:5000"}},
		{"the default registry", []string{"https://index.docker.io/v1/"}, "docker.io/library/busybox", []string{"https://index.docker.io/v1/"}},
		{"the default registry by its other name", []string{"docker.io"}, "docker.io/library/busybox", []string{"docker.io"}},
		{"not the default registry", []string{"https://index.docker.io/v1/"}, "quay.io/busybox", nil},
		{"nonsense is for none", []string{"http://[", "quay.io"}, "quay.io/x", []string{"quay.io"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			// Sorted as the keyring meets them does not matter: the user is the registry's name as given.
			ring := keyring{}
			for _, registry := range row.registries {
				if err := ring.add(Source{}, map[string]dockerEntry{registry: {Username: registry}}); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for _, c := range ring.lookup(row.repository) {
				got = append(got, c.Username)
			}
			if row.name == "scheme and version do not matter" {
				got[0], got[1] = got[1], got[0]
			}
			if !reflect.DeepEqual(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestSecretForms(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte("user:pass:word"))
	for _, row := range []struct {
		name   string
		secret corev1.Secret
		want   string
		err    bool
	}{
		{name: "user and password", secret: corev1.Secret{Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"quay.io":{"username":"user","password":"secret"}}}`)}}, want: "user secret"},
		{name: "auth", secret: corev1.Secret{Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"quay.io":{"auth":"` + auth + `"}}}`)}}, want: "user pass:word"},
		{name: "auth without padding", secret: corev1.Secret{Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"quay.io":{"auth":"` + strings.TrimRight(auth, "=") + `"}}}`)}}, want: "user pass:word"},
		{name: "the old form", secret: corev1.Secret{Type: corev1.SecretTypeDockercfg,
			Data: map[string][]byte{corev1.DockerConfigKey: []byte(`{"quay.io":{"username":"user","password":"secret"}}`)}}, want: "user secret"},
		{name: "another type", secret: corev1.Secret{Type: corev1.SecretTypeOpaque,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"quay.io":{"username":"user","password":"secret"}}}`)}}},
		{name: "empty", secret: corev1.Secret{Type: corev1.SecretTypeDockerConfigJson}},
		{name: "broken", secret: corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{`)}}, err: true},
		{name: "broken auth", secret: corev1.Secret{Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"quay.io":{"auth":"bm9jb2xvbg=="}}}`)}}, err: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			row.secret.Namespace, row.secret.Name, row.secret.UID = "ns", "s", "uid"
			found, err := FromSecrets([]*corev1.Secret{&row.secret}, "quay.io/x")
			if (err != nil) != row.err {
				t.Fatalf("error %v", err)
			}
			got := ""
			for _, c := range found {
				got += c.Username + " " + c.Password
				if c.Source != (Source{Kind: KindSecret, Namespace: "ns", Name: "s", UID: "uid"}) {
					t.Errorf("source %+v", c.Source)
				}
			}
			if got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestNodeConfiguration(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/broken", "{")
	write(t, dir+"/good", `{"auths":{"quay.io":{"username":"node"}}}`)
	write(t, dir+"/later", `{"auths":{"quay.io":{"username":"later"}}}`)
	found := FromFiles([]string{dir + "/absent", dir + "/broken", dir + "/good", dir + "/later"}, "quay.io/x")
	if len(found) != 1 || found[0].Username != "node" || found[0].Source != (Source{}) {
		t.Errorf("found %+v", found)
	}
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o755); err != nil {
		t.Fatal(err)
	}
}

// accounts has one service account; its tokens are counted.
type accounts struct{ tokens int }

func (a *accounts) ServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if name != "builder" {
		return nil, fmt.Errorf("no service account %s", name)
	}
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "sa", Annotations: map[string]string{"role": "puller", "more": "x"}}}, nil
}

func (a *accounts) Token(_ context.Context, _, _ string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	a.tokens++
	answer := request.DeepCopy()
	answer.Status.Token = fmt.Sprintf("token-for-%s-%s-%d", request.Spec.Audiences[0], request.Spec.BoundObjectRef.Name, a.tokens)
	return answer, nil
}

// A plugin that notes what it is asked, and answers as its argument and variable say.
const script = `#!/bin/sh
cat >>"$NOTES"; echo >>"$NOTES"
[ "$1" = fail ] && { echo no luck >&2; exit 1; }
echo '{"kind":"CredentialProviderResponse","apiVersion":"'"$VERSION"'","cacheKeyType":"'"$KEY"'"'"$LASTS"',"auth":{"'"${FOR:-*.example.com}"'":{"username":"plugin","password":"'"${PASSWORD:-x}"'"}}}'
`

// load makes a configuration with one plugin and returns how often it was run.
func load(t *testing.T, fields, variables string, a Accounts) (*Plugins, func() []string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir+"/plugin", script)
	notes := dir + "/notes"
	write(t, dir+"/config.yaml", `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  matchImages: ["*.example.com"]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
`+fields+`
  env:
  - {name: NOTES, value: "`+notes+`"}
  - {name: VERSION, value: credentialprovider.kubelet.k8s.io/v1}
`+variables)
	p, err := LoadPlugins(dir+"/config.yaml", dir, a, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return p, func() []string {
		data, err := os.ReadFile(notes)
		if err != nil {
			return nil
		}
		return strings.Split(strings.TrimSpace(string(data)), "\n")
	}
}

func builderPod(name, account string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "pod"}, Spec: corev1.PodSpec{ServiceAccountName: account}}
}

func TestPluginAnswersAreKept(t *testing.T) {
	for _, row := range []struct {
		key, lasts string
		runs       int
	}{
		{"Image", "", 3}, {"Registry", "", 2}, {"Global", "", 1}, {"Global", `,"cacheDuration":"0s"`, 4}, {"Registry", `,"cacheDuration":"1h"`, 2},
		{"Nonsense", "", 4},
	} {
		t.Run(row.key+row.lasts, func(t *testing.T) {
			p, asked := load(t, "", "  - {name: KEY, value: "+row.key+"}\n  - {name: LASTS, value: '"+row.lasts+"'}\n", nil)
			for _, repository := range []string{"a.example.com/x", "a.example.com/x", "a.example.com/y", "b.example.com/x", "other.org/x"} {
				found := p.Lookup(t.Context(), builderPod("p", ""), repository)
				want := 1
				if repository == "other.org/x" || row.key == "Nonsense" {
					want = 0
				}
				if len(found) != want || want == 1 && (found[0].Username != "plugin" || found[0].Source != (Source{})) {
					t.Errorf("%s: found %+v", repository, found)
				}
			}
			if runs := asked(); len(runs) != row.runs {
				t.Errorf("run %d times, want %d: %s", len(runs), row.runs, runs)
			} else if want := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.example.com/x"}`; runs[0] != want {
				t.Errorf("asked %s, want %s", runs[0], want)
			}
		})
	}
}

func TestPluginFailureIsNotTheEnd(t *testing.T) {
	p, asked := load(t, "  args: [fail]", "", nil)
	if found := p.Lookup(t.Context(), builderPod("p", ""), "a.example.com/x"); found != nil {
		t.Errorf("found %v", found)
	}
	if len(asked()) != 1 {
		t.Error("the plugin was not asked")
	}
	if found := (*Plugins)(nil).Lookup(t.Context(), builderPod("p", ""), "a.example.com/x"); found != nil {
		t.Errorf("no plugins found %v", found)
	}
}

func TestPluginForServiceAccounts(t *testing.T) {
	attributes := func(cache, required string) string {
		return "  tokenAttributes: {serviceAccountTokenAudience: registry, cacheType: " + cache + ", requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [" + required +
			"], optionalServiceAccountAnnotationKeys: [more, absent]}"
	}
	const global = "  - {name: KEY, value: Global}\n"
	t.Run("token, annotations and source", func(t *testing.T) {
		a := &accounts{}
		p, asked := load(t, attributes("ServiceAccount", "role"), global, a)
		found := p.Lookup(t.Context(), builderPod("p", "builder"), "a.example.com/x")
		if len(found) != 1 || found[0].Source != (Source{Kind: KindServiceAccount, Namespace: "ns", Name: "builder", UID: "sa"}) {
			t.Errorf("found %+v", found)
		}
		want := `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.example.com/x","serviceAccountToken":"token-for-registry-p-1","serviceAccountAnnotations":{"more":"x","role":"puller"}}`
		if got := asked()[0]; got != want {
			t.Errorf("asked\n%s, want\n%s", got, want)
		}
		p.Lookup(t.Context(), builderPod("q", "builder"), "a.example.com/x")
		if len(asked()) != 1 {
			t.Error("one account, but asked again for its next pod")
		}
	})
	t.Run("an answer for a token is for that token", func(t *testing.T) {
		p, asked := load(t, attributes("Token", ""), global, &accounts{})
		for range 2 {
			p.Lookup(t.Context(), builderPod("p", "builder"), "a.example.com/x")
		}
		if len(asked()) != 2 {
			t.Errorf("asked %d times, want 2", len(asked()))
		}
	})
	t.Run("not without an account, nor without the annotation", func(t *testing.T) {
		p, asked := load(t, attributes("ServiceAccount", "absent2"), global, &accounts{})
		p.Lookup(t.Context(), builderPod("p", ""), "a.example.com/x")
		p.Lookup(t.Context(), builderPod("p", "builder"), "a.example.com/x")
		p.Lookup(t.Context(), builderPod("p", "unknown"), "a.example.com/x")
		if got := asked(); got != nil {
			t.Errorf("asked %v", got)
		}
	})
	t.Run("the token itself is no password", func(t *testing.T) {
		p, _ := load(t, attributes("ServiceAccount", ""), global+"  - {name: PASSWORD, value: token-for-registry-p-1}\n", &accounts{})
		if found := p.Lookup(t.Context(), builderPod("p", "builder"), "a.example.com/x"); found != nil {
			t.Errorf("found %v", found)
		}
	})
}

func TestBadConfiguration(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
	const good = "- {name: plugin, matchImages: [x], defaultCacheDuration: 1h, apiVersion: credentialprovider.kubelet.k8s.io/v1}\n"
	for name, row := range map[string]struct{ config, want string }{
		"no providers":      {head, "at least one is required"},
		"another kind":      {"apiVersion: v1\nkind: Pod\n", "is not a CredentialProviderConfig"},
		"unknown field":     {head + "- {nam: x}\n", "unknown field"},
		"a path":            {head + strings.Replace(good, "name: plugin", "name: ../plugin", 1), "is not the name of a program"},
		"twice":             {head + good + good, "duplicate provider name"},
		"no images":         {head + strings.Replace(good, "[x]", "[]", 1), "matchImages of plugin: at least one is required"},
		"no duration":       {head + strings.Replace(good, "defaultCacheDuration: 1h, ", "", 1), "defaultCacheDuration of plugin"},
		"no version":        {head + strings.Replace(good, "credentialprovider.kubelet.k8s.io/v1", "v7", 1), "apiVersion of plugin"},
		"absent program":    {head + strings.Replace(good, "name: plugin", "name: absent", 1), "find credential plugin"},
		"incomplete tokens": {head + strings.Replace(good, "}", ", tokenAttributes: {cacheType: Token}}", 1), "serviceAccountTokenAudience and requireServiceAccount are required"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/plugin", script)
			write(t, dir+"/config.yaml", row.config)
			if _, err := LoadPlugins(dir+"/config.yaml", dir, nil, nil); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "plugin"), script)
	if err := os.Mkdir(dir+"/conf", 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/conf/b.yaml", head+good)
	write(t, dir+"/conf/a.json", `{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[]}`)
	if p, err := LoadPlugins(dir+"/conf", dir, nil, nil); err != nil || len(p.plugins) != 1 {
		t.Errorf("a directory of files: %v", err)
	}
}
