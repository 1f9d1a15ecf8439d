// Package scaling holds the controllers that decide how many pods there must and may be: the one that keeps the status of
// disruption budgets, and the one that scales workloads by what they use.
package scaling

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"skiff/internal/client"
)

// api reaches what has no Go type here: the scale of any resource, custom ones too, and the metrics APIs. It speaks JSON.
type api struct {
	rest rest.Interface

	mu    sync.Mutex
	lists map[string]cachedDiscovery // by group and version
}

// cachedDiscovery is what a server said it serves. It is asked again after a while, and when something is missed.
type cachedDiscovery struct {
	resources []metav1.APIResource
	at        time.Time
}

const (
	discoveryTTL        = 5 * time.Minute
	discoveryRetryAfter = 5 * time.Second
)

func newAPI(c *client.Client) (*api, error) {
	config := rest.CopyConfig(c.Config)
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	config.GroupVersion = &schema.GroupVersion{}
	config.NegotiatedSerializer = serializer.NewCodecFactory(c.Scheme).WithoutConversion()
	restClient, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make REST client: %w", err)
	}
	return &api{rest: restClient, lists: map[string]cachedDiscovery{}}, nil
}

// get reads a path into a value.
func (a *api) get(ctx context.Context, path []string, query url.Values, into any) error {
	request := a.rest.Get().AbsPath(path...)
	for key, values := range query {
		for _, value := range values {
			request = request.Param(key, value)
		}
	}
	return decode(request.Do(ctx), into)
}

func decode(result rest.Result, into any) error {
	data, err := result.Raw()
	if err != nil {
		return result.Error()
	}
	return json.Unmarshal(data, into)
}

// apiPath is the path of a group and version.
func apiPath(gv schema.GroupVersion) []string {
	if gv.Group == "" {
		return []string{"api", gv.Version}
	}
	return []string{"apis", gv.Group, gv.Version}
}

// resources lists what a group and version has. missed asks for a fresh answer.
func (a *api) resources(ctx context.Context, gv schema.GroupVersion, missed bool) ([]metav1.APIResource, error) {
	a.mu.Lock()
	known, ok := a.lists[gv.String()]
	a.mu.Unlock()
	age := time.Since(known.at)
	if ok && age < discoveryTTL && !(missed && age > discoveryRetryAfter) {
		return known.resources, nil
	}
	var list metav1.APIResourceList
	if err := a.get(ctx, apiPath(gv), nil, &list); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("discover %s: %w", gv, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists[gv.String()] = cachedDiscovery{resources: list.APIResources, at: time.Now()}
	return list.APIResources, nil
}

// scaleTarget is where the scale of an object lives.
type scaleTarget struct {
	schema.GroupVersionResource
	namespaced, scalable bool
}

// find returns the resource of a kind. When the version is not served, the group's preferred one is taken.
func (a *api) find(ctx context.Context, gvk schema.GroupVersionKind) (scaleTarget, error) {
	versions := []string{gvk.Version}
	for i := 0; i < len(versions); i++ {
		gv := schema.GroupVersion{Group: gvk.Group, Version: versions[i]}
		for _, missed := range []bool{false, true} {
			list, err := a.resources(ctx, gv, missed)
			if err != nil {
				return scaleTarget{}, err
			}
			if t, ok := findResource(list, gv, gvk.Kind); ok {
				return t, nil
			}
		}
		if i == 0 && gvk.Group != "" {
			var group metav1.APIGroup
			if err := a.get(ctx, []string{"apis", gvk.Group}, nil, &group); err == nil && group.PreferredVersion.Version != gvk.Version {
				versions = append(versions, group.PreferredVersion.Version)
			}
		}
	}
	return scaleTarget{}, &meta.NoKindMatchError{GroupKind: gvk.GroupKind()}
}

func findResource(list []metav1.APIResource, gv schema.GroupVersion, kind string) (t scaleTarget, found bool) {
	i := slices.IndexFunc(list, func(r metav1.APIResource) bool { return r.Kind == kind && !slices.Contains([]byte(r.Name), '/') })
	if i < 0 {
		return scaleTarget{}, false
	}
	scalable := slices.ContainsFunc(list, func(r metav1.APIResource) bool { return r.Name == list[i].Name+"/scale" })
	return scaleTarget{GroupVersionResource: gv.WithResource(list[i].Name), namespaced: list[i].Namespaced, scalable: scalable}, true
}

func (t scaleTarget) path(namespace, name string) []string {
	path := apiPath(t.GroupVersion())
	if t.namespaced {
		path = append(path, "namespaces", namespace)
	}
	return append(path, t.Resource, name, "scale")
}

// scale reads how many pods an object should have and has.
func (a *api) scale(ctx context.Context, t scaleTarget, namespace, name string) (*autoscalingv1.Scale, error) {
	scale := &autoscalingv1.Scale{}
	if err := a.get(ctx, t.path(namespace, name), nil, scale); err != nil {
		return nil, err
	}
	return scale, nil
}

// setScale writes how many pods an object should have.
func (a *api) setScale(ctx context.Context, t scaleTarget, scale *autoscalingv1.Scale) error {
	body := scale.DeepCopy()
	body.TypeMeta = metav1.TypeMeta{APIVersion: autoscalingv1.SchemeGroupVersion.String(), Kind: "Scale"}
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode scale: %w", err)
	}
	return a.rest.Put().AbsPath(t.path(scale.Namespace, scale.Name)...).SetHeader("Content-Type", "application/json").Body(data).Do(ctx).Error()
}
