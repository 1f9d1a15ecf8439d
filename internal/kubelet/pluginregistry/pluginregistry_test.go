package pluginregistry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// fakePlugin is a plugin with a real socket.
type fakePlugin struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo

	mu       sync.Mutex
	statuses []string
	// unreachable makes NotifyRegistrationStatus fail.
	unreachable bool
}

func (p *fakePlugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return p.info, nil
}

func (p *fakePlugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unreachable {
		return nil, errors.New("unreachable")
	}
	p.statuses = append(p.statuses, fmt.Sprint(s.PluginRegistered, s.Error))
	return &registration.RegistrationStatusResponse{}, nil
}

// start serves the plugin at a socket in the directory. stop removes the socket.
func (p *fakePlugin) start(t *testing.T, path string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, p)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return func() {
		server.Stop()
		_ = os.Remove(path)
	}
}

// fakeHandler records what it is called for.
type fakeHandler struct {
	calls []string
	err   error
}

func (h *fakeHandler) Register(_ context.Context, p Plugin) error {
	h.calls = append(h.calls, fmt.Sprintf("register %s %s %v", p.Name, filepath.Base(p.Endpoint), p.Versions))
	return h.err
}

func (h *fakeHandler) Remove(_ context.Context, p Plugin) {
	h.calls = append(h.calls, "remove "+p.Name+" "+filepath.Base(p.Endpoint))
}

func (h *fakeHandler) take() string {
	calls := strings.Join(h.calls, "; ")
	h.calls = nil
	return calls
}

// TestScan follows plugins from their sockets to their removal.
func TestScan(t *testing.T) {
	handler := &fakeHandler{}
	r := &Registry{Dir: t.TempDir(), Handlers: map[string]Handler{DRADriver: handler}, Log: slog.New(slog.DiscardHandler), sockets: map[string]socket{}}
	scan := func(want string) {
		t.Helper()
		r.scan(t.Context())
		if got := handler.take(); got != want {
			t.Errorf("calls %q, want %q", got, want)
		}
	}
	scan("")
	driver := &fakePlugin{info: &registration.PluginInfo{Type: DRADriver, Name: "d", Endpoint: "unix:///run/d.sock", SupportedVersions: []string{"v1"}}}
	other := &fakePlugin{info: &registration.PluginInfo{Type: "Other", Name: "o"}}
	path := filepath.Join(r.Dir, "d-reg.sock")
	stop := driver.start(t, path)
	other.start(t, filepath.Join(r.Dir, "o-reg.sock"))
	(&fakePlugin{info: driver.info}).start(t, filepath.Join(r.Dir, ".hidden.sock"))
	if err := os.WriteFile(filepath.Join(r.Dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	scan("register d d.sock [v1]")
	scan("")

	// A socket that is created again is a new plugin.
	stop()
	driver.info = &registration.PluginInfo{Type: DRADriver, Name: "d"}
	stop = driver.start(t, path)
	scan("remove d d.sock; register d d-reg.sock []")
	stop()
	scan("remove d d-reg.sock")
	if got := fmt.Sprint(driver.statuses); got != "[true true]" {
		t.Errorf("statuses %s", got)
	}
	if len(other.statuses) > 0 {
		t.Errorf("a plugin of another type got %q", other.statuses)
	}

	// A rejected plugin is tried again.
	handler.err = errors.New("no")
	stop = driver.start(t, path)
	scan("register d d-reg.sock []")
	scan("register d d-reg.sock []")
	if got := driver.statuses[len(driver.statuses)-1]; got != "falseRegisterPlugin error -- plugin registration failed with err: no" {
		t.Errorf("status %s", got)
	}
	// One that cannot be told is not registered.
	handler.err = nil
	driver.mu.Lock()
	driver.unreachable = true
	driver.mu.Unlock()
	scan("register d d-reg.sock []; remove d d-reg.sock")
	stop()
	scan("")
}
