package apiserver

import (
	"cmp"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"skiff/internal/kind"
)

// documents are the discovery documents of the catalog at one time.
type documents struct {
	groups  []metav1.APIGroup // without the core group
	core    metav1.APIVersions
	byGroup map[string]*groupDocuments
	// The aggregated documents of /api and /apis are built on first use.
	aggregatedCore   func() *aggregated
	aggregatedGroups func() *aggregated
}

// groupDocuments are the documents of one group.
type groupDocuments struct {
	group     metav1.APIGroup
	resources map[string]*metav1.APIResourceList // by version
	// downloaded are the versions of aggregated servers.
	downloaded map[string]*apidiscoveryv2.APIVersionDiscovery
	// priority is the highest group priority of the versions, first the APIService that has it, the first by name.
	priority int32
	first    string
	// aggregated is the group in the aggregated document, with the hash of its content. It is built on first use.
	aggregated func() aggregatedGroup
}

type aggregatedGroup struct {
	apidiscoveryv2.APIGroupDiscovery
	hash [sha512.Size]byte
}

// aggregated is an aggregated discovery document: all groups in one.
type aggregated struct {
	list *apidiscoveryv2.APIGroupDiscoveryList
	etag string // quoted
}

// discovery returns the documents, made again if the catalog has changed. Only those of changed groups are made anew.
func (c *catalog) discovery() *documents {
	if d := c.documents.Load(); d != nil {
		return d
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.documents.Load(); d != nil {
		return d
	}
	d := &documents{byGroup: make(map[string]*groupDocuments, len(c.groups))}
	d.core.ServerAddressByClientCIDRs = []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: c.address}}
	d.core.Versions = []string{}
	for name, group := range c.groups {
		if group.documents == nil {
			group.documents = group.describe(name, c.priority)
		}
		if len(group.documents.group.Versions) > 0 {
			d.byGroup[name] = group.documents
		}
	}
	for _, group := range slices.SortedFunc(maps.Values(d.byGroup), compareByAPIService) {
		if group.group.Name != "" {
			d.groups = append(d.groups, group.group)
			continue
		}
		for _, version := range group.group.Versions {
			d.core.Versions = append(d.core.Versions, version.Version)
		}
	}
	d.aggregatedCore = sync.OnceValue(func() *aggregated {
		c.aggregations.Add(1)
		return d.aggregate(func(group string) bool { return group == "" })
	})
	d.aggregatedGroups = sync.OnceValue(func() *aggregated {
		c.aggregations.Add(1)
		return d.aggregate(func(group string) bool { return group != "" })
	})
	c.documents.Store(d)
	return d
}

// describe makes the documents of a group. priority is that of versions without an APIService.
func (g *servedGroup) describe(name string, priority func(schema.GroupVersion) Priority) *groupDocuments {
	d := &groupDocuments{
		group: metav1.APIGroup{Name: name}, resources: make(map[string]*metav1.APIResourceList, len(g.versions)),
		downloaded: map[string]*apidiscoveryv2.APIVersionDiscovery{},
	}
	for v, resources := range g.versions {
		if g.services[v].isAggregated() {
			continue
		}
		list := &metav1.APIResourceList{GroupVersion: schema.GroupVersion{Group: name, Version: v}.String()}
		for res := range resources {
			list.APIResources = append(list.APIResources, describe(res)...)
		}
		slices.SortFunc(list.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
		d.resources[v] = list
	}
	for v, service := range g.services {
		if service.isAggregated() {
			d.downloaded[v] = service.Discovery
		}
	}
	priorities := g.priorities(name, priority)
	higherFirst := func(a, b string) int {
		return cmp.Or(cmp.Compare(priorities[b].Version, priorities[a].Version), version.CompareKubeAwareVersionStrings(b, a))
	}
	for _, v := range slices.SortedFunc(maps.Keys(priorities), higherFirst) {
		gv := schema.GroupVersion{Group: name, Version: v}
		d.group.Versions = append(d.group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v})
		d.setRank(priorities[v].Group, apiServiceName(gv))
	}
	if len(d.group.Versions) > 0 {
		d.group.PreferredVersion = d.group.Versions[0]
	}
	d.aggregated = sync.OnceValue(d.aggregate)
	return d
}

// describe returns the discovery entries of a resource and its subresources.
func describe(res *resource) []metav1.APIResource {
	k := res.kind
	own := metav1.APIResource{
		Name: k.Plural, SingularName: k.Singular, Namespaced: k.Namespaced, Kind: res.gvk.Kind,
		Verbs: sortedVerbs(k.Verbs), ShortNames: k.Short, Categories: k.Categories,
	}
	if k.DiscoveryVerbs != nil {
		own.Verbs = sortedVerbs(k.DiscoveryVerbs)
	}
	if k.Action == nil && k.Computed == nil {
		own.StorageVersionHash = kind.StorageVersionHash(k.StorageGVK())
	}
	all := []metav1.APIResource{own}
	subs := k.SubresourcesOf(res.version)
	for i := range subs {
		sub := &subs[i]
		described := metav1.APIResource{
			Name: k.Plural + "/" + sub.Name, Namespaced: k.Namespaced, Kind: res.gvk.Kind, Verbs: sortedVerbs(subVerbs(sub)),
		}
		if sub.GVK.Kind != "" {
			described.Kind = sub.GVK.Kind
			if sub.GVK.GroupVersion() != res.gvk.GroupVersion() {
				described.Group, described.Version = sub.GVK.Group, sub.GVK.Version
			}
		}
		all = append(all, described)
	}
	return all
}

// subVerbs are the verbs of a subresource; see kind.Subresource for the defaults.
func subVerbs(sub *kind.Subresource) []string {
	switch {
	case sub.Verbs != nil:
		return sub.Verbs
	case sub.Create != nil:
		return []string{"create"}
	}
	return []string{"get", "patch", "update"}
}

func sortedVerbs(verbs []string) metav1.Verbs {
	sorted := slices.Clone(verbs)
	slices.Sort(sorted)
	return sorted
}

// aggregate makes the aggregated document of the selected groups.
func (d *documents) aggregate(selected func(group string) bool) *aggregated {
	list := &apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{}}
	sum := sha512.New()
	for _, group := range slices.SortedFunc(maps.Values(d.byGroup), compareByName) {
		if !selected(group.group.Name) {
			continue
		}
		one := group.aggregated()
		list.Items = append(list.Items, one.APIGroupDiscovery)
		sum.Write(one.hash[:])
	}
	return &aggregated{list: list, etag: fmt.Sprintf(`"%X"`, sum.Sum(nil))}
}

func (d *groupDocuments) aggregate() aggregatedGroup {
	group := aggregatedGroup{APIGroupDiscovery: apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: d.group.Name}}}
	for _, v := range d.group.Versions {
		if downloaded := d.downloaded[v.Version]; downloaded != nil {
			group.Versions = append(group.Versions, *downloaded)
			continue
		}
		group.Versions = append(group.Versions, apidiscoveryv2.APIVersionDiscovery{
			Version: v.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: aggregateResources(d.resources[v.Version].APIResources),
		})
	}
	text, err := json.Marshal(group.APIGroupDiscovery)
	if err != nil {
		panic(err) // marshalling plain structs does not fail
	}
	group.hash = sha512.Sum512(text)
	return group
}

func aggregateResources(flat []metav1.APIResource) []apidiscoveryv2.APIResourceDiscovery {
	var all []apidiscoveryv2.APIResourceDiscovery
	for _, res := range flat {
		responseKind := &metav1.GroupVersionKind{Group: res.Group, Version: res.Version, Kind: res.Kind}
		if _, sub, ok := strings.Cut(res.Name, "/"); ok {
			// The list is sorted by name, so a subresource follows its parent.
			parent := &all[len(all)-1]
			parent.Subresources = append(parent.Subresources, apidiscoveryv2.APISubresourceDiscovery{
				Subresource: sub, ResponseKind: responseKind, Verbs: res.Verbs,
			})
			continue
		}
		scope := apidiscoveryv2.ScopeCluster
		if res.Namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		all = append(all, apidiscoveryv2.APIResourceDiscovery{
			Resource: res.Name, ResponseKind: responseKind, Scope: scope, SingularResource: res.SingularName,
			Verbs: res.Verbs, ShortNames: res.ShortNames, Categories: res.Categories,
		})
	}
	return all
}

// discover serves the paths of discovery. ok is false for other paths.
func (s *Server) discover(req *request) (ok bool, err error) {
	root, rest := cutSegment(strings.Trim(req.info.path, "/"))
	if root != "api" && root != "apis" {
		return false, nil
	}
	d := s.catalog.discovery()
	switch {
	case root == "api" && rest == "":
		return true, s.respondRoot(req, &d.core, schema.GroupVersionKind{Kind: "APIVersions"}, d.aggregatedCore)
	case root == "apis" && rest == "":
		return true, s.respondRoot(req, &metav1.APIGroupList{Groups: d.groups}, metav1.Unversioned.WithKind("APIGroupList"), d.aggregatedGroups)
	case root == "api":
		return s.respondResources(req, d, schema.GroupVersion{Version: rest})
	}
	group, groupVersion := cutSegment(rest)
	if groupVersion != "" {
		return s.respondResources(req, d, schema.GroupVersion{Group: group, Version: groupVersion})
	}
	if found := d.byGroup[group]; found != nil && group != "" {
		return true, s.respondDiscovery(req, &found.group, metav1.Unversioned.WithKind("APIGroup"))
	}
	return false, nil
}

func (s *Server) respondResources(req *request, d *documents, gv schema.GroupVersion) (ok bool, err error) {
	group := d.byGroup[gv.Group]
	if group == nil || group.resources[gv.Version] == nil {
		return false, nil
	}
	list := group.resources[gv.Version]
	gvk := metav1.Unversioned.WithKind("APIResourceList")
	if gv.Group == "" {
		gvk.Version = ""
	}
	return true, s.respondDiscovery(req, list, gvk)
}

// respondDiscovery responds with a plain discovery document. Those of the core group have no version.
func (s *Server) respondDiscovery(req *request, document runtime.Object, gvk schema.GroupVersionKind) error {
	if !isRead(req.Method) {
		return errNoMethod()
	}
	out, ok := negotiate(req.Request, offer{protobuf: true})
	if !ok {
		return errNotAcceptable(acceptedTypes(true)...)
	}
	return s.respondDocument(req, out, document, gvk, out.format.mediaType())
}

func (s *Server) respondDocument(req *request, out output, document runtime.Object, gvk schema.GroupVersionKind, mediaType string) error {
	buffer := getBuffer()
	defer putBuffer(buffer)
	var err error
	if *buffer, err = appendObject(*buffer, document, gvk, out.format); err != nil {
		return err
	}
	if mediaType == out.format.mediaType() {
		return s.writeEncoded(req, http.StatusOK, out, buffer)
	}
	if out.format == formatJSON {
		*buffer = append(*buffer, '\n')
	}
	return s.writeBody(req, http.StatusOK, mediaType, *buffer)
}

// respondRoot serves /api and /apis: the aggregated document for clients that accept it, otherwise the plain one.
func (s *Server) respondRoot(req *request, plain runtime.Object, gvk schema.GroupVersionKind, all func() *aggregated) error {
	format, ok := wantsAggregated(req.Header.Get("Accept"))
	if !ok || !isRead(req.Method) {
		return s.respondDiscovery(req, plain, gvk)
	}
	document := all()
	header := req.w.Header()
	header["Etag"] = []string{document.etag}
	header["Vary"] = []string{"Accept"}
	header["Cache-Control"] = []string{"public"}
	if req.Header.Get("If-None-Match") == document.etag {
		req.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	gvk = apidiscoveryv2.SchemeGroupVersion.WithKind("APIGroupDiscoveryList")
	mediaType := fmt.Sprintf("%s;g=%s;v=%s;as=%s", format.mediaType(), gvk.Group, gvk.Version, gvk.Kind)
	return s.respondDocument(req, output{format: format}, document.list, gvk, mediaType)
}

func wantsAggregated(accept string) (format, bool) {
	for _, c := range parseAccept(accept) {
		if c.transform && c.g == "apidiscovery.k8s.io" && c.v == "v2" && c.as == "APIGroupDiscoveryList" && c.formats[0] != formatYAML {
			return c.formats[0], true
		}
	}
	return 0, false
}

func isRead(method string) bool { return method == http.MethodGet || method == http.MethodHead }
