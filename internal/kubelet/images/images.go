// Package images makes sure that the images of pods are present on the node. It pulls them according to their pull policy with the pod's
// credentials, with bounded concurrency and with backoff after failures, and records events of the pod.
//
// An image that was pulled with a pod's secret may only be used by pods that could have pulled it themselves (records.go). Unused images are
// garbage-collected when the disk fills up (collect.go).
package images

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/container"
	"skiff/internal/kind"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/images/credentials"
)

// Reasons for which a container waits for its image.
const (
	ReasonPull         = "ErrImagePull"
	ReasonBackOff      = "ImagePullBackOff"
	ReasonNeverPull    = "ErrImageNeverPull"
	ReasonInspect      = "ImageInspectError"
	ReasonInvalidName  = "InvalidImageName"
	ReasonUnavailable  = "RegistryUnavailable"
	ReasonBadSignature = "SignatureValidationFailed"
)

// Error is why an image is not present. Reason and Message are shown in the container's status.
type Error struct {
	Reason, Message string
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// ImageReason returns reason and message.
func (e *Error) ImageReason() (reason, message string) { return e.Reason, e.Message }

// Recorder records events about an object or a field of it.
type Recorder interface {
	EventWithFieldPath(about kind.Object, fieldPath, eventType, reason, message string)
}

// Options configure Images.
type Options struct {
	Runtime *cri.Runtime
	Events  Recorder
	// Secret returns an image pull secret of a pod.
	Secret func(namespace, name string) (*corev1.Secret, error)
	// Plugins may be nil. ConfigFiles are docker configuration files of the node; the first that can be read is used.
	Plugins     *credentials.Plugins
	ConfigFiles []string
	// Records is the file with the records of which pods may use which image; empty keeps them in memory.
	Records string
	// Verify is the policy for which images pods must have credentials.
	Verify Verify
	// Parallel is the maximum number of concurrent pulls; 0 means unlimited.
	Parallel int
	// PullsPerSecond and Burst limit the rate of pulls; 0 means unlimited.
	PullsPerSecond float32
	Burst          int
	Log            *slog.Logger
}

// ConfigFiles are the paths of the node's docker configuration: in the kubelet's directory, then in the home directory.
func ConfigFiles(root string) []string {
	files := []string{filepath.Join(root, "config.json")}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".docker/config.json"))
	}
	return append(files, "/.docker/config.json")
}

// Images makes sure that images are present. All methods may be called concurrently.
type Images struct {
	Options
	limit *rate.Limiter
	// semaphore bounds concurrent pulls; nil means unlimited.
	semaphore chan struct{}
	backoff   backoff
	records   *records

	mu    sync.Mutex
	pulls map[string]*inFlightPull
}

// New makes Images. It starts nothing.
func New(o Options) (*Images, error) {
	i := &Images{Options: o, limit: rate.NewLimiter(rate.Inf, 0), pulls: map[string]*inFlightPull{}}
	if o.PullsPerSecond > 0 {
		i.limit = rate.NewLimiter(rate.Limit(o.PullsPerSecond), o.Burst)
	}
	if o.Parallel > 0 {
		i.semaphore = make(chan struct{}, o.Parallel)
	}
	i.backoff.entries = map[string]delay{}
	if i.Log == nil {
		i.Log = slog.Default()
	}
	if err := o.Verify.Validate(); err != nil {
		return nil, err
	}
	var damage error
	if i.records, damage = loadRecords(o.Records); damage != nil {
		i.Log.Error("failed to read which images were pulled with which credentials, pods need credentials for all until these are pulled again", "error", damage)
	}
	return i, nil
}

// request is one image needed by a pod.
type request struct {
	pod     *corev1.Pod
	path    string // the field path of the container in events
	name    string // as in the pod's spec
	spec    cri.ImageSpec
	policy  corev1.PullPolicy
	sandbox *cri.SandboxConfig
}

// Ensure makes sure that the image of a container is present and returns its reference in the runtime. Errors are of type *Error.
func (i *Images) Ensure(ctx context.Context, pod *corev1.Pod, c *corev1.Container, sandbox *cri.SandboxConfig) (string, error) {
	return i.ensure(ctx, request{pod: pod, path: container.FieldPath(&pod.Spec, c.Name), name: c.Image, policy: c.ImagePullPolicy, sandbox: sandbox})
}

// EnsureVolume makes sure that the image of a volume is present.
func (i *Images) EnsureVolume(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (string, error) {
	return i.ensure(ctx, request{pod: pod, name: volume.Image.Reference, policy: volume.Image.PullPolicy, sandbox: cri.PullConfig(pod)})
}

func (i *Images) ensure(ctx context.Context, w request) (string, error) {
	named, err := reference.ParseNormalizedNamed(w.name)
	if err != nil {
		return "", i.fail(w, ReasonInvalidName, "InspectFailed", fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v", w.name, w.name, err))
	}
	w.spec = cri.ImageSpec{Image: withTag(w.name, named), Annotations: w.pod.Annotations}
	credentials := sync.OnceValues(func() ([]credentials.Credential, error) { return i.credentials(ctx, w, named.Name()) })
	if w.policy != corev1.PullAlways {
		ref, err := i.present(ctx, w, credentials)
		if ref != "" || err != nil {
			return ref, err
		}
	}
	with, err := credentials()
	if err != nil {
		return "", &Error{ReasonPull, err.Error()}
	}
	return i.pull(ctx, w, with)
}

// withTag adds the default tag to a name without tag and digest. The name is not normalized otherwise: the runtime resolves the registry of
// short names.
func withTag(name string, named reference.Named) string {
	if reference.IsNameOnly(named) {
		return name + ":latest"
	}
	return name
}

// present returns the reference of an image that is on the node and that the pod may use. It returns neither reference nor error if the
// image must be pulled.
func (i *Images) present(ctx context.Context, w request, credentials func() ([]credentials.Credential, error)) (string, error) {
	image, err := i.Runtime.ImageStatus(ctx, w.spec)
	if err != nil {
		// Upstream has the reference between the quotes, which is unknown in this case.
		return "", i.fail(w, ReasonInspect, "InspectFailed", fmt.Sprintf(`Failed to inspect image "": %v`, err))
	}
	if image != nil && image.ID != "" {
		ref := image.ID
		allowed, err := i.records.allow(w.spec.Image, ref, i.Verify, credentials)
		if err != nil {
			return "", &Error{ReasonPull, err.Error()}
		}
		if allowed {
			i.event(w, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", w.name))
			return ref, nil
		}
	}
	if w.policy == corev1.PullNever {
		// The message is the same if the image is present but not for this pod, so that the pod does not learn about it.
		return "", i.fail(w, ReasonNeverPull, ReasonNeverPull, fmt.Sprintf("Container image %q is not present with pull policy of Never", w.name))
	}
	return "", nil
}

// pull pulls an image, unless it is in backoff.
func (i *Images) pull(ctx context.Context, w request, with []credentials.Credential) (string, error) {
	key := string(w.pod.UID) + "_" + w.name
	if last, waiting := i.backoff.waiting(key); waiting {
		message := fmt.Sprintf("Back-off pulling image %q", w.name)
		i.event(w, corev1.EventTypeNormal, "BackOff", message)
		if last != "" {
			message += ": " + last
		}
		return "", &Error{ReasonBackOff, message}
	}
	i.event(w, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", w.name))
	began := time.Now()
	result := i.join(ctx, w, with)
	if result.err != nil {
		if ctx.Err() != nil {
			return "", &Error{ReasonPull, ctx.Err().Error()}
		}
		i.event(w, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", w.name, result.err))
		failure := pullError(w.name, result.err)
		i.backoff.failed(key, failure.Error())
		return "", failure
	}
	// A pod that joined a pull in progress has waited only for the rest of it.
	waited := time.Since(began)
	i.event(w, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		w.name, min(result.took, waited).Truncate(time.Millisecond), waited.Truncate(time.Millisecond), result.size))
	i.backoff.succeeded(key)
	return result.ref, nil
}

// pullError returns the reason of a failed pull. The runtime reports special reasons as a prefix of the message.
func pullError(image string, err error) *Error {
	for reason, because := range map[string]string{
		ReasonUnavailable:  "the registry is unavailable",
		ReasonBadSignature: "the signature validation failed",
	} {
		if detail, ok := strings.CutPrefix(err.Error(), reason); ok {
			return &Error{reason, fmt.Sprintf("image pull failed for %s because %s%s", image, because, detail)}
		}
	}
	return &Error{ReasonPull, err.Error()}
}

// credentials are the credentials of a pod for a repository: from its secrets, from the node's files, and from credential plugins.
func (i *Images) credentials(ctx context.Context, w request, repository string) ([]credentials.Credential, error) {
	var secrets []*corev1.Secret
	var missing []string
	for _, name := range w.pod.Spec.ImagePullSecrets {
		if name.Name == "" || i.Secret == nil {
			continue
		}
		secret, err := i.Secret(w.pod.Namespace, name.Name)
		if err != nil {
			missing = append(missing, name.Name)
			continue
		}
		secrets = append(secrets, secret)
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		i.Events.EventWithFieldPath(w.pod, "", corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	found, err := credentials.FromSecrets(secrets, repository)
	if err != nil {
		return nil, err
	}
	found = append(found, credentials.FromFiles(i.ConfigFiles, repository)...)
	return append(found, i.Plugins.Lookup(ctx, w.pod, repository)...), nil
}

func (i *Images) event(w request, eventType, reason, message string) {
	i.Events.EventWithFieldPath(w.pod, w.path, eventType, reason, message)
}

// fail records an event about a failure and returns it.
func (i *Images) fail(w request, reason, event, message string) *Error {
	i.event(w, corev1.EventTypeWarning, event, message)
	return &Error{reason, message}
}
