package attack

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"skiff/internal/webhook/webhooktest"
)

// hostileConversion is the server of conversion webhooks: the path names its behaviour.
type hostileConversion struct {
	*webhooktest.Server
	redirected atomic.Bool
	inFlight   atomic.Int64  // calls that hang
	released   chan struct{} // closed when they shall hang no longer
}

func (h *hostileConversion) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	review := func(objects string) {
		_, _ = io.WriteString(w, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{"uid":"x","result":{"status":"Success"},"convertedObjects":[`+objects+`]}}`)
	}
	switch req.URL.Path {
	case "/garbage":
		_, _ = io.WriteString(w, strings.Repeat("\xff{", 1000))
	case "/redirect":
		http.Redirect(w, req, h.URL+"/target", http.StatusTemporaryRedirect)
	case "/target":
		h.redirected.Store(true)
	case "/large":
		review(`"` + strings.Repeat("x", 100<<20) + `"`)
	case "/endless":
		for chunk := strings.Repeat(" ", 1<<20); req.Context().Err() == nil; {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	case "/hang":
		h.inFlight.Add(1)
		defer h.inFlight.Add(-1)
		select {
		case <-h.released:
		case <-req.Context().Done():
		}
	case "/nothing":
		review("")
	case "/another":
		review(`{"apiVersion":"example.com/v2","kind":"Other","metadata":{"name":"other"}}`)
	}
}

// A conversion webhook answers what is not a conversion. Reads in the other version fail with a Status, those in the stored version do not.
func TestHostileConversions(t *testing.T) {
	a := start(t, patient)
	h := &hostileConversion{}
	h.Server = webhooktest.NewServer(webhooktest.NewCA(t), h)
	before := a.usage()
	for _, test := range []struct{ name, want string }{
		{"garbage", "conversion webhook"}, {"redirect", "redirects are not followed"}, {"large", "too large"}, {"endless", "too large"},
		{"nothing", "conversion webhook"}, {"another", "conversion webhook"},
	} {
		a.defineConverted(test.name, h)
		path := "/apis/example.com/%s/namespaces/default/" + test.name + "s"
		if code, text := a.as("", http.MethodPost, fmt.Sprintf(path, "v1"), fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"C%s","metadata":{"name":"a"}}`, test.name)); code != http.StatusCreated {
			t.Fatalf("%s: %d %s", test.name, code, text)
		}
		for _, request := range []string{fmt.Sprintf(path, "v2") + "/a", fmt.Sprintf(path, "v2")} {
			if code, text := a.as("", http.MethodGet, request, ""); code != http.StatusInternalServerError || !strings.Contains(text, test.want) {
				t.Errorf("GET %s: code %d, want an error with %q: %.500s", request, code, test.want, text)
			}
		}
		if code, text := a.as("", http.MethodGet, fmt.Sprintf(path, "v1")+"/a", ""); code != http.StatusOK {
			t.Errorf("%s in the stored version: %d %s", test.name, code, text)
		}
	}
	if h.redirected.Load() {
		t.Error("a redirect was followed")
	}
	a.expectBoundedMemory()
	a.expectReleased(before)
}

// A conversion webhook does not respond. The requests that wait for it, and those that wait for the encoding that another one makes of the same object,
// hold no seats: another user is served.
func TestHangingConversion(t *testing.T) {
	a := start(t, patient)
	h := &hostileConversion{released: make(chan struct{})}
	h.Server = webhooktest.NewServer(webhooktest.NewCA(t), h)
	release := sync.OnceFunc(func() { close(h.released) })
	t.Cleanup(release)
	reader, other := a.user("reader"), a.user("other")
	a.defineConverted("hang", h)
	const path, objects, same, waiting = "/apis/example.com/%s/namespaces/default/hangs", 30, 600, 30
	for i := range objects {
		body := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Chang","metadata":{"name":"a%d"}}`, i)
		if code, text := a.as("", http.MethodPost, fmt.Sprintf(path, "v1"), body); code != http.StatusCreated {
			t.Fatalf("create: %d %s", code, text)
		}
	}
	before := a.usage()
	codes := make(chan int, objects+same)
	var sent sync.WaitGroup
	read := func(object int) {
		sent.Go(func() {
			code, _ := a.as(reader, http.MethodGet, fmt.Sprintf(path+"/a%d", "v2", object), "")
			codes <- code
		})
	}
	for i := range objects {
		read(i)
	}
	a.eventually(func() bool { return h.inFlight.Load() >= waiting }, func() string { return fmt.Sprintf("%d calls are in flight", h.inFlight.Load()) })
	for range same {
		read(0)
	}
	// The rest is rejected: a user may have a hundred requests that wait without seats.
	a.eventually(func() bool { return len(codes) >= same/2 }, func() string { return fmt.Sprintf("%d requests were rejected", len(codes)) })
	for range 50 {
		if code, body := a.as(other, http.MethodGet, "/api/v1/namespaces/default/configmaps/none", ""); code != http.StatusNotFound {
			t.Errorf("another user got %d %s", code, body)
		}
	}
	if n := h.inFlight.Load(); n < waiting {
		t.Errorf("the requests did not wait: %d calls are in flight", n)
	}
	release() // the responses are no reviews
	sent.Wait()
	close(codes)
	counts := map[int]int{}
	for code := range codes {
		counts[code]++
	}
	t.Logf("reads by code: %v", counts)
	if counts[http.StatusInternalServerError]+counts[http.StatusTooManyRequests] != objects+same {
		t.Errorf("reads succeeded without the webhook: %v", counts)
	}
	a.expectReleased(before)
}

// defineConverted creates a definition with two versions and a conversion webhook, and waits until it is served.
func (a *target) defineConverted(name string, h *hostileConversion) {
	a.t.Helper()
	const version = `{"name":"%s","served":true,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object"}}}`
	code, text := a.as("", http.MethodPost, definitionsPath, fmt.Sprintf(
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]ss.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":"%[1]ss","singular":"%[1]s","kind":"C%[1]s","listKind":"C%[1]sList"},"versions":[%[2]s,%[3]s],
		"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"%[4]s/%[1]s","caBundle":"%[5]s"}}}}}`,
		name, fmt.Sprintf(version, "v1", true), fmt.Sprintf(version, "v2", false), h.URL, base64.StdEncoding.EncodeToString(h.CABundle)))
	if code != http.StatusCreated {
		a.t.Fatalf("definition %s: %d %s", name, code, text)
	}
	a.eventually(func() bool {
		code, _ := a.as("", http.MethodGet, "/apis/example.com/v1/namespaces/default/"+name+"s", "")
		return code == http.StatusOK
	}, func() string { return "the definition is not served" })
}
