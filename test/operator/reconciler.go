package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "skiff/test/operator/api/v1"
)

// finalizer keeps a Website until its page is archived.
const finalizer = "web.example.com/archive"

type websiteReconciler struct {
	client.Client
	events events.EventRecorder
}

// Reconcile makes a ConfigMap with the page of a Website and a Deployment that serves it, and reports when all its pods are ready.
func (r *websiteReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	website := &v1.Website{}
	if err := r.Get(ctx, request.NamespacedName, website); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !website.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.finalize(ctx, website)
	}
	if controllerutil.AddFinalizer(website, finalizer) {
		if err := r.Update(ctx, website); err != nil {
			return ctrl.Result{}, fmt.Errorf("add finalizer: %w", err)
		}
	}
	page := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: website.Namespace, Name: website.Name}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, page, func() error {
		page.Data = map[string]string{"index.html": website.Spec.Page.Title + ": " + website.Spec.Page.Text}
		return controllerutil.SetControllerReference(website, page, r.Scheme())
	}); err != nil {
		return ctrl.Result{}, fmt.Errorf("write ConfigMap: %w", err)
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: website.Namespace, Name: website.Name}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, deployment, func() error {
		setDeployment(deployment, website)
		return controllerutil.SetControllerReference(website, deployment, r.Scheme())
	}); err != nil {
		return ctrl.Result{}, fmt.Errorf("write Deployment: %w", err)
	}
	return ctrl.Result{}, r.report(ctx, website, deployment)
}

// setDeployment sets what the operator owns of a Deployment. The rest is left as the API server defaulted it.
func setDeployment(deployment *appsv1.Deployment, website *v1.Website) {
	labels := map[string]string{"website": website.Name}
	deployment.Spec.Replicas = website.Spec.Replicas
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	template := &deployment.Spec.Template
	template.Labels = labels
	template.Spec.TerminationGracePeriodSeconds = new(int64(0))
	if len(template.Spec.Containers) == 0 {
		template.Spec.Containers = []corev1.Container{{}}
		template.Spec.Volumes = []corev1.Volume{{Name: "page"}}
	}
	container := &template.Spec.Containers[0]
	container.Name, container.Image = "server", "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"
	container.Command = []string{"httpd", "-f", "-p", "8080", "-h", "/page"}
	container.VolumeMounts = []corev1.VolumeMount{{Name: "page", MountPath: "/page"}}
	source := &template.Spec.Volumes[0].VolumeSource
	if source.ConfigMap == nil {
		source.ConfigMap = &corev1.ConfigMapVolumeSource{}
	}
	source.ConfigMap.Name = website.Name
}

// report writes the status of a Website.
func (r *websiteReconciler) report(ctx context.Context, website *v1.Website, deployment *appsv1.Deployment) error {
	before := website.DeepCopyObject().(*v1.Website)
	status := &website.Status
	status.ReadyReplicas, status.Selector = deployment.Status.ReadyReplicas, "website="+website.Name
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "Deploying", ObservedGeneration: website.Generation,
		Message: fmt.Sprintf("%d of %d pods are ready", status.ReadyReplicas, *website.Spec.Replicas)}
	if deployment.Status.ObservedGeneration == deployment.Generation && status.ReadyReplicas == *website.Spec.Replicas && deployment.Status.Replicas == status.ReadyReplicas {
		ready.Status, ready.Reason = metav1.ConditionTrue, "Deployed"
	}
	if !meta.SetStatusCondition(&status.Conditions, ready) && before.Status.ReadyReplicas == status.ReadyReplicas {
		return nil
	}
	if err := r.Status().Patch(ctx, website, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	r.events.Eventf(website, deployment, corev1.EventTypeNormal, ready.Reason, "Reconcile", "%s", ready.Message)
	return nil
}

// finalize archives the page of a deleted Website, and lets the Website go.
func (r *websiteReconciler) finalize(ctx context.Context, website *v1.Website) error {
	if !controllerutil.ContainsFinalizer(website, finalizer) {
		return nil
	}
	archive := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: website.Namespace, Name: "archive-" + website.Name}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, archive, func() error {
		archive.Data = map[string]string{"text": website.Spec.Page.Text}
		return nil
	}); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	controllerutil.RemoveFinalizer(website, finalizer)
	return client.IgnoreNotFound(r.Update(ctx, website))
}
