// Package inprocess runs skiff's API server on an in-memory store in the test's process, optionally in its synctest
// bubble: real validation, defaulting, revisions and watches, without network and files.
package inprocess

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/client"
	"skiff/internal/openapi"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
	"skiff/internal/version"
)

// Start runs a server with admission plugins until the test ends or ctx is done, and returns a client. The namespaces default and kube-system exist.
func Start(t testing.TB, ctx context.Context, plugins ...admission.Plugin) *client.Client {
	t.Helper()
	c := Client(t, Server(t, ctx, plugins...))
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
		if _, err := client.For[*corev1.Namespace](c).Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Client returns a client of a server in the same process.
func Client(t testing.TB, local client.Local) *client.Client {
	t.Helper()
	c, err := client.NewLocal(local, api.Scheme(), api.Named())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Server runs an empty server until the test ends or ctx is done, and returns its in-process interface.
func Server(t testing.TB, ctx context.Context, plugins ...admission.Plugin) client.Local {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	kinds := api.Kinds(api.Settings{Authorizer: permissive{}})
	objects := cache.New(memory.New(), slog.New(slog.DiscardHandler))
	server, err := apiserver.New(apiserver.Config{
		Kinds: kinds, Scheme: api.Scheme(), Cache: objects, Admission: plugins,
		Authenticator: authn.Chain{authn.InProcess{}}, Authorizer: authz.Chain{authz.Masters{}},
		TypeConverter: sync.OnceValues(func() (managedfields.TypeConverter, error) { return openapi.TypeConverter() }),
		Version:       version.Info(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = objects.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	<-objects.Ready()
	return server.Local(authn.User{Username: "test", Groups: []string{authn.GroupMasters}})
}

// permissive allows everything.
type permissive struct{}

func (permissive) Authorize(context.Context, authenticationv1.UserInfo, *authorizationv1.ResourceAttributes, *authorizationv1.NonResourceAttributes) (allowed, denied bool, reason string, err error) {
	return true, false, "", nil
}

func (permissive) RulesFor(context.Context, authenticationv1.UserInfo, string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool, error) {
	return nil, nil, false, nil
}
