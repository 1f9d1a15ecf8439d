// Package api is the Kind table: every built-in resource, one file each in the directory of its API group. A new kind is
// one file and one line in its group's list.
package api

import (
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"skiff/internal/api/admissionregistration"
	"skiff/internal/api/apiextensions"
	"skiff/internal/api/apiregistration"
	"skiff/internal/api/apps"
	"skiff/internal/api/authentication"
	"skiff/internal/api/authorization"
	"skiff/internal/api/autoscaling"
	"skiff/internal/api/batch"
	"skiff/internal/api/certificates"
	"skiff/internal/api/coordination"
	"skiff/internal/api/core"
	"skiff/internal/api/discovery"
	"skiff/internal/api/flowcontrol"
	"skiff/internal/api/metrics"
	"skiff/internal/api/networking"
	"skiff/internal/api/node"
	"skiff/internal/api/policy"
	"skiff/internal/api/rbac"
	"skiff/internal/api/resource"
	"skiff/internal/api/scheduling"
	"skiff/internal/api/storage"
	"skiff/internal/api/storagemigration"
	"skiff/internal/kind"
)

// Settings are the values of the server's configuration that the Kind table depends on.
type Settings struct {
	// EventTTL is how long events are kept; zero means an hour.
	EventTTL time.Duration
	// Authenticator and Authorizer respond to reviews; without one its group has no kinds.
	Authenticator authentication.Authenticator
	Authorizer    authorization.Authorizer
	// Metrics provides the usage of nodes and pods; without it the group has no kinds.
	Metrics metrics.Source
}

// Kinds is the Kind table.
func Kinds(s Settings) []*kind.Kind {
	groups := [][]*kind.Kind{
		coreKinds(s),
		apps.Kinds(),
		batch.Kinds(),
		autoscaling.Kinds(),
		policy.Kinds(),
		networking.Kinds(),
		discovery.Kinds(),
		rbac.Kinds(),
		storage.Kinds(),
		scheduling.Kinds(),
		coordination.Kinds(),
		node.Kinds(),
		certificates.Kinds(),
		admissionregistration.Kinds(),
		apiextensions.Kinds(),
		apiregistration.Kinds(),
		flowcontrol.Kinds(),
		resource.Kinds(),
		storagemigration.Kinds(),
	}
	if s.Authenticator != nil {
		groups = append(groups, authentication.Kinds(s.Authenticator))
	}
	if s.Authorizer != nil {
		groups = append(groups, authorization.Kinds(s.Authorizer))
	}
	if s.Metrics != nil {
		groups = append(groups, metrics.Kinds(s.Metrics))
	}
	var all []*kind.Kind
	for _, group := range groups {
		all = append(all, group...)
	}
	return all
}

// Named is the Kind table for clients: it includes the reviews, whose responses come from a server.
func Named() []*kind.Kind {
	return append(append(Kinds(Settings{}), authentication.Kinds(nil)...), authorization.Kinds(nil)...)
}

// coreKinds are the kinds of the core group with the configured TTL of events.
func coreKinds(s Settings) []*kind.Kind {
	kinds := core.Kinds()
	if s.EventTTL == 0 {
		return kinds
	}
	for i, k := range kinds {
		if k == core.Event {
			event := *k
			event.TTL = s.EventTTL
			kinds[i] = &event
		}
	}
	return kinds
}

// Scheme contains the Go types of all kinds.
var Scheme = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, appsv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme,
		autoscalingv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme, certificatesv1.AddToScheme,
		coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme, flowcontrolv1.AddToScheme,
		networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, resourcev1.AddToScheme,
		apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme, storagemigrationv1.AddToScheme, metricsv1beta1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	return scheme
})
