// Package kind describes a resource as one value: its names, defaults, validation, columns and subresources. The API
// server reads these values and has no code for any particular resource. Built-in resources are Kinds made by Of from
// functions on the typed object; a custom resource is the same value, built at run time from its definition.
//
// The functions of a Kind are pure unless they take a Client. They get objects of the storage version, the only
// in-memory form a built-in kind has. Other served versions are converted when a request is decoded and when its response
// is encoded (Version). Custom resources differ: see Custom.
package kind

import (
	"context"
	"net/url"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Object is any API type with metadata.
type Object interface {
	metav1.Object
	runtime.Object
}

// Request is what the functions of a Kind may read of the request they serve.
type Request struct {
	User   authenticationv1.UserInfo
	Now    metav1.Time
	DryRun bool
	// APIVersion is the served version of the request; the validation of events depends on it.
	APIVersion schema.GroupVersion
	// Annotate adds an annotation to the request's audit event; nil for the server's own writes.
	Annotate func(key, value string)
	// Warn adds a Warning header to the response; nil for the server's own writes.
	Warn func(text string)
	// Context is done when nobody waits for the response any more; nil: what a Kind computes for the request is not interrupted.
	Context context.Context
}

// Ctx is the Context, or one that is never done.
func (r *Request) Ctx() context.Context {
	if r == nil || r.Context == nil {
		return context.Background()
	}
	return r.Context
}

// Kind describes one resource. A nil field means the default behaviour.
type Kind struct {
	// Group, Plural and the storage version identify the kind; Singular defaults to the lower-cased Kind.
	GVK        schema.GroupVersionKind // of the storage version
	Plural     string
	Singular   string
	ListKind   string
	Short      []string
	Categories []string
	Namespaced bool
	// IsNamespace: the objects are the namespaces themselves. A path below one names it as its scope too, and admission sees
	// it as being inside itself.
	IsNamespace bool

	// Verbs that the resource itself serves, in discovery's order. Default: AllVerbs.
	Verbs []string
	// DiscoveryVerbs are the verbs that discovery lists, where those differ from Verbs; nil: Verbs. With an empty list the resource is
	// served, but not in discovery.
	DiscoveryVerbs []string

	// Prefix is the directory below /registry/ that holds the objects: the plural, unless upstream chose otherwise.
	Prefix string

	// StorageVersion overrides the version of GVK in the store, where upstream still writes an older one. The two
	// must have the same protobuf encoding. Empty: the version of GVK.
	StorageVersion string

	// StoredOnly are versions in which upstream stores objects and that are not served. They have GVK, New and ToStorageVersion.
	StoredOnly []Version

	// TTL is how long an object lives after its last write; zero means forever. Only events have one.
	TTL time.Duration

	// Versions are the served versions, the preferred one first. The storage version is always among them unless
	// the kind is stored under another group's version (events.k8s.io).
	Versions []Version

	New     func() Object
	NewList func() runtime.Object

	// EncodeJSON returns what encoding/json would, without kind and apiVersion, and DecodeJSON decodes as sigs.k8s.io/json does. DecodeJSON returns false and
	// changes nothing if the library has to decode, which reports all errors. nil: the libraries do both.
	EncodeJSON func(obj Object) ([]byte, error)
	DecodeJSON func(data []byte, obj Object) bool

	// ValidateName validates metadata.name (prefix is true for a generateName).
	ValidateName func(name string, prefix bool) []string

	// Custom is set for custom resources only.
	Custom *Custom
	// Prune removes the fields that are not in the schema from an object in the client's version and returns their
	// paths. Only custom resources have it: decoding a typed object drops unknown fields.
	Prune func(obj Object, version *Version) (unknown []string, err error)
	// PruneApplied is Prune for the result of server-side apply, in which nulls are left to validation.
	PruneApplied func(obj Object, version *Version) error
	// Default sets the defaults of unset fields. Idempotent. It runs on every decoded object, whether it comes from a
	// client or from the store.
	Default func(obj Object)
	// Prepare clears or sets the fields that clients may not write, before validation. old is nil on create. The server
	// has already handled metadata, status (see CopyStatus) and generation (see SpecChanged).
	Prepare func(req *Request, obj, old Object)
	// Validate validates everything but metadata, with upstream's field paths and error types. old is nil on create; on
	// update Validate checks both the new object and the change.
	Validate func(req *Request, obj, old Object) field.ErrorList
	// Canonicalize normalizes a valid object (sorts, removes duplicates) before it is stored.
	Canonicalize func(obj Object)
	// Warn returns the texts of Warning headers. old is nil on create.
	Warn func(obj, old Object) []string

	// CopyStatus copies the status of from into to. A kind that sets it gets the status subresource, and a write of the
	// resource itself cannot change the status.
	CopyStatus func(to, from Object)
	// StatusOnCreate: a create may set the status (a kubelet registers its node with it).
	StatusOnCreate bool
	// SpecChanged reports whether metadata.generation must be incremented. nil: the kind has no generation.
	SpecChanged func(obj, old Object) bool
	// AllowCreateOnUpdate: a PUT of an absent object creates it.
	AllowCreateOnUpdate bool
	// AllowUnconditionalUpdate: a PUT without resourceVersion overwrites. True for nearly all kinds.
	AllowUnconditionalUpdate bool

	// Fields are the field selectors besides metadata.name and metadata.namespace.
	Fields map[string]func(obj Object) string
	// IndexedField is the field selector that divides the objects among watchers: a watch that requires one value of it sees
	// only its own share, so a write is not expected to reach all of them (pods by spec.nodeName).
	IndexedField string

	// Columns and Row are what `kubectl get` shows; a column of priority 1 is shown with -o wide.
	Columns []metav1.TableColumnDefinition
	Row     func(obj Object, now time.Time) []any
	// RowConditions mark the rows that kubectl may hide (completed pods).
	RowConditions func(obj Object) []metav1.TableRowCondition
	// ListRows changes the rows of a list that depend on the whole list (which storage class is the default).
	// rows[i] is what Row returned for objs[i]. nil: the rows are not changed.
	ListRows func(objs []Object, rows [][]any)

	// Delete holds what differs from the default deletion.
	Delete Deletion
	// Hooks read or write other objects when an object of this kind is written (addresses and ports of services).
	Hooks Hooks

	// Subresources other than status, which follows from CopyStatus.
	Subresources []Subresource

	// TypeConverter converts objects for server-side apply. nil: the server's own, which has all built-in kinds.
	TypeConverter func() (managedfields.TypeConverter, error)

	// Action makes a kind that is never stored (TokenReview, Binding): create runs Action and responds with its result.
	Action func(ctx context.Context, client Client, req *Request, obj Object) (runtime.Object, error)
	// Computed returns the objects of a read-only kind that is not stored but computed on each read (componentstatuses).
	Computed func(ctx context.Context, client Client) ([]Object, error)
}

// Custom is what only custom resources have. Their versions are equal in Go: unstructured objects whose apiVersion names
// the version. A write handles the object in the version of the request, which decides about defaults, validation and field
// ownership; admission and all functions of the Kind get objects in that version. The cache has objects in the version in
// which they were stored, which may be an earlier storage version. Their versions have neither ToStorageVersion nor
// FromStorageVersion.
type Custom struct {
	// FromStore prunes and defaults an object that was read from the store, in the version in which it was stored. It changes
	// its argument.
	FromStore func(obj Object) error
	// Convert returns objects in a version, in order. It converts from the versions that they have, does not change them, and returns
	// those that have the wanted version as they are. nil: there is one version.
	Convert func(ctx context.Context, objs []Object, to schema.GroupVersionKind) ([]Object, error)
	// Fields returns the values of the field selectors of all versions, by the labels to which Version.Fields maps those of clients, for
	// each object. nil: there are none.
	Fields func(ctx context.Context, objs []Object) ([]map[string]string, error)
	// Webhook: Convert and Fields call a webhook, until ctx is done. One call for several objects costs less than one for each.
	Webhook bool
	// DropUnused drops what is compiled of the definition and was not used since the last call. It is compiled again when it is needed.
	DropUnused func()
}

// Version is one version of a kind.
type Version struct {
	GVK schema.GroupVersionKind
	// NotServed: clients cannot use the version, but objects may be stored in it. Only custom resources have such versions.
	NotServed bool
	// Deprecation is the text of the warning in every response; empty if the version is not deprecated, or if its Go type says so.
	Deprecation string
	// Subresources are set where they differ from those of the kind; a version without any has an empty list.
	Subresources []Subresource
	// New, ToStorageVersion and FromStorageVersion are nil for the storage version itself (but see Custom). The conversions do not
	// change their argument.
	New                func() Object
	NewList            func() runtime.Object
	ToStorageVersion   func(obj Object) (Object, error)
	FromStorageVersion func(obj Object) (Object, error)
	// Default sets the defaults of unset fields in this version, before ToStorageVersion.
	Default func(obj Object)
	// Fields maps this version's field labels to those of the storage version, where they differ.
	Fields map[string]string
	// Columns and Row are set where this version's table differs from that of the storage version.
	Columns []metav1.TableColumnDefinition
	Row     func(obj Object, now time.Time) []any
}

// Deletion holds what differs from the default: delete at once unless metadata.finalizers is not empty.
type Deletion struct {
	// CheckGraceful reports whether the object is only marked as deleted until its owner (the kubelet) confirms. It
	// sets options.GracePeriodSeconds to the effective period. nil: deletion is immediate.
	CheckGraceful func(obj Object, options *metav1.DeleteOptions) (graceful bool)
	// HasSpecFinalizers reports whether finalizers outside metadata block the deletion (spec.finalizers of a namespace).
	HasSpecFinalizers func(obj Object) bool
	// MarkTerminating changes an object whose deletion has begun but is blocked (phase Terminating).
	MarkTerminating func(obj Object)
	// Check refuses the deletion of some objects (the system's own). nil: all may be deleted.
	Check func(ctx context.Context, client Client, obj Object) error
	// Propagation is the default policy when the client sets none. Default: background.
	Propagation metav1.DeletionPropagation
	// Warn returns the texts of Warning headers for a deletion.
	Warn func(obj Object, options *metav1.DeleteOptions) []string
	// ReturnObject: a completed deletion responds with the object instead of a Status.
	ReturnObject bool
}

// Hooks run around the write of an object of the kind itself, not of its subresources. The Before hooks run when
// metadata is complete (name, namespace, uid) but before Prepare and Validate, because validation covers the fields
// they set. undo is called when the write fails, validation included; it may be nil. With req.DryRun a hook must not
// persist anything. The After hooks run once the write is stored, never for a dry run; AfterDelete also runs when the
// removal of the last finalizer deletes the object.
type Hooks struct {
	BeforeCreate func(ctx context.Context, client Client, req *Request, obj Object) (undo func(), err error)
	BeforeUpdate func(ctx context.Context, client Client, req *Request, obj, old Object) (undo func(), err error)
	AfterUpdate  func(ctx context.Context, client Client, obj, old Object)
	AfterDelete  func(ctx context.Context, client Client, obj Object)
}

// Client is the server as the functions of a Kind use it. Resources are identified by group and resource, so that the
// API groups do not import one another. Returned objects are shared and read-only.
type Client interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (Object, error)
	// List returns the objects of a namespace, or of all namespaces when it is empty.
	List(ctx context.Context, resource schema.GroupResource, namespace string) ([]Object, error)
	// Create stores obj without admission, after the kind's own defaults and validation.
	Create(ctx context.Context, resource schema.GroupResource, obj Object) (Object, error)
	// Update reads, copies, changes and writes an object, and retries on conflict. An error from change stops it. It
	// skips admission and the kind's Prepare: spec and status may both change; generation follows SpecChanged.
	Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(obj Object) error) (Object, error)
	// Delete deletes as a client's request would, options included.
	Delete(ctx context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions) error
}

// HealthChecker is implemented by a Client that can check the control plane's components, for componentstatuses.
type HealthChecker interface {
	// ComponentHealth checks every component it can reach, now, and leaves out the others.
	ComponentHealth(ctx context.Context) []ComponentHealth
}

// ComponentHealth is the result of one check. Err is nil when the component is healthy.
type ComponentHealth struct {
	Name    string // "etcd-0", "scheduler", "controller-manager"
	Message string // what the component responded, usually "ok"
	Err     error
}

// TokenIssuer is implemented by a Client that signs service account tokens.
type TokenIssuer interface {
	// Audiences are the API server's own, for requests without audiences.
	Audiences() []string
	// IssueToken signs a token. It may shorten the requested lifetime and returns the actual one.
	IssueToken(ctx context.Context, claims TokenClaims) (token string, expirationSeconds int64, err error)
}

// TokenClaims is the content of a token. Pod, Node and Secret are nil unless the token is bound to them; a token bound
// to a pod also has the pod's node.
type TokenClaims struct {
	ServiceAccount    Object
	Pod, Node, Secret Object
	Audiences         []string
	ExpirationSeconds int64
	// Annotate, if not nil, receives the token's ID for the audit event.
	Annotate func(key, value string)
}

// Subresource is an endpoint below an object. Exactly one of Update, View and Create is set.
type Subresource struct {
	Name string
	// GVK is the kind of the body; the zero value means the parent's own.
	GVK schema.GroupVersionKind
	// Verbs as discovery lists them. Default: get, patch, update for Update and View; create for Create.
	Verbs []string

	Update *UpdateStrategy
	View   *View
	Create func(ctx context.Context, client Client, req *Request, parent types.NamespacedName, body Object) (runtime.Object, error)
	// NewBody makes an empty body of GVK for View and Create.
	NewBody func() Object
	// KeepBodyUID: the UID in the body of Create identifies the parent object, and is passed on.
	KeepBodyUID bool
	// StoresNothing: Create computes its response and writes nothing, so no watch sees it (tokens).
	StoresNothing bool
	// ConnectNeedsCreate: a GET that connects (a browser's WebSocket can send nothing else) is authorized as a create, so that
	// read access does not allow running commands.
	ConnectNeedsCreate bool
	// ConnectOptions makes the object that admission sees for a connection from the query and what follows the subresource in the path.
	// nil: a connection only reads, and is not subject to admission (logs).
	ConnectOptions func(query url.Values, path string) (runtime.Object, error)
}

// QueryFlag reports whether a boolean parameter is set: by any value but "false" and "0".
func QueryFlag(query url.Values, name string) bool {
	values := query[name]
	return len(values) > 0 && !strings.EqualFold(values[0], "false") && values[0] != "0"
}

// UpdateStrategy is a subresource that writes some fields of the parent and keeps the others (status, approval, resize).
type UpdateStrategy struct {
	// Prepare gets the client's object and the stored one and resets all of obj's fields that this subresource may not
	// write to those of old. The server itself handles metadata (see UpdatesMetadata).
	Prepare func(req *Request, obj, old Object)
	// Complete adds to the client's object what it may leave out and Prepare takes from the stored one, so that admission sees the whole object. It does
	// not copy: neither admission plugins nor anybody else may change that part in place. nil: clients send whole objects.
	Complete func(obj, old Object)
	// Before may refuse the client's object because of other objects. It runs before Prepare.
	Before func(ctx context.Context, client Client, req *Request, obj, old Object) error
	// Validate validates the change.
	Validate func(req *Request, obj, old Object) field.ErrorList
	// Warn returns the texts of Warning headers.
	Warn func(obj, old Object) []string
	// OwnedFields are the top-level fields or dotted paths that a writer can own in managedFields. Default: the
	// subresource's name.
	OwnedFields []string
	// UpdatesMetadata: the client's labels, annotations, owners and finalizers are written too, as upstream does for status.
	UpdatesMetadata bool
}

// View shows the parent as an object of another kind (scale).
type View struct {
	From func(parent Object) (Object, error)
	// CheckRead refuses to show an incomplete view; a write may complete it. nil: every view is shown.
	CheckRead func(view Object) error
	// Apply writes the view's fields into a copy of the parent.
	Apply func(view, parent Object) error
	// Validate validates the view before Apply.
	Validate func(view Object) field.ErrorList
	// Paths maps fields of the view to fields of the parent, for managedFields (spec.replicas → spec.replicas).
	Paths map[string]string
	// Columns and Row are the table of the view.
	Columns []metav1.TableColumnDefinition
	Row     func(view Object, now time.Time) []any
}

// SubresourcesOf returns the subresources of a version.
func (k *Kind) SubresourcesOf(v *Version) []Subresource {
	if v.Subresources != nil {
		return v.Subresources
	}
	return k.Subresources
}

// AllVerbs are the verbs of an ordinary resource, in discovery's order.
var AllVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// GroupResource names the kind for Client, errors and authorization.
func (k *Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.GVK.Group, Resource: k.Plural}
}

// StorageGVK is the type under which objects are written into the store.
func (k *Kind) StorageGVK() schema.GroupVersionKind {
	gvk := k.GVK
	if k.StorageVersion != "" {
		gvk.Version = k.StorageVersion
	}
	return gvk
}

// Serves reports whether the resource itself supports the verb.
func (k *Kind) Serves(verb string) bool {
	for _, v := range k.Verbs {
		if v == verb {
			return true
		}
	}
	return false
}

// Key is the storage key of an object, below /registry.
func (k *Kind) Key(namespace, name string) string {
	if k.Namespaced {
		return "/registry/" + k.Prefix + "/" + namespace + "/" + name
	}
	return "/registry/" + k.Prefix + "/" + name
}

// KeyPrefix is the storage prefix of all objects, or of those in one namespace. It ends in a slash.
func (k *Kind) KeyPrefix(namespace string) string {
	if k.Namespaced && namespace != "" {
		return "/registry/" + k.Prefix + "/" + namespace + "/"
	}
	return "/registry/" + k.Prefix + "/"
}
