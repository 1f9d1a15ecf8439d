package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kind"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/cri/critest"
)

// events are what was told, one line each.
type events struct {
	mu    sync.Mutex
	lines []string
}

func (e *events) EventWithFieldPath(_ kind.Object, path, eventType, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, strings.TrimSpace(strings.Join([]string{path, eventType, reason, message}, " ")))
}

// take returns what was told since it was last asked.
func (e *events) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	lines := e.lines
	e.lines = nil
	return lines
}

// registry is the fake runtime with a registry behind it.
type registry struct {
	*critest.Fake
	takes    time.Duration     // how long a pull takes
	private  map[string]string // password by image; others need none
	answer   error             // what every pull ends with
	mu       sync.Mutex
	pulls    []string // image and user of each pull
	now, max int      // pulls under way, and the most there were
}

func (r *registry) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	r.mu.Lock()
	r.pulls = append(r.pulls, strings.TrimSpace(image.Image+" "+auth.GetUsername()))
	r.now++
	r.max = max(r.max, r.now)
	r.mu.Unlock()
	defer func() { r.mu.Lock(); r.now--; r.mu.Unlock() }()
	select {
	case <-time.After(r.takes):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if r.answer != nil {
		return "", r.answer
	}
	if password, ok := r.private[image.Image]; ok && auth.GetPassword() != password {
		return "", status.Error(codes.Unknown, "failed to pull: 401 Unauthorized")
	}
	return r.Fake.PullImage(ctx, image, auth, sandbox)
}

func (r *registry) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	pulls := r.pulls
	r.pulls = nil
	return pulls
}

func pod(name string, secrets ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}},
	}
	for _, s := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return p
}

// wanting is the pod's container with an image and a policy.
func wanting(image string, policy corev1.PullPolicy) *corev1.Container {
	return &corev1.Container{Name: "web", Image: image, ImagePullPolicy: policy}
}

// pullSecret is a secret with one registry in it.
func pullSecret(name, registry, user, password string) *corev1.Secret {
	data, _ := json.Marshal(map[string]any{"auths": map[string]any{registry: map[string]string{"username": user, "password": password}}})
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Type:       corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: data},
	}
}

var discardLog = slog.New(slog.NewTextHandler(io.Discard, nil))

func newImages(t *testing.T, r *registry, o Options, secrets ...*corev1.Secret) (*Images, *events) {
	t.Helper()
	told := &events{}
	o.Runtime, o.Events, o.Log = cri.New(r), told, discardLog
	o.Secret = func(namespace, name string) (*corev1.Secret, error) {
		for _, s := range secrets {
			if s.Namespace == namespace && s.Name == name {
				return s, nil
			}
		}
		return nil, fmt.Errorf("secret %s/%s not found", namespace, name)
	}
	i, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return i, told
}

func reasonOf(err error) (string, string) {
	var e *Error
	if errors.As(err, &e) {
		return e.ImageReason()
	}
	return "", ""
}

func TestPolicy(t *testing.T) {
	const present, absent = "busybox:1", "nginx:1"
	const at = "spec.containers{web} "
	here := at + `Normal Pulled Container image "busybox:1" already present on machine and can be accessed by the pod`
	pulled := func(image string) []string {
		return []string{at + `Normal Pulling Pulling image "` + image + `"`,
			at + `Normal Pulled Successfully pulled image "` + image + `" in 1.5s (1.5s including waiting). Image size: 1048576 bytes.`}
	}
	for _, row := range []struct {
		name, image     string
		policy          corev1.PullPolicy
		fail            error
		reason, message string
		pulls, events   []string
	}{
		{name: "present, if not present", image: present, policy: corev1.PullIfNotPresent, events: []string{here}},
		{name: "present, never", image: present, policy: corev1.PullNever, events: []string{here}},
		{name: "present, always", image: present, policy: corev1.PullAlways, pulls: []string{present}, events: pulled(present)},
		{name: "absent, if not present", image: absent, policy: corev1.PullIfNotPresent, pulls: []string{absent}, events: pulled(absent)},
		{name: "absent, always", image: absent, policy: corev1.PullAlways, pulls: []string{absent}, events: pulled(absent)},
		{name: "absent, never", image: absent, policy: corev1.PullNever,
			reason: "ErrImageNeverPull", message: `Container image "nginx:1" is not present with pull policy of Never`,
			events: []string{at + `Warning ErrImageNeverPull Container image "nginx:1" is not present with pull policy of Never`}},
		{name: "no tag", image: "nginx", policy: corev1.PullIfNotPresent, pulls: []string{"nginx:latest"}, events: pulled("nginx")},
		{name: "invalid name", image: "NGINX:1", policy: corev1.PullIfNotPresent, reason: "InvalidImageName",
			message: `Failed to apply default image tag "NGINX:1": couldn't parse image name "NGINX:1": invalid reference format: repository name (library/NGINX) must be lowercase`,
			events:  []string{at + `Warning InspectFailed Failed to apply default image tag "NGINX:1": couldn't parse image name "NGINX:1": invalid reference format: repository name (library/NGINX) must be lowercase`}},
		{name: "pull fails", image: absent, policy: corev1.PullAlways, fail: status.Error(codes.NotFound, "nginx:1: not found"), pulls: []string{absent},
			reason: "ErrImagePull", message: "rpc error: code = NotFound desc = nginx:1: not found",
			events: []string{at + `Normal Pulling Pulling image "nginx:1"`, at + `Warning Failed Failed to pull image "nginx:1": rpc error: code = NotFound desc = nginx:1: not found`}},
		{name: "registry is away", image: absent, policy: corev1.PullAlways, fail: status.Error(codes.Unknown, "RegistryUnavailable: connection refused"), pulls: []string{absent},
			reason: "RegistryUnavailable", message: "image pull failed for nginx:1 because the registry is unavailable: connection refused",
			events: []string{at + `Normal Pulling Pulling image "nginx:1"`, at + `Warning Failed Failed to pull image "nginx:1": RegistryUnavailable: connection refused`}},
		{name: "signature is bad", image: absent, policy: corev1.PullAlways, fail: status.Error(codes.Unknown, "SignatureValidationFailed"), pulls: []string{absent},
			reason: "SignatureValidationFailed", message: "image pull failed for nginx:1 because the signature validation failed",
			events: []string{at + `Normal Pulling Pulling image "nginx:1"`, at + `Warning Failed Failed to pull image "nginx:1": SignatureValidationFailed`}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &registry{Fake: critest.NewFake(present), takes: 1500 * time.Millisecond, answer: row.fail}
				i, told := newImages(t, r, Options{})
				ref, err := i.Ensure(t.Context(), pod("p"), wanting(row.image, row.policy), nil)
				reason, message := reasonOf(err)
				if reason != row.reason || message != row.message {
					t.Errorf("reason %q, message %q; want %q, %q", reason, message, row.reason, row.message)
				}
				if (ref == "") != (row.reason != "") {
					t.Errorf("reference %q with error %v", ref, err)
				}
				if pulls := r.taken(); !reflect.DeepEqual(pulls, row.pulls) {
					t.Errorf("pulled %v, want %v", pulls, row.pulls)
				}
				if got := told.take(); !reflect.DeepEqual(got, row.events) {
					t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(row.events, "\n"))
				}
			})
		})
	}
}

func TestBackOffDoublesAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{Fake: critest.NewFake(), answer: status.Error(codes.NotFound, "not found")}
		i, told := newImages(t, r, Options{})
		try := func() string {
			_, err := i.Ensure(t.Context(), pod("p"), wanting("a:1", corev1.PullAlways), nil)
			reason, _ := reasonOf(err)
			return reason
		}
		for _, wait := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
			if got := try(); got != ReasonPull {
				t.Fatalf("want a pull, got %s", got)
			}
			told.take()
			time.Sleep(wait*time.Second - time.Millisecond)
			_, err := i.Ensure(t.Context(), pod("p"), wanting("a:1", corev1.PullAlways), nil)
			reason, message := reasonOf(err)
			want := `Back-off pulling image "a:1": ErrImagePull: rpc error: code = NotFound desc = not found`
			if reason != ReasonBackOff || message != want {
				t.Fatalf("a moment before %d seconds: %s %q, want %s %q", wait, reason, message, ReasonBackOff, want)
			}
			if got := told.take(); !reflect.DeepEqual(got, []string{`spec.containers{web} Normal BackOff Back-off pulling image "a:1"`}) {
				t.Errorf("told %v", got)
			}
			time.Sleep(time.Millisecond)
		}
		// Another pod's failures are its own, and so is success.
		if _, err := i.Ensure(t.Context(), pod("other"), wanting("a:1", corev1.PullAlways), nil); err == nil {
			t.Error("no error")
		} else if reason, _ := reasonOf(err); reason != ReasonPull {
			t.Errorf("another pod waits for this one: %v", err)
		}
		r.answer = nil
		if got := try(); got != "" {
			t.Errorf("the registry is back, but %s", got)
		}
		// After success, and after a long time, it begins anew.
		r.answer = errors.New("away")
		try()
		time.Sleep(10 * time.Second)
		if got := try(); got != ReasonPull {
			t.Errorf("after success the first wait is %s, want 10 seconds", got)
		}
		time.Sleep(11 * time.Minute)
		try()
		time.Sleep(10 * time.Second)
		if got := try(); got != ReasonPull {
			t.Errorf("after a long time the first wait is not 10 seconds")
		}
	})
}

func TestPullConcurrency(t *testing.T) {
	for _, row := range []struct {
		parallel, most int
		took           time.Duration
	}{
		{parallel: 1, most: 1, took: 6 * time.Second},
		{parallel: 2, most: 2, took: 3 * time.Second},
		{parallel: 0, most: 6, took: time.Second},
	} {
		t.Run(fmt.Sprint(row.parallel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &registry{Fake: critest.NewFake(), takes: time.Second}
				i, told := newImages(t, r, Options{Parallel: row.parallel})
				began := time.Now()
				var group sync.WaitGroup
				for n := range 6 {
					group.Go(func() {
						if _, err := i.Ensure(t.Context(), pod(fmt.Sprint(n)), wanting(fmt.Sprintf("image:%d", n), corev1.PullIfNotPresent), nil); err != nil {
							t.Error(err)
						}
					})
				}
				group.Wait()
				if took := time.Since(began); took != row.took {
					t.Errorf("took %s, want %s", took, row.took)
				}
				if r.max != row.most {
					t.Errorf("%d pulls at once, want %d", r.max, row.most)
				}
				waited := fmt.Sprintf("in 1s (%s including waiting)", row.took)
				if all := strings.Join(told.take(), "\n"); !strings.Contains(all, waited) {
					t.Errorf("no %q in\n%s", waited, all)
				}
			})
		})
	}
}

func TestOneImageIsPulledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{Fake: critest.NewFake(), takes: time.Second}
		i, told := newImages(t, r, Options{Parallel: 1})
		var group sync.WaitGroup
		for n := range 5 {
			group.Go(func() {
				time.Sleep(time.Duration(n) * 100 * time.Millisecond)
				if _, err := i.Ensure(t.Context(), pod(fmt.Sprint(n)), wanting("image:1", corev1.PullIfNotPresent), nil); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if pulls := r.taken(); len(pulls) != 1 {
			t.Errorf("pulled %v", pulls)
		}
		if all := told.take(); len(all) != 10 {
			t.Errorf("told %v, want pulling and pulled for each pod", all)
		}
	})
}

func TestAPullEndsWithItsLastPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{Fake: critest.NewFake(), takes: time.Hour}
		i, _ := newImages(t, r, Options{Parallel: 1})
		first, endFirst := context.WithCancel(t.Context())
		second, endSecond := context.WithCancel(t.Context())
		failed := make(chan error, 2)
		for _, ctx := range []context.Context{first, second} {
			go func() {
				_, err := i.Ensure(ctx, pod("p"), wanting("image:1", corev1.PullIfNotPresent), nil)
				failed <- err
			}()
		}
		synctest.Wait()
		endFirst()
		if err := <-failed; err == nil {
			t.Error("a deleted pod has its image")
		}
		synctest.Wait()
		if r.now != 1 {
			t.Errorf("the pull ended though another pod waits for it")
		}
		endSecond()
		<-failed
		synctest.Wait()
		if r.now != 0 {
			t.Error("nobody waits, but the pull goes on")
		}
		// What was given up does not count as a failure of the image.
		r.takes = time.Second
		if _, err := i.Ensure(t.Context(), pod("p"), wanting("image:1", corev1.PullIfNotPresent), nil); err != nil {
			t.Error(err)
		}
	})
}

func TestPullRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{Fake: critest.NewFake()}
		i, _ := newImages(t, r, Options{PullsPerSecond: 1, Burst: 2})
		for n, want := range []string{"", "", "ErrImagePull: pull QPS exceeded"} {
			_, err := i.Ensure(t.Context(), pod("p"), wanting(fmt.Sprintf("a:%d", n), corev1.PullAlways), nil)
			if (err == nil) != (want == "") || err != nil && err.Error() != want {
				t.Errorf("pull %d: %v, want %q", n, err, want)
			}
		}
	})
}

func TestSecretsAreTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{Fake: critest.NewFake(), private: map[string]string{"quay.io/x/y:1": "right"}}
		i, told := newImages(t, r, Options{}, pullSecret("old", "quay.io", "old", "wrong"), pullSecret("new", "https://quay.io/v2/", "new", "right"),
			pullSecret("other", "docker.io", "hub", "x"))
		if _, err := i.Ensure(t.Context(), pod("p", "gone", "old", "new", "other"), wanting("quay.io/x/y:1", corev1.PullIfNotPresent), nil); err != nil {
			t.Error(err)
		}
		if pulls := r.taken(); !reflect.DeepEqual(pulls, []string{"quay.io/x/y:1 old", "quay.io/x/y:1 new"}) {
			t.Errorf("pulled %v", pulls)
		}
		want := "Warning FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (gone); attempting to pull the image may not succeed."
		if got := told.take(); got[0] != want {
			t.Errorf("told %q, want %q", got[0], want)
		}
		// Without the right one: every failure is told, once.
		_, err := i.Ensure(t.Context(), pod("q", "old"), wanting("quay.io/x/y:1", corev1.PullAlways), nil)
		if reason, message := reasonOf(err); reason != ReasonPull || message != "failed to pull: 401 Unauthorized" {
			t.Errorf("reason %s, message %s", reason, message)
		}
	})
}

func TestPrivateImagesAreForThoseWhoPulledThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const image = "quay.io/x/private:1"
		records := t.TempDir() + "/images.json"
		renamed := pullSecret("renamed", "quay.io", "user", "right")
		changed := pullSecret("mine", "quay.io", "user", "changed")
		r := &registry{Fake: critest.NewFake("preloaded:1"), private: map[string]string{image: "right"}}
		i, _ := newImages(t, r, Options{Records: records}, pullSecret("mine", "quay.io", "user", "right"), renamed)
		ensure := func(i *Images, p *corev1.Pod, image string, policy corev1.PullPolicy) (pulled bool, reason string) {
			t.Helper()
			_, err := i.Ensure(t.Context(), p, wanting(image, policy), nil)
			reason, _ = reasonOf(err)
			return len(r.taken()) > 0, reason
		}
		check := func(what string, i *Images, p *corev1.Pod, image string, policy corev1.PullPolicy, wantPull bool, wantReason string) {
			t.Helper()
			if pulled, reason := ensure(i, p, image, policy); pulled != wantPull || reason != wantReason {
				t.Errorf("%s: pulled %t, reason %q; want %t, %q", what, pulled, reason, wantPull, wantReason)
			}
		}
		check("first", i, pod("a", "mine"), image, corev1.PullIfNotPresent, true, "")
		check("the same secret", i, pod("b", "mine"), image, corev1.PullIfNotPresent, false, "")
		check("the same credential in another secret", i, pod("c", "renamed"), image, corev1.PullIfNotPresent, false, "")
		check("no secret", i, pod("d"), image, corev1.PullIfNotPresent, true, ReasonPull)
		check("no secret, never pull", i, pod("e"), image, corev1.PullNever, false, ReasonNeverPull)
		check("brought in otherwise", i, pod("f"), "preloaded:1", corev1.PullIfNotPresent, false, "")
		check("public", i, pod("g", "mine"), "public:1", corev1.PullIfNotPresent, true, "")
		check("public, another pod", i, pod("h"), "public:1", corev1.PullIfNotPresent, false, "")
		// The next kubelet remembers. The secret's content has changed: still the same secret.
		next, _ := newImages(t, r, Options{Records: records}, changed)
		check("after a restart", next, pod("i", "mine"), image, corev1.PullIfNotPresent, false, "")
		check("after a restart, no secret", next, pod("j"), image, corev1.PullIfNotPresent, true, ReasonPull)
		// Policies.
		none, _ := newImages(t, r, Options{Records: records, Verify: Verify{Policy: VerifyNone}})
		check("verify nothing", none, pod("k"), image, corev1.PullIfNotPresent, false, "")
		all, _ := newImages(t, r, Options{Records: records, Verify: Verify{Policy: VerifyAll}})
		check("verify all", all, pod("l"), "preloaded:1", corev1.PullIfNotPresent, true, "")
	})
}

func TestAllowedWithoutVerification(t *testing.T) {
	v := Verify{Policy: VerifyNotAllowed, Allowed: []string{"quay.io/x/y", "gcr.io/team/*"}}
	if err := v.Validate(); err != nil {
		t.Fatal(err)
	}
	for image, needed := range map[string]bool{
		"quay.io/x/y:1": false, "quay.io/x/y@sha256:" + strings.Repeat("0", 64): false, "quay.io/x/yz:1": true, "gcr.io/team/a/b:1": false, "gcr.io/teams/a:1": true, "busybox": true,
	} {
		if got := v.needed(image, false); got != needed {
			t.Errorf("%s: needed %t, want %t", image, got, needed)
		}
	}
	for _, bad := range []Verify{{Policy: "Sometimes"}, {Allowed: []string{"quay.io/x"}}, {Policy: VerifyNotAllowed, Allowed: []string{"*"}}, {Policy: VerifyNotAllowed, Allowed: []string{"quay.io/*/x"}}, {Policy: VerifyNotAllowed, Allowed: []string{"quay.io/x:1"}}, {Policy: VerifyNotAllowed, Allowed: []string{"/*"}}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestAPullCutShortIsNotTakenForAPreloadedImage(t *testing.T) {
	path := t.TempDir() + "/images.json"
	before, err := loadRecords(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := before.begin("a:1"); err != nil {
		t.Fatal(err)
	}
	// The kubelet died; the runtime went on and has the image.
	after, err := loadRecords(path)
	if err != nil {
		t.Fatal(err)
	}
	if allowed, err := after.allow("a:1", "sha256:a", Verify{}, nil); allowed || err != nil {
		t.Errorf("allowed %t, %v", allowed, err)
	}
	if err := after.begin("a:1"); err != nil {
		t.Fatal(err)
	}
	if err := after.end("a:1", "sha256:a", nil); err != nil {
		t.Fatal(err)
	}
	if allowed, err := after.allow("a:1", "sha256:a", Verify{}, nil); !allowed || err != nil {
		t.Errorf("pulled without a credential, but allowed %t, %v", allowed, err)
	}
}

// TestInterruptedPull: an image whose pull was interrupted by the end of the kubelet needs credentials until it is pulled, and is then forgotten: another image
// that is imported with its name later does not.
func TestInterruptedPull(t *testing.T) {
	path := t.TempDir() + "/images.json"
	restarted := func() *records {
		t.Helper()
		r, err := loadRecords(path)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	allowed := func(r *records) bool {
		t.Helper()
		allowed, err := r.allow("image:1", "imported", Verify{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return allowed
	}
	r := restarted()
	if err := r.begin("image:1"); err != nil {
		t.Fatal(err)
	}
	r = restarted()
	if allowed(r) {
		t.Error("it is taken for an imported image after the interruption")
	}
	if err := errors.Join(r.begin("image:1"), r.end("image:1", "", nil)); err != nil {
		t.Fatal(err)
	}
	if allowed(r) || allowed(restarted()) {
		t.Error("it is taken for an imported image after a failed pull")
	}
	if err := errors.Join(r.begin("image:1"), r.end("image:1", "pulled", nil)); err != nil {
		t.Fatal(err)
	}
	if !allowed(r) || !allowed(restarted()) {
		t.Error("another image with its name needs credentials after it was pulled")
	}
}

// TestDamagedRecords: records that are damaged do not end the start of the node, and do not make private images those of everyone, also after a restart.
func TestDamagedRecords(t *testing.T) {
	for _, text := range []string{"", "\x00\x00", `{"pulled":{"sha256:a":{"a":{"every`, `{"pulled":1}`} {
		path := t.TempDir() + "/images.json"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		i, err := New(Options{Records: path, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		check := func(r *records, ref string, want bool) {
			t.Helper()
			if allowed, err := r.allow("a:1", ref, Verify{}, nil); allowed != want || err != nil {
				t.Errorf("%q: %s is allowed %t, %v", text, ref, allowed, err)
			}
		}
		check(i.records, "old", false)
		if err := errors.Join(i.records.begin("a:1"), i.records.end("a:1", "new", nil)); err != nil {
			t.Fatal(err)
		}
		after, err := loadRecords(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []*records{i.records, after} {
			check(r, "new", true)
			check(r, "old", false)
		}
	}
}
