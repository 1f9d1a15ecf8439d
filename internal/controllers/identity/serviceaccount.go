// Package identity contains the controllers of credentials and trust: service accounts and their tokens, certificates, published
// CA bundles, and the aggregation of ClusterRoles.
package identity

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

const defaultAccount = "default"

// ServiceAccount creates the service account "default" in every active namespace.
var ServiceAccount = controller.Definition{
	Name: "serviceaccount-controller", Aliases: []string{"serviceaccount"}, Queue: "serviceaccount", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &accounts{namespaces: client.InformerFor[*corev1.Namespace](s.Informers), accounts: client.InformerFor[*corev1.ServiceAccount](s.Informers)}
		if err := controller.WatchPrimary[*corev1.Namespace](s); err != nil {
			return nil, err
		}
		err := c.accounts.AddEventHandler(nil, nil, func(account *corev1.ServiceAccount) { s.Enqueue(controller.Key{Name: account.Namespace}) })
		if err != nil {
			return nil, err
		}
		return controller.NewSyncer(s, c), nil
	},
}

type accounts struct {
	namespaces client.Informer[*corev1.Namespace]
	accounts   client.Informer[*corev1.ServiceAccount]
}

type accountView struct {
	namespace *corev1.Namespace
	exists    bool
}

// Observe checks whether the account exists.
func (c *accounts) Observe(key controller.Key) (accountView, bool) {
	namespace, ok := c.namespaces.Get("", key.Name)
	if !ok {
		return accountView{}, false
	}
	_, exists := c.accounts.Get(key.Name, defaultAccount)
	return accountView{namespace: namespace, exists: exists}, true
}

// Reconcile creates the account if it is missing.
func (c *accounts) Reconcile(v accountView) controller.Plan {
	var plan controller.Plan
	if !v.exists && v.namespace.Status.Phase == corev1.NamespaceActive {
		plan.AddStep(controller.NewCreate(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v.namespace.Name, Name: defaultAccount}}).
			Ignoring(metav1.StatusReasonAlreadyExists))
	}
	return plan
}
