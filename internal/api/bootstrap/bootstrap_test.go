package bootstrap

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// memory is a kind.Client of objects by resource, namespace and name.
type memory map[string]kind.Object

func memoryKey(resource schema.GroupResource, namespace, name string) string {
	return resource.String() + "/" + namespace + "/" + name
}

func (m memory) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	if obj, ok := m[memoryKey(resource, namespace, name)]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (m memory) List(context.Context, schema.GroupResource, string) ([]kind.Object, error) {
	return nil, nil
}

func (m memory) Create(_ context.Context, resource schema.GroupResource, obj kind.Object) (kind.Object, error) {
	m[memoryKey(resource, obj.GetNamespace(), obj.GetName())] = obj
	return obj, nil
}

func (m memory) Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(kind.Object) error) (kind.Object, error) {
	obj, err := m.Get(ctx, resource, namespace, name)
	if err != nil {
		return nil, err
	}
	return obj, change(obj)
}

func (m memory) Delete(context.Context, schema.GroupResource, string, string, *metav1.DeleteOptions) error {
	return nil
}

func TestEnsureObjects(t *testing.T) {
	objects := memory{}
	cluster := Cluster{
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, APIServer: netip.MustParseAddrPort("10.0.0.1:6443"), NodeGroup: "system:bootstrappers:nodes",
	}
	if err := EnsureObjects(t.Context(), objects, cluster); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"namespaces//kube-system", "priorityclasses.scheduling.k8s.io//system-node-critical", "clusterroles.rbac.authorization.k8s.io//system:aggregated-metrics-reader",
		"clusterrolebindings.rbac.authorization.k8s.io//skiff:node-bootstrapper", "clusterroles.rbac.authorization.k8s.io//skiff:node-policy",
		"clusterrolebindings.rbac.authorization.k8s.io//skiff:node-policy", "services/default/kubernetes", "endpointslices.discovery.k8s.io/default/kubernetes",
	} {
		if objects[key] == nil {
			t.Errorf("%s does not exist", key)
		}
	}
	if cidr := objects["servicecidrs.networking.k8s.io//kubernetes"].(*networkingv1.ServiceCIDR); len(cidr.Status.Conditions) != 1 {
		t.Errorf("conditions of the service CIDR: %v", cidr.Status.Conditions)
	}

	// A server with another address replaces the endpoints, and nothing else.
	objects["namespaces//default"].SetLabels(map[string]string{"edited": "yes"})
	cluster.APIServer = netip.MustParseAddrPort("10.0.0.2:6443")
	if err := EnsureObjects(t.Context(), objects, cluster); err != nil {
		t.Fatal(err)
	}
	endpoints := objects["endpoints/default/kubernetes"].(*corev1.Endpoints)
	if address := endpoints.Subsets[0].Addresses[0].IP; address != "10.0.0.2" {
		t.Errorf("endpoint %s, want 10.0.0.2", address)
	}
	if objects["namespaces//default"].GetLabels()["edited"] != "yes" {
		t.Error("a namespace that existed was changed")
	}
}

// A server that only listens on a loopback address has no endpoints.
func TestLoopback(t *testing.T) {
	objects := memory{}
	cluster := Cluster{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, APIServer: netip.MustParseAddrPort("127.0.0.1:6443")}
	if err := EnsureObjects(t.Context(), objects, cluster); err != nil {
		t.Fatal(err)
	}
	if objects["services/default/kubernetes"] == nil || objects["endpoints/default/kubernetes"] != nil {
		t.Error("want the service without endpoints")
	}
}
