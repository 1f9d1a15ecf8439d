// Package extension serves the kinds that CustomResourceDefinitions define. It follows the definitions in the server's own cache, and adds,
// replaces and removes their kinds in the catalog and in the OpenAPI documents, one at a time: a change costs what its definition costs,
// however many others there are. It runs inside every API server and writes nothing; the status of definitions is maintained by package
// controllers/customresource.
//
// A kind is served from the time its names are accepted, before the definition is established. So a client that sees the condition
// Established finds the resource, on this server and on others that share the store. A server that is alone accepts and establishes with one write,
// before which the controller calls Serve.
package extension

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"skiff/internal/apiserver"
	"skiff/internal/customresource"
	"skiff/internal/kind"
	"skiff/internal/openapi"
)

type definition = apiextensionsv1.CustomResourceDefinition

var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// terminatingVerbs are the verbs in discovery of a resource whose definition is being deleted.
var terminatingVerbs = []string{"delete", "deletecollection", "get", "list", "watch"}

// Config is what the extension needs.
type Config struct {
	Server *apiserver.Server
	// Local reads the definitions.
	Local *apiserver.Local
	// OpenAPI has the schemas of the served versions.
	OpenAPI *openapi.Documents
	// NewConverter makes what converts the objects of a definition with conversion strategy Webhook; nil: such definitions cannot be served.
	NewConverter func(crd *apiextensionsv1.CustomResourceDefinition) (customresource.Converter, error)
	// OnChange is called with the name of a definition when what Served reports of it has changed.
	OnChange func(name string)
	// OnSynced is called once, when all definitions that existed at the start are served.
	OnSynced func()
	Log      *slog.Logger
}

// Extension serves custom resources.
type Extension struct {
	Config

	// changing is held while the way a definition is served changes.
	changing sync.Mutex

	mu     sync.Mutex
	served map[string]*served // by name of the definition
}

// served is a definition as it is served.
type served struct {
	identity
	packed *customresource.Packed
	kind   *kind.Kind // nil if err is set
	err    error      // why it cannot be served
	// terminating: new objects are refused. discovered: discovery and OpenAPI list it.
	terminating, discovered bool
	published               []schema.GroupVersion // in OpenAPI
	// expectedAfter is the resource version after which a definition is expected that is served already; empty: it is in the store.
	expectedAfter string
}

// identity is what the objects of a definition depend on. The generation changes with the specification.
type identity struct {
	uid        types.UID
	generation int64
	names      apiextensionsv1.CustomResourceDefinitionNames
}

func identityOf(crd *definition) identity {
	return identity{uid: crd.UID, generation: crd.Generation, names: crd.Status.AcceptedNames}
}

func (i identity) equals(other identity) bool {
	return i.uid == other.uid && i.generation == other.generation && equality.Semantic.DeepEqual(i.names, other.names)
}

// New returns an extension that serves nothing before Run.
func New(c Config) *Extension { return &Extension{Config: c, served: map[string]*served{}} }

// Served reports whether the definition is served in this state, or why it cannot be.
func (e *Extension) Served(crd *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	found := e.served[crd.Name]
	if found == nil || !found.equals(identityOf(crd)) || found.terminating != customresource.IsTerminating(crd) {
		return false, nil
	}
	return found.err == nil, found.err
}

// Run follows the definitions until ctx is done.
func (e *Extension) Run(ctx context.Context) error {
	synced := sync.OnceFunc(e.OnSynced)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { e.dropUnusedPeriodically(ctx) })
	apiserver.Follow(ctx, e.Local, definitions, apiserver.FollowHandler[*definition]{
		Apply: e.apply, Remove: e.removeDeleted, Synced: synced,
		Fail: func(err error, retry time.Duration) {
			e.Log.Warn("failed to watch custom resource definitions", "error", err, "retry", retry.String())
		},
	})
	return nil
}

// dropPeriod is how long what is compiled of a definition is kept without being used, and twice as long at most.
const dropPeriod = 5 * time.Minute

// dropUnusedPeriodically drops what is compiled of definitions and not used, until ctx is done.
func (e *Extension) dropUnusedPeriodically(ctx context.Context) {
	ticker := time.NewTicker(dropPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			e.Server.DropUnused()
		case <-ctx.Done():
			return
		}
	}
}

// find returns how a definition is served; nil if it is not.
func (e *Extension) find(name string) *served {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served[name]
}

// set records how a definition is served; nil: it is not.
func (e *Extension) set(name string, s *served) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s == nil {
		delete(e.served, name)
		return
	}
	e.served[name] = s
}

// Serve serves a definition that is about to be written in this state. Its resource version is that of the stored one. If another state is written
// instead, the definition is served as that has it. Neither Serve nor Unserve changes what Served reports of the stored state: OnChange is not called.
func (e *Extension) Serve(crd *apiextensionsv1.CustomResourceDefinition) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	if !isAccepted(crd) {
		return fmt.Errorf("names of custom resource definition %s are not accepted", crd.Name)
	}
	return e.change(crd, crd.ResourceVersion).err
}

// Unserve stops serving a definition that Serve serves and that was not written: it was deleted, the write was refused, or it has lost its names.
func (e *Extension) Unserve(name string) {
	e.changing.Lock()
	defer e.changing.Unlock()
	if old := e.find(name); old != nil && old.expectedAfter != "" {
		e.remove(name)
	}
}

// apply serves a definition as it was written.
func (e *Extension) apply(crd *definition) {
	e.changing.Lock()
	defer e.changing.Unlock()
	old := e.find(crd.Name)
	if old != nil && !isNewer(crd.ResourceVersion, old.expectedAfter) {
		return // the state from which the definition is about to be written, or one before it, perhaps of a former definition
	}
	if isAccepted(crd) {
		if e.change(crd, "") != old {
			e.OnChange(crd.Name)
		}
		return
	}
	if e.remove(crd.Name) {
		e.OnChange(crd.Name)
	}
}

// isNewer reports whether a resource version is newer than another one, which may be empty.
func isNewer(resourceVersion, than string) bool {
	order, err := resourceversion.CompareResourceVersion(resourceVersion, than)
	return err != nil || order > 0
}

// change serves a definition whose names are accepted, and returns how. changing must be held.
func (e *Extension) change(crd *definition, expectedAfter string) *served {
	old := e.find(crd.Name)
	next := &served{identity: identityOf(crd), terminating: customresource.IsTerminating(crd), discovered: isDiscovered(crd), expectedAfter: expectedAfter}
	if old != nil && old.equals(next.identity) && old.terminating == next.terminating && old.discovered == next.discovered {
		old.expectedAfter = expectedAfter // the rest of the status does not matter here
		return old
	}
	if old != nil && old.uid != next.uid {
		e.remove(crd.Name) // deleted and created again
		old = nil
	}
	if next.err = e.serve(crd, old, next); next.err != nil {
		e.Log.Error("failed to serve custom resource definition", "name", crd.Name, "error", next.err)
		e.unserve(old)
		next.kind = nil
	}
	e.publish(crd, old, next)
	e.set(crd.Name, next)
	return next
}

// serve makes the kind of a definition and adds it to the catalog, in place of the old one if there is one.
func (e *Extension) serve(crd *definition, old, next *served) (err error) {
	var converter customresource.Converter
	if c := crd.Spec.Conversion; c != nil && c.Strategy == apiextensionsv1.WebhookConverter {
		if e.NewConverter == nil {
			return errors.New("conversion webhooks are not supported by this server")
		}
		if converter, err = e.NewConverter(crd); err != nil {
			return fmt.Errorf("make the client of the conversion webhook: %w", err)
		}
	}
	if next.packed, err = customresource.Pack(crd); err != nil {
		return err
	}
	if next.kind, err = customresource.New(next.packed, converter); err != nil {
		return err
	}
	switch {
	case !next.discovered:
		next.kind.DiscoveryVerbs = []string{}
	case next.terminating:
		next.kind.DiscoveryVerbs = terminatingVerbs
	}
	switch {
	case old == nil || old.kind == nil:
		return e.Server.AddKind(next.kind)
	case old.equals(next.identity):
		return e.Server.UpdateKind(old.kind, next.kind)
	}
	return e.Server.ReplaceKind(old.kind, next.kind, !next.terminating)
}

// removeDeleted stops serving a definition that was deleted. One that was created again since then may be served already. Without a UID the
// deletion was not observed, and a definition that Serve serves may be newer than the observation: whoever called Serve calls Unserve if it is gone.
func (e *Extension) removeDeleted(name string, uid types.UID) {
	e.changing.Lock()
	defer e.changing.Unlock()
	old := e.find(name)
	if old != nil && (uid != "" && old.uid != uid || uid == "" && old.expectedAfter != "") {
		return
	}
	if e.remove(name) {
		e.OnChange(name)
	}
}

// remove stops serving a definition, and reports whether it was served or could not be. changing must be held.
func (e *Extension) remove(name string) bool {
	old := e.find(name)
	if old == nil {
		return false
	}
	e.unserve(old)
	e.publish(nil, old, nil)
	e.set(name, nil)
	return true
}

// unserve removes the kind of a definition from the catalog.
func (e *Extension) unserve(old *served) {
	if old == nil || old.kind == nil {
		return
	}
	if err := e.Server.RemoveKind(old.kind); err != nil {
		e.Log.Error("failed to stop serving a custom resource", "resource", old.kind.GroupResource().String(), "error", err)
	}
}

// publish replaces the schemas of a definition in the OpenAPI documents. Nothing is computed before a document is requested.
func (e *Extension) publish(crd *definition, old, next *served) {
	if old != nil && next != nil && next.err == nil && old.equals(next.identity) && old.discovered == next.discovered {
		next.published = old.published
		return
	}
	if next != nil && next.err == nil && next.discovered {
		for i := range crd.Spec.Versions {
			if version := &crd.Spec.Versions[i]; version.Served {
				gv := schema.GroupVersion{Group: crd.Spec.Group, Version: version.Name}
				e.OpenAPI.SetCustom(gv, crd.Name, next.kind, next.schemas(version.Name))
				next.published = append(next.published, gv)
			}
		}
	}
	if old == nil {
		return
	}
	for _, gv := range old.published {
		if next == nil || !slices.Contains(next.published, gv) {
			e.OpenAPI.RemoveCustom(gv, old.names.Plural+"."+gv.Group)
		}
	}
}

// schemas are the schemas of a version. The identity of the definition identifies them, so that they need not be made to be compared.
func (s *served) schemas(version string) openapi.Custom {
	packed := s.packed
	return openapi.Custom{
		Hash:    fmt.Sprintln(s.uid, s.generation, s.names, version),
		Schemas: func() (openapi.Schemas, error) { return packed.OpenAPI(version) },
	}
}

// isAccepted reports whether a definition is served: its names are accepted, or were when it was established.
func isAccepted(crd *definition) bool {
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) || apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
}

// isDiscovered reports whether discovery lists a definition: it is established, or about to be.
func isDiscovered(crd *definition) bool {
	established := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established)
	return established != nil && (established.Status == apiextensionsv1.ConditionTrue || established.Reason == "Installing")
}
