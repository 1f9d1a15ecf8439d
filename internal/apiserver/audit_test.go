package apiserver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"skiff/internal/apiserver/audit"
	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

// audited is a server that records everything, and a function that reads what was recorded since it was last called.
func audited(t *testing.T, policy string, change ...func(*Config)) (*testServer, func() []auditv1.Event) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+policy), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "audit.log")
	// In this mode an event is in the file before the request goes on.
	auditor, err := audit.New(audit.Config{PolicyFile: file, Log: audit.Log{Path: path, Format: "json", BackendOptions: audit.BackendOptions{Mode: audit.ModeBlockingStrict}}}, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	s := newTestServer(t, append(change, func(c *Config) { c.Audit = auditor })...)
	seen := 0
	return s, func() (events []auditv1.Event) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data[seen:])) {
			var e auditv1.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			events = append(events, e)
		}
		seen = len(data)
		return events
	}
}

func TestAuditOfImpersonation(t *testing.T) {
	s, events := audited(t, "rules: [{level: Metadata}]", func(c *Config) {
		c.Impersonate = func(r *http.Request, user authn.User) (authn.User, string, error) {
			return authn.User{Username: r.Header.Get("Impersonate-User"), Groups: []string{authn.GroupMasters}}, "impersonate:user-info", nil
		}
	})
	got := s.get("/api/v1/pods?access_token=s3cret", "Impersonate-User: bob", "Audit-Id: 1234", "User-Agent: me")
	if got.code != 200 || got.header.Get("Audit-Id") != "1234" {
		t.Fatalf("%d %v", got.code, got.header)
	}
	all := events()
	if len(all) != 2 || all[0].Stage != "RequestReceived" || all[0].ImpersonatedUser != nil {
		t.Fatalf("%+v", all)
	}
	e := all[1]
	if e.Stage != "ResponseComplete" || e.AuditID != "1234" || e.User.Username != "admin" || e.ImpersonatedUser.Username != "bob" ||
		e.AuthenticationMetadata.ImpersonationConstraint != "impersonate:user-info" || e.ResponseStatus.Code != 200 || e.Verb != "list" ||
		e.ObjectRef.Resource != "pods" || e.UserAgent != "me" || e.RequestURI != "/api/v1/pods?access_token=REDACTED" ||
		!slices.Equal(e.SourceIPs, []string{"127.0.0.1"}) || e.Annotations["authorization.k8s.io/decision"] != "allow" {
		t.Errorf("%+v", e)
	}
}

func TestAuditOfRefusals(t *testing.T) {
	s, events := audited(t, "rules: [{level: RequestResponse}]")
	s.get("/api/v1/pods", "Authorization: Bearer wrong")
	all := events()
	if len(all) != 1 || all[0].Stage != "ResponseStarted" || all[0].ResponseStatus.Code != 401 || all[0].User.Username != "" {
		t.Errorf("%+v", all)
	}
	s.get("/api/v1/pods", "Authorization: Bearer guest")
	all = events()
	if len(all) != 2 || all[1].ResponseStatus.Reason != "Forbidden" || all[1].Annotations["authorization.k8s.io/decision"] != "forbid" ||
		!strings.Contains(string(all[1].ResponseObject.Raw), `"kind":"Status"`) {
		t.Errorf("%+v", all)
	}
}

func TestAuditOfBodies(t *testing.T) {
	s, events := audited(t, "omitStages: [RequestReceived]\nomitManagedFields: true\nrules: [{level: RequestResponse}]")
	s.add("pods", pod("ns", "a", "node"))
	body := func() string {
		all := events()
		if len(all) != 1 || all[0].ResponseObject == nil {
			t.Fatalf("%+v", all)
		}
		return string(all[0].ResponseObject.Raw)
	}
	// Whatever the client gets, the log has JSON.
	var want corev1.Pod
	s.get("/api/v1/namespaces/ns/pods/a").into(&want)
	plain := body()
	for _, accept := range []string{"application/vnd.kubernetes.protobuf", "application/yaml"} {
		s.get("/api/v1/namespaces/ns/pods/a", "Accept: "+accept, "Accept-Encoding: gzip")
		var a, b any
		if got := body(); json.Unmarshal([]byte(plain), &a) != nil || json.Unmarshal([]byte(got), &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("%s: %s\nwant %s", accept, got, plain)
		}
	}
	var list corev1.PodList
	s.get("/api/v1/pods", "Accept: application/vnd.kubernetes.protobuf")
	if err := json.Unmarshal([]byte(body()), &list); err != nil || len(list.Items) != 1 || list.Kind != "PodList" {
		t.Errorf("%v %+v", err, list)
	}
	s.get("/api/v1/pods", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1")
	if got := body(); !strings.Contains(got, `"kind":"Table"`) {
		t.Error(got)
	}
	s.get("/version")
	if all := events(); len(all) != 1 || all[0].ResponseObject != nil || all[0].ObjectRef != nil {
		t.Errorf("%+v", all)
	}
}

func TestAuditOfPanics(t *testing.T) {
	s, events := audited(t, "rules: [{level: Metadata}]", func(c *Config) {
		c.Connectors = map[string]Connector{"pods/log": panics{}}
	})
	s.add("pods", pod("ns", "a", ""))
	if got := s.get("/api/v1/namespaces/ns/pods/a/log"); got.code != 500 {
		t.Errorf("%d", got.code)
	}
	all := events()
	if len(all) != 2 || all[1].Stage != "Panic" || all[1].ResponseStatus.Code != 500 || all[1].ResponseStatus.Message != "APIServer panic'd: oh" {
		t.Errorf("%+v", all)
	}
}

type panics struct{}

func (panics) Connect(http.ResponseWriter, *http.Request, *Connection) error { panic("oh") }

func TestAuditOfStreams(t *testing.T) {
	s, events := audited(t, "rules: [{level: RequestResponse}]")
	s.get("/api/v1/pods?watch=1&timeoutSeconds=1")
	var stages []string
	for _, e := range events() {
		stages = append(stages, string(e.Stage))
		if e.ResponseObject != nil {
			t.Error("a stream was recorded")
		}
	}
	if strings.Join(stages, " ") != "RequestReceived ResponseStarted ResponseComplete" {
		t.Error(stages)
	}
}

func TestSecretsAreNotRecorded(t *testing.T) {
	secrets := kind.Of(kind.Definition[*corev1.Secret]{
		GVK: corev1.SchemeGroupVersion.WithKind("Secret"), Plural: "secrets", Namespaced: true, List: &corev1.SecretList{},
	})
	s, events := audited(t, "rules: [{level: RequestResponse}]", func(c *Config) { c.Kinds = []*kind.Kind{secrets} })
	s.add("secrets", &corev1.Secret{ObjectMeta: testMeta("ns", "a", nil), Data: map[string][]byte{"k": []byte("hidden")}})
	s.get("/api/v1/namespaces/ns/secrets/a")
	s.get("/api/v1/secrets")
	for _, e := range events() {
		if e.Level != "Metadata" || e.ResponseObject != nil || e.RequestObject != nil {
			t.Errorf("%+v", e)
		}
	}
}
