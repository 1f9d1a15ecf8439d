package system

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/api/bootstrap"
	"skiff/internal/api/flowcontrol"
	"skiff/internal/apiserver/admission"
	"skiff/internal/config"
	"skiff/internal/kind"
)

// benchmarked are the filters that a benchmark enables.
type benchmarked struct{ rbac, admission, audit, fairness bool }

// benchmarkHandler is the whole API server without network and disk.
func benchmarkHandler(b *testing.B, with benchmarked) http.Handler {
	b.Helper()
	dir := b.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
		return path
	}
	c := config.DefaultServer()
	c.DataDir, c.BindAddress, c.NoNode = dir, "127.0.0.1", true
	c.Authentication.TokenFile = write("tokens.csv", "token,jane,1\n")
	c.Limits.PriorityAndFairness = with.fairness
	if !with.rbac {
		c.Authorization.Modes = []string{"AlwaysAllow"}
	}
	if !with.admission {
		c.Admission.Disable, _ = admission.Names()
	}
	if with.audit {
		c.Audit.PolicyFile = write("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n")
		c.Audit.Log.Path = os.DevNull
	}
	server, access := startAPIServer(b, c)
	if access.fairness != nil {
		mandatory, suggested := flowcontrol.Mandatory(), flowcontrol.Suggested()
		access.fairness.Configure(append(mandatory.PriorityLevels, suggested.PriorityLevels...), append(mandatory.FlowSchemas, suggested.FlowSchemas...))
	}
	for _, o := range []struct {
		resource schema.GroupResource
		object   kind.Object
	}{
		{schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "jane", Namespace: "default"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		}},
		{schema.GroupResource{Resource: "serviceaccounts"}, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}}},
	} {
		if err := bootstrap.Ensure(b.Context(), server.KindClient(), o.resource, o.object); err != nil {
			b.Fatal(err)
		}
	}
	return server.Handler()
}

// BenchmarkFilterChain is a create by a user without special rights, with each filter, with all of them and with none.
func BenchmarkFilterChain(b *testing.B) {
	for _, test := range []struct {
		name string
		with benchmarked
	}{
		{"none", benchmarked{}},
		{"rbac", benchmarked{rbac: true}},
		{"admission", benchmarked{admission: true}},
		{"audit", benchmarked{audit: true}},
		{"fairness", benchmarked{fairness: true}},
		{"all", benchmarked{true, true, true, true}},
	} {
		for _, what := range []string{"configmaps", "pods"} {
			b.Run(what+"/"+test.name, func(b *testing.B) {
				handler := benchmarkHandler(b, test.with)
				body := `{"metadata":{"name":"x%d","labels":{"app":"bench"}},"data":{"a":"b"}}`
				if what == "pods" {
					body = `{"metadata":{"name":"x%d","labels":{"app":"bench"}},"spec":{"automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}}`
				}
				b.ReportAllocs()
				began := processorTime(b)
				n := 0
				for b.Loop() {
					n++
					r := httptest.NewRequest("POST", "/api/v1/namespaces/default/"+what, io.NopCloser(bytes.NewBufferString(fmt.Sprintf(body, n))))
					r.Header.Set("Authorization", "Bearer token")
					r.Header.Set("Content-Type", "application/json")
					w := httptest.NewRecorder()
					if handler.ServeHTTP(w, r); w.Code != http.StatusCreated {
						b.Fatal(w.Code, w.Body.String())
					}
				}
				b.ReportMetric(float64(processorTime(b)-began)/float64(n), "cpu-ns/op")
			})
		}
	}
}

// processorTime is the CPU time of this process, which is a better measure than the clock on a busy host.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
