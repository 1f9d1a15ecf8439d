package openapi

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/common"

	"skiff/internal/kind"
)

const metaPackage = "io.k8s.apimachinery.pkg.apis.meta.v1."

// model is the name of a body's definition; a simple type is its own name ("string").
type model string

func (m model) OpenAPIModelName() string { return string(m) }

// route is one operation on one path; kube-openapi builds both versions of the document from it.
type route struct {
	method, path   string
	id, tag        string
	doc            string
	action         string
	gvk            *metav1.GroupVersionKind
	parameters     []common.Parameter
	consumes       []string
	produces       []string
	reads, writes  model
	bodyIsOptional bool
	returns        []int
}

func (r *route) Method() string        { return r.method }
func (r *route) Path() string          { return r.path }
func (r *route) OperationName() string { return r.id }
func (r *route) Description() string   { return r.doc }
func (r *route) Consumes() []string    { return r.consumes }
func (r *route) Produces() []string    { return r.produces }

func (r *route) Parameters() []common.Parameter {
	if r.reads == "" {
		return r.parameters
	}
	body := parameter{name: "body", kind: common.BodyParameterKind, required: !r.bodyIsOptional}
	return append(slices.Clone(r.parameters), body)
}

func (r *route) Metadata() map[string]any {
	if r.gvk == nil {
		return nil
	}
	return map[string]any{"x-kubernetes-action": r.action, "x-kubernetes-group-version-kind": *r.gvk}
}

func (r *route) RequestPayloadSample() any {
	if r.reads == "" {
		return nil
	}
	return r.reads
}

func (r *route) ResponsePayloadSample() any { return r.writes }

func (r *route) StatusCodeResponses() []common.StatusCodeResponse {
	var out []common.StatusCodeResponse
	for _, code := range r.returns {
		out = append(out, response{code, r.writes})
	}
	return out
}

type response struct {
	code int
	body model
}

func (r response) Code() int       { return r.code }
func (r response) Message() string { return http.StatusText(r.code) }
func (r response) Model() any      { return r.body }

type parameter struct {
	name, description, dataType string
	kind                        common.ParameterKind
	required                    bool
}

func (p parameter) Name() string               { return p.name }
func (p parameter) Description() string        { return p.description }
func (p parameter) Required() bool             { return p.required }
func (p parameter) Kind() common.ParameterKind { return p.kind }
func (p parameter) DataType() string           { return p.dataType }
func (p parameter) AllowMultiple() bool        { return false }

// routes implements kube-openapi's list of routes.
type routes []*route

func (routes) RootPath() string                   { return "/" }
func (routes) PathParameters() []common.Parameter { return nil }
func (rs routes) Routes() []common.Route {
	out := make([]common.Route, len(rs))
	for i, r := range rs {
		out[i] = r
	}
	return out
}

// The media types of the documents; negotiate.go of the API server implements them. Custom resources have no protobuf and
// no strategic merge patch.
var (
	mediaTypes        = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	streamTypes       = []string{"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"}
	customMediaTypes  = []string{"application/json", "application/yaml"}
	customStreamTypes = []string{"application/json;stream=watch"}
	patchTypes        = []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType)}
	customPatchTypes  = []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	anyType           = []string{"*/*"}
)

// deleteReturnsObject are the resources whose deletion responds with the object instead of a Status.
var deleteReturnsObject = map[schema.GroupResource]bool{
	{Resource: "persistentvolumeclaims"}: true, {Resource: "persistentvolumes"}: true, {Resource: "pods"}: true,
	{Resource: "podtemplates"}: true, {Resource: "resourcequotas"}: true, {Resource: "serviceaccounts"}: true, {Resource: "services"}: true,
	{Group: "resource.k8s.io", Resource: "deviceclasses"}: true, {Group: "resource.k8s.io", Resource: "resourceclaims"}: true,
	{Group: "resource.k8s.io", Resource: "resourceclaimtemplates"}: true, {Group: "resource.k8s.io", Resource: "resourceslices"}: true,
	{Group: "storage.k8s.io", Resource: "csidrivers"}: true, {Group: "storage.k8s.io", Resource: "csinodes"}: true,
	{Group: "storage.k8s.io", Resource: "storageclasses"}: true, {Group: "storage.k8s.io", Resource: "volumeattachments"}: true,
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}: true,
}

// connection is a subresource that upgrades or proxies the connection.
type connection struct {
	methods []string
	options any
	subpath bool
}

var (
	streamMethods = []string{"GET", "POST"}
	proxyMethods  = []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}
	connections   = map[string]connection{
		"pods/attach":      {streamMethods, &corev1.PodAttachOptions{}, false},
		"pods/exec":        {streamMethods, &corev1.PodExecOptions{}, false},
		"pods/portforward": {streamMethods, &corev1.PodPortForwardOptions{}, false},
		"pods/proxy":       {proxyMethods, &corev1.PodProxyOptions{}, true},
		"services/proxy":   {proxyMethods, &corev1.ServiceProxyOptions{}, true},
		"nodes/proxy":      {proxyMethods, &corev1.NodeProxyOptions{}, true},
	}
)

var (
	pretty         = query("pretty", "If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget).", "string")
	namespaceParam = parameter{"namespace", "object name and auth scope, such as for teams and projects", "string", common.PathParameterKind, true}
	pathParam      = parameter{"path", "path to the resource", "string", common.PathParameterKind, true}
)

func query(name, description, dataType string) common.Parameter {
	return parameter{name, description, dataType, common.QueryParameterKind, false}
}

// optionParameters are the fields of an options type as query parameters, with the descriptions of the type.
func optionParameters(options any, except ...string) []common.Parameter {
	t := reflect.TypeOf(options).Elem()
	var docs map[string]string
	if d, ok := options.(interface{ SwaggerDoc() map[string]string }); ok {
		docs = d.SwaggerDoc()
	}
	var out []common.Parameter
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		dataType := queryType(t.Field(i).Type)
		if name == "" || dataType == "" || slices.Contains(except, name) {
			continue
		}
		out = append(out, query(name, docs[name], dataType))
	}
	return out
}

func queryType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int32, reflect.Int64:
		return "integer"
	case reflect.String:
		return "string"
	case reflect.Pointer, reflect.Slice: // a list is a repeated parameter
		return queryType(t.Elem())
	}
	return ""
}

// builder makes the routes of one group version.
type builder struct {
	gv     schema.GroupVersion
	root   string // /apis/apps/v1/
	custom bool
	routes routes
}

func rootOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version + "/"
	}
	return "/apis/" + gv.Group + "/" + gv.Version + "/"
}

// groupVersionRoutes are the routes of all resources of a group version, and of its resource list.
func groupVersionRoutes(gv schema.GroupVersion, kinds []*kind.Kind) routes {
	_, builtIn := packages()[gv]
	b := &builder{gv: gv, root: rootOf(gv), custom: !builtIn}
	b.routes = append(b.routes, discoveryRoute(b.root, "get available resources", "APIResources", "APIResourceList"))
	for _, k := range kinds {
		for i := range k.Versions {
			v := &k.Versions[i]
			if v.GVK.GroupVersion() != gv || v.NotServed {
				continue
			}
			b.resource(k, v.GVK)
			subs := k.SubresourcesOf(v)
			for j := range subs {
				b.subresource(k, v.GVK, &subs[j])
			}
		}
	}
	return b.routes
}

func discoveryRoute(path, doc, operation, body string) *route {
	group, tag := operationParts(path)
	return &route{method: "GET", path: path, id: "get" + group + operation, tag: tag, doc: doc, consumes: mediaTypes, produces: mediaTypes,
		writes: model(metaPackage + body)}
}

// operationParts are the prefixes of an operation's ID and tag that follow from the path's group and version.
func operationParts(path string) (id, tag string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		parts = append([]string{"apis", "core"}, parts[1:]...)
	}
	if parts[0] != "apis" {
		return "", camel(parts[0], false)
	}
	if len(parts) == 1 {
		return "", "apis"
	}
	group := strings.TrimSuffix(parts[1], ".k8s.io")
	id, tag = camel(group, true), camel(group, false)
	if len(parts) > 2 {
		id += camel(parts[2], true)
		tag += "_" + camel(parts[2], false)
	}
	return id, tag
}

// camel drops punctuation and capitalizes the next letter.
func camel(s string, upper bool) string {
	var out strings.Builder
	for i, r := range s {
		switch {
		case !unicode.IsLetter(r) && r != '_' && (i == 0 || !unicode.IsDigit(r)):
			upper = true
		case upper:
			out.WriteRune(unicode.ToUpper(r))
			upper = false
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// endpoint is what the routes of one resource or subresource have in common.
type endpoint struct {
	kind       string // in operation IDs and texts; for a subresource that of the parent
	gvk        schema.GroupVersionKind
	body       model
	sub        string
	namespaced string // "Namespaced" in operation IDs
	path       string // of an item
	parameters []common.Parameter
}

// operationSpec is what one operation adds to its endpoint. Its ID is verb, group and version, and name.
type operationSpec struct {
	method, path string
	verb, name   string
	action       string // x-kubernetes-action
	doc          string
	parameters   []common.Parameter
}

// op adds a route.
func (b *builder) op(e *endpoint, o operationSpec) *route {
	group, tag := operationParts(o.path)
	r := &route{method: o.method, path: o.path, id: o.verb + group + camel(o.name, true), tag: tag, doc: o.doc, action: o.action,
		gvk:      &metav1.GroupVersionKind{Group: e.gvk.Group, Version: e.gvk.Version, Kind: e.gvk.Kind},
		consumes: anyType, produces: mediaTypes, writes: e.body, returns: []int{http.StatusOK}, parameters: o.parameters}
	if b.custom {
		r.produces = customMediaTypes
	}
	b.routes = append(b.routes, r)
	return r
}

func (b *builder) streamed() []string {
	if b.custom {
		return slices.Concat(customMediaTypes, customStreamTypes)
	}
	return slices.Concat(mediaTypes, streamTypes)
}

// with concatenates the parameters of an operation: those of the path, pretty, and those of its options.
func with(path []common.Parameter, options ...[]common.Parameter) []common.Parameter {
	return append(append(slices.Clone(path), pretty), slices.Concat(options...)...)
}

func article(noun string) string {
	switch {
	case strings.HasSuffix(noun, "s") && !strings.HasSuffix(noun, "ss"):
		return " "
	case strings.ContainsRune("aeiouAEIOU", rune(noun[0])):
		return " an "
	}
	return " a "
}

func (b *builder) resource(k *kind.Kind, gvk schema.GroupVersionKind) {
	e := &endpoint{kind: gvk.Kind, gvk: gvk, body: model(Name(gvk))}
	collection := b.root + k.Plural
	var scope []common.Parameter
	if k.Namespaced {
		e.namespaced = "Namespaced"
		collection = b.root + "namespaces/{namespace}/" + k.Plural
		scope = []common.Parameter{namespaceParam}
	}
	e.path = collection + "/{name}"
	e.parameters = append(slices.Clone(scope), parameter{"name", "name of the " + gvk.Kind, "string", common.PathParameterKind, true})

	list, watch := k.Serves("list"), k.Serves("watch")
	if list {
		b.list(k, e, collection, scope, e.namespaced+e.kind)
	}
	if k.Serves("create") {
		b.create(e, collection, scope)
	}
	if k.Serves("deletecollection") {
		r := b.op(e, operationSpec{
			method: "DELETE", path: collection, verb: "delete", name: "collection" + e.namespaced + e.kind, action: "deletecollection",
			doc:        "delete collection of " + e.kind,
			parameters: with(scope, optionParameters(&metav1.DeleteOptions{}), optionParameters(&metav1.ListOptions{}, "watch", "allowWatchBookmarks")),
		})
		r.reads, r.bodyIsOptional, r.writes = metaPackage+"DeleteOptions", true, metaPackage+"Status"
	}
	b.item(e, k.Verbs)
	if k.Serves("delete") {
		r := b.op(e, operationSpec{
			method: "DELETE", path: e.path, verb: "delete", name: e.namespaced + e.kind, action: "delete",
			doc:        "delete" + article(e.kind) + e.kind,
			parameters: with(e.parameters, optionParameters(&metav1.DeleteOptions{})),
		})
		r.reads, r.bodyIsOptional = metaPackage+"DeleteOptions", true
		r.returns = append(r.returns, http.StatusAccepted)
		if !deleteReturnsObject[k.GroupResource()] {
			r.writes = metaPackage + "Status"
		}
	}
	if watch {
		r := b.op(e, operationSpec{
			method: "GET", path: b.watchPath(e.path), verb: "watch", name: e.namespaced + e.kind, action: "watch",
			doc:        "watch changes to an object of kind " + e.kind + ". deprecated: use the 'watch' parameter with a list operation instead, filtered to a single item with the 'fieldSelector' parameter.",
			parameters: with(e.parameters, optionParameters(&metav1.ListOptions{})),
		})
		r.writes, r.produces = metaPackage+"WatchEvent", b.streamed()
	}
	if list && k.Namespaced {
		b.list(k, e, b.root+k.Plural, nil, e.kind+"ForAllNamespaces")
	}
}

func (b *builder) watchPath(path string) string {
	return b.root + "watch/" + strings.TrimPrefix(path, b.root)
}

// list adds the list of a collection and the deprecated path to watch it.
func (b *builder) list(k *kind.Kind, e *endpoint, path string, scope []common.Parameter, name string) {
	watch := k.Serves("watch")
	doc := "list objects of kind " + e.kind
	if watch {
		doc = "list or watch objects of kind " + e.kind
	}
	parameters := with(scope, optionParameters(&metav1.ListOptions{}))
	r := b.op(e, operationSpec{
		method: "GET", path: path, verb: "list", name: name, action: "list",
		doc:        doc,
		parameters: parameters,
	})
	r.writes, r.produces = model(Name(e.gvk.GroupVersion().WithKind(k.ListKind))), b.streamed()
	if !watch {
		return
	}
	watchName := e.namespaced + e.kind + "List"
	if rest, ok := strings.CutPrefix(name, e.kind+"For"); ok {
		watchName = e.kind + "ListFor" + rest
	}
	r = b.op(e, operationSpec{
		method: "GET", path: b.watchPath(path), verb: "watch", name: watchName, action: "watchlist",
		doc:        "watch individual changes to a list of " + e.kind + ". deprecated: use the 'watch' parameter with a list operation instead.",
		parameters: parameters,
	})
	r.writes, r.produces = metaPackage+"WatchEvent", b.streamed()
}

func (b *builder) create(e *endpoint, path string, scope []common.Parameter) {
	doc := "create" + article(e.kind) + e.kind
	if e.sub != "" {
		doc = "create " + e.sub + " of" + article(e.kind) + e.kind
	}
	r := b.op(e, operationSpec{
		method: "POST", path: path, verb: "create", name: e.namespaced + e.kind + title(e.sub), action: "post",
		doc:        doc,
		parameters: with(scope, optionParameters(&metav1.CreateOptions{})),
	})
	r.reads, r.returns = e.body, []int{http.StatusOK, http.StatusCreated, http.StatusAccepted}
}

// item adds get, update and patch of one object or one of its subresources.
func (b *builder) item(e *endpoint, verbs []string) {
	object := "the specified " + e.kind
	if e.sub != "" {
		object = e.sub + " of " + object
	}
	name := e.namespaced + e.kind + title(e.sub)
	if slices.Contains(verbs, "get") {
		b.op(e, operationSpec{
			method: "GET", path: e.path, verb: "read", name: name, action: "get",
			doc:        "read " + object,
			parameters: with(e.parameters),
		})
	}
	if slices.Contains(verbs, "update") {
		r := b.op(e, operationSpec{
			method: "PUT", path: e.path, verb: "replace", name: name, action: "put",
			doc:        "replace " + object,
			parameters: with(e.parameters, optionParameters(&metav1.UpdateOptions{})),
		})
		r.reads, r.returns = e.body, []int{http.StatusOK, http.StatusCreated}
	}
	if slices.Contains(verbs, "patch") {
		r := b.op(e, operationSpec{
			method: "PATCH", path: e.path, verb: "patch", name: name, action: "patch",
			doc:        "partially update " + object,
			parameters: with(e.parameters, optionParameters(&metav1.PatchOptions{})),
		})
		r.reads, r.returns, r.consumes = metaPackage+"Patch", []int{http.StatusOK, http.StatusCreated}, patchTypes
		if b.custom {
			r.consumes = customPatchTypes
		}
	}
}

func title(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func (b *builder) subresource(k *kind.Kind, parent schema.GroupVersionKind, sub *kind.Subresource) {
	gvk := sub.GVK
	if gvk.Empty() {
		gvk = parent
	}
	e := &endpoint{kind: parent.Kind, gvk: gvk, body: model(Name(gvk)), sub: sub.Name, path: b.root + k.Plural + "/{name}/" + sub.Name}
	if k.Namespaced {
		e.namespaced = "Namespaced"
		e.path = b.root + "namespaces/{namespace}/" + k.Plural + "/{name}/" + sub.Name
		e.parameters = []common.Parameter{namespaceParam}
	}
	c, connects := connections[k.Plural+"/"+sub.Name]
	connects = connects && parent.Group == ""
	if connects {
		e.gvk = parent.GroupVersion().WithKind(reflect.TypeOf(c.options).Elem().Name())
	}
	e.parameters = append(e.parameters, parameter{"name", "name of the " + e.gvk.Kind, "string", common.PathParameterKind, true})
	switch {
	case connects:
		b.connect(e, c)
	case parent.Group == "" && k.Plural == "pods" && sub.Name == "log":
		r := b.op(e, operationSpec{
			method: "GET", path: e.path, verb: "read", name: e.namespaced + e.kind + "Log", action: "get",
			doc:        "read log of the specified Pod",
			parameters: with(e.parameters, optionParameters(&corev1.PodLogOptions{})),
		})
		r.writes, r.produces = "string", slices.Concat([]string{"text/plain"}, mediaTypes)
	default:
		verbs := sub.Verbs
		if len(verbs) == 0 && sub.Create != nil {
			verbs = []string{"create"}
		} else if len(verbs) == 0 {
			verbs = []string{"get", "patch", "update"}
		}
		if slices.Contains(verbs, "create") {
			b.create(e, e.path, e.parameters)
		}
		b.item(e, verbs)
	}
}

func (b *builder) connect(e *endpoint, c connection) {
	for _, method := range c.methods {
		doc := "connect " + method + " requests to " + e.sub + " of " + e.kind
		name := title(strings.ToLower(method)) + e.namespaced + e.kind + title(e.sub)
		parameters := slices.Concat(e.parameters, optionParameters(c.options))
		r := b.op(e, operationSpec{
			method: method, path: e.path, verb: "connect", name: name, action: "connect",
			doc:        doc,
			parameters: parameters,
		})
		r.writes, r.produces, r.returns = "string", anyType, nil
		if c.subpath {
			r = b.op(e, operationSpec{
				method: method, path: e.path + "/{path}", verb: "connect", name: name + "WithPath", action: "connect",
				doc:        doc,
				parameters: append(parameters, pathParam),
			})
			r.writes, r.produces, r.returns = "string", anyType, nil
		}
	}
}
