package apiservice

import (
	"context"
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"skiff/internal/api/apiregistration"
	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/customresource"
)

type definition = apiextensionsv1.CustomResourceDefinition

// managedLabel marks the APIServices that API servers register by themselves. Its value says when they are synced: once after the start of a
// server, or always.
const (
	managedLabel  = "kube-aggregator.kubernetes.io/automanaged"
	manageOnStart = "onstart"
	manageAlways  = "true"
)

// registration keeps the local APIServices: those of built-in group versions are synced once after the start, so that an administrator may
// change them; those of custom resources always.
type registration struct {
	setup       *controller.Setup
	services    client.Resource[*apiService]
	informer    client.Informer[*apiService]
	onCompleted func()
	builtIn     map[string]*apiService // by name

	mu sync.Mutex
	// definitions are the definitions with a served version, by the name of its APIService; versions are those names by definition.
	definitions map[string]sets.Set[string]
	versions    map[string][]string
	// pending are the APIServices of built-in group versions that have not been available yet.
	pending sets.Set[string]
	// atStart are the APIServices that existed when the controller started; nil before. synced are those of them, and of the built-in ones,
	// that were synced.
	atStart, synced sets.Set[string]
}

func newRegistration(c Config, s *controller.Setup) (controller.Syncer, error) {
	r := &registration{
		setup: s, services: client.For[*apiService](c.Client), informer: client.InformerFor[*apiService](s.Informers),
		onCompleted: sync.OnceFunc(c.OnRegistered), builtIn: map[string]*apiService{},
		definitions: map[string]sets.Set[string]{}, versions: map[string][]string{}, pending: sets.New[string](), synced: sets.New[string](),
	}
	for _, gv := range c.BuiltIn {
		if priority, ok := apiregistration.RegisteredPriority(gv); ok {
			service := newLocal(gv, priority, manageOnStart)
			r.builtIn[service.Name] = service
			r.pending.Insert(service.Name)
			s.Enqueue(controller.KeyOf(service))
		}
	}
	if err := r.informer.AddEventHandler(r.observe, func(_, service *apiService) { r.observe(service) }, r.enqueue); err != nil {
		return nil, fmt.Errorf("watch APIServices: %w", err)
	}
	definitions := client.InformerFor[*definition](s.Informers)
	if err := definitions.SetTransformInProcess(customresource.WithoutSchemas); err != nil {
		return nil, fmt.Errorf("watch definitions: %w", err)
	}
	hasSynced, err := definitions.AddEventHandlerWithSync(r.addDefinition, func(_, crd *definition) { r.addDefinition(crd) }, r.removeDefinition)
	if err != nil {
		return nil, fmt.Errorf("watch definitions: %w", err)
	}
	// The APIServices of custom resources must not be deleted because their definitions are not known yet.
	return controller.AfterInitialEvents(s, hasSynced, r), nil
}

// newLocal is the local APIService of a group version.
func newLocal(gv schema.GroupVersion, priority apiregistration.Priority, managed string) *apiService {
	return &apiService{
		ObjectMeta: metav1.ObjectMeta{Name: apiregistration.NameOf(gv), Labels: map[string]string{managedLabel: managed}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: priority.Group, VersionPriority: priority.Version,
		},
	}
}

func (r *registration) enqueue(service *apiService) { r.setup.Enqueue(controller.KeyOf(service)) }

// observe enqueues an APIService, and notes that it is available.
func (r *registration) observe(service *apiService) {
	r.enqueue(service)
	if !helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available) {
		return
	}
	r.mu.Lock()
	r.pending.Delete(service.Name)
	completed := r.pending.Len() == 0
	r.mu.Unlock()
	if completed {
		r.onCompleted()
	}
}

// addDefinition records the served versions of a definition.
func (r *registration) addDefinition(crd *definition) {
	var served []string
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Served {
			served = append(served, apiregistration.NameOf(schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}))
		}
	}
	r.setVersions(crd.Name, served)
}

func (r *registration) removeDefinition(crd *definition) { r.setVersions(crd.Name, nil) }

// setVersions replaces the APIServices that a definition needs, and enqueues those that are no longer or newly needed.
func (r *registration) setVersions(definition string, served []string) {
	r.mu.Lock()
	old, next := sets.New(r.versions[definition]...), sets.New(served...)
	changed := old.SymmetricDifference(next)
	for name := range changed {
		if !next.Has(name) {
			if r.definitions[name].Delete(definition); r.definitions[name].Len() == 0 {
				delete(r.definitions, name)
			}
			continue
		}
		if r.definitions[name] == nil {
			r.definitions[name] = sets.New[string]()
		}
		r.definitions[name].Insert(definition)
	}
	if len(served) == 0 {
		delete(r.versions, definition)
	} else {
		r.versions[definition] = served
	}
	r.mu.Unlock()
	for name := range changed {
		r.setup.Enqueue(controller.Key{Name: name})
	}
}

// Sync creates, updates or deletes a local APIService.
func (r *registration) Sync(ctx context.Context, key controller.Key) error {
	v := r.view(key.Name)
	if err := r.apply(ctx, key, v); err != nil {
		return err
	}
	r.setSynced(key.Name)
	return nil
}

// apply does what decide decides. An APIService that was changed meanwhile is an error, so that it is synced again.
func (r *registration) apply(ctx context.Context, key controller.Key, v view) error {
	switch decide(v) {
	case actionCreate:
		written, err := r.services.Create(ctx, v.desired.DeepCopy(), client.WriteOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("create APIService: %w", err)
		}
		r.setup.RecordWrite(key, written)
	case actionUpdate:
		changed := v.current.DeepCopy()
		changed.Spec = v.desired.Spec
		written, err := r.services.Update(ctx, changed, client.WriteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("update APIService: %w", err)
		}
		r.setup.RecordWrite(key, written)
	case actionDelete:
		err := r.setup.Client.Delete(ctx, v.current, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(v.current.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete APIService: %w", err)
		}
		r.setup.RecordDelete(key, v.current)
	}
	return nil
}

// view is what the registration of an APIService depends on.
type view struct {
	// current is the APIService that exists, desired the one that should; nil: none.
	current, desired *apiService
	// atStart: it existed when the controller started. synced: it was synced since.
	atStart, synced bool
}

type action int

const (
	actionNone action = iota
	actionCreate
	actionUpdate
	actionDelete
)

// decide is what has to be done about an APIService.
func decide(v view) action {
	switch {
	case v.current == nil && v.desired == nil:
		return actionNone
	case v.desired != nil && v.desired.Labels[managedLabel] == manageOnStart && v.synced:
		return actionNone
	case v.current == nil:
		return actionCreate
	}
	switch v.current.Labels[managedLabel] {
	case manageOnStart:
		if !v.atStart || v.synced {
			return actionNone
		}
	case manageAlways:
	default:
		return actionNone // someone else's
	}
	switch {
	case v.desired == nil:
		return actionDelete
	case equality.Semantic.DeepEqual(v.current.Spec, v.desired.Spec):
		return actionNone
	}
	return actionUpdate
}

// view gathers what decide needs.
func (r *registration) view(name string) view {
	current, _ := r.informer.Get("", name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.atStart == nil {
		r.atStart = sets.New[string]()
		for _, service := range r.informer.List("", nil) {
			r.atStart.Insert(service.Name)
		}
	}
	v := view{current: current, desired: r.builtIn[name], atStart: r.atStart.Has(name), synced: r.synced.Has(name)}
	if v.desired == nil && r.definitions[name].Len() > 0 {
		v.desired = newLocal(helper.APIServiceNameToGroupVersion(name), apiregistration.CustomPriority, manageAlways)
	}
	return v
}

func (r *registration) setSynced(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.builtIn[name] != nil || r.atStart.Has(name) {
		r.synced.Insert(name)
	}
}
