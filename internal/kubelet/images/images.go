// Package images makes sure that the images of pods are on the node: it finds them, or pulls them as their policy says, with what
// credentials the pod has, some at a time, and ever more slowly while that fails. What it does is told as events of the pod.
//
// An image that was pulled with a pod's secret is not for every pod: it is only used by pods that could have pulled it too
// (records.go). Images that nobody uses are removed when the disk fills up (collect.go).
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

// Error says why an image is not there. Reason and Message are what the container's status shows.
type Error struct {
	Reason, Message string
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// ImageReason returns reason and message.
func (e *Error) ImageReason() (reason, message string) { return e.Reason, e.Message }

// Recorder tells events about an object or a part of it.
type Recorder interface {
	EventWithFieldPath(about kind.Object, fieldPath, eventType, reason, message string)
}

// Options are what images are ensured by.
type Options struct {
	Runtime *cri.Runtime
	Events  Recorder
	// Secret returns a secret that a pod names to pull with.
	Secret func(namespace, name string) (*corev1.Secret, error)
	// Plugins may be nil. ConfigFiles are docker configuration files of the node, of which the first that can be read counts.
	Plugins     *credentials.Plugins
	ConfigFiles []string
	// Records is the file that remembers who may use which image; empty remembers nothing.
	Records string
	// Verify says which images pods must have credentials for.
	Verify Verify
	// Parallel bounds the pulls that run at once; 0 is no bound.
	Parallel int
	// PullsPerSecond and Burst bound how often a registry is asked; 0 is no bound.
	PullsPerSecond float32
	Burst          int
	Log            *slog.Logger
}

// ConfigFiles are the places of the node's docker configuration: the kubelet's directory, then home.
func ConfigFiles(root string) []string {
	files := []string{filepath.Join(root, "config.json")}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".docker/config.json"))
	}
	return append(files, "/.docker/config.json")
}

// Images ensures images. All methods may be called concurrently.
type Images struct {
	Options
	limit   *rate.Limiter
	tokens  chan struct{} // nil: no bound
	backoff backoff
	records *records

	mu      sync.Mutex
	flights map[string]*flight
}

// New makes it. It starts nothing.
func New(o Options) (*Images, error) {
	i := &Images{Options: o, limit: rate.NewLimiter(rate.Inf, 0), flights: map[string]*flight{}}
	if o.PullsPerSecond > 0 {
		i.limit = rate.NewLimiter(rate.Limit(o.PullsPerSecond), o.Burst)
	}
	if o.Parallel > 0 {
		i.tokens = make(chan struct{}, o.Parallel)
	}
	i.backoff.entries = map[string]delay{}
	if i.Log == nil {
		i.Log = slog.Default()
	}
	if err := o.Verify.Validate(); err != nil {
		return nil, err
	}
	var err error
	i.records, err = loadRecords(o.Records)
	return i, err
}

// want is one image wanted by a pod.
type want struct {
	pod     *corev1.Pod
	path    string // the part of the pod that events are about
	name    string // as the pod has it
	spec    cri.ImageSpec
	policy  corev1.PullPolicy
	sandbox *cri.SandboxConfig
}

// Ensure makes sure that the image of a container is there and returns what the runtime calls it. Errors are of type *Error.
func (i *Images) Ensure(ctx context.Context, pod *corev1.Pod, c *corev1.Container, sandbox *cri.SandboxConfig) (string, error) {
	return i.ensure(ctx, want{pod: pod, path: container.FieldPath(&pod.Spec, c.Name), name: c.Image, policy: c.ImagePullPolicy, sandbox: sandbox})
}

// EnsureVolume does the same for the image of a volume.
func (i *Images) EnsureVolume(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (string, error) {
	return i.ensure(ctx, want{pod: pod, name: volume.Image.Reference, policy: volume.Image.PullPolicy, sandbox: cri.PullConfig(pod)})
}

func (i *Images) ensure(ctx context.Context, w want) (string, error) {
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

// withTag adds the tag that a name without tag and digest stands for. The name is not made longer otherwise: which registry a short name
// means is the runtime's to know.
func withTag(name string, named reference.Named) string {
	if reference.IsNameOnly(named) {
		return name + ":latest"
	}
	return name
}

// present looks for an image on the node that the pod may use. It returns neither reference nor error if there is none and it may be pulled.
func (i *Images) present(ctx context.Context, w want, credentials func() ([]credentials.Credential, error)) (string, error) {
	image, err := i.Runtime.ImageStatus(ctx, w.spec)
	if err != nil {
		// Between the quotes upstream has the reference, which is not known then.
		return "", i.fail(w, ReasonInspect, "InspectFailed", fmt.Sprintf(`Failed to inspect image "": %v`, err))
	}
	if image != nil && image.ID != "" {
		ref := image.ID
		allowed, err := i.records.allow(w.spec.Image, ref, i.Verify, credentials)
		if err != nil {
			return "", &Error{ReasonPull, err.Error()}
		}
		if allowed {
			i.tell(w, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", w.name))
			return ref, nil
		}
	}
	if w.policy == corev1.PullNever {
		// The same for an image that is there but not for this pod, so that none learns of the other.
		return "", i.fail(w, ReasonNeverPull, ReasonNeverPull, fmt.Sprintf("Container image %q is not present with pull policy of Never", w.name))
	}
	return "", nil
}

// pull fetches an image, unless that failed a short time ago.
func (i *Images) pull(ctx context.Context, w want, with []credentials.Credential) (string, error) {
	key := string(w.pod.UID) + "_" + w.name
	if last, waiting := i.backoff.waiting(key); waiting {
		message := fmt.Sprintf("Back-off pulling image %q", w.name)
		i.tell(w, corev1.EventTypeNormal, "BackOff", message)
		if last != "" {
			message += ": " + last
		}
		return "", &Error{ReasonBackOff, message}
	}
	i.tell(w, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", w.name))
	began := time.Now()
	got := i.join(ctx, w, with)
	if got.err != nil {
		if ctx.Err() != nil {
			return "", &Error{ReasonPull, ctx.Err().Error()}
		}
		i.tell(w, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", w.name, got.err))
		failure := pullError(w.name, got.err)
		i.backoff.failed(key, failure.Error())
		return "", failure
	}
	// Who joined a pull under way has waited for the rest of it alone.
	waited := time.Since(began)
	i.tell(w, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		w.name, min(got.took, waited).Truncate(time.Millisecond), waited.Truncate(time.Millisecond), got.size))
	i.backoff.succeeded(key)
	return got.ref, nil
}

// pullError gives a failed pull its reason. The runtime tells special ones by how their text begins.
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

// credentials are what a pod may pull a repository with: its secrets, then the node's, then what plugins give.
func (i *Images) credentials(ctx context.Context, w want, repository string) ([]credentials.Credential, error) {
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

func (i *Images) tell(w want, eventType, reason, message string) {
	i.Events.EventWithFieldPath(w.pod, w.path, eventType, reason, message)
}

// fail tells of a failure and returns it.
func (i *Images) fail(w want, reason, event, message string) *Error {
	i.tell(w, corev1.EventTypeWarning, event, message)
	return &Error{reason, message}
}
