package doctor

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"skiff/internal/api"
	"skiff/internal/client"
)

// fakeServers are API servers with TLS that respond as long as they are not closed, and know the addresses of each other.
type fakeServers struct {
	all       []*httptest.Server
	addresses []string
}

// serve starts a server whose clock is ahead.
func (f *fakeServers) serve(t *testing.T, version string, ahead time.Duration) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"gitVersion":%q}`, version) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, "[+]ping ok\n[-]etcd failed: reason withheld\n")
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE etcd_server_has_leader gauge\netcd_server_has_leader 1\n")
	})
	mux.HandleFunc("/flagz", func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept"), "as=Flagz") {
			http.Error(w, "not acceptable", http.StatusNotAcceptable)
			return
		}
		fmt.Fprint(w, `{"flags":{"snapshot-schedule":"@daily"}}`)
	})
	mux.HandleFunc("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", func(w http.ResponseWriter, _ *http.Request) {
		list := discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}}
		for _, address := range f.addresses {
			host, port, _ := strings.Cut(address, ":")
			var number int32
			fmt.Sscan(port, &number)
			list.Items = append(list.Items, discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Port: &number}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{host}}}})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	})
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	f.all = append(f.all, s)
	f.addresses = append(f.addresses, s.Listener.Addr().String())
	return s
}

// cluster is the cluster as the kubeconfig of a server shows it.
func (f *fakeServers) cluster(t *testing.T, s *httptest.Server) Cluster {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	remote, err := client.New(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}, api.Scheme(), api.Named())
	if err != nil {
		t.Fatal(err)
	}
	return Cluster{Client: remote, ServerName: "example.com"} // a name of the certificate of package httptest
}

func TestSurvey(t *testing.T) {
	f := &fakeServers{}
	first := f.serve(t, "v1.37.1", 0)
	f.serve(t, "v1.37.1", time.Hour)
	down := f.serve(t, "v1.37.1", 0)
	down.Close()
	s := f.cluster(t, first).survey(t.Context())
	if len(s.servers) != 3 || len(s.responding()) != 2 || s.isOutside {
		t.Fatalf("survey %+v", s)
	}
	for _, one := range s.responding() {
		leader, ok := one.value(metricEtcdHasLeader)
		if one.version != "v1.37.1" || one.certificate == nil || len(one.failed) != 1 || one.flags["snapshot-schedule"] != "@daily" || leader != 1 || !ok {
			t.Errorf("server %+v", one)
		}
		wantAhead := time.Duration(0)
		if one.address == f.addresses[1] {
			wantAhead = time.Hour
		}
		if (one.ahead - wantAhead).Abs() > one.precision+time.Second {
			t.Errorf("%s is %v ahead, want %v", one.address, one.ahead, wantAhead)
		}
	}

}

// From outside only the load balancer of the kubeconfig is reached.
func TestSurveyFromOutside(t *testing.T) {
	f := &fakeServers{}
	first := f.serve(t, "v1.37.1", 0)
	for range 2 {
		f.serve(t, "v1.37.1", 0).Close()
	}
	f.addresses = f.addresses[1:]
	s := f.cluster(t, first).survey(t.Context())
	if len(s.servers) != 1 || !s.responds() || !s.isOutside {
		t.Errorf("survey %+v", s)
	}
}

// A server that accepts connections and does not respond is found in time.
func TestExamineHangingServer(t *testing.T) {
	unblock := make(chan struct{})
	hanging := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-unblock }))
	t.Cleanup(func() { close(unblock); hanging.Close() })
	report := (&fakeServers{}).cluster(t, hanging).Examine(t.Context(), time.Second)
	expect(t, report.Findings, "error: does not respond")
}
