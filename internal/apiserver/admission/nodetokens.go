package admission

import (
	"context"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// admitTokenRequest allows tokens that are bound to the node's pods, for audiences of those pods.
func (r *nodeRestriction) admitTokenRequest(ctx context.Context, a *Attributes, node string) error {
	if a.Operation != Create || a.Subresource != "token" {
		return nil
	}
	request, err := objectOf[*authenticationv1.TokenRequest](a)
	if err != nil {
		return Forbidden(a, err)
	}
	ref := request.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return forbid(a, "node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return forbid(a, "node requested token with a pod binding without a uid")
	}
	pod, err := r.podNamed(ctx, a, ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != pod.UID {
		return forbid(a, "the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node requested token bound to a pod scheduled on a different node")
	}
	if err := r.checkAudience(ctx, a, request, pod); err != nil {
		return Forbidden(a, err)
	}
	return nil
}

func (r *nodeRestriction) checkAudience(ctx context.Context, a *Attributes, request *authenticationv1.TokenRequest, pod *corev1.Pod) error {
	audience := ""
	switch len(request.Spec.Audiences) {
	case 0:
	case 1:
		audience = request.Spec.Audiences[0]
	default:
		return fmt.Errorf("node may only request 0 or 1 audiences")
	}
	used, err := r.podUsesAudience(ctx, pod, audience)
	if err != nil {
		return fmt.Errorf("error validating audience %q: %w", audience, err)
	}
	if used {
		return nil
	}
	allowed, err := r.authorized(ctx, a, "request-serviceaccounts-token-audience", audience, a.Name)
	if allowed {
		return nil
	}
	if err != nil {
		return fmt.Errorf("error authorizing %s to request tokens for audience %q: %w", a.User.Username, audience, err)
	}
	return fmt.Errorf("%s is not authorized to request tokens for audience %q", a.User.Username, audience)
}

// podUsesAudience reports whether a volume of the pod needs a token for the audience: a projected one, or one whose CSI driver
// requests it.
func (r *nodeRestriction) podUsesAudience(ctx context.Context, pod *corev1.Pod, audience string) (bool, error) {
	var errs []error
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if volume.Projected != nil {
			for _, source := range volume.Projected.Sources {
				if source.ServiceAccountToken != nil && source.ServiceAccountToken.Audience == audience {
					return true, nil
				}
			}
		}
		driver, err := r.driverOf(ctx, pod, volume)
		if err == nil && driver != "" {
			var uses bool
			if uses, err = r.driverUsesAudience(ctx, driver, audience); uses {
				return true, nil
			}
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return false, utilerrors.NewAggregate(errs)
}

// driverOf is the CSI driver of a volume, or "".
func (r *nodeRestriction) driverOf(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (string, error) {
	claimName := ""
	switch {
	case volume.Ephemeral != nil && volume.Ephemeral.VolumeClaimTemplate != nil:
		claimName = pod.Name + "-" + volume.Name
	case volume.PersistentVolumeClaim != nil:
		claimName = volume.PersistentVolumeClaim.ClaimName
	case volume.CSI != nil:
		return volume.CSI.Driver, nil
	default:
		v := &volume.VolumeSource
		return migrated{v.AWSElasticBlockStore != nil, v.AzureDisk != nil, v.AzureFile != nil, v.Cinder != nil,
			v.GCEPersistentDisk != nil, v.PortworxVolume != nil, v.VsphereVolume != nil}.driver(), nil
	}
	claim, err := get[*corev1.PersistentVolumeClaim](ctx, r.client, persistentVolumeClaims, pod.Namespace, claimName)
	if err != nil {
		return "", err
	}
	bound, err := get[*corev1.PersistentVolume](ctx, r.client, persistentVolumes, "", claim.Spec.VolumeName)
	if err != nil {
		return "", err
	}
	v := &bound.Spec.PersistentVolumeSource
	if v.CSI != nil {
		return v.CSI.Driver, nil
	}
	return migrated{v.AWSElasticBlockStore != nil, v.AzureDisk != nil, v.AzureFile != nil, v.Cinder != nil,
		v.GCEPersistentDisk != nil, v.PortworxVolume != nil, v.VsphereVolume != nil}.driver(), nil
}

// migrated has which in-tree volume source a volume has, in the order of migratedTo.
type migrated [7]bool

// migratedTo are the CSI drivers that in-tree volume sources were migrated to.
var migratedTo = [7]string{
	"ebs.csi.aws.com", "disk.csi.azure.com", "file.csi.azure.com", "cinder.csi.openstack.org", "pd.csi.storage.gke.io", "pxd.portworx.com",
	"csi.vsphere.vmware.com",
}

func (m migrated) driver() string {
	for i, is := range m {
		if is {
			return migratedTo[i]
		}
	}
	return ""
}

func (r *nodeRestriction) driverUsesAudience(ctx context.Context, name, audience string) (bool, error) {
	driver, err := get[*storagev1.CSIDriver](ctx, r.client, csiDrivers, "", name)
	if err != nil {
		return false, err
	}
	for _, request := range driver.Spec.TokenRequests {
		if request.Audience == audience {
			return true, nil
		}
	}
	return false, nil
}

// admitPodCertificate allows certificate requests for the node's pods, from signers of those pods. Where the cause may be a stale
// cache, the error is one that clients retry, not Forbidden.
func (r *nodeRestriction) admitPodCertificate(ctx context.Context, a *Attributes, node string) error {
	if a.Operation != Create {
		return forbid(a, "unexpected operation %v", a.Operation)
	}
	if a.Subresource != "" {
		return forbid(a, "unexpected subresource %v", a.Subresource)
	}
	request, err := objectOf[*certificatesv1.PodCertificateRequest](a)
	if err != nil {
		return Forbidden(a, err)
	}
	spec := &request.Spec
	if string(spec.NodeName) != node {
		return forbid(a, "PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", spec.NodeName, node)
	}
	lookup := func(what string, err error) error {
		wrapped := fmt.Errorf("while retrieving %s named in the PodCertificateRequest: %w", what, err)
		if apierrors.IsNotFound(err) {
			return wrapped
		}
		return Forbidden(a, wrapped)
	}
	self, err := get[*corev1.Node](ctx, r.client, nodes, "", node)
	if err != nil {
		return lookup(fmt.Sprintf("node %q", node), err)
	}
	podKey := a.Namespace + "/" + spec.PodName
	if self.UID != spec.NodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", podKey, spec.NodeUID, self.UID)
	}
	pod, err := get[*corev1.Pod](ctx, r.client, pods, a.Namespace, spec.PodName)
	switch {
	case err != nil:
		return lookup(fmt.Sprintf("pod %q", podKey), err)
	case spec.PodUID != pod.UID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", podKey, spec.PodUID, string(pod.UID))
	case pod.Spec.NodeName != node:
		return forbid(a, "pod %q is not running on node %q named in the PodCertificateRequest", podKey, spec.NodeName)
	case isMirror(pod):
		return forbid(a, "pod %q is a mirror pod", podKey)
	case spec.ServiceAccountName != pod.Spec.ServiceAccountName:
		return forbid(a, "PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", podKey, spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	account, err := get[*corev1.ServiceAccount](ctx, r.client, serviceAccounts, a.Namespace, spec.ServiceAccountName)
	if err != nil {
		return lookup(fmt.Sprintf("service account %q", a.Namespace+"/"+spec.ServiceAccountName), err)
	}
	if spec.ServiceAccountUID != account.UID {
		return fmt.Errorf("PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)", podKey, spec.ServiceAccountUID, account.UID)
	}
	return r.checkSigner(ctx, a, request, pod)
}

func (r *nodeRestriction) checkSigner(ctx context.Context, a *Attributes, request *certificatesv1.PodCertificateRequest, pod *corev1.Pod) error {
	signer := request.Spec.SignerName
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.PodCertificate != nil && source.PodCertificate.SignerName == signer {
				return nil
			}
		}
	}
	// Resource names in RBAC rules cannot contain slashes.
	allowed, err := r.authorized(ctx, a, "request-serviceaccounts-podcertificate-signer", strings.ReplaceAll(signer, "/", ":"), request.Spec.ServiceAccountName)
	if allowed {
		return nil
	}
	if err != nil {
		return forbid(a, "error authorizing %s to request podcertificaterequests for signer %q: %w", a.User.Username, signer, err)
	}
	return forbid(a, "pod %q does not mount a podCertificate projected volume for signer %q", a.Namespace+"/"+request.Spec.PodName, signer)
}
