package admission

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

// world is a kind.Client of objects in memory.
type world struct {
	mu       sync.Mutex
	objects  map[schema.GroupResource]map[string]kind.Object
	revision int
	writes   int
	reads    int // objects
	// before is called before each update without the lock, to simulate another writer.
	before func(name string)
}

func newWorld(objs ...kind.Object) *world {
	w := &world{objects: map[schema.GroupResource]map[string]kind.Object{}}
	for _, obj := range objs {
		w.put(obj)
	}
	return w
}

func (w *world) env() kind.Client { return w }

func (w *world) put(obj kind.Object) {
	gr, _ := resourceOf(obj)
	w.revision++
	obj.SetResourceVersion(strconv.Itoa(w.revision))
	if obj.GetUID() == "" {
		obj.SetUID(types.UID("uid-" + obj.GetName()))
	}
	if w.objects[gr] == nil {
		w.objects[gr] = map[string]kind.Object{}
	}
	w.objects[gr][obj.GetNamespace()+"/"+obj.GetName()] = obj
}

func (w *world) Get(_ context.Context, gr schema.GroupResource, namespace, name string) (kind.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if obj, ok := w.objects[gr][namespace+"/"+name]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(gr, name)
}

func (w *world) List(_ context.Context, gr schema.GroupResource, namespace string) ([]kind.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var objs []kind.Object
	for _, obj := range w.objects[gr] {
		if namespace == "" || obj.GetNamespace() == namespace {
			objs = append(objs, obj)
		}
	}
	w.reads += len(objs)
	slices.SortFunc(objs, func(a, b kind.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return objs, nil
}

func (w *world) Create(context.Context, schema.GroupResource, kind.Object) (kind.Object, error) {
	return nil, errors.New("no plugin creates objects")
}

func (w *world) Delete(context.Context, schema.GroupResource, string, string, *metav1.DeleteOptions) error {
	return errors.New("no plugin deletes objects")
}

// Update has optimistic concurrency like the server's: it changes a copy and retries when the object has changed.
func (w *world) Update(ctx context.Context, gr schema.GroupResource, namespace, name string, change func(kind.Object) error) (kind.Object, error) {
	for {
		live, err := w.Get(ctx, gr, namespace, name)
		if err != nil {
			return nil, err
		}
		obj := live.DeepCopyObject().(kind.Object)
		if err := change(obj); err != nil {
			return nil, err
		}
		if w.before != nil {
			w.before(name)
		}
		w.mu.Lock()
		now := w.objects[gr][namespace+"/"+name]
		if now == nil || now.GetResourceVersion() != live.GetResourceVersion() {
			w.mu.Unlock()
			continue
		}
		w.writes++
		w.put(obj)
		w.mu.Unlock()
		return obj, nil
	}
}

// resourceOf is the resource and kind of an object.
func resourceOf(obj runtime.Object) (schema.GroupResource, string) {
	switch obj.(type) {
	case *corev1.Pod:
		return pods, "Pod"
	case *corev1.Namespace:
		return namespaces, "Namespace"
	case *corev1.Node:
		return nodes, "Node"
	case *corev1.Service:
		return services, "Service"
	case *corev1.ServiceAccount:
		return serviceAccounts, "ServiceAccount"
	case *corev1.LimitRange:
		return limitRanges, "LimitRange"
	case *corev1.ResourceQuota:
		return resourceQuotas, "ResourceQuota"
	case *corev1.PersistentVolume:
		return persistentVolumes, "PersistentVolume"
	case *corev1.PersistentVolumeClaim:
		return persistentVolumeClaims, "PersistentVolumeClaim"
	case *corev1.Event:
		return events, "Event"
	case *corev1.ConfigMap:
		return schema.GroupResource{Resource: "configmaps"}, "ConfigMap"
	case *corev1.Secret:
		return schema.GroupResource{Resource: "secrets"}, "Secret"
	case *storagev1.StorageClass:
		return storageClasses, "StorageClass"
	case *storagev1.VolumeAttributesClass:
		return volumeAttributesClasses, "VolumeAttributesClass"
	case *storagev1.CSIDriver:
		return csiDrivers, "CSIDriver"
	case *storagev1.CSINode:
		return csiNodes, "CSINode"
	case *schedulingv1.PriorityClass:
		return priorityClasses, "PriorityClass"
	case *nodev1.RuntimeClass:
		return runtimeClasses, "RuntimeClass"
	case *networkingv1.Ingress:
		return ingresses, "Ingress"
	case *networkingv1.IngressClass:
		return ingressClasses, "IngressClass"
	case *certificatesv1.CertificateSigningRequest:
		return signingRequests, "CertificateSigningRequest"
	case *certificatesv1.ClusterTrustBundle:
		return trustBundles, "ClusterTrustBundle"
	case *certificatesv1.PodCertificateRequest:
		return podCertificates, "PodCertificateRequest"
	case *resourcev1.ResourceSlice:
		return resourceSlices, "ResourceSlice"
	case *resourcev1.ResourceClaim:
		return resourceClaims, "ResourceClaim"
	case *resourcev1.DeviceClass:
		return deviceClasses, "DeviceClass"
	}
	panic("a test uses an object the world does not know")
}

// write describes a write of an object; subresource, old and user are set by the options.
func write(op Operation, obj kind.Object, options ...func(*Attributes)) *Attributes {
	gr, k := resourceOf(obj)
	a := &Attributes{
		Operation: op, Resource: gr.WithVersion("v1"), Kind: schema.GroupVersionKind{Group: gr.Group, Version: "v1", Kind: k},
		Namespace: obj.GetNamespace(), Name: obj.GetName(), User: authn.User{Username: "jane"},
	}
	if gr == namespaces {
		a.Namespace = a.Name
	}
	if op == Delete {
		a.Old = obj
	} else {
		a.Object = obj
	}
	for _, o := range options {
		o(a)
	}
	return a
}

func creating(obj kind.Object, options ...func(*Attributes)) *Attributes {
	return write(Create, obj, options...)
}

func updating(old, obj kind.Object, options ...func(*Attributes)) *Attributes {
	return write(Update, obj, append(options, func(a *Attributes) { a.Old = old })...)
}

func sub(name string) func(*Attributes) { return func(a *Attributes) { a.Subresource = name } }

// by sets the user: a name, then groups.
func by(name string, groups ...string) func(*Attributes) {
	return func(a *Attributes) { a.User = authn.User{Username: name, Groups: groups} }
}

func byNode(name string) func(*Attributes) { return by("system:node:"+name, "system:nodes") }

// other sets another body for the object's path: a binding, an eviction.
func other(resource schema.GroupResource, subresource string, body runtime.Object) func(*Attributes) {
	return func(a *Attributes) {
		a.Resource, a.Subresource, a.Object = resource.WithVersion("v1"), subresource, body
	}
}

const unhandled = "not handled"

// try runs a plugin as a chain would, and returns the error, "" or unhandled.
func try(r Plugin, a *Attributes) string {
	if !r.Handles(a) {
		return unhandled
	}
	chain := Chain{r}
	err := chain.Mutate(context.Background(), a)
	if err == nil {
		err = chain.Validate(context.Background(), a)
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// want compares the result of try: "" and unhandled exactly, else part of the error.
func want(t *testing.T, got, wanted string) {
	t.Helper()
	if wanted == "" || wanted == unhandled {
		if got != wanted {
			t.Errorf("got %q, want %q", got, wanted)
		}
	} else if !strings.Contains(got, wanted) {
		t.Errorf("got %q, which lacks %q", got, wanted)
	}
}

// same compares two objects by their JSON.
func same(t *testing.T, got, wanted any) {
	t.Helper()
	if g, w := canonical(t, got), canonical(t, wanted); g != w {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}

// canonical is an object's JSON with sorted keys.
func canonical(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var plain any
	if err := json.Unmarshal(data, &plain); err != nil {
		t.Fatal(err)
	}
	if data, err = json.Marshal(plain); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Builders.

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: "team"} }

func cluster(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: named("web"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main:1"}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

// everyKind adds a container of each kind to the pod.
func everyKind(p *corev1.Pod) {
	p.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: "prepare:1"}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "debug:1"}}}
}

func mirror(p *corev1.Pod) {
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
}

// list parses a resource list: "cpu=1 memory=1Gi".
func amounts(text string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, part := range strings.Fields(text) {
		name, value, _ := strings.Cut(part, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return l
}

// asks sets the requests and limits of the i-th container.
func asks(i int, requests, limits string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[i].Resources = corev1.ResourceRequirements{Requests: amounts(requests), Limits: amounts(limits)}
	}
}

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

func ptr[T any](v T) *T { return &v }

// allow allows requests listed as "verb resource/name".
type allow []string

func (l allow) Authorize(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	what := a.Resource
	if a.Subresource != "" {
		what += "/" + a.Subresource
	}
	if slices.Contains(l, strings.TrimSuffix(a.Verb+" "+what+" "+a.Name, " ")) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "because", nil
}

func mustList(t testing.TB, o Options) Chain {
	t.Helper()
	if o.Client == nil {
		o.Client = newWorld().env
	}
	if o.Authorizer == nil {
		o.Authorizer = allow{}
	}
	chain, err := List(o)
	if err != nil {
		t.Fatal(err)
	}
	return chain
}
