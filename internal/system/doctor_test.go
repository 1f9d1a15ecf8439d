package system

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/doctor"
	"skiff/internal/pki"
)

// A broken cluster is examined through its API.
func TestDoctorExaminesACluster(t *testing.T) {
	server, _ := startAPIServer(t, testConfig(t))
	for path, body := range map[string]string{
		"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": `{"metadata":{"name":"hooks"},"webhooks":[{"name":"a.example.com","sideEffects":"None","admissionReviewVersions":["v1"],
			"clientConfig":{"service":{"namespace":"default","name":"gone"}},"rules":[{"apiGroups":["apps"],"apiVersions":["*"],"operations":["CREATE"],"resources":["deployments"]}]}]}`,
		"/api/v1/nodes": `{"metadata":{"name":"lost"}}`,
	} {
		if w := do(server.Handler(), "admin", http.MethodPost, path, body); w.Code != http.StatusCreated {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	listening := httptest.NewServer(server.Handler())
	t.Cleanup(listening.Close)
	remote, err := newClient(&rest.Config{Host: listening.URL, BearerToken: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	report := doctor.Cluster{Client: remote, ServerName: serverName}.Examine(t.Context(), 20*time.Second)
	problems := map[string]string{}
	for _, f := range report.Findings {
		problems[f.Check] += f.Problem + "\n"
		if strings.HasPrefix(f.Problem, "not examined") {
			t.Errorf("%s: %s", f.Check, f.Problem)
		}
	}
	for check, want := range map[string]string{
		"webhooks": `validating webhook a.example.com of hooks has no server: service/gone in "default" is not present`, "nodes": "1 node lost: their kubelets do not renew their leases: lost since",
	} {
		if !strings.Contains(problems[check], want) {
			t.Errorf("%s: found %q, want %q", check, problems[check], want)
		}
	}
	if problems["api"] != "" || report.Count(doctor.Error) != 2 || len(report.Checks) < 10 {
		t.Errorf("report %+v", report)
	}
}

// A node asks the servers that it knows, and one of them for itself.
func TestDoctorExaminesANode(t *testing.T) {
	server, _ := startAPIServer(t, testConfig(t))
	if w := do(server.Handler(), "admin", http.MethodPost, "/api/v1/nodes", `{"metadata":{"name":"lost"}}`); w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	listening := httptest.NewServer(server.Handler())
	t.Cleanup(listening.Close)
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	node := doctor.Node{Name: "lost", KeyDir: t.TempDir(), Servers: []string{down.Listener.Addr().String(), listening.Listener.Addr().String()}}
	node.Connect = func(address string) (*client.Client, error) {
		return newClient(&rest.Config{Host: "http://" + address, BearerToken: "admin"})
	}
	report := doctor.Run(t.Context(), node.Checks(), 20*time.Second)
	var problems []string
	for _, f := range report.Findings {
		problems = append(problems, f.Problem)
	}
	if len(problems) != 2 || !strings.Contains(problems[0], node.Servers[0]+" does not respond") || !strings.Contains(problems[1], "1 node lost") {
		t.Errorf("problems %q", problems)
	}
}

// A user without rights is told what was not examined.
func TestDoctorWithoutRights(t *testing.T) {
	server, _ := startAPIServer(t, testConfig(t))
	listening := httptest.NewServer(server.Handler())
	t.Cleanup(listening.Close)
	remote, err := newClient(&rest.Config{Host: listening.URL})
	if err != nil {
		t.Fatal(err)
	}
	report := doctor.Cluster{Client: remote, ServerName: serverName}.Examine(t.Context(), 20*time.Second)
	if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool {
		return f.Check == "nodes" && strings.HasPrefix(f.Problem, "not examined") && strings.Contains(f.Fix, "administrator's kubeconfig")
	}) {
		t.Errorf("report %+v", report)
	}
}

func TestDoctorWithoutServer(t *testing.T) {
	listening := httptest.NewServer(http.NotFoundHandler())
	listening.Close()
	remote, err := newClient(&rest.Config{Host: listening.URL})
	if err != nil {
		t.Fatal(err)
	}
	report := doctor.Cluster{Client: remote, ServerName: serverName}.Examine(t.Context(), 20*time.Second)
	if len(report.Checks) != 1 || report.Count(doctor.Error) != 1 {
		t.Errorf("report %+v", report)
	}
}

// The host is examined with a data directory that does not exist, and nothing is made.
func TestDoctorExaminesTheHost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	c := config.DefaultDoctor()
	c.DataDir, c.Output = dir, "json"
	var out bytes.Buffer
	err := Doctor(t.Context(), c, &out)
	var report doctor.Report
	if decodeErr := json.Unmarshal(out.Bytes(), &report); decodeErr != nil {
		t.Fatalf("%v: %s", decodeErr, out.String())
	}
	if hasErrors := report.Count(doctor.Error) > 0; (err != nil) != hasErrors {
		t.Errorf("%d errors, returned %v", report.Count(doctor.Error), err)
	}
	if !slices.Contains(report.Checks, "ports") || slices.Contains(report.Checks, "api") {
		t.Errorf("checks %q", report.Checks)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data directory was made: %v", err)
	}
}

func TestRoleOf(t *testing.T) {
	for file, want := range map[string]string{"": "", adminKubeconfig: commandServer, "kubelet/kubeconfig": commandAgent} {
		dir := t.TempDir()
		if file != "" {
			path := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if role, err := roleOf(dir); role != want || err != nil {
			t.Errorf("%q: role %q, %v", file, role, err)
		}
	}
}

func TestCheckUnlocked(t *testing.T) {
	dir := t.TempDir()
	if checkUnlocked(dir, "data-dir") != nil {
		t.Error("an empty directory is locked")
	}
	unlock, err := lockDir(dir, "data-dir")
	if err != nil {
		t.Fatal(err)
	}
	if checkUnlocked(dir, "data-dir") == nil {
		t.Error("a locked directory is not locked")
	}
	unlock()
	if checkUnlocked(dir, "data-dir") != nil {
		t.Error("the lock is still there")
	}
}

// The settings of an installed service count, if it has the data directory.
func TestHostConfig(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		unit
		wantPort int
		wantRoot string
	}{
		{unit{program: "/skiff", command: commandServer, arguments: []string{"--data-dir=/d", "--secure-port=7443", "--root-dir=/kubelet"}}, 7443, "/kubelet"},
		{unit{program: "/skiff", command: commandServer, arguments: []string{"--data-dir=/other", "--secure-port=7443"}}, 6443, ""},
		{unit{program: "/skiff", command: commandAgent, arguments: []string{"--data-dir=/d", "--root-dir=/kubelet", "--server=https://a:6443"}}, 6443, "/kubelet"},
		{unit{program: "/skiff", command: "unknown"}, 6443, ""},
	} {
		if err := os.WriteFile(filepath.Join(dir, unitName), []byte(test.text()), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _ := hostConfig(installedServices(dir), "/d")
		if c.SecurePort != test.wantPort || c.Node.RootDir != test.wantRoot {
			t.Errorf("%s %q: port %d, root directory %q", test.command, test.arguments, c.SecurePort, c.Node.RootDir)
		}
		server, err := examinedHost(c, commandServer)
		if err != nil {
			t.Fatal(err)
		}
		agent, err := examinedHost(c, commandAgent)
		if err != nil {
			t.Fatal(err)
		}
		if int(server.Ports[0].Number) != test.wantPort || len(server.Ports) != len(agent.Ports)+2 || test.wantRoot != "" && server.KubeletDir != test.wantRoot {
			t.Errorf("server %+v, agent %+v", server, agent)
		}
	}
}

// A control plane without a node needs the ports of its API only.
func TestExaminedHostWithoutNode(t *testing.T) {
	c := config.DefaultServer()
	c.DataDir, c.NoNode = t.TempDir(), true
	host, err := examinedHost(c, commandServer)
	if err != nil || !host.NoNode || len(host.Ports) != 2 || len(host.Thresholds) > 0 {
		t.Errorf("host %+v, %v", host, err)
	}
}

// Without --data-dir the service's own is examined: another one would be taken for a host on which skiff is to be installed, and its ports for those of others.
func TestHostConfigOfTheService(t *testing.T) {
	dir := t.TempDir()
	if c, err := hostConfig(installedServices(dir), "/d"); err != nil || c.SecurePort != 6443 || c.DataDir != "/d" {
		t.Errorf("without a service: port %d, directory %s, %v", c.SecurePort, c.DataDir, err)
	}
	if c, err := hostConfig(installedServices(dir), ""); err != nil || c.DataDir != config.DefaultServer().DataDir {
		t.Errorf("without a service: directory %s, %v", c.DataDir, err)
	}
	u := unit{program: "/skiff", command: commandServer, arguments: []string{"--data-dir=/srv", "--secure-port=7443"}}
	if err := os.WriteFile(filepath.Join(dir, unitName), []byte(u.text()), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := hostConfig(installedServices(dir), ""); err != nil || c.DataDir != "/srv" || c.SecurePort != 7443 {
		t.Errorf("directory %s, port %d, %v", c.DataDir, c.SecurePort, err)
	}
	// Before an installation there may be a configuration file, of a server or of an agent.
	file := filepath.Join(dir, "config.yaml")
	services := []unit{{command: commandServer, arguments: []string{"--config=" + file}}, {command: commandAgent, arguments: []string{"--config=" + file}}}
	for _, test := range []struct{ file, dataDir, problem string }{
		{"data-dir: /server\nsecure-port: 7443\n", "/server", ""},
		{"data-dir: /agent\nserver: ['https://a:6443']\n", "/agent", ""},
		{"data-dir: /server\nsecure-prt: 7443\n", "/var/lib/skiff", "config.yaml, line 2: unknown key \"secure-prt\"; did you mean secure-port?"},
		{"data-dir: /server\nsecure-port: 70000\n", "/var/lib/skiff", "--secure-port: 70000 is not a port (set in " + file + ", line 2)"},
		{"data-dir: /agent\nserver: ['http://a']\n", "/var/lib/skiff", "--server: \"http://a\" is not an https URL"},
	} {
		if err := os.WriteFile(file, []byte(test.file), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := hostConfig(services, "")
		if c.DataDir != test.dataDir || (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%q: directory %s, %v", test.file, c.DataDir, err)
		}
		if c, err := hostConfig(services, "/other"); test.problem == "" && (c.DataDir != "/other" || c.SecurePort != 6443 || err != nil) {
			t.Errorf("%q with another directory: %s, port %d, %v", test.file, c.DataDir, c.SecurePort, err)
		}
	}
}

func TestExaminedNode(t *testing.T) {
	dataDir := t.TempDir()
	keys := pki.Dir(filepath.Join(dataDir, "kubelet/pki"))
	ca, err := keys.CA("ca", "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.NodeClient("host1"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	client := filepath.Join(string(keys), "kubelet-client-current.pem")
	kubeconfig := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1","tls-server-name":"kubernetes.default.svc"}}],
		"users":[{"name":"u","user":{"client-certificate":"` + client + `","client-key":"` + client + `"}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`
	for path, content := range map[string]string{
		client: string(pair.Cert) + string(pair.Key), filepath.Join(dataDir, "kubelet/kubeconfig"): kubeconfig, filepath.Join(dataDir, "kubelet/servers.json"): `["10.0.0.1:6443","10.0.0.2:6443"]`,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	node, err := examinedNode(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	if node.Name != "host1" || !slices.Equal(node.Servers, []string{"10.0.0.1:6443", "10.0.0.2:6443"}) || node.KeyDir != string(keys) {
		t.Errorf("node %+v", node)
	}
	remote, err := node.Connect(node.Servers[1])
	if err != nil {
		t.Fatal(err)
	}
	if remote.Config.Host != "https://10.0.0.2:6443" || remote.Config.ServerName != serverName {
		t.Errorf("connection %+v", remote.Config)
	}
}
