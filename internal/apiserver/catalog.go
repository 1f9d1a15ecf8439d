package apiserver

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// catalog is the set of served resources. The built-in ones never change and are found in plain maps; the others are added, changed and
// removed one at a time. Requests find a resource without a lock.
//
// A change updates the entries of its own kind only, and marks the discovery documents of its group as outdated. They are made again at
// the next request for them, from the documents of the groups, so that many changes in a row cost what the changed kinds cost.
type catalog struct {
	disabled map[schema.GroupVersionResource]bool
	address  string
	// priority is the priority of a group version that has no APIService.
	priority func(schema.GroupVersion) Priority

	builtIn  resourceMaps
	versions sync.Map // schema.GroupVersion → number of served resources that are not built in
	custom   sync.Map // schema.GroupVersionResource → *resource
	byKind   sync.Map // schema.GroupVersionKind → *resource, of custom
	stored   sync.Map // schema.GroupResource → *resource, of custom

	// aggregated are the APIServices of aggregated servers, of which there are aggregatedCount. Most clusters have few, many none.
	aggregated      sync.Map // schema.GroupVersion → *APIService
	aggregatedCount atomic.Int64

	mu     sync.Mutex
	kinds  map[*kind.Kind]*servedKind
	groups map[string]*servedGroup
	// documents is nil after a change.
	documents atomic.Pointer[documents]
	// aggregations counts how often an aggregated document was made.
	aggregations atomic.Int64
}

// resourceMaps are the built-in resources.
type resourceMaps struct {
	byVersion  map[schema.GroupVersionResource]*resource
	byResource map[schema.GroupResource]*resource
	byKind     map[schema.GroupVersionKind]*resource
	versions   map[schema.GroupVersion]bool
	// equivalents are the resources by the place where their objects are stored; see storageOf.
	equivalents map[any][]*resource
}

// servedGroup is the resources of a group that are served to clients.
type servedGroup struct {
	versions map[string]map[*resource]bool
	services map[string]*APIService // by version
	// documents is nil after a change.
	documents *groupDocuments
}

func newCatalog(c *Config) *catalog {
	priority := c.Priority
	if priority == nil {
		priority = func(schema.GroupVersion) Priority { return Priority{} }
	}
	return &catalog{
		disabled: c.Disabled, address: c.Address, priority: priority,
		builtIn: resourceMaps{
			byVersion: map[schema.GroupVersionResource]*resource{}, byResource: map[schema.GroupResource]*resource{},
			byKind: map[schema.GroupVersionKind]*resource{}, versions: map[schema.GroupVersion]bool{}, equivalents: map[any][]*resource{},
		},
		kinds: map[*kind.Kind]*servedKind{}, groups: map[string]*servedGroup{},
	}
}

// find returns a resource in one version, nil if it is not served.
func (c *catalog) find(gvr schema.GroupVersionResource) *resource {
	if res := c.builtIn.byVersion[gvr]; res != nil {
		return res
	}
	if res, ok := c.custom.Load(gvr); ok {
		return res.(*resource)
	}
	return nil
}

// findStored returns the resource of a kind in its storage version, or in the preferred one where the kind is stored under another group's
// version. It returns nil when it is not served.
func (c *catalog) findStored(gr schema.GroupResource) *resource {
	if res := c.builtIn.byResource[gr]; res != nil {
		return res
	}
	if res, ok := c.stored.Load(gr); ok {
		return res.(*resource)
	}
	return nil
}

// findKind returns the resource that is served as a kind, nil if there is none.
func (c *catalog) findKind(gvk schema.GroupVersionKind) *resource {
	if res := c.builtIn.byKind[gvk]; res != nil {
		return res
	}
	if res, ok := c.byKind.Load(gvk); ok {
		return res.(*resource)
	}
	return nil
}

// servesVersion reports whether a group version has a resource.
func (c *catalog) servesVersion(gv schema.GroupVersion) bool {
	if c.builtIn.versions[gv] {
		return true
	}
	_, ok := c.versions.Load(gv)
	return ok
}

// serves reports whether a resource is served to clients.
func (c *catalog) serves(res *resource) bool {
	return len(res.kind.Verbs) > 0 && !res.version.NotServed && !c.disabled[res.gvr]
}

// all returns the served kinds.
func (c *catalog) all() []*servedKind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.kinds))
}

// groupVersions returns the group versions that discovery lists.
func (c *catalog) groupVersions() []schema.GroupVersion {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []schema.GroupVersion
	for name, group := range c.groups {
		for version := range group.priorities(name, c.priority) {
			all = append(all, schema.GroupVersion{Group: name, Version: version})
		}
	}
	return all
}

// servedKind returns what a kind is served as, nil if it is not served.
func (c *catalog) servedKind(k *kind.Kind) *servedKind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kinds[k]
}

// equivalents returns the served resources with the same objects as a resource. They are the same as long as a request lasts, also when the
// kind is replaced meanwhile.
func (c *catalog) equivalents(res *resource) []*resource {
	if found := c.builtIn.equivalents[storageOf(res.kind)]; found != nil {
		return found
	}
	return slices.DeleteFunc(slices.Clone(res.served.resources), func(res *resource) bool { return !c.serves(res) })
}

// check returns an error if another kind than old has one of the kind's resources, in any version.
func (c *catalog) check(next *servedKind, old *servedKind) error {
	for _, res := range next.resources {
		if found := c.find(res.gvr); found != nil && c.serves(res) && (old == nil || found.kind != old.kind) {
			return fmt.Errorf("apiserver: %s is served twice", res.gvr)
		}
		// Clients inside the server name objects by group and resource, whatever the version.
		if found := c.findStored(res.groupResource()); found != nil && (old == nil || found.kind != old.kind) {
			return fmt.Errorf("apiserver: %s is already a resource, of another kind", res.groupResource())
		}
	}
	return nil
}

// addBuiltIn adds a kind that is never removed. It is not safe for concurrent use.
func (c *catalog) addBuiltIn(served *servedKind) {
	for _, res := range served.resources {
		gr := res.groupResource()
		if c.builtIn.byResource[gr] == nil || res.stored() {
			c.builtIn.byResource[gr] = res
		}
		if c.serves(res) {
			c.builtIn.byVersion[res.gvr] = res
			c.builtIn.byKind[res.gvk] = res
			c.builtIn.equivalents[storageOf(served.kind)] = append(c.builtIn.equivalents[storageOf(served.kind)], res)
			c.builtIn.versions[res.gvr.GroupVersion()] = true
		}
	}
	c.list(served, nil)
}

// replace serves next instead of old. Either may be nil. Entries of old that another kind has taken over remain.
func (c *catalog) replace(next, old *servedKind) {
	if next != nil {
		// One step: no request may find another version meanwhile.
		stored := next.inStorageVersion()
		c.stored.Store(stored.groupResource(), stored)
		for _, res := range next.resources {
			if c.serves(res) {
				c.count(res.gvr.GroupVersion(), 1)
				c.custom.Store(res.gvr, res)
				c.byKind.Store(res.gvk, res)
			}
		}
	}
	if old != nil {
		for _, res := range old.resources {
			c.stored.CompareAndDelete(res.groupResource(), res)
			if c.serves(res) {
				c.custom.CompareAndDelete(res.gvr, res)
				c.byKind.CompareAndDelete(res.gvk, res)
				c.count(res.gvr.GroupVersion(), -1)
			}
		}
	}
	c.list(next, old)
}

// count changes the number of resources of a group version. Callers hold Server.changes.
func (c *catalog) count(gv schema.GroupVersion, by int) {
	total := by
	if found, ok := c.versions.Load(gv); ok {
		total += found.(int)
	}
	if total == 0 {
		c.versions.Delete(gv)
	} else {
		c.versions.Store(gv, total)
	}
}

// inStorageVersion returns the resource of a kind in its storage version, or in the preferred one. All versions must have the same group.
func (k *servedKind) inStorageVersion() *resource {
	if i := slices.IndexFunc(k.resources, (*resource).stored); i >= 0 {
		return k.resources[i]
	}
	return k.resources[0]
}

// list updates what discovery is made of.
func (c *catalog) list(next, old *servedKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old != nil {
		delete(c.kinds, old.kind)
		c.eachListed(old, func(group *servedGroup, res *resource) {
			version := res.gvr.Version
			delete(group.versions[version], res)
			if len(group.versions[version]) == 0 {
				delete(group.versions, version)
			}
			c.removeEmpty(res.gvr.Group)
		})
	}
	if next != nil {
		c.kinds[next.kind] = next
		c.eachListed(next, func(group *servedGroup, res *resource) {
			if group.versions[res.gvr.Version] == nil {
				group.versions[res.gvr.Version] = map[*resource]bool{}
			}
			group.versions[res.gvr.Version][res] = true
		})
	}
	c.documents.Store(nil)
}

// eachListed calls change for the resources of a kind that discovery lists. mu must be held.
func (c *catalog) eachListed(served *servedKind, change func(*servedGroup, *resource)) {
	if served.kind.DiscoveryVerbs != nil && len(served.kind.DiscoveryVerbs) == 0 {
		return
	}
	for _, res := range served.resources {
		if !c.serves(res) {
			continue
		}
		change(c.changedGroup(res.gvr.Group), res)
	}
}

// changedGroup returns a group that is about to change. mu must be held.
func (c *catalog) changedGroup(name string) *servedGroup {
	group := c.groups[name]
	if group == nil {
		group = &servedGroup{versions: map[string]map[*resource]bool{}, services: map[string]*APIService{}}
		c.groups[name] = group
	}
	group.documents = nil
	return group
}

// removeEmpty removes a group of which nothing is left. mu must be held.
func (c *catalog) removeEmpty(name string) {
	if group := c.groups[name]; len(group.versions)+len(group.services) == 0 {
		delete(c.groups, name)
	}
}

// addBuiltIn serves the kinds that are always served.
func (s *Server) addBuiltIn(kinds []*kind.Kind) error {
	for _, k := range kinds {
		served := s.newServedKind(k)
		if err := s.catalog.check(served, nil); err != nil {
			return err
		}
		if served.storable() {
			served.attach(s.config.Cache.Add(served.cacheResource()))
		}
		s.catalog.addBuiltIn(served)
	}
	return nil
}

// AddKind serves one more kind.
func (s *Server) AddKind(k *kind.Kind) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	served := s.newServedKind(k)
	if err := s.catalog.check(served, nil); err != nil {
		return err
	}
	if served.storable() {
		served.attach(s.config.Cache.Add(served.cacheResource()))
	}
	s.catalog.replace(served, nil)
	return nil
}

// RemoveKind stops serving a kind that was added. Its objects remain in the store; its watches end.
func (s *Server) RemoveKind(k *kind.Kind) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	old, err := s.added(k)
	if err != nil {
		return err
	}
	s.catalog.replace(nil, old)
	if old.table != nil {
		s.config.Cache.Remove(old.table)
	}
	return nil
}

// ReplaceKind serves next instead of old, which was added and has the same objects. Requests in flight finish as they have begun, with old. Watches
// end: their clients begin new ones, in which objects are as next has them. Writes in flight fail, to be tried again, if their object was written with
// next meanwhile, if next has another storage version, and unless mayWrite is set.
func (s *Server) ReplaceKind(old, next *kind.Kind, mayWrite bool) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	before, err := s.added(old)
	if err != nil {
		return err
	}
	served := s.newServedKind(next)
	if err := s.catalog.check(served, before); err != nil {
		return err
	}
	served.attach(s.config.Cache.Replace(before.table, served.cacheResource()))
	before.table.Supersede(mayWrite && old.StorageGVK() == next.StorageGVK())
	s.catalog.replace(served, before)
	// No request of a client takes longer, but calls inside the server may.
	s.config.Cache.Retire(before.table, 2*s.limits.Timeout)
	return nil
}

// UpdateKind serves next instead of old, which was added and differs from next in nothing that concerns objects: its verbs in discovery, or
// its hooks. Watches continue.
func (s *Server) UpdateKind(old, next *kind.Kind) error {
	s.changes.Lock()
	defer s.changes.Unlock()
	before, err := s.added(old)
	if err != nil {
		return err
	}
	served := s.newServedKind(next)
	if err := s.catalog.check(served, before); err != nil {
		return err
	}
	served.attach(before.table)
	s.catalog.replace(served, before)
	return nil
}

// DropUnused drops what was compiled of custom resources and not used since the last call. It is compiled again when it is needed.
func (s *Server) DropUnused() {
	s.catalog.custom.Range(func(_, value any) bool {
		value.(*resource).managers.DropUnused()
		return true
	})
	s.catalog.stored.Range(func(_, value any) bool {
		if custom := value.(*resource).kind.Custom; custom != nil && custom.DropUnused != nil {
			custom.DropUnused()
		}
		return true
	})
}

// added returns what a kind is served as. It returns an error for a kind that is built in or not served.
func (s *Server) added(k *kind.Kind) (*servedKind, error) {
	served := s.catalog.servedKind(k)
	if served == nil || s.catalog.builtIn.byResource[k.GroupResource()] != nil {
		return nil, fmt.Errorf("apiserver: %s was not added to the served kinds", k.GroupResource())
	}
	return served, nil
}

// acquire returns the resource that find returns. Its table follows the store until release is called, also when the kind is replaced. The resource
// is nil when find returns none.
func acquire(find func() (*resource, error)) (*resource, error) {
	for {
		// A resource that cannot be acquired has been replaced or removed since it was found.
		if res, err := find(); res == nil || res.table == nil || res.table.Acquire() {
			return res, err
		}
	}
}

// release undoes acquire.
func (r *resource) release() {
	if r.table != nil {
		r.table.Release()
	}
}

// resource returns the resource of a kind in its storage version; see catalog.findStored.
func (s *Server) resource(gr schema.GroupResource) *resource { return s.catalog.findStored(gr) }

// KindOf returns the Kind that is served as gvk and the version, or nil when there is none.
func (s *Server) KindOf(gvk schema.GroupVersionKind) (*kind.Kind, *kind.Version) {
	if res := s.catalog.findKind(gvk); res != nil {
		return res.kind, res.version
	}
	return nil, nil
}
