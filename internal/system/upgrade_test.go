package system

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/upgrade"
	"skiff/internal/version"
)

// versioned is a server of a version on a data directory.
type versioned struct {
	config config.Server
	done   chan error
	stop   context.CancelFunc
}

// startVersion starts an API server of a version, and returns when it is ready or has ended.
func startVersion(t *testing.T, dataDir, skiff string) *versioned {
	t.Helper()
	c := config.DefaultServer()
	c.NoNode, c.Without, c.Disable = true, []string{config.ComponentControllers, config.ComponentScheduler}, []string{config.ClusterDNS}
	c.DataDir, c.BindAddress, c.SecurePort, c.LogLevel = dataDir, "127.0.0.1", 0, "error"
	s := &server{config: c, release: upgrade.Record{Release: upgrade.Release{Skiff: skiff, Kubernetes: version.Kubernetes}, Layout: upgrade.Layout}}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	v := &versioned{config: c, done: make(chan error, 1), stop: stop}
	go func() { v.done <- runServer(ctx, s) }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-v.done:
			v.done <- err
			return v
		default:
		}
		if status, err := get(t, dataDir, "/readyz"); err == nil && status == http.StatusOK {
			return v
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not ready", skiff)
		}
	}
}

// end stops the server and returns its error.
func (v *versioned) end() error {
	v.stop()
	return <-v.done
}

// stored are the config maps of a data directory's server, with their revisions.
func stored(t *testing.T, dataDir string) []string {
	t.Helper()
	list, _, err := client.For[*corev1.ConfigMap](dialAdmin(t, dataDir)).List(t.Context(), "default", client.Selector{})
	if err != nil {
		t.Fatal(err)
	}
	var objects []string
	for _, o := range list {
		objects = append(objects, o.Name+" "+string(o.UID)+" "+o.ResourceVersion+" "+o.Data["key"])
	}
	return objects
}

func dialAdmin(t *testing.T, dataDir string) *client.Client {
	t.Helper()
	remote, err := adminClient(dataDir, "")
	if err != nil {
		t.Fatal(err)
	}
	return remote
}

// TestUpgradeServer starts servers of several versions on one data directory: the next minor version has the same objects, and what is refused changes nothing.
func TestUpgradeServer(t *testing.T) {
	dataDir := t.TempDir()
	s := startVersion(t, dataDir, "v0.5.0")
	for _, name := range []string{"a", "b", "c"} {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"key": "value of " + name}}
		if _, err := client.For[*corev1.ConfigMap](dialAdmin(t, dataDir)).Create(t.Context(), object, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	before := stored(t, dataDir)
	if err := s.end(); err != nil || len(before) < 3 {
		t.Fatal(before, err)
	}
	for _, test := range []struct{ skiff, refused string }{
		{"v0.7.0", "start v0.6 on it first"},
		{"v0.4.0", "which the newer v0.5.0 has written: start v0.5 again, or restore a snapshot of v0.4"},
		{"v0.5.3", ""},
		{"v0.5.1", ""}, // back to a former patch
		{"v0.6.0", ""},
		{"v0.5.9", "start v0.6 again"},
		{"v0.6.0", ""},
	} {
		record, err := os.ReadFile(filepath.Join(dataDir, upgrade.File))
		if err != nil {
			t.Fatal(err)
		}
		s := startVersion(t, dataDir, test.skiff)
		if test.refused == "" {
			if after := stored(t, dataDir); !slices.Equal(after, before) {
				t.Errorf("%s: objects\n%v, want\n%v", test.skiff, after, before)
			}
			if err := s.end(); err != nil {
				t.Errorf("%s: %v", test.skiff, err)
			}
			if have, err := upgrade.ReadRecord(dataDir); err != nil || have.Skiff != test.skiff {
				t.Errorf("%s: recorded %v, %v", test.skiff, have, err)
			}
			continue
		}
		if err := s.end(); err == nil || !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%s: %v, want %q", test.skiff, err, test.refused)
		}
		if after, err := os.ReadFile(filepath.Join(dataDir, upgrade.File)); err != nil || string(after) != string(record) {
			t.Errorf("%s: recorded %s, %v", test.skiff, after, err)
		}
	}
	// Without the record, as in a directory with the etcd of another host, the cluster's own version counts.
	if err := os.Remove(filepath.Join(dataDir, upgrade.File)); err != nil {
		t.Fatal(err)
	}
	for skiff, want := range map[string]string{"v0.5.0": "start v0.6 on it", "v0.8.0": "its cluster has v0.6.0"} {
		if err := startVersion(t, dataDir, skiff).end(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", skiff, err, want)
		}
		if exists(dataDir, upgrade.File) {
			t.Errorf("%s was recorded", skiff)
		}
	}
}

// check runs `skiff upgrade --check`.
func check(t *testing.T, c config.Upgrade) (string, error) {
	t.Helper()
	c.Check = true
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err := CheckUpgrade(t.Context(), c, &out)
	return out.String(), err
}

// A check examines the data directory with and without a running server, and changes nothing.
func TestCheckUpgrade(t *testing.T) {
	c := config.DefaultUpgrade()
	c.DataDir = t.TempDir()
	if out, err := check(t, c); err == nil || !strings.Contains(err.Error(), "has no data of skiff") || out != "" {
		t.Errorf("an empty directory: %v\n%s", err, out)
	}
	own := version.Skiff()
	s := startVersion(t, c.DataDir, own)
	remote := dialAdmin(t, c.DataDir)
	if _, err := client.For[*corev1.Endpoints](remote).Get(t.Context(), "default", "none"); err == nil { // a deprecated API
		t.Fatal("there is an object")
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}}
	node.Status.NodeInfo.KubeletVersion = "v1.30.0"
	if _, err := client.For[*corev1.Node](remote).Create(t.Context(), node, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	before := fileNames(t, c.DataDir)
	out, err := check(t, c)
	if err == nil || !strings.Contains(err.Error(), "the upgrade would be refused: old has Kubernetes v1.30.0") {
		t.Errorf("%v", err)
	}
	for _, want := range []string{
		"from:   " + own, "to:     " + own, "data directory", " in layout 1\n", "1, the oldest has " + own, "v1 endpoints is requested by clients", "none was found, and only a snapshot leads back",
		"nothing is rewritten",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if after := fileNames(t, c.DataDir); !slices.Equal(after, before) {
		t.Errorf("files %v, want %v", after, before)
	}
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	out, err = check(t, c)
	if err != nil || !strings.Contains(out, "the running cluster, because the API server does not answer") || !strings.Contains(out, " in layout 1\n") {
		t.Errorf("without a server: %v\n%s", err, out)
	}
	c.Kubeconfig = filepath.Join(c.DataDir, adminKubeconfig)
	if _, err = check(t, c); err == nil || !strings.HasPrefix(err.Error(), "--kubeconfig: ") {
		t.Errorf("a kubeconfig of a server that does not run: %v", err)
	}
	newer := upgrade.Record{Release: upgrade.Release{Skiff: "v0.900.0", Kubernetes: version.Kubernetes}, Layout: 1}
	if err := newer.Write(c.DataDir); err != nil {
		t.Fatal(err)
	}
	c.Kubeconfig = ""
	if out, err = check(t, c); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("a newer data directory: %v\n%s", err, out)
	}
}

// fileNames are the names of the files in a directory that are not etcd's, whose number may change by itself.
func fileNames(t *testing.T, dir string) []string {
	t.Helper()
	return slices.DeleteFunc(readTree(t, dir), func(file string) bool { return strings.HasPrefix(file, "etcd/") })
}

// An agent refuses a server that is too many versions away, and data that it cannot use.
func TestAgentVersions(t *testing.T) {
	own := upgrade.Current()
	log := slog.New(slog.DiscardHandler)
	for gitVersion, want := range map[string]string{
		version.Info().GitVersion: "", version.Kubernetes: "", "v1.37.1+skiff.0.900.0": "upgrade the agent", "v1.30.0": "upgrade the servers first",
		"unknown": "",
	} {
		requests := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if requests++; gitVersion == "unknown" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"gitVersion":"`+gitVersion+`"}`)
		}))
		err := checkServerRelease(t.Context(), &rest.Config{Host: server.URL}, log)
		server.Close()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) || requests != 1 {
			t.Errorf("server %s: %v after %d requests, want %q", gitVersion, err, requests, want)
		}
	}
	dir := t.TempDir()
	for skiff, want := range map[string]string{own.Skiff: "", "v0.900.0": "drain the node"} {
		if err := (upgrade.Record{Release: upgrade.Release{Skiff: skiff, Kubernetes: own.Kubernetes}, Layout: own.Layout}).Write(dir); err != nil {
			t.Fatal(err)
		}
		err := admitAgent(dir, log)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("data of %s: %v, want %q", skiff, err, want)
		}
	}
	dir = t.TempDir()
	if err := admitAgent(dir, log); err != nil {
		t.Error(err)
	}
	if have, err := upgrade.ReadRecord(dir); err != nil || *have != own {
		t.Errorf("recorded %v, %v", have, err)
	}
}
