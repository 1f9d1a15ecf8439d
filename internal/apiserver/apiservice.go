package apiserver

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authn"
)

// aggregatedDiscoveryTimeout bounds requests of clients for the discovery of an aggregated server. It is upstream's: a server that does not
// respond must not delay clients that discover all groups.
const aggregatedDiscoveryTimeout = 5 * time.Second

// APIService says who serves a group version, and its place in discovery.
type APIService struct {
	Priority Priority
	// Proxy passes a request of the user on to an aggregated server, which serves the group version. It has removed the headers that
	// identify the client. nil: this server serves the group version.
	Proxy func(w http.ResponseWriter, r *http.Request, user *authn.User)
	// Discovery is the group version as the aggregated server describes it. It is set if Proxy is.
	Discovery *apidiscoveryv2.APIVersionDiscovery
}

// Priority orders discovery: groups by the highest Group of their versions, the versions of a group by Version.
type Priority struct{ Group, Version int32 }

// isAggregated reports whether an aggregated server serves the group version. The APIService may be nil.
func (a *APIService) isAggregated() bool { return a != nil && a.Proxy != nil }

// apiServiceName is the name of the APIService of a group version.
func apiServiceName(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

// SetAPIService sets the APIService of a group version; nil removes it. Requests in flight are not disturbed.
func (s *Server) SetAPIService(gv schema.GroupVersion, service *APIService) {
	s.catalog.setAPIService(gv, service)
}

// BuiltInVersions are the group versions of the kinds that are always served.
func (s *Server) BuiltInVersions() []schema.GroupVersion {
	return slices.SortedFunc(maps.Keys(s.catalog.builtIn.versions), func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) })
}

func (c *catalog) setAPIService(gv schema.GroupVersion, service *APIService) {
	if service != nil && !service.isAggregated() && service.Priority == c.priority(gv) {
		service = nil // nothing is different
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.groups[gv.Group]; service == nil && (found == nil || found.services[gv.Version] == nil) {
		return
	}
	group := c.changedGroup(gv.Group)
	if service == nil {
		delete(group.services, gv.Version)
	} else {
		group.services[gv.Version] = service
	}
	c.removeEmpty(gv.Group)
	c.documents.Store(nil)
	if service.isAggregated() {
		if _, replaced := c.aggregated.Swap(gv, service); !replaced {
			c.aggregatedCount.Add(1)
		}
	} else if _, removed := c.aggregated.LoadAndDelete(gv); removed {
		c.aggregatedCount.Add(-1)
	}
}

// findAggregated returns the APIService of a group version that an aggregated server serves, nil if this server does.
func (c *catalog) findAggregated(group, version string) *APIService {
	if version == "" || c.aggregatedCount.Load() == 0 {
		return nil
	}
	if service, ok := c.aggregated.Load(schema.GroupVersion{Group: group, Version: version}); ok {
		return service.(*APIService)
	}
	return nil
}

// upgradesAggregated reports whether a request asks an aggregated server to upgrade the connection. Only that server knows which of its
// resources have sessions, so each may last as long as its client wants.
func (s *Server) upgradesAggregated(req *request) bool {
	// Without the header Connection the request is an ordinary one: Upgrade is not passed on.
	return req.Header.Get("Upgrade") != "" && httpguts.HeaderValuesContainsToken(req.Header["Connection"], "upgrade") &&
		s.catalog.findAggregated(req.info.group, req.info.version) != nil
}

// proxyAggregated passes a request on to an aggregated server. A watch gives its seats back: how long its start takes is not known here. Others
// return them while the aggregated server works, as requests do that wait for their clients: a server that does not respond must not occupy the
// seats of a priority level.
func (s *Server) proxyAggregated(req *request, service *APIService) error {
	if req.info.verb == "watch" {
		req.seats.Release()
	}
	req.w.recorded = nil // the aggregated server audits its responses, which have no bound here
	req.writeWarnings()
	ctx := req.ctx
	if !req.info.isResource() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, aggregatedDiscoveryTimeout)
		defer cancel()
	}
	if wait := req.w.wait; wait != nil {
		req.w.wait = nil // one wait for all that is read and written
		wait.begin()
		defer func() {
			_ = wait.end(errProxied)
			req.w.wait = wait
		}()
	}
	r := req.Request.WithContext(ctx)
	r.Header.Set("Audit-Id", req.id)
	service.Proxy(req.w, r, &req.user)
	return nil
}

// errProxied ends the wait of a request that was passed on: it needs no more seats.
var errProxied = errors.New("request was passed on")

// priorities are the priorities of the versions that discovery lists. ofServed is that of versions without an APIService.
func (g *servedGroup) priorities(name string, ofServed func(schema.GroupVersion) Priority) map[string]Priority {
	all := make(map[string]Priority, len(g.versions)+len(g.services))
	for v := range g.versions {
		all[v] = ofServed(schema.GroupVersion{Group: name, Version: v})
	}
	for v, service := range g.services {
		if _, served := all[v]; served || service.isAggregated() {
			all[v] = service.Priority
		}
	}
	return all
}

// setRank takes one more version of the group into account.
func (d *groupDocuments) setRank(priority int32, apiService string) {
	if d.first == "" || priority > d.priority || priority == d.priority && apiService < d.first {
		d.priority, d.first = priority, apiService
	}
}

// compareByAPIService orders groups as the plain document lists them: by priority, then by the name of the first APIService.
func compareByAPIService(a, b *groupDocuments) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), strings.Compare(a.first, b.first))
}

// compareByName orders groups as the aggregated document lists them: by priority, then by name.
func compareByName(a, b *groupDocuments) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), strings.Compare(a.group.Name, b.group.Name))
}
