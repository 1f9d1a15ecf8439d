// Package scaling contains the controllers for the number of pods: the disruption controller, which maintains the status of
// PodDisruptionBudgets, and the horizontal pod autoscaler.
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

// api is a JSON client for resources without a Go type here: the scale subresource of any resource and the metrics APIs.
type api struct {
	rest rest.Interface

	mu    sync.Mutex
	lists map[string]cachedDiscovery // by group and version
}

// cachedDiscovery is a cached discovery response. It expires after discoveryTTL, or earlier if a kind is missing in it.
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
		return nil, fmt.Errorf("create REST client: %w", err)
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

// apiPath is the URL path of a group and version.
func apiPath(gv schema.GroupVersion) []string {
	if gv.Group == "" {
		return []string{"api", gv.Version}
	}
	return []string{"apis", gv.Group, gv.Version}
}

// resources returns the resources of a group and version. missed requests a fresh response.
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

// scaleTarget is a resource and whether it has a scale subresource.
type scaleTarget struct {
	schema.GroupVersionResource
	namespaced, scalable bool
}

// find returns the resource of a kind. If the version is not served, it uses the group's preferred version.
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

// scale reads the scale subresource.
func (a *api) scale(ctx context.Context, t scaleTarget, namespace, name string) (*autoscalingv1.Scale, error) {
	scale := &autoscalingv1.Scale{}
	if err := a.get(ctx, t.path(namespace, name), nil, scale); err != nil {
		return nil, err
	}
	return scale, nil
}

// setScale updates the scale subresource.
func (a *api) setScale(ctx context.Context, t scaleTarget, scale *autoscalingv1.Scale) error {
	body := scale.DeepCopy()
	body.TypeMeta = metav1.TypeMeta{APIVersion: autoscalingv1.SchemeGroupVersion.String(), Kind: "Scale"}
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode scale: %w", err)
	}
	return a.rest.Put().AbsPath(t.path(scale.Namespace, scale.Name)...).SetHeader("Content-Type", "application/json").Body(data).Do(ctx).Error()
}
