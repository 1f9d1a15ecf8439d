package identity

import (
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

const (
	rootCAName            = "kube-root-ca.crt"
	rootCAKey             = "ca.crt"
	descriptionAnnotation = "kubernetes.io/description"
	rootCADescription     = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// errNoCA is returned if there is nothing to publish.
var errNoCA = errors.New("no CA certificates to publish")

// RootCA publishes the PEM certificates that verify the API server in every namespace. It is disabled without certificates.
func RootCA(bundle []byte) controller.Definition {
	return controller.Definition{
		Name: "root-ca-certificate-publisher-controller", Aliases: []string{"root-ca-cert-publisher"}, Queue: "root_ca_cert_publisher",
		DisabledByDefault: len(bundle) == 0,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			if len(bundle) == 0 {
				return nil, errNoCA
			}
			c := &rootCA{
				bundle:     string(bundle),
				namespaces: client.InformerFor[*corev1.Namespace](s.Informers),
				maps:       client.InformerFor[*corev1.ConfigMap](s.Informers),
			}
			if err := controller.WatchPrimary[*corev1.Namespace](s); err != nil {
				return nil, err
			}
			changed := func(m *corev1.ConfigMap) {
				if m.Name == rootCAName {
					s.Enqueue(controller.Key{Name: m.Namespace})
				}
			}
			if err := c.maps.AddEventHandler(nil, func(_, m *corev1.ConfigMap) { changed(m) }, changed); err != nil {
				return nil, err
			}
			return controller.NewSyncer(s, c), nil
		},
	}
}

type rootCA struct {
	bundle     string
	namespaces client.Informer[*corev1.Namespace]
	maps       client.Informer[*corev1.ConfigMap]
}

type rootCAView struct {
	namespace *corev1.Namespace
	published *corev1.ConfigMap // nil if missing
}

// Observe gathers the namespace and its ConfigMap.
func (c *rootCA) Observe(key controller.Key) (rootCAView, bool) {
	namespace, ok := c.namespaces.Get("", key.Name)
	if !ok {
		return rootCAView{}, false
	}
	published, _ := c.maps.Get(key.Name, rootCAName)
	return rootCAView{namespace: namespace, published: published}, true
}

// Reconcile creates or updates the ConfigMap. Other annotations and labels are kept.
func (c *rootCA) Reconcile(v rootCAView) controller.Plan {
	var plan controller.Plan
	data := map[string]string{rootCAKey: c.bundle}
	switch {
	case v.published == nil && v.namespace.Status.Phase != corev1.NamespaceActive: // the namespace is terminating
	case v.published == nil:
		plan.AddStep(controller.NewCreate(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace.Name, Name: rootCAName, Annotations: map[string]string{descriptionAnnotation: rootCADescription}},
			Data:       data,
		}).Ignoring(metav1.StatusReasonNotFound))
	case !maps.Equal(v.published.Data, data) || v.published.Annotations[descriptionAnnotation] == "":
		next := v.published.DeepCopy()
		next.Data = data
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, descriptionAnnotation, rootCADescription)
		plan.AddStep(controller.NewUpdate(next))
	}
	return plan
}
