package identity

import (
	"crypto/sha256"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

const apiServerServingSigner = "kubernetes.io/kube-apiserver-serving"

// TrustBundle publishes the PEM certificates that verify the API server as a ClusterTrustBundle. Its name contains a hash of the
// content; bundles with other content are deleted. It is disabled without certificates.
func TrustBundle(bundle []byte) controller.Definition {
	return controller.Definition{
		Name: "kube-apiserver-serving-clustertrustbundle-publisher-controller", Queue: "ca_cert_publisher_cluster_trust_bundles",
		DisabledByDefault: len(bundle) == 0,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			if len(bundle) == 0 {
				return nil, errNoCA
			}
			c := &trustBundle{content: string(bundle), bundles: client.InformerFor[*certificatesv1.ClusterTrustBundle](s.Informers)}
			s.Enqueue(controller.Key{Name: c.name()})
			err := controller.Watch(s, func(bundle *certificatesv1.ClusterTrustBundle) []controller.Key {
				if bundle.Spec.SignerName != apiServerServingSigner {
					return nil
				}
				return []controller.Key{{Name: c.name()}}
			})
			return controller.NewSyncer(s, c), err
		},
	}
}

type trustBundle struct {
	content string
	bundles client.Informer[*certificatesv1.ClusterTrustBundle]
}

func (c *trustBundle) name() string {
	hash := sha256.Sum256([]byte(c.content))
	return fmt.Sprintf("%s:%x", strings.ReplaceAll(apiServerServingSigner, "/", ":"), hash[:12])
}

// Observe gathers the bundles of the signer.
func (c *trustBundle) Observe(controller.Key) ([]*certificatesv1.ClusterTrustBundle, bool) {
	var own []*certificatesv1.ClusterTrustBundle
	for _, bundle := range c.bundles.List("", nil) {
		if bundle.Spec.SignerName == apiServerServingSigner {
			own = append(own, bundle)
		}
	}
	return own, true
}

// Reconcile creates the current bundle and then deletes the others.
func (c *trustBundle) Reconcile(bundles []*certificatesv1.ClusterTrustBundle) controller.Plan {
	var plan controller.Plan
	var others []controller.Write
	published := false
	for _, bundle := range bundles {
		if bundle.Name != c.name() {
			others = append(others, controller.NewDelete(bundle))
			continue
		}
		published = true
		if bundle.Spec.TrustBundle != c.content {
			next := bundle.DeepCopy()
			next.Spec.TrustBundle = c.content
			plan.AddStep(controller.NewUpdate(next))
		}
	}
	if !published {
		plan.AddStep(controller.NewCreate(&certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: c.name()},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: apiServerServingSigner, TrustBundle: c.content},
		}).Ignoring(metav1.StatusReasonAlreadyExists))
	}
	plan.AddStep(others...)
	return plan
}
