package apiserver

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

// panickingSelector panics when it is applied.
type panickingSelector struct{ fields.Selector }

func (panickingSelector) Matches(fields.Fields) bool { panic("oh") }

func (s *testServer) countPanics() float64 {
	var m dto.Metric
	if err := s.metrics.panics.Write(&m); err != nil {
		s.t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// A panic in a read of a client in the same process is the error of that read, and ends nothing else.
func TestLocalPanics(t *testing.T) {
	s := newTestServer(t, func(c *Config) {
		c.Connectors = map[string]Connector{"pods/log": panicsAfterHeader{}}
	})
	local := s.Local(authn.User{Username: "admin", Groups: []string{authn.GroupMasters}})
	s.add("pods", pod("ns", "a", ""))
	pods := corev1.SchemeGroupVersion.WithResource("pods")

	before := s.countPanics()
	selector := panickingSelector{fields.OneTermEqualSelector("metadata.name", "a")}
	if _, _, err := local.List(t.Context(), pods, "", nil, selector); !apierrors.IsInternalError(err) {
		t.Errorf("List: %v", err)
	}
	yes := true
	if _, err := local.Watch(t.Context(), pods, "", &internalversion.ListOptions{FieldSelector: selector, SendInitialEvents: &yes}); !apierrors.IsInternalError(err) {
		t.Errorf("Watch: %v", err)
	}
	w, err := local.Watch(t.Context(), pods, "", &internalversion.ListOptions{FieldSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	s.change("pods", "ns", "a", func(obj kind.Object) { obj.SetLabels(map[string]string{"a": "b"}) })
	event, ok := <-w.ResultChan()
	status, _ := event.Object.(*metav1.Status)
	if !ok || event.Type != apiwatch.Error || status == nil || status.Code != http.StatusInternalServerError {
		t.Errorf("watch: %v", event)
	}
	if event, ok := <-w.ResultChan(); ok {
		t.Errorf("the watch continues with %v", event)
	}
	if n := s.countPanics() - before; n != 3 {
		t.Errorf("%v panics counted", n)
	}

	// A handler that panics after it has begun to respond must not end the process, nor look like a complete response.
	request, err := http.NewRequestWithContext(t.Context(), "GET", "http://local/api/v1/namespaces/ns/pods/a/log", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer admin")
	response, err := local.Transport().RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasPrefix(string(body), "begun") {
		t.Errorf("read %q, %v", body, err)
	}
}

type panicsAfterHeader struct{}

func (panicsAfterHeader) Connect(w http.ResponseWriter, _ *http.Request, _ *Connection) error {
	_, _ = io.WriteString(w, "begun")
	panic("oh")
}
