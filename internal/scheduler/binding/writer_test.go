package binding

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/storage/volume"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/scheduler/schedulertest"
	"skiff/test/inprocess"
)

// A write is tried again while the server is out of order, a few times, with pauses that grow; a refusal is one.
func TestWritesAreRetried(t *testing.T) {
	pods := corev1.Resource("pods")
	for name, test := range map[string]struct {
		errs  []error // of the tries; the last goes on
		tries int
		fails bool
	}{
		"the first attempt":                              {[]error{nil}, 1, false},
		"after an internal error":                        {[]error{apierrors.NewInternalError(errors.New("x")), nil}, 2, false},
		"after the server was unavailable":               {[]error{apierrors.NewServiceUnavailable("x"), syscall.ECONNREFUSED, nil}, 3, false},
		"after too many requests":                        {[]error{apierrors.NewTooManyRequests("x", 1), nil}, 2, false},
		"the fifth attempt":                              {[]error{syscall.ECONNREFUSED, syscall.ECONNREFUSED, syscall.ECONNREFUSED, syscall.ECONNREFUSED, nil}, 5, false},
		"no attempt":                                     {[]error{apierrors.NewInternalError(errors.New("x"))}, 5, true},
		"a conflict is not retried":                      {[]error{apierrors.NewConflict(pods, "p", errors.New("x")), nil}, 1, true},
		"a missing pod is not retried":                   {[]error{apierrors.NewNotFound(pods, "p"), nil}, 1, true},
		"a denied request is not retried":                {[]error{apierrors.NewForbidden(pods, "p", errors.New("x")), nil}, 1, true},
		"another error is not retried":                   {[]error{errors.New("x"), nil}, 1, true},
		"an error that is not retried after one that is": {[]error{apierrors.NewServiceUnavailable("x"), apierrors.NewNotFound(pods, "p"), nil}, 2, true},
		"a wrapped error is retried":                     {[]error{fmt.Errorf("write: %w", apierrors.NewServiceUnavailable("x")), nil}, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				began := time.Now()
				err := retried(t.Context(), func() error {
					err := test.errs[min(tries, len(test.errs)-1)]
					tries++
					return err
				})
				if tries != test.tries || (err != nil) != test.fails {
					t.Errorf("%d tries, %v", tries, err)
				}
				least, most := time.Duration(0), time.Duration(0)
				for i, pause := range []time.Duration{10e6, 50e6, 250e6, 1250e6} {
					if i < test.tries-1 {
						least, most = least+pause, most+pause+pause/2
					}
				}
				if waited := time.Since(began); waited < least || waited > most+time.Millisecond {
					t.Errorf("waited %v, want %v to %v", waited, least, most)
				}
			})
		})
	}
	t.Run("until the context is done", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			tries := 0
			if err := retried(ctx, func() error { tries++; return syscall.ECONNREFUSED }); err == nil || tries > 3 {
				t.Errorf("%d tries, %v", tries, err)
			}
		})
	})
}

func TestJitter(t *testing.T) {
	for range 1000 {
		if got := jitter(10 * time.Millisecond); got < 10*time.Millisecond || got > 15*time.Millisecond {
			t.Fatalf("%v", got)
		}
	}
	if got := jitter(0); got != 0 {
		t.Errorf("%v", got)
	}
}

// podServer is a real API server with helpers for one pod, p.
type podServer struct {
	t     *testing.T
	local client.Local
	pods  client.Resource[*corev1.Pod]
}

func newPodServer(t *testing.T) *podServer {
	t.Helper()
	local := inprocess.Server(t, t.Context())
	return &podServer{t: t, local: local, pods: client.For[*corev1.Pod](inprocess.Client(t, local))}
}

// writer is a Writer whose requests go through a transport.
func (s *podServer) writer(transport http.RoundTripper) Writer {
	s.t.Helper()
	c, err := client.New(&rest.Config{Host: "http://skiff.local", Transport: transport}, api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		s.t.Fatal(err)
	}
	return NewWriter(c)
}

func (s *podServer) create(options ...schedulertest.PodOption) {
	s.t.Helper()
	pod := schedulertest.TestPod("p", options...)
	pod.UID = ""
	if _, err := s.pods.Create(s.t.Context(), pod, client.WriteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// pod is the pod as it is now, or nil.
func (s *podServer) pod() *corev1.Pod {
	s.t.Helper()
	p, err := s.pods.Get(s.t.Context(), "default", "p")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *podServer) bind(node string) {
	s.t.Helper()
	if err := s.writer(s.local.Transport()).Bind(s.t.Context(), s.pod(), node); err != nil {
		s.t.Fatal(err)
	}
}

func (s *podServer) delete() {
	s.t.Helper()
	if err := s.pods.Delete(s.t.Context(), "default", "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		s.t.Fatal(err)
	}
}

// Bind returns whether the pod is bound, whatever requests and responses are lost.
func TestBindIsKnown(t *testing.T) {
	const pod = "/api/v1/namespaces/default/pods/p"
	for name, test := range map[string]struct {
		before  func(s *podServer) // changes the cluster first
		lose    func(n map[string]int) func(method, path string) (before, after bool)
		fails   bool
		node    string
		binds   int
		lookups int
	}{
		"nothing is lost": {nil, nil, false, "a", 1, 0},
		"the response is lost": {nil, func(n map[string]int) func(string, string) (bool, bool) {
			return func(method, _ string) (bool, bool) { return false, method == "POST" }
		}, false, "a", 1, 1},
		"several responses are lost": {nil, func(n map[string]int) func(string, string) (bool, bool) {
			return func(method, _ string) (bool, bool) { n[method]++; return false, n[method] <= 2 }
		}, false, "a", 1, 3},
		"the first request is lost": {nil, func(n map[string]int) func(string, string) (bool, bool) {
			return func(method, _ string) (bool, bool) { n[method]++; return method == "POST" && n[method] == 1, false }
		}, false, "a", 2, 0},
		"all requests are lost": {nil, func(n map[string]int) func(string, string) (bool, bool) {
			return func(method, _ string) (bool, bool) { return method == "POST", false }
		}, true, "", 5, 1},
		"bound to another node meanwhile":  {func(s *podServer) { s.bind("b") }, nil, true, "b", 1, 1},
		"bound to the same node meanwhile": {func(s *podServer) { s.bind("a") }, nil, false, "a", 1, 1},
		"the pod does not exist":           {func(s *podServer) { s.delete() }, nil, true, "", 1, 1},
		"another pod has the name":         {func(s *podServer) { s.delete(); s.create() }, nil, true, "", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newPodServer(t)
			server.create()
			p := server.pod()
			if test.before != nil {
				test.before(server)
			}
			lossy := &schedulertest.LossyTransport{RoundTripper: server.local.Transport()}
			if test.lose != nil {
				lossy.Lose = test.lose(map[string]int{})
			}
			err := server.writer(lossy).Bind(t.Context(), p, "a")
			if (err != nil) != test.fails {
				t.Errorf("error %v", err)
			}
			node := ""
			if now := server.pod(); now != nil {
				node = now.Spec.NodeName
			}
			if node != test.node || lossy.Count("POST", pod+"/binding") != test.binds || lossy.Count("GET", pod) != test.lookups {
				t.Errorf("on %q, %d bindings, %d lookups; want %q, %d, %d", node, lossy.Count("POST", pod+"/binding"), lossy.Count("GET", pod), test.node, test.binds, test.lookups)
			}
		})
	}
}

// What the scheduler writes arrives at a real server as it was meant.
func TestAPIWriter(t *testing.T) {
	server := newPodServer(t)
	w := server.writer(server.local.Transport())
	ctx := t.Context()
	server.create(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64) })
	p := server.pod()
	condition := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "no \"free resources\""}
	node := "a"
	if err := w.PatchStatus(ctx, p, ConditionPatch(p, condition, &node)); err != nil {
		t.Fatal(err)
	}
	now := server.pod()
	if len(now.Status.Conditions) != 1 || now.Status.Conditions[0].Message != condition.Message || now.Status.NominatedNodeName != "a" || now.Status.Conditions[0].ObservedGeneration != now.Generation {
		t.Errorf("status %+v", now.Status)
	}
	// A condition is added beside others, a nomination ends.
	none := ""
	if err := w.PatchStatus(ctx, now, ConditionPatch(now, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler, Message: "m"}, &none)); err != nil {
		t.Fatal(err)
	}
	if now = server.pod(); len(now.Status.Conditions) != 2 || now.Status.NominatedNodeName != "" {
		t.Errorf("status %+v", now.Status)
	}
	// Another pod of the same name is left alone.
	other := p.DeepCopy()
	other.UID = "another"
	if err := w.PatchStatus(ctx, other, ConditionPatch(other, condition, &node)); err == nil {
		t.Error("another pod's status is written")
	}
	if err := w.DeletePod(ctx, other); !apierrors.IsConflict(err) {
		t.Errorf("another pod is deleted: %v", err)
	}
	if err := w.Bind(ctx, other, "a"); err == nil {
		t.Error("another pod is bound")
	}
	if err := w.Bind(ctx, p, "a"); err != nil {
		t.Error(err)
	}
	if now = server.pod(); now.Spec.NodeName != "a" {
		t.Errorf("on %q", now.Spec.NodeName)
	}
	if err := w.DeletePod(ctx, p); err != nil {
		t.Error(err)
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Annotations: map[string]string{volume.AnnBoundByController: "yes"}}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
	}}
	made, err := client.For[*corev1.PersistentVolume](inprocess.Client(t, server.local)).Create(ctx, pv, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made = made.DeepCopy()
	made.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "claim", UID: "c"}
	written, err := w.UpdatePersistentVolume(ctx, made)
	if err != nil || written.Spec.ClaimRef.Name != "claim" || written.ResourceVersion == made.ResourceVersion {
		t.Errorf("%+v, %v", written, err)
	}
	if _, err := w.UpdatePersistentVolume(ctx, made); !apierrors.IsConflict(err) {
		t.Errorf("an old version is written: %v", err)
	}
}
