// Package kind says what a resource is: its names, its rules, its columns and its subresources, as one value
// that the API server reads. The server has no code for any particular resource; everything it must know about
// pods or secrets stands in a row of this type, made by Of from typed rules. A custom resource is the same value,
// built at run time.
//
// The functions of a row are pure unless they take an Env. They get objects of the stored version, the only
// in-memory form a kind has; further served versions are conversions at the edge (Version).
package kind

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Object is what the server stores and serves: every API type with metadata.
type Object interface {
	metav1.Object
	runtime.Object
}

// Request is what a rule may know of the request it serves.
type Request struct {
	User   authenticationv1.UserInfo
	Now    metav1.Time
	DryRun bool
	// APIVersion is the served version the request came in; events are judged by it.
	APIVersion schema.GroupVersion
	// Annotate adds an annotation to the request's audit event; nil for the server's own writes.
	Annotate func(key, value string)
	// Warn adds a Warning header to the answer; nil for the server's own writes.
	Warn func(text string)
}

// Kind is a row of the table. Fields left nil mean the ordinary behaviour.
type Kind struct {
	// Names. Group, Plural and the stored version identify the kind; Singular defaults to the lower-cased Kind.
	GVK        schema.GroupVersionKind // of the stored version
	Plural     string
	Singular   string
	ListKind   string
	Short      []string
	Categories []string
	Namespaced bool
	// IsNamespace: the objects are the namespaces themselves. A path below one names it as its scope too, and admission sees
	// it as being inside itself.
	IsNamespace bool

	// Verbs the resource itself answers, in discovery's order. Default: AllVerbs.
	Verbs []string

	// Prefix is the directory below /registry/ that holds the objects: the plural, unless upstream chose otherwise.
	Prefix string

	// StoredVersion is the version that upstream writes into the store, where that is an older one than the kind's; its
	// protobuf form must be the same. Empty: the version of GVK.
	StoredVersion string

	// TTL is how long an object lives after its last write; zero means for ever. Only events have one.
	TTL time.Duration

	// Versions are the served versions, the preferred one first. The stored version is always among them unless
	// the kind is stored under another group's version (events.k8s.io).
	Versions []Version

	New     func() Object
	NewList func() runtime.Object

	// ValidateName judges metadata.name (prefix is true for a generateName).
	ValidateName func(name string, prefix bool) []string

	// Prune removes what the schema does not know from an object as a client sent it, in the version it came in, and
	// returns the paths of what it removed. Only custom resources have it: typed objects know their fields.
	Prune func(obj Object, version *Version) (unknown []string, err error)
	// Default fills in what the client left out. Idempotent. Runs on every object that is decoded: from a client
	// and from the store.
	Default func(obj Object)
	// Prepare removes or sets what is not the client's to say, before validation. old is nil on create. The server
	// itself has already taken care of metadata, status (see Status) and generation (see SpecChanged).
	Prepare func(req *Request, obj, old Object)
	// Validate judges everything but metadata. old is nil on create; on update it judges the new object and
	// the change, with upstream's field paths and error types.
	Validate func(req *Request, obj, old Object) field.ErrorList
	// Canonicalize brings a valid object into its normal form (sorted, de-duplicated) before it is stored.
	Canonicalize func(obj Object)
	// Warn returns the texts of Warning headers. old is nil on create.
	Warn func(obj, old Object) []string

	// Status copies the status of from into to. A kind that has it gets the status subresource, and a plain
	// write cannot touch the status.
	Status func(to, from Object)
	// StatusOnCreate: a create may set the status all the same (a kubelet registers its node with it).
	StatusOnCreate bool
	// SpecChanged says whether metadata.generation must grow. nil: the kind has no generation.
	SpecChanged func(obj, old Object) bool
	// AllowCreateOnUpdate: PUT of an absent object creates it.
	AllowCreateOnUpdate bool
	// AllowUnconditionalUpdate: a PUT without resourceVersion overwrites. True for nearly all kinds.
	AllowUnconditionalUpdate bool

	// Fields are the field selectors besides metadata.name and metadata.namespace.
	Fields map[string]func(obj Object) string
	// IndexedField is the field selector that divides the objects among watchers: a watch that requires one value of it sees
	// only its own share, so a write is not expected to reach all of them (pods by spec.nodeName).
	IndexedField string

	// Columns and Row are what `kubectl get` shows; a column of priority 1 shows with -o wide.
	Columns []metav1.TableColumnDefinition
	Row     func(obj Object, now time.Time) []any
	// RowConditions mark rows kubectl may hide (completed pods).
	RowConditions func(obj Object) []metav1.TableRowCondition
	// ListRows changes the rows of a list by what only the whole list tells (which storage class is the default).
	// rows[i] is what Row returned for objs[i]. nil: the rows stand as they are.
	ListRows func(objs []Object, rows [][]any)

	// Delete holds the rules of deletion that differ from the ordinary.
	Delete Deletion
	// Hooks touch other objects when this one is written (addresses and ports of services).
	Hooks Hooks

	// Subresources, Status apart (it is derived from the Status field).
	Subresources []Subresource

	// TypeConverter knows the kind's schema, for server-side apply. nil: the server's own, which knows all built-in kinds.
	TypeConverter func() (managedfields.TypeConverter, error)

	// Action makes the kind a question rather than an object (TokenReview, Binding): create answers, nothing is stored.
	Action func(ctx context.Context, env Env, req *Request, obj Object) (runtime.Object, error)
	// Virtual makes the kind a view that is computed on each read (componentstatuses).
	Virtual func(ctx context.Context, env Env) ([]Object, error)
}

// Version is one served version of a kind.
type Version struct {
	GVK schema.GroupVersionKind
	// New, ToStored and FromStored are nil for the stored version itself. The conversions never change their argument.
	New        func() Object
	NewList    func() runtime.Object
	ToStored   func(obj Object) (Object, error)
	FromStored func(obj Object) (Object, error)
	// Default fills in what the client left out, in this version's form, before ToStored.
	Default func(obj Object)
	// Fields maps this version's selector labels to those of the stored version, where they differ.
	Fields map[string]string
	// Columns and Row, where this version's table differs from the stored one's.
	Columns []metav1.TableColumnDefinition
	Row     func(obj Object, now time.Time) []any
}

// Deletion holds what differs from the ordinary: remove at once unless metadata.finalizers hold the object.
type Deletion struct {
	// Grace decides whether deletion waits for someone (the kubelet) to confirm it. It sets
	// options.GracePeriodSeconds to the period that holds. nil: deletion is immediate.
	Grace func(obj Object, options *metav1.DeleteOptions) (graceful bool)
	// Held says that something besides metadata.finalizers holds the object (spec.finalizers of a namespace).
	Held func(obj Object) bool
	// Begin changes the object when its deletion begins but cannot end yet (phase Terminating).
	Begin func(obj Object)
	// Check refuses a deletion (the system's own objects). nil: all are allowed.
	Check func(ctx context.Context, env Env, obj Object) error
	// Propagation is the policy when the client names none. Default: background.
	Propagation metav1.DeletionPropagation
	// Warn returns the texts of Warning headers for a deletion.
	Warn func(obj Object, options *metav1.DeleteOptions) []string
	// ReturnObject: a finished deletion is answered with the object instead of a Status.
	ReturnObject bool
}

// Hooks run around the write of an object of the kind itself, not of its subresources. The Before hooks run when
// metadata is complete (name, namespace, uid) but before Prepare and Validate, because validation judges what they
// fill in. undo is called when the write fails after all, validation included; it may be nil. With req.DryRun nothing
// may be kept. The After hooks run once the write is stored, never for a dry run; AfterDelete also when the removal of
// the last finalizer deletes the object.
type Hooks struct {
	BeforeCreate func(ctx context.Context, env Env, req *Request, obj Object) (undo func(), err error)
	BeforeUpdate func(ctx context.Context, env Env, req *Request, obj, old Object) (undo func(), err error)
	AfterUpdate  func(ctx context.Context, env Env, obj, old Object)
	AfterDelete  func(ctx context.Context, env Env, obj Object)
}

// Env is what rows may use of the server. Resources are named by group and resource, so that rows need not know
// one another. Objects returned are shared and read-only.
type Env interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (Object, error)
	// List returns the objects of a namespace, or of all when it is empty.
	List(ctx context.Context, resource schema.GroupResource, namespace string) ([]Object, error)
	// Create stores obj past admission, with the row's own defaults and validation.
	Create(ctx context.Context, resource schema.GroupResource, obj Object) (Object, error)
	// Update reads, copies, changes and writes, again when another writer came first. change must return an error to stop.
	// It runs past admission and past the row's Prepare: spec and status may both change; generation follows SpecChanged.
	Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(obj Object) error) (Object, error)
	// Delete deletes as a client would, options included.
	Delete(ctx context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions) error
}

// Health is implemented by an Env that knows how the parts of the control plane are; componentstatuses shows it.
type Health interface {
	// ComponentHealth checks every part it can reach, now, and leaves out the others.
	ComponentHealth(ctx context.Context) []ComponentHealth
}

// ComponentHealth is the outcome of one check. Err is nil when the component answered that it is well.
type ComponentHealth struct {
	Name    string // "etcd-0", "scheduler", "controller-manager"
	Message string // what it answered, usually "ok"
	Err     error
}

// TokenIssuer is implemented by an Env that signs tokens for service accounts.
type TokenIssuer interface {
	// Audiences are the API server's own, for requests that name none.
	Audiences() []string
	// IssueToken signs a token. It may shorten the life that was asked for, and says how long it is.
	IssueToken(ctx context.Context, claims TokenClaims) (token string, expirationSeconds int64, err error)
}

// TokenClaims is what a token says. Pod, Node and Secret are nil unless the token is bound to them; the node of a
// bound pod is there too.
type TokenClaims struct {
	ServiceAccount    Object
	Pod, Node, Secret Object
	Audiences         []string
	ExpirationSeconds int64
	// Annotate, when it is not nil, is told the token's identity for the audit.
	Annotate func(key, value string)
}

// Subresource is one further endpoint below an object. Exactly one of Part, View and Create is set.
type Subresource struct {
	Name string
	// GVK is the kind of the body; the zero value means the parent's own.
	GVK schema.GroupVersionKind
	// Verbs as discovery lists them. Default: get, patch, update for Part and View; create for Create.
	Verbs []string

	Part   *Part
	View   *View
	Create func(ctx context.Context, env Env, req *Request, namespace, name string, body Object) (runtime.Object, error)
	// NewBody makes an empty body of GVK for View and Create.
	NewBody func() Object
	// Meant: the UID of a body for Create tells which object the client means, and is kept.
	Meant bool
	// StoresNothing: Create computes its response and writes nothing, so no watch sees it (tokens).
	StoresNothing bool
	// ConnectNeedsCreate: a GET that connects (a browser's WebSocket can send nothing else) is authorized as a create, so that
	// read access does not allow running commands.
	ConnectNeedsCreate bool
}

// Part is a subresource that writes one part of the parent and leaves the rest as it was (status, approval, resize).
type Part struct {
	// Prepare is given the client's object and the stored one; afterwards obj must equal old outside the part.
	// Of metadata the server itself takes over what the client may change here.
	Prepare func(req *Request, obj, old Object)
	// Before looks at the client's object in the light of others, before Prepare, and may refuse it.
	Before func(ctx context.Context, env Env, req *Request, obj, old Object) error
	// Validate judges the change of the part.
	Validate func(req *Request, obj, old Object) field.ErrorList
	// Warn returns the texts of Warning headers.
	Warn func(obj, old Object) []string
	// Owned are the top-level fields (or dotted paths) that a writer of this part can own in managedFields;
	// default: the subresource's name.
	Owned []string
	// Metadata: labels, annotations and the like of the client's object are taken over, as upstream does for status.
	Metadata bool
}

// View shows the parent as another kind (scale).
type View struct {
	From func(parent Object) (Object, error)
	// Apply writes the view's content into a copy of the parent.
	Apply func(view, parent Object) error
	// Validate judges the view before Apply.
	Validate func(view Object) field.ErrorList
	// Paths maps fields of the view to fields of the parent, for managedFields (spec.replicas → spec.replicas).
	Paths map[string]string
}

// AllVerbs is what an ordinary resource answers, in discovery's order.
var AllVerbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// GroupResource names the kind for Env, errors and authorization.
func (k *Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.GVK.Group, Resource: k.Plural}
}

// StoredGVK is the type under which objects stand in the store.
func (k *Kind) StoredGVK() schema.GroupVersionKind {
	gvk := k.GVK
	if k.StoredVersion != "" {
		gvk.Version = k.StoredVersion
	}
	return gvk
}

// Serves reports whether the resource itself answers verb.
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
