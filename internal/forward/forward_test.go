package forward

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// recorder records the status codes of a response in order.
type recorder struct {
	*httptest.ResponseRecorder
	codes []int
}

func (r *recorder) WriteHeader(code int) {
	r.codes = append(r.codes, code)
	r.ResponseRecorder.WriteHeader(code)
}

// The client gets the final response of the other server, and what is already set in its header. Responses of status 1xx before it do not count.
func TestInterimResponses(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Body", string(body))
			w.WriteHeader(http.StatusTeapot)
		}))
		server.EnableHTTP2 = protocol == "HTTP/2.0"
		server.StartTLS()
		defer server.Close()
		to, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		w := &recorder{ResponseRecorder: httptest.NewRecorder()}
		w.Header().Set("Audit-Id", "7")
		r := httptest.NewRequestWithContext(t.Context(), "PUT", "/x", strings.NewReader("text"))
		r.Header.Set("Expect", "100-continue")
		if err := Request(w, r, to, server.Client().Transport); err != nil {
			t.Fatal(err)
		}
		if len(w.codes) != 1 || w.codes[0] != http.StatusTeapot || w.Header().Get("Audit-Id") != "7" || w.Header().Get("X-Body") != "text" {
			t.Errorf("%s: status codes %v, header %v", protocol, w.codes, w.Header())
		}
	}
}
