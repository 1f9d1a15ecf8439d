package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kubelet/bootstrap"
	"skiff/internal/pki"
	"skiff/internal/store/etcd"
	"skiff/internal/store/memory"
	"skiff/internal/upgrade"
)

func discardLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// fakeMembers are members without an etcd.
type fakeMembers struct {
	mu      sync.Mutex
	members []etcd.Member
	// errs are returned by the next calls of AddLearner.
	errs []error
}

func (m *fakeMembers) Members(context.Context) ([]etcd.Member, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.members), nil
}

func (m *fakeMembers) AddLearner(_ context.Context, peerURL string) ([]etcd.Member, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.errs) > 0 {
		err := m.errs[0]
		m.errs = m.errs[1:]
		return nil, err
	}
	m.members = append(m.members, etcd.Member{ID: "2", PeerURL: peerURL, IsLearner: true})
	return slices.Clone(m.members), nil
}

func (m *fakeMembers) RemoveMember(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.members)
	m.members = slices.DeleteFunc(m.members, func(member etcd.Member) bool { return member.Name == name })
	if len(m.members) == before {
		return errors.Join(etcd.ErrNoMember)
	}
	return nil
}

// testServer is a server that others can join.
type testServer struct {
	url     string
	keys    string
	members *fakeMembers
	token   bootstrap.Token
	ca      *pki.CA
	// user is who all requests are from.
	user authn.User
	// release is that of the server.
	release upgrade.Release
}

// names are the names of the servers.
func (s *testServer) names(ctx context.Context) ([]string, error) { return MemberNames(ctx, s.members) }

func startServer(t *testing.T) *testServer {
	t.Helper()
	s := &testServer{release: release("v0.2.0", "v1.38.0"), keys: filepath.Join(t.TempDir(), "pki"), members: &fakeMembers{members: []etcd.Member{{ID: "1", Name: "first", PeerURL: "https://192.0.2.1:2380", IsLeader: true}}}}
	dir := pki.Dir(s.keys)
	for _, name := range []string{"ca", "front-proxy-ca", "etcd-ca"} {
		ca, err := dir.CA(name, name, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if name == "ca" {
			s.ca = ca
		}
	}
	if _, err := dir.SigningKey("service-account"); err != nil {
		t.Fatal(err)
	}
	serving, err := dir.Renewer("apiserver", s.ca, pki.Leaf{CommonName: "kube-apiserver", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true})
	if err != nil {
		t.Fatal(err)
	}
	s.token = bootstrap.NewToken(bootstrap.HashOf(s.ca.Certificate()))
	s.user = authn.User{Username: "system:bootstrap:" + s.token.ID, Groups: []string{ServerGroup}}
	handler := &Handler{Members: s.members, KeyDir: s.keys, Settings: Settings{"service-cidr": "10.96.0.0/12", "cluster-domain": "cluster.local"}, Log: discardLog()}
	handler.Releases = &Releases{Store: memory.New(), Name: "first", Own: s.release, Members: s.names, Log: discardLog()}
	if err := handler.Releases.Admit(t.Context()); err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: serving.GetChain})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sent := r.Header.Get("Authorization"); sent != "" && sent != "Bearer "+s.token.Bearer() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r.WithContext(authn.WithUser(r.Context(), s.user)))
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	s.url = "https://" + listener.Addr().String()
	return s
}

func (s *testServer) request() JoinRequest {
	return JoinRequest{PeerURL: "https://192.0.2.2:2380", Release: newRelease("v0.3.0", "v1.38.0"), Settings: Settings{"service-cidr": "10.96.0.0/12", "cluster-domain": "cluster.local"}}
}

// A server that joins gets the keys and the members, also if another was joining at first.
func TestJoin(t *testing.T) {
	s := startServer(t)
	if _, err := pki.Dir(s.keys).CA("own-ca", "not shared", time.Now()); err != nil {
		t.Fatal(err)
	}
	s.members.errs = []error{errors.Join(etcd.ErrNotNow)}
	// The first server is gone.
	response, err := Join{Servers: []string{"https://127.0.0.1:1", s.url}, Token: s.token.String(), Log: discardLog()}.Send(t.Context(), s.request())
	if err != nil {
		t.Fatal(err)
	}
	if len(response.Members) != 2 || response.Members[1].PeerURL != "https://192.0.2.2:2380" || !response.Members[1].IsLearner {
		t.Errorf("members: %+v", response.Members)
	}
	joined := filepath.Join(t.TempDir(), "pki")
	for range 2 { // a server that could not start joins again
		if err := response.Keys.Write(joined); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range sharedFiles {
		want, err := os.ReadFile(filepath.Join(s.keys, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(joined, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v", name, err)
		}
		info, err := os.Stat(filepath.Join(joined, name))
		if err != nil || strings.HasSuffix(name, ".key") && info.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s: %v, %v", name, info.Mode(), err)
		}
	}
	if entries, err := os.ReadDir(joined); err != nil || len(entries) != len(sharedFiles) {
		t.Errorf("%d files: %v", len(entries), err)
	}
}

// What does not match is refused, and nobody becomes a member.
func TestJoinRefused(t *testing.T) {
	other := startServer(t)
	for _, test := range []struct {
		name  string
		setup func(s *testServer, j *Join, r *JoinRequest)
		want  string
	}{
		{"other cluster's token", func(_ *testServer, j *Join, _ *JoinRequest) { j.Token = other.token.String() }, "not the server the token was created for"},
		{"wrong secret", func(s *testServer, j *Join, _ *JoinRequest) {
			wrong := s.token
			wrong.Secret = strings.Repeat("a", len(wrong.Secret))
			j.Token = wrong.String()
		}, "does not accept the token"},
		{"token of a node", func(s *testServer, _ *Join, _ *JoinRequest) { s.user.Groups = []string{bootstrap.NodeGroup} }, "token create --server"},
		{"other settings", func(_ *testServer, _ *Join, r *JoinRequest) { r.Settings["service-cidr"] = "10.0.0.0/16" },
			`--service-cidr is "10.0.0.0/16", in the cluster it is "10.96.0.0/12"`},
		{"far newer version", func(_ *testServer, _ *Join, r *JoinRequest) { r.Release = newRelease("v0.4.0", "v1.38.0") }, "start v0.3 on all servers first"},
		{"older version", func(_ *testServer, _ *Join, r *JoinRequest) { r.Release = newRelease("v0.1.0", "v1.37.0") }, "start v0.2 on it"},
		{"address of a running member", func(s *testServer, _ *Join, _ *JoinRequest) { s.members.errs = []error{etcd.ErrMemberRuns} }, "is running"},
		{"damaged key", func(s *testServer, _ *Join, _ *JoinRequest) {
			if err := os.WriteFile(filepath.Join(s.keys, "etcd-ca.key"), []byte("x"), 0o600); err != nil {
				t.Error(err)
			}
		}, "export etcd-ca"},
		{"no token", func(_ *testServer, j *Join, _ *JoinRequest) { j.Token = "secret" }, "--join-token"},
	} {
		s := startServer(t)
		join, request := Join{Servers: []string{s.url}, Token: s.token.String(), Log: discardLog()}, s.request()
		test.setup(s, &join, &request)
		response, err := join.Send(t.Context(), request)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
		if response != nil {
			t.Errorf("%s: there is a response", test.name)
		}
		if members, _ := s.members.Members(t.Context()); len(members) != 1 {
			t.Errorf("%s: members %+v", test.name, members)
		}
	}
}

// Keys are not written over those of another cluster, and not to other files.
func TestWriteKeysRefused(t *testing.T) {
	a, b := startServer(t), startServer(t)
	keys, err := exportKeys(a.keys)
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Write(b.keys); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("keys of another cluster: %v", err)
	}
	dir := t.TempDir()
	if err := (Keys{"../escaped": []byte("x")}).Write(filepath.Join(dir, "pki")); err == nil {
		t.Error("a file outside the directory is written")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("%v", entries)
	}
}

// Servers are listed and removed.
func TestClient(t *testing.T) {
	s := startServer(t)
	client, err := NewClient(&rest.Config{Host: s.url, TLSClientConfig: rest.TLSClientConfig{CAData: s.ca.Cert}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Member != s.members.members[0] || *list[0].Release != s.release {
		t.Errorf("%+v, %v", list, err)
	}
	if err := client.Remove(t.Context(), "second"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("remove a server that is not there: %v", err)
	}
	if err := client.Remove(t.Context(), "first"); err != nil {
		t.Error(err)
	}
	if list, err := client.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
