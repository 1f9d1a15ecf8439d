package clusterauthentication

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/internal/pki"
	"skiff/test/inprocess"
)

// bundleOf makes a bundle of new CAs with these names.
func bundleOf(t *testing.T, names ...string) *pki.CABundle {
	t.Helper()
	var cas []*pki.CA
	for _, name := range names {
		ca, err := pki.NewCA(name, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		cas = append(cas, ca)
	}
	bundle, err := pki.ReadCABundle("", slog.New(slog.DiscardHandler), cas...)
	if err != nil {
		t.Fatal(err)
	}
	return bundle
}

// The ConfigMap has the CAs, names and headers of this server and of those before it.
func TestPublish(t *testing.T) {
	api := inprocess.Start(t, t.Context())
	publishOnce := func(c Config) map[string]string {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c.Client, c.Log = api, slog.New(slog.DiscardHandler)
		c.OnPublished = cancel
		if err := Run(ctx, c); err != nil {
			t.Fatal(err)
		}
		found, err := client.For[*corev1.ConfigMap](api).Get(t.Context(), Namespace, Name)
		if err != nil {
			t.Fatal(err)
		}
		return found.Data
	}
	server := Config{
		ClientCAs: bundleOf(t, "cluster"), FrontProxyCAs: bundleOf(t, "front-proxy"), FrontProxyNames: []string{"front-proxy-client"},
		UsernameHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"}, GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
	}
	first := publishOnce(server)
	for key, want := range map[string]string{
		"requestheader-allowed-names": `["front-proxy-client"]`, "requestheader-username-headers": `["X-Remote-User"]`, "requestheader-uid-headers": `["X-Remote-Uid"]`,
		"requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	} {
		if first[key] != want {
			t.Errorf("%s: %s, want %s", key, first[key], want)
		}
	}
	server.ClientCAs = bundleOf(t, "users")
	server.UsernameHeaders, server.FrontProxyNames = []string{"X-User"}, []string{"proxy"}
	second := publishOnce(server)
	if got := second["requestheader-username-headers"]; got != `["X-Remote-User","X-User"]` {
		t.Errorf("user headers %s", got)
	}
	if got := second["requestheader-allowed-names"]; got != `["front-proxy-client","proxy"]` {
		t.Errorf("names %s", got)
	}
	if !strings.HasPrefix(second["client-ca-file"], first["client-ca-file"]) || strings.Count(second["client-ca-file"], "BEGIN CERTIFICATE") != 2 {
		t.Errorf("client CAs\n%s", second["client-ca-file"])
	}
}
