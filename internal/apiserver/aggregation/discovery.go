package aggregation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/authn"
)

const (
	// discoveryTimeout bounds the requests for the discovery of one aggregated server.
	discoveryTimeout = 5 * time.Second
	// minDiscoveryRetry is the time until failed discovery is repeated. It doubles with each failure, up to refreshInterval.
	minDiscoveryRetry = 500 * time.Millisecond
	// maxDiscoveryBytes bounds a discovery document.
	maxDiscoveryBytes = 4 << 20
	// acceptDiscovery is the type of the aggregated document.
	acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

// aggregatorUser is the user as which the API server requests discovery. An aggregated server must let it read.
var aggregatorUser = authn.User{Username: "system:kube-aggregator", Groups: []string{authn.GroupMasters}}

// discovered is what discovery says of a group version.
type discovered struct {
	entry *apidiscoveryv2.APIVersionDiscovery
	etag  string // of the aggregated document; empty if there is none
}

// syncDiscovery downloads the discovery of an APIService. After a failure the last known resources are listed as stale.
func (a *Aggregation) syncDiscovery(ctx context.Context, name string) (exists bool, err error) {
	b := a.find(name)
	if b == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.setRequested(name)
		return false, nil
	}
	known := a.discoveredOf(b)
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	next, err := b.discover(ctx, known)
	if err != nil {
		next = stale(b.gv, known)
		a.Log.Debug("failed to get the discovery of an aggregated API server", "apiService", name, "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backends[name] == b {
		b.discovered = next
		// What has not changed must not make the documents outdated.
		if known == nil || known.entry != next.entry && !equality.Semantic.DeepEqual(known.entry, next.entry) {
			a.publishDiscovery(b)
		}
	}
	a.setRequested(name)
	return true, err
}

func (a *Aggregation) discoveredOf(b *backend) *discovered {
	a.mu.Lock()
	defer a.mu.Unlock()
	return b.discovered
}

// stale returns what is known as not up to date.
func stale(gv schema.GroupVersion, known *discovered) *discovered {
	if known == nil {
		return &discovered{entry: &apidiscoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale}}
	}
	if known.entry.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
		return known
	}
	entry := *known.entry
	entry.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
	return &discovered{entry: &entry}
}

// discover requests the aggregated document, or the plain one of servers that do not have it. It returns known if that is still valid.
func (b *backend) discover(ctx context.Context, known *discovered) (*discovered, error) {
	request := download{path: "/apis", user: aggregatorUser, accept: acceptDiscovery, limit: maxDiscoveryBytes}
	if known != nil {
		request.etag = known.etag
	}
	response, err := b.get(ctx, request)
	switch {
	case err != nil:
		return nil, err
	case response.status == http.StatusNotModified && request.etag != "":
		return known, nil
	case response.status == http.StatusServiceUnavailable:
		return nil, fmt.Errorf("service %s/%s returned non-success response code: %d", b.spec.Service.Namespace, b.spec.Service.Name, response.status)
	case response.status == http.StatusOK && isAggregatedDocument(response.header.Get("Content-Type")):
		return parseAggregated(b.gv, response)
	}
	return b.discoverPlain(ctx)
}

func isAggregatedDocument(contentType string) bool {
	_, parameters, err := mime.ParseMediaType(contentType)
	return err == nil && parameters["g"] == "apidiscovery.k8s.io" && parameters["v"] == "v2" && parameters["as"] == "APIGroupDiscoveryList"
}

// parseAggregated finds the group version in an aggregated document. A server that does not list it has no resources in it.
func parseAggregated(gv schema.GroupVersion, response *downloaded) (*discovered, error) {
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(response.body, &list); err != nil {
		return nil, fmt.Errorf("parse aggregated discovery: %w", err)
	}
	found := &apidiscoveryv2.APIVersionDiscovery{Version: gv.Version}
	for i := range list.Items {
		for j := range list.Items[i].Versions {
			if v := &list.Items[i].Versions[j]; list.Items[i].Name == gv.Group && v.Version == gv.Version {
				found = v
			}
		}
	}
	found.Freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
	setResponseKinds(found.Resources)
	return &discovered{entry: found, etag: response.header.Get("Etag")}, nil
}

// setResponseKinds sets the kinds that are missing: clients expect one.
func setResponseKinds(resources []apidiscoveryv2.APIResourceDiscovery) {
	for i := range resources {
		if resources[i].ResponseKind == nil {
			resources[i].ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range resources[i].Subresources {
			if resources[i].Subresources[j].ResponseKind == nil {
				resources[i].Subresources[j].ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
}

// discoverPlain requests the list of resources of the group version.
func (b *backend) discoverPlain(ctx context.Context) (*discovered, error) {
	path := discoveryPath(b.gv)
	response, err := b.get(ctx, download{path: path, user: authn.User{Username: aggregatorUser.Username}, accept: "application/json", limit: maxDiscoveryBytes})
	if err != nil {
		return nil, err
	}
	if response.status != http.StatusOK {
		return nil, fmt.Errorf("failed to download legacy discovery for %s: status %d", path, response.status)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(response.body, &list); err != nil {
		return nil, fmt.Errorf("parse discovery of %s: %w", path, err)
	}
	resources, err := convertResources(list.APIResources)
	if err != nil {
		return nil, fmt.Errorf("discovery of %s: %w", path, err)
	}
	return &discovered{entry: &apidiscoveryv2.APIVersionDiscovery{
		Version: b.gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: resources,
	}}, nil
}

// discoveryPath is the path of a group version.
func discoveryPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

// convertResources makes the entries of the aggregated document from a list of resources. A subresource whose parent is not in the list gets
// one without verbs.
func convertResources(list []metav1.APIResource) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	var all []apidiscoveryv2.APIResourceDiscovery
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	at := map[string]int{}
	for i := range list {
		r := &list[i]
		parent, sub, isSub := strings.Cut(r.Name, "/")
		if parent == "" || isSub && sub == "" {
			return nil, errors.New("a resource has no name")
		}
		kind := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		index, found := at[parent]
		if !found {
			index = len(all)
			at[parent] = index
			all = append(all, apidiscoveryv2.APIResourceDiscovery{Resource: parent, Scope: scopeOf(r), ResponseKind: &metav1.GroupVersionKind{}})
		}
		if isSub {
			all[index].Subresources = append(all[index].Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: sub, ResponseKind: kind, Verbs: r.Verbs})
			continue
		}
		own := &all[index]
		own.Scope, own.ResponseKind, own.SingularResource = scopeOf(r), kind, r.SingularName
		own.Verbs, own.ShortNames, own.Categories = r.Verbs, r.ShortNames, r.Categories
	}
	return all, nil
}

func scopeOf(r *metav1.APIResource) apidiscoveryv2.ResourceScope {
	if r.Namespaced {
		return apidiscoveryv2.ScopeNamespace
	}
	return apidiscoveryv2.ScopeCluster
}
