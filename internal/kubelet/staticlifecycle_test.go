package kubelet

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/client"
	"skiff/internal/kind"
	"skiff/test/inprocess"
)

// switchableAPI is an API server that can be made unreachable.
type switchableAPI struct {
	client.Local
	mu sync.Mutex
	// connected is done while the server is unreachable.
	connected  context.Context
	disconnect context.CancelFunc
}

var errUnreachable = errors.New("connection refused")

// setReachable makes the server reachable or unreachable. Watches end when it becomes unreachable.
func (s *switchableAPI) setReachable(reachable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disconnect != nil {
		s.disconnect()
	}
	s.connected, s.disconnect = context.WithCancel(context.Background())
	if !reachable {
		s.disconnect()
	}
}

// connection is done when the server becomes unreachable.
func (s *switchableAPI) connection() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected
}

func (s *switchableAPI) Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (kind.Object, error) {
	if s.connection().Err() != nil {
		return nil, errUnreachable
	}
	return s.Local.Get(ctx, gvr, namespace, name)
}

func (s *switchableAPI) List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, l labels.Selector, f fields.Selector) ([]kind.Object, string, error) {
	if s.connection().Err() != nil {
		return nil, "", errUnreachable
	}
	return s.Local.List(ctx, gvr, namespace, l, f)
}

func (s *switchableAPI) Watch(ctx context.Context, gvr schema.GroupVersionResource, namespace string, options *internalversion.ListOptions) (watch.Interface, error) {
	connection := s.connection()
	if connection.Err() != nil {
		return nil, errUnreachable
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(connection, cancel)
	return s.Local.Watch(ctx, gvr, namespace, options)
}

func (s *switchableAPI) Transport() http.RoundTripper {
	next := s.Local.Transport()
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if s.connection().Err() != nil {
			return nil, errUnreachable
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// staticKubelet is a kubelet with a directory of static pods, whose API server can be made unreachable.
type staticKubelet struct {
	*testKubelet
	api *switchableAPI
}

func newStaticKubelet(t *testing.T) *staticKubelet {
	b := newTestKubelet(t)
	b.stop()
	s := &staticKubelet{testKubelet: b, api: &switchableAPI{Local: inprocess.Server(t, b.ctx)}}
	s.api.setReachable(true)
	t.Cleanup(func() { s.api.setReachable(false) })
	direct := inprocess.Client(t, s.api.Local)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}
	if _, err := client.For[*corev1.Namespace](direct).Create(b.ctx, namespace, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	node := b.config.Node().DeepCopy()
	status := node.Status
	node.ResourceVersion, node.UID = "", ""
	node, err := client.For[*corev1.Node](direct).Create(b.ctx, node, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node = node.DeepCopy()
	node.Status = status
	b.client, b.pods = direct, client.For[*corev1.Pod](direct)
	b.config.Client = inprocess.Client(t, s.api)
	b.config.Node = func() *corev1.Node { return node }
	b.config.StaticPods, b.config.StaticPodPeriod = t.TempDir(), 10*time.Millisecond
	return s
}

// write writes a manifest as a file manager does: readers see the old or the new one.
func (s *staticKubelet) write(file, text string) {
	s.Helper()
	temporary := filepath.Join(s.T.TempDir(), "manifest")
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(s.config.StaticPods, file)); err != nil {
		s.Fatal(err)
	}
}

func (s *staticKubelet) remove(file string) {
	s.Helper()
	if err := os.Remove(filepath.Join(s.config.StaticPods, file)); err != nil {
		s.Fatal(err)
	}
}

// container returns the image of the running container of a pod, and its ID. Both are empty if there is none.
func (s *staticKubelet) container(pod string) (image, id string) {
	list, err := s.runtime.ListContainers(s.ctx, nil)
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range list {
		if c.Labels["io.kubernetes.pod.name"] == pod && c.State == 1 {
			return c.Image.Image, c.Id
		}
	}
	return "", ""
}

func (s *staticKubelet) untilRuns(pod, image string) (id string) {
	s.Helper()
	s.eventually(pod+" runs "+image, func() bool {
		var got string
		got, id = s.container(pod)
		return got == image
	})
	return id
}

func staticManifest(metadata, image string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {" + metadata + "}\nspec: {terminationGracePeriodSeconds: 1, containers: [{name: a, image: " + image + "}]}\n"
}

var staticMirror = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-n1"}}

// TestStaticPodMovedAwayAndBack: a manifest that comes back while its pod terminates starts the pod again.
func TestStaticPodMovedAwayAndBack(t *testing.T) {
	s := newStaticKubelet(t)
	s.runtime.IgnoreStop = func(string) bool { return true } // containers exit when the test says so
	s.start()
	text := strings.Replace(staticManifest("name: web", "image"), "Seconds: 1", "Seconds: 600", 1)
	s.write("web.yaml", text)
	first := s.until(staticMirror, "running", running)
	id := s.untilRuns("web-n1", "image")
	s.remove("web.yaml")
	s.eventually("removal is noticed", func() bool { return s.terminating("web-n1") })
	s.write("web.yaml", text)
	s.write("a.yaml", staticManifest("name: a", "image"))
	s.untilRuns("a-n1", "image") // the manifests were read
	s.runtime.Exit(id, 137)
	s.eventually("another container runs", func() bool {
		image, other := s.container("web-n1")
		return image == "image" && other != id
	})
	s.until(staticMirror, "mirrored again", func(p *corev1.Pod) bool { return p.UID != first.UID && running(p) })

	// A pod whose manifest comes back and is removed once more before it could start does not start.
	id = s.untilRuns("web-n1", "image")
	s.remove("web.yaml")
	s.eventually("removal is noticed", func() bool { return s.terminating("web-n1") })
	s.write("web.yaml", text)
	s.write("b.yaml", staticManifest("name: b", "image"))
	s.untilRuns("b-n1", "image")
	s.remove("web.yaml")
	s.write("c.yaml", staticManifest("name: c", "image"))
	s.untilRuns("c-n1", "image")
	s.runtime.Exit(id, 137)
	s.gone(staticMirror)
	s.eventually("the worker ends", func() bool { return len(s.kubelet.listWorkers()) == 3 })
	if image, _ := s.container("web-n1"); image != "" {
		t.Error("the removed pod runs")
	}
}

// terminating reports whether a pod's worker was told that its source has removed it.
func (s *staticKubelet) terminating(pod string) bool {
	for _, w := range s.kubelet.listWorkers() {
		if w.current().Name == pod && w.isRemoved() {
			return true
		}
	}
	return false
}

// TestStaticPodWithOwnUID: an edit of a manifest that has a UID of its own replaces the pod and its mirror pod.
func TestStaticPodWithOwnUID(t *testing.T) {
	s := newStaticKubelet(t)
	s.start()
	s.write("web.yaml", staticManifest("name: web, uid: own", "image"))
	first := s.until(staticMirror, "running", running)
	s.untilRuns("web-n1", "image")
	s.write("web.yaml", staticManifest("name: web, uid: own, labels: {app: web}", "other"))
	s.untilRuns("web-n1", "other")
	s.until(staticMirror, "replaced", func(p *corev1.Pod) bool {
		return p.UID != first.UID && p.Labels["app"] == "web" && p.Spec.Containers[0].Image == "other" && running(p)
	})
	// So does an edit while no kubelet runs.
	id := s.untilRuns("web-n1", "other")
	s.stop()
	s.write("web.yaml", strings.Replace(staticManifest("name: web, uid: own", "other"), "image: other", "image: other, env: [{name: A, value: b}]", 1))
	s.start()
	s.eventually("another container runs", func() bool {
		image, other := s.container("web-n1")
		return image == "other" && other != id
	})
	s.until(staticMirror, "replaced", func(p *corev1.Pod) bool { return len(p.Spec.Containers[0].Env) == 1 && running(p) })
	// An unchanged manifest restarts nothing.
	id = s.untilRuns("web-n1", "other")
	s.stop()
	s.start()
	s.write("z.yaml", staticManifest("name: z", "image"))
	s.untilRuns("z-n1", "image")
	if _, now := s.container("web-n1"); now != id {
		t.Error("a restart of the kubelet has restarted the pod")
	}
}

// TestMirrorOfRemovedManifest: the mirror pod of a manifest that was removed while no kubelet ran is deleted.
func TestMirrorOfRemovedManifest(t *testing.T) {
	s := newStaticKubelet(t)
	s.start()
	s.write("web.yaml", staticManifest("name: web", "image"))
	s.until(staticMirror, "running", running)
	s.stop()
	s.remove("web.yaml")
	s.start()
	s.gone(staticMirror)
	s.eventually("container stopped", func() bool { image, _ := s.container("web-n1"); return image == "" })
}

// TestUnreadableManifests: static pods keep running while their manifests cannot be read or decoded, also when the kubelet starts.
func TestUnreadableManifests(t *testing.T) {
	s := newStaticKubelet(t)
	s.start()
	s.write("web.yaml", staticManifest("name: web", "image"))
	s.until(staticMirror, "running", running)
	id := s.untilRuns("web-n1", "image")
	mirror := s.until(staticMirror, "running", running)

	// A link to itself can neither be read by root.
	loop := filepath.Join(s.config.StaticPods, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	dir := s.config.StaticPods
	s.stop()
	s.config.StaticPods = loop
	s.start()
	other := s.until(s.create(regular("z")), "running", running) // everything that is listed at start has been handled
	s.kubelet.FreeContainers(s.ctx)
	if _, now := s.container("web-n1"); now != id {
		t.Fatal("the pod was stopped although the manifests could not be read")
	}
	if now, err := s.pods.Get(s.ctx, "default", "web-n1"); err != nil || now.UID != mirror.UID {
		t.Fatalf("the mirror pod was deleted although the manifests could not be read: %v", err)
	}
	s.delete(other, 0)
	s.stop()
	s.config.StaticPods = dir
	s.start()
	s.write("web.yaml", "half a manif")
	s.write("z.yaml", staticManifest("name: z", "image"))
	s.untilRuns("z-n1", "image")
	if _, now := s.container("web-n1"); now != id {
		t.Error("the pod was stopped although its manifest is only half written")
	}
	s.write("web.yaml", staticManifest("name: web", "other"))
	s.untilRuns("web-n1", "other")
}

// TestDuplicateStaticPods: of two manifests of the same pod the last one by name wins, at every start.
func TestDuplicateStaticPods(t *testing.T) {
	s := newStaticKubelet(t)
	s.write("web.yaml", staticManifest("name: web", "image"))
	s.write("web.yaml.bak", staticManifest("name: web", "other"))
	for range 3 {
		s.start()
		s.untilRuns("web-n1", "other")
		s.until(staticMirror, "running", func(p *corev1.Pod) bool { return running(p) && p.Spec.Containers[0].Image == "other" })
		s.eventually("one worker for two manifests of one pod", func() bool { return len(s.kubelet.listWorkers()) == 1 })
		s.stop()
	}
}

// TestStaticPodsWithoutAPI: static pods start, are edited and removed while the API server is unreachable, and are mirrored when it responds.
func TestStaticPodsWithoutAPI(t *testing.T) {
	s := newStaticKubelet(t)
	s.config.Services = fakeServices{errors.New("services have not yet been read at least once, cannot construct envvars")}
	s.api.setReachable(false)
	s.start()
	s.write("web.yaml", staticManifest("name: web", "image"))
	s.untilRuns("web-n1", "image")
	s.api.setReachable(true)
	s.until(staticMirror, "running", running)
	s.api.setReachable(false)
	s.write("web.yaml", staticManifest("name: web", "other"))
	s.untilRuns("web-n1", "other")
	s.api.setReachable(true)
	s.until(staticMirror, "replaced", func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image == "other" && running(p) })
	s.api.setReachable(false)
	s.remove("web.yaml")
	s.eventually("no worker is left", func() bool { return len(s.kubelet.listWorkers()) == 0 })
	s.api.setReachable(true)
	s.kubelet.removeOrphans(s.ctx)
	s.gone(staticMirror)
}

// TestManifestSize: a manifest that is too large is refused.
func TestManifestSize(t *testing.T) {
	k := &Kubelet{Config: Config{NodeName: "n1", StaticPods: t.TempDir()}}
	if err := os.WriteFile(filepath.Join(k.StaticPods, "web.yaml"), []byte(manifestHead+strings.Repeat("#", maxManifest)), 0o600); err != nil {
		t.Fatal(err)
	}
	manifests, err := k.readManifests()
	if err != nil || len(manifests) != 1 || manifests[0].err == nil || !strings.Contains(manifests[0].err.Error(), "more than 10485760 bytes") {
		t.Errorf("manifests %+v, error %v", manifests, err)
	}
}
