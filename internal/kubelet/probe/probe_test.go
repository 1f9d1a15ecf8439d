package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/kubelet/cri"
)

func TestHTTP(t *testing.T) {
	var seen *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			seen = r
		case "/bad":
			w.WriteHeader(500)
			_, _ = w.Write([]byte("secret"))
		case "/missing":
			w.WriteHeader(404)
		case "/local":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/elsewhere":
			http.Redirect(w, r, "http://198.51.100.1/ok", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/slow":
			select {
			case <-r.Context().Done():
			case <-time.After(3 * time.Second):
			}
		}
	}))
	defer server.Close()
	address, _ := url.Parse(server.URL)
	port, _ := strconv.Atoi(address.Port())
	c := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}
	for _, row := range []struct {
		path   string
		port   intstr.IntOrString
		want   Outcome
		output string
		err    string
	}{
		{"/ok", intstr.FromInt32(int32(port)), Success, "", ""},
		{"/ok", intstr.FromString("web"), Success, "", ""},
		{"/ok?a=b", intstr.FromString("web"), Success, "", ""},
		{"/ok", intstr.FromString("nope"), Failure, "", `port "nope" not found`},
		{"/bad", intstr.FromString("web"), Failure, "HTTP probe failed with statuscode: 500", ""},
		{"/missing", intstr.FromString("web"), Failure, "HTTP probe failed with statuscode: 404", ""},
		{"/local", intstr.FromString("web"), Success, "", ""},
		{"/elsewhere", intstr.FromString("web"), Warning, "Probe terminated redirects, Response body: <a href=\"http://198.51.100.1/ok\">Found</a>.\n\n", ""},
		{"/loop", intstr.FromString("web"), Failure, "stopped after 10 redirects", ""},
		{"/slow", intstr.FromString("web"), Failure, "Client.Timeout exceeded", ""},
		{"/ok", intstr.FromInt32(1), Failure, "connection refused", ""},
	} {
		p := &corev1.Probe{TimeoutSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: row.path, Port: row.port, HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Test", Value: "yes"}, {Name: "Host", Value: "example.org"}},
		}}}
		got, output, err := Once(t.Context(), p, Target{Container: c, PodIP: "127.0.0.1"}, nil)
		if got != row.want || !strings.Contains(output, row.output) || row.err == "" && err != nil || row.err != "" && (err == nil || err.Error() != row.err) {
			t.Errorf("%s: %v %q %v, want %v %q %q", row.path, got, output, err, row.want, row.output, row.err)
		}
		if strings.Contains(output, "secret") {
			t.Error("the body of an answer is in the message")
		}
	}
	if seen.Header.Get("User-Agent") != "kube-probe/1.37" || seen.Header.Get("X-Test") != "yes" || seen.Host != "example.org" || seen.Header.Get("Accept") != "*/*" {
		t.Errorf("asked with %v, host %s", seen.Header, seen.Host)
	}
}

func TestTCPAndGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	server := grpc.NewServer()
	service := health.NewServer()
	service.SetServingStatus("sick", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(server, service)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	sick := "sick"
	none := "none"
	for _, row := range []struct {
		name    string
		handler corev1.ProbeHandler
		want    Outcome
		output  string
	}{
		{"open port", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, Success, ""},
		{"closed port", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}, Failure, "connection refused"},
		{"own host", corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port), Host: "localhost"}}, Success, ""},
		{"healthy", corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port}}, Success, "service healthy"},
		{"unhealthy", corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: &sick}}, Failure, `service unhealthy (responded with "NOT_SERVING")`},
		{"unknown service", corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: &none}}, Failure, "error: health rpc probe failed"},
		{"nobody there", corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1}}, Failure, `timeout: failed to connect service "127.0.0.1:1" within 1s`},
	} {
		got, output, err := Once(t.Context(), &corev1.Probe{TimeoutSeconds: 1, ProbeHandler: row.handler}, Target{Container: &corev1.Container{}, PodIP: "127.0.0.1"}, nil)
		if err != nil || got != row.want || !strings.Contains(output, row.output) {
			t.Errorf("%s: %v %q %v, want %v %q", row.name, got, output, err, row.want, row.output)
		}
	}
}

func TestExec(t *testing.T) {
	for _, row := range []struct {
		name   string
		err    error
		want   Outcome
		output string
		fails  bool
	}{
		{"success", nil, Success, "said", false},
		{"exit code", &cri.ExitError{Code: 1}, Failure, "said", false},
		{"too slow", fmt.Errorf("%w: after 1s", cri.ErrTimedOut), Failure, "command timed out: after 1s", false},
		{"no runtime", errors.New("away"), Failure, "", true},
	} {
		exec := func(context.Context, string, []string, time.Duration) ([]byte, error) { return []byte("said"), row.err }
		got, output, err := Once(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}, Target{Container: &corev1.Container{}}, exec)
		if got != row.want || output != row.output || (err != nil) != row.fails {
			t.Errorf("%s: %v %q %v", row.name, got, output, err)
		}
	}
}

func TestHookFallsBackToHTTP(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("Authorization") != "" {
			t.Error("credentials were sent in the clear")
		}
		w.WriteHeader(500) // any answer will do
	}))
	defer server.Close()
	address, _ := url.Parse(server.URL)
	port, _ := strconv.Atoi(address.Port())
	fellBack, err := Hook(t.Context(), &corev1.HTTPGetAction{
		Scheme: corev1.URISchemeHTTPS, Port: intstr.FromInt32(int32(port)), HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: "secret"}},
	}, &corev1.Container{}, "127.0.0.1")
	if err != nil || !fellBack || asked != 1 {
		t.Errorf("fell back %v, asked %d times, %v", fellBack, asked, err)
	}
}

// play lets a container answer as a script says, one letter for each time it is asked: + or -; the last is repeated.
type play struct {
	mu      sync.Mutex
	scripts map[string]string
	asked   map[string]int
}

func (p *play) exec(_ context.Context, _ string, command []string, _ time.Duration) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	script := p.scripts[command[0]]
	i := min(p.asked[command[0]], len(script)-1)
	p.asked[command[0]]++
	if script[i] == '-' {
		return nil, &cri.ExitError{Code: 1}
	}
	return nil, nil
}

func probeOf(name string, delay, period, success, failure int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:        corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{name}}},
		InitialDelaySeconds: delay, PeriodSeconds: period, SuccessThreshold: success, FailureThreshold: failure, TimeoutSeconds: 1,
	}
}

func TestThresholds(t *testing.T) {
	for _, row := range []struct {
		name                      string
		container                 corev1.Container
		scripts                   map[string]string
		after                     time.Duration
		startup, readiness, alive Result
		asked                     map[string]int
	}{
		{
			"ready at once", corev1.Container{ReadinessProbe: probeOf("r", 0, 10, 1, 3)}, map[string]string{"r": "+"}, time.Second,
			Undecided, Passed, Passed, map[string]int{"r": 1},
		},
		{
			"ready after its delay", corev1.Container{ReadinessProbe: probeOf("r", 5, 10, 1, 3)}, map[string]string{"r": "+"}, 4 * time.Second,
			Undecided, Failed, Passed, map[string]int{"r": 0},
		},
		{
			"ready after two successes", corev1.Container{ReadinessProbe: probeOf("r", 0, 2, 2, 3)}, map[string]string{"r": "+"}, time.Second,
			Undecided, Failed, Passed, map[string]int{"r": 1},
		},
		{
			"ready after two successes in a row", corev1.Container{ReadinessProbe: probeOf("r", 0, 2, 2, 3)}, map[string]string{"r": "+-++"}, 7 * time.Second,
			Undecided, Passed, Passed, map[string]int{"r": 4},
		},
		{
			"stays ready below the threshold", corev1.Container{ReadinessProbe: probeOf("r", 0, 2, 1, 3)}, map[string]string{"r": "+--+"}, 7 * time.Second,
			Undecided, Passed, Passed, map[string]int{"r": 4},
		},
		{
			"not ready at the threshold", corev1.Container{ReadinessProbe: probeOf("r", 0, 2, 1, 3)}, map[string]string{"r": "+---"}, 7 * time.Second,
			Undecided, Failed, Passed, map[string]int{"r": 4},
		},
		{
			"alive below the threshold", corev1.Container{LivenessProbe: probeOf("l", 0, 1, 1, 3)}, map[string]string{"l": "--+"}, 5 * time.Second,
			Undecided, Undecided, Passed, nil,
		},
		{
			"dead at the threshold, and not asked again", corev1.Container{LivenessProbe: probeOf("l", 0, 1, 1, 3)}, map[string]string{"l": "-"}, 20 * time.Second,
			Undecided, Undecided, Failed, map[string]int{"l": 3},
		},
		{
			"startup holds the others back", corev1.Container{StartupProbe: probeOf("s", 0, 5, 1, 10), LivenessProbe: probeOf("l", 0, 1, 1, 1), ReadinessProbe: probeOf("r", 0, 1, 1, 1)},
			map[string]string{"s": "-", "l": "-", "r": "+"}, 12 * time.Second, Undecided, Failed, Passed, map[string]int{"s": 3, "l": 0, "r": 0},
		},
		{
			"startup lets the others go", corev1.Container{StartupProbe: probeOf("s", 0, 5, 1, 10), LivenessProbe: probeOf("l", 0, 10, 1, 1), ReadinessProbe: probeOf("r", 0, 10, 1, 1)},
			map[string]string{"s": "-+", "l": "+", "r": "+"}, 6 * time.Second, Passed, Passed, Passed, map[string]int{"s": 2, "l": 1, "r": 1},
		},
		{
			"startup fails", corev1.Container{StartupProbe: probeOf("s", 0, 1, 1, 3)}, map[string]string{"s": "-"}, 20 * time.Second,
			Failed, Undecided, Passed, map[string]int{"s": 3},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				player := &play{scripts: row.scripts, asked: map[string]int{}}
				probes := New(Options{Exec: player.exec, Event: func(*corev1.Pod, *corev1.Container, string, string) {}, Changed: func(types.UID) {}, Log: slog.Default()})
				ctx, cancel := context.WithCancel(t.Context())
				pod := &corev1.Pod{}
				pod.UID = "u"
				running := []Running{{Container: &row.container, ID: "id", StartedAt: time.Now()}}
				probes.Follow(ctx, pod, "10.0.0.1", running)
				probes.Follow(ctx, pod, "10.0.0.1", running) // again changes nothing
				time.Sleep(row.after)
				synctest.Wait()
				for kind, want := range map[Kind]Result{Startup: row.startup, Readiness: row.readiness, Liveness: row.alive} {
					if kind.of(&row.container) == nil {
						continue
					}
					if got, found := probes.Result("u", "id", kind); !found || got != want {
						t.Errorf("%s is %v, want %v", kind, got, want)
					}
				}
				for name, want := range row.asked {
					player.mu.Lock()
					if got := player.asked[name]; got != want {
						t.Errorf("asked %s %d times, want %d", name, got, want)
					}
					player.mu.Unlock()
				}
				probes.Follow(ctx, pod, "", nil)
				if _, found := probes.Result("u", "id", Readiness); found {
					t.Error("a container that is gone is still asked")
				}
				cancel()
				probes.Wait()
			})
		})
	}
}

// TestClockSetBack: a container that started before the clock of the host was set back is probed after its initial delay, not when the clock is
// where it was.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		player := &play{scripts: map[string]string{"l": "-"}, asked: map[string]int{}}
		probes := New(Options{Exec: player.exec, Event: func(*corev1.Pod, *corev1.Container, string, string) {}, Changed: func(types.UID) {}, Log: slog.Default()})
		ctx, cancel := context.WithCancel(t.Context())
		c := corev1.Container{LivenessProbe: probeOf("l", 5, 10, 1, 1)}
		probes.Follow(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, "", []Running{{Container: &c, ID: "id", StartedAt: time.Now().Add(8 * time.Hour)}})
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if got, _ := probes.Result("u", "id", Liveness); got != Failed {
			t.Errorf("liveness is %v", got)
		}
		cancel()
		probes.Wait()
	})
}

func TestAfterARestartReadinessStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		time.Sleep(time.Hour)
		player := &play{scripts: map[string]string{"r": "-", "s": "-"}, asked: map[string]int{}}
		probes := New(Options{Exec: player.exec, Event: func(*corev1.Pod, *corev1.Container, string, string) {}, Changed: func(types.UID) {}, Log: slog.Default()})
		ctx, cancel := context.WithCancel(t.Context())
		pod := &corev1.Pod{}
		pod.UID = "u"
		c := corev1.Container{ReadinessProbe: probeOf("r", 0, 10, 1, 3), StartupProbe: probeOf("s", 0, 10, 1, 3)}
		probes.Follow(ctx, pod, "", []Running{{Container: &c, ID: "id", StartedAt: began, WasReady: true, WasStarted: true}})
		if got, _ := probes.Result("u", "id", Readiness); got != Passed {
			t.Error("a container that was ready is not ready any more because the kubelet restarted")
		}
		if got, _ := probes.Result("u", "id", Startup); got != Passed {
			t.Error("a container that had started has to start again")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, _ := probes.Result("u", "id", Readiness); got != Failed {
			t.Error("the probe's own answer does not count")
		}
		cancel()
		probes.Wait()
	})
}
