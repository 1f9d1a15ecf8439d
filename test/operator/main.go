// The image has none of the libraries that the C library resolves names with.
//
//go:debug netdns=go

// Command operator is an operator as users write them, with controller-runtime: a custom resource with two versions and all kinds of webhooks,
// owned objects, a finalizer, conditions, events and leader election. test/node runs it in pods and uses it through the API.
package main

import (
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	v1 "skiff/test/operator/api/v1"
	"skiff/test/operator/api/v1alpha1"
)

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(); err != nil {
		ctrl.Log.Error(err, "failed to run")
		os.Exit(1)
	}
}

func run() error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		WebhookServer:          webhook.NewServer(webhook.Options{Port: 9443, CertDir: "/certificates"}),
		HealthProbeBindAddress: ":8081",
		LeaderElection:         true,
		LeaderElectionID:       "operator",
		// Short times, because a test waits for a new leader.
		LeaseDuration: new(6 * time.Second), RenewDeadline: new(4 * time.Second), RetryPeriod: new(500 * time.Millisecond),
	})
	if err != nil {
		return err
	}
	// Pods are ready when their webhooks can be called.
	if err := manager.AddReadyzCheck("webhooks", manager.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	if err := ctrl.NewWebhookManagedBy(manager, &v1.Website{}).WithDefaulter(defaulter{}).WithValidator(validator{}).Complete(); err != nil {
		return err
	}
	reconciler := &websiteReconciler{Client: manager.GetClient(), events: manager.GetEventRecorder("website")}
	if err := ctrl.NewControllerManagedBy(manager).For(&v1.Website{}).Owns(&appsv1.Deployment{}).Owns(&corev1.ConfigMap{}).Complete(reconciler); err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}
