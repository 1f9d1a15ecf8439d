package controllers_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/controllers"
	"skiff/test/world"
)

// logbook records which manager writes, and when.
type writeLog struct {
	mu     sync.Mutex
	writes []entry
}

type entry struct {
	who string
	at  time.Time
}

// of wraps the server for one manager. A disconnected manager gets no responses.
func (l *writeLog) of(local client.Local, who string, cut *sync.Map) client.Local {
	return watched{local, l, who, cut}
}

type watched struct {
	client.Local
	book *writeLog
	who  string
	cut  *sync.Map
}

func (w watched) Transport() http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if _, off := w.cut.Load(w.who); off {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/leases") && !strings.Contains(r.URL.Path, "/events") {
			w.book.mu.Lock()
			w.book.writes = append(w.book.writes, entry{w.who, time.Now()})
			w.book.mu.Unlock()
		}
		return w.Local.Transport().RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTwoManagers runs two managers with leader election. The leader is disconnected from the server, notices and stops; the other
// takes over. They never write at the same time, and the work is done.
func TestTwoManagers(t *testing.T) {
	world.In(t, func(w *world.World) {
		w.Play(2)
		book, cut := &writeLog{}, &sync.Map{}
		ended := map[string]chan error{}
		for _, who := range []string{"first", "second"} {
			registry := prometheus.NewRegistry()
			metrics, err := controller.NewMetrics(registry)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			ended[who] = done
			c := w.ClientOf(book.of(w.Local(), who, cut))
			ctx, cancel := context.WithCancel(w.Ctx)
			defer cancel()
			go func() {
				done <- controllers.Run(ctx, controllers.Config{
					Client: c, Enabled: []string{"deployment", "replicaset"}, Workers: map[string]int{"replicaset-controller": 2}, Metrics: metrics, Log: slog.New(slog.DiscardHandler),
					LeaderElection: &controller.LeaderElection{Namespace: "kube-system", Name: "kube-controller-manager", Identity: who},
				})
			}()
			w.Pass(time.Second)
		}
		world.Create(w, deployment(3))
		w.Pass(time.Minute)
		if n := len(world.List[*corev1.Pod](w)); n != 3 {
			t.Fatalf("%d pods while the first leads", n)
		}
		cut.Store("first", true)
		world.Edit(w, "default", "web", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "image:2" })
		w.Pass(2 * time.Minute)
		d := world.Get[*appsv1.Deployment](w, "default", "web")
		if d.Status.UpdatedReplicas != 3 || d.Status.ObservedGeneration != d.Generation {
			t.Errorf("the second did not finish the rollout: %+v", d.Status)
		}
		select {
		case err := <-ended["first"]:
			if err == nil {
				t.Error("the first lost the lead and says nothing")
			}
		default:
			t.Error("the first lost the lead and goes on")
		}
		book.mu.Lock()
		defer book.mu.Unlock()
		changes := 0
		for i := 1; i < len(book.writes); i++ {
			if book.writes[i].who != book.writes[i-1].who {
				changes++
				if gap := book.writes[i].at.Sub(book.writes[i-1].at); gap < time.Second {
					t.Errorf("the second acts %v behind the first", gap)
				}
			}
		}
		if changes != 1 || book.writes[0].who != "first" {
			t.Errorf("the lead changed %d times", changes)
		}
	})
}

// TestManagerWithoutLead starts immediately, and stops when its context is done.
func TestManagerWithoutLead(t *testing.T) {
	world.In(t, func(w *world.World) {
		w.Play(1)
		ctx, cancel := context.WithCancel(w.Ctx)
		done := make(chan error, 1)
		go func() {
			done <- controllers.Run(ctx, controllers.Config{Client: w.Client, Enabled: []string{"replicaset"}, Log: slog.New(slog.DiscardHandler)})
		}()
		world.Create(w, &appsv1.ReplicaSet{ObjectMeta: meta("web"), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(2)), Selector: selector("web"), Template: template("web", "")}})
		w.Pass(10 * time.Second)
		if n := len(world.List[*corev1.Pod](w)); n != 2 {
			t.Errorf("%d pods", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
		world.Edit(w, "default", "web", func(s *appsv1.ReplicaSet) { s.Spec.Replicas = new(int32(3)) })
		w.Pass(time.Minute)
		if n := len(world.List[*corev1.Pod](w)); n != 2 {
			t.Errorf("%d pods after its end", n)
		}
	})
}

// TestUnknownController: the error contains the unknown name.
func TestUnknownController(t *testing.T) {
	world.In(t, func(w *world.World) {
		err := controllers.Run(w.Ctx, controllers.Config{Client: w.Client, Enabled: []string{"*", "-nobody"}, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), `"nobody" is not in the list of known controllers`) {
			t.Errorf("%v", err)
		}
	})
}

// TestListOfControllers: names and queues are set and unique; aliases are unambiguous.
func TestListOfControllers(t *testing.T) {
	names, queues := map[string]bool{}, map[string]string{}
	for _, d := range controllers.All(allSettings()) {
		for _, name := range append([]string{d.Name}, d.Aliases...) {
			if name == "" || names[name] {
				t.Errorf("%q is the name of two controllers, or of none", name)
			}
			names[name] = true
		}
		if other, taken := queues[d.Queue]; taken || d.Queue == "" {
			t.Errorf("%s and %s have the queue %q", d.Name, other, d.Queue)
		}
		queues[d.Queue] = d.Name
	}
	// Without keys and ranges, the controllers that need them are disabled, and so are those disabled by default.
	for _, d := range controllers.All(controllers.Settings{}) {
		wanted := map[string]bool{"serviceaccount-token-controller": true, "root-ca-certificate-publisher-controller": true, "node-ipam-controller": true,
			"kube-apiserver-serving-clustertrustbundle-publisher-controller": true,
			"bootstrap-signer-controller":                                    true, "token-cleaner-controller": true,
			"kubelet-serving-approving-controller": true}[d.Name]
		if d.DisabledByDefault != wanted {
			t.Errorf("%s is off: %v", d.Name, d.DisabledByDefault)
		}
	}
}
