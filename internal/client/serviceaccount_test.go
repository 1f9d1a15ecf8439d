package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"skiff/internal/api"
)

// fakeTokenServer is a fake API server with service accounts and tokens t1, t2 and so on.
type fakeTokenServer struct {
	life     time.Duration
	refuses  int // status code of token requests
	has      []string
	mu       sync.Mutex
	asked    []string
	tokens   int
	bearer   []string // other requests
	rejected string   // a rejected token
}

func (s *fakeTokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := func(code int, obj any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(obj)
	}
	status := func(code int, reason metav1.StatusReason) {
		answer(code, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(code), Reason: reason})
	}
	const account = "/api/v1/namespaces/kube-system/serviceaccounts/robot"
	path := r.URL.Path
	if !strings.HasPrefix(path, "/api/v1/namespaces/kube-system/serviceaccounts") && path != "/api/v1/namespaces" && path != "/api/v1/namespaces/kube-system" {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if s.bearer = append(s.bearer, token); token == s.rejected {
			status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
			return
		}
		answer(http.StatusOK, corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}})
		return
	}
	s.asked = append(s.asked, r.Method+" "+path)
	switch {
	case path == account+"/token" && s.refuses > 0:
		status(s.refuses, metav1.StatusReasonForbidden)
	case path == account+"/token":
		s.tokens++
		answer(http.StatusCreated, authenticationv1.TokenRequest{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
			Status: authenticationv1.TokenRequestStatus{Token: fmt.Sprint("t", s.tokens), ExpirationTimestamp: metav1.NewTime(time.Now().Add(s.life))}})
	case r.Method == http.MethodGet && slices.Contains(s.has, path):
		answer(http.StatusOK, corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}})
	case r.Method == http.MethodGet:
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
	case slices.Contains(s.has, "POST "+path): // created concurrently
		status(http.StatusConflict, metav1.StatusReasonAlreadyExists)
	default:
		answer(http.StatusCreated, corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}})
	}
}

// RoundTrip responds without a network, so that the test can run in a synctest bubble.
func (s *fakeTokenServer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result(), nil
}

const (
	robotPath = "/api/v1/namespaces/kube-system/serviceaccounts/robot"
	namespace = "/api/v1/namespaces/kube-system"
)

func newTokenSource(t *testing.T, s *fakeTokenServer) *tokenSource {
	t.Helper()
	owner, err := New(&rest.Config{Host: "http://server", Transport: s}, api.Scheme(), api.Named())
	if err != nil {
		t.Fatal(err)
	}
	return &tokenSource{client: owner, namespace: "kube-system", name: "robot"}
}

func TestAccountsAreMade(t *testing.T) {
	get, make, token := "GET "+robotPath, "POST "+strings.TrimSuffix(robotPath, "/robot"), "POST "+robotPath+"/token"
	for _, test := range []struct {
		what    string
		has     []string
		refuses int
		asked   []string
		err     string
	}{
		{"it is there", []string{robotPath}, 0, []string{get, token}, ""},
		{"it is missing", []string{namespace}, 0, []string{get, "GET " + namespace, make, token}, ""},
		{"its namespace is missing, too", nil, 0, []string{get, "GET " + namespace, "POST /api/v1/namespaces", make, token}, ""},
		{"somebody else makes it", []string{namespace, make}, 0, []string{get, "GET " + namespace, make, token}, ""},
		{"no token is given", []string{robotPath}, 403, []string{get, token}, "request token of service account kube-system/robot: "},
	} {
		s := &fakeTokenServer{life: time.Hour, has: test.has, refuses: test.refuses}
		got, err := newTokenSource(t, s).token(t.Context())
		if (err == nil) != (test.err == "") || err != nil && !strings.HasPrefix(err.Error(), test.err) || err == nil && got != "t1" {
			t.Errorf("%s: %q, %v", test.what, got, err)
		}
		if !slices.Equal(s.asked, test.asked) {
			t.Errorf("%s: asked %q, want %q", test.what, s.asked, test.asked)
		}
	}
}

// TestTokensAreRenewed after four fifths of their lifetime.
func TestTokensAreRenewed(t *testing.T) {
	for _, test := range []struct {
		life time.Duration
		at   time.Duration
		want string
	}{
		{time.Hour, 0, "t1"}, {time.Hour, 48*time.Minute - 1, "t1"}, {time.Hour, 48 * time.Minute, "t2"}, {time.Hour, 5 * time.Hour, "t2"},
		{10 * time.Minute, 7 * time.Minute, "t1"}, {10 * time.Minute, 8 * time.Minute, "t2"},
		// With clock skew, a token may seem to be expired immediately.
		{-time.Minute, 8*time.Minute - 1, "t1"}, {-time.Minute, 8 * time.Minute, "t2"},
		{24 * time.Hour, 19 * time.Hour, "t1"}, {24 * time.Hour, 20 * time.Hour, "t2"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newTokenSource(t, &fakeTokenServer{life: test.life, has: []string{robotPath}})
			if first, err := a.token(t.Context()); err != nil || first != "t1" {
				t.Fatalf("%q, %v", first, err)
			}
			time.Sleep(test.at)
			if got, err := a.token(t.Context()); err != nil || got != test.want {
				t.Errorf("a life of %s, after %s: %q, %v; want %q", test.life, test.at, got, err, test.want)
			}
		})
	}
}

// TestRequestsAsAnAccount: every request has the token, and a rejected token is not used again.
func TestRequestsAsAnAccount(t *testing.T) {
	s := &fakeTokenServer{life: time.Hour, has: []string{robotPath}}
	http := httptest.NewServer(s)
	defer http.Close()
	owner, err := New(&rest.Config{Host: http.URL, BearerToken: "owner"}, api.Scheme(), api.Named())
	if err != nil {
		t.Fatal(err)
	}
	as, err := owner.AsServiceAccount("kube-system", "robot")
	if err != nil {
		t.Fatal(err)
	}
	if as.Config.UserAgent != "skiff/system:serviceaccount:kube-system:robot" || as.Config.BearerToken != "" {
		t.Errorf("it is called %s and carries %q", as.Config.UserAgent, as.Config.BearerToken)
	}
	read := func(c *Client) error {
		_, err := For[*corev1.ConfigMap](c).Get(t.Context(), "default", "x")
		return err
	}
	for range 2 {
		if err := read(as); err != nil {
			t.Fatal(err)
		}
	}
	s.rejected = "t1"
	if err := read(as); err == nil {
		t.Error("a refusal is no error")
	}
	for _, c := range []*Client{as, owner} {
		if err := read(c); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"t1", "t1", "t1", "t2", "owner"}; !slices.Equal(s.bearer, want) {
		t.Errorf("tokens %q, want %q", s.bearer, want)
	}
	s.refuses, s.rejected = 403, "t2"
	_ = read(as) // rejected
	body := &closed{Reader: strings.NewReader("x")}
	holder := tokenTransport{base: s, tokens: &tokenSource{client: owner, namespace: "kube-system", name: "robot"}}
	request := httptest.NewRequest("POST", "/x", body)
	if _, err := holder.RoundTrip(request); err == nil || !body.closed {
		t.Errorf("without a token: %v, the body is closed: %v", err, body.closed)
	}
}

type closed struct {
	io.Reader
	closed bool
}

func (c *closed) Close() error { c.closed = true; return nil }

func TestPartsOfTheServerHaveNoAccounts(t *testing.T) {
	if _, err := (&Client{local: struct{ Local }{}}).AsServiceAccount("kube-system", "robot"); err == nil {
		t.Error("it has one")
	}
}
