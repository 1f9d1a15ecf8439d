package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/container"
)

// alwaysPullImages sets the image pull policy Always, so that a pod cannot use an image without credentials only because it is on
// the node already. Off by default.
type alwaysPullImages struct{}

func (alwaysPullImages) Name() string { return "AlwaysPullImages" }

// Handles includes ephemeral containers, which are added by a subresource.
func (alwaysPullImages) Handles(a *Attributes) bool {
	return a.changes() && a.is(pods) && (a.Subresource == "" || a.Subresource == "ephemeralcontainers") && !sameImages(a)
}

// sameImages reports whether an update adds no image.
func sameImages(a *Attributes) bool {
	pod, ok := a.Object.(*corev1.Pod)
	old, had := a.Old.(*corev1.Pod)
	if a.Operation != Update || !ok || !had {
		return false
	}
	images := map[string]bool{}
	for _, c := range container.All(&old.Spec) {
		images[c.Image] = true
	}
	for _, c := range container.All(&pod.Spec) {
		if !images[c.Image] {
			return false
		}
	}
	return true
}

func (alwaysPullImages) Mutate(_ context.Context, a *Attributes) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	for kind, c := range container.All(&pod.Spec) {
		// On an existing pod, only ephemeral containers can be added.
		if a.Subresource == "" || kind == container.Ephemeral {
			c.ImagePullPolicy = corev1.PullAlways
		}
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Image != nil && a.Subresource == "" {
			volume.Image.PullPolicy = corev1.PullAlways
		}
	}
	return nil
}

func (alwaysPullImages) Validate(_ context.Context, a *Attributes) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	var errs []error
	requireAlways := func(path *field.Path, pull corev1.PullPolicy) {
		if pull != corev1.PullAlways {
			errs = append(errs, Forbidden(a, field.NotSupported(path, pull, []string{string(corev1.PullAlways)})))
		}
	}
	spec := field.NewPath("spec")
	for place, c := range container.Locations(&pod.Spec, spec) {
		if a.Subresource == "" || place.Kind == container.Ephemeral {
			requireAlways(place.Path.Child("imagePullPolicy"), c.ImagePullPolicy)
		}
	}
	for i, volume := range pod.Spec.Volumes {
		if volume.Image != nil && a.Subresource == "" {
			requireAlways(spec.Child("volumes").Index(i).Child("image", "pullPolicy"), volume.Image.PullPolicy)
		}
	}
	return utilerrors.NewAggregate(errs)
}
