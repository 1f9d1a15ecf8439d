package authn

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"skiff/internal/kind"
	"skiff/internal/pki"
	"skiff/test/cluster"
)

var update = flag.Bool("update", false, "record upstream's tokens again; starts an upstream API server")

const recordingFile = "testdata/upstream.json"

// recording has the tokens and documents of an upstream API server, and its reviews of the tokens.
type recording struct {
	Issuer, Address     string
	PublicKey           string
	Configuration, Keys string
	ConfigurationHeader map[string]string
	KeysHeader          map[string]string
	Account             corev1.ServiceAccount
	Pod                 corev1.Pod
	Node                corev1.Node
	Secret              corev1.Secret
	Tokens              []recordedToken
}

type recordedToken struct {
	Name    string
	Request authenticationv1.TokenRequest
	Review  authenticationv1.TokenReviewStatus
}

// TestUpstreamTokens compares issued tokens, reviews and discovery documents with upstream's.
func TestUpstreamTokens(t *testing.T) {
	if *update {
		record(t)
	}
	data, err := os.ReadFile(recordingFile)
	if err != nil {
		t.Fatal(err)
	}
	var r recording
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sa.pub")
	if err := os.WriteFile(file, []byte(r.PublicKey), 0o600); err != nil {
		t.Fatal(err)
	}
	public, err := pki.ReadPublicKeys(file)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := NewKeys(public[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Run("discovery", func(t *testing.T) { checkUpstreamDiscovery(t, &r, keys) })
	for _, token := range r.Tokens {
		t.Run(token.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkUpstreamToken(t, &r, &token, keys) })
		})
	}
}

func checkUpstreamDiscovery(t *testing.T, r *recording, keys *Keys) {
	d, err := NewDiscovery(r.Issuer, "", r.Address, keys)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		body   string
		header map[string]string
	}{OpenIDConfigurationPath: {r.Configuration, r.ConfigurationHeader}, JWKSPath: {r.Keys, r.KeysHeader}} {
		w := newResponse()
		d.ServeHTTP(w, mustRequest(t, path))
		if w.body.String() != want.body {
			t.Errorf("%s:\n got %s\nwant %s", path, w.body.String(), want.body)
		}
		for name, value := range want.header {
			if got := w.header.Get(name); got != value {
				t.Errorf("%s: %s is %q, want %q", path, name, got, value)
			}
		}
	}
}

func checkUpstreamToken(t *testing.T, r *recording, token *recordedToken, keys *Keys) {
	header, want := decodeToken(t, token.Request.Status.Token)
	issuedAt := time.Unix(int64(want["iat"].(float64)), 0)
	time.Sleep(time.Until(issuedAt))

	objects := newObjects(&r.Account, &r.Pod, &r.Node, &r.Secret)
	accounts, err := NewServiceAccounts(ServiceAccountsConfig{Issuers: []string{r.Issuer}, Keys: keys, Objects: objects})
	if err != nil {
		t.Fatal(err)
	}
	authenticators, err := New(Config{Audiences: []string{r.Issuer}, ServiceAccounts: accounts})
	if err != nil {
		t.Fatal(err)
	}
	user, audiences, ok, err := authenticators.AuthenticateToken(t.Context(), token.Request.Status.Token, token.Request.Spec.Audiences)
	if err != nil || !ok {
		t.Fatalf("upstream's token: %v, %v", ok, err)
	}
	if !reflect.DeepEqual(user, token.Review.User) || !reflect.DeepEqual(audiences, token.Review.Audiences) {
		t.Errorf("user\n %+v %q, upstream says\n %+v %q", user, audiences, token.Review.User, token.Review.Audiences)
	}

	issuer, err := NewIssuer(IssuerConfig{Issuer: r.Issuer, Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	c := kind.TokenClaims{ServiceAccount: &r.Account, Audiences: token.Request.Spec.Audiences, ExpirationSeconds: *token.Request.Spec.ExpirationSeconds}
	if ref := token.Request.Spec.BoundObjectRef; ref != nil {
		switch ref.Kind {
		case "Pod":
			c.Pod, c.Node = &r.Pod, &r.Node
		case "Node":
			c.Node = &r.Node
		case "Secret":
			c.Secret = &r.Secret
		}
	}
	ours, _, err := issuer.IssueToken(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	ourHeader, got := decodeToken(t, ours)
	id, err := keyID(testKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	ourHeader, header = strings.Replace(ourHeader, id, "KEY", 1), strings.Replace(header, keys.set.Load().Keys[0].KeyID, "KEY", 1)
	if ourHeader != header {
		t.Errorf("header %s, upstream's is %s", ourHeader, header)
	}
	if got["jti"] = want["jti"]; !reflect.DeepEqual(got, want) {
		t.Errorf("claims\n %v, upstream's are\n %v", got, want)
	}
}

func decodeToken(t *testing.T, token string) (header string, claims map[string]any) {
	t.Helper()
	parts := strings.Split(token, ".")
	h, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err != nil {
		t.Fatal(err)
	}
	c, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(c, &claims); err != nil {
		t.Fatal(err)
	}
	return string(h), claims
}

// record starts an upstream API server and requests tokens.
func record(t *testing.T) {
	dir := t.TempDir()
	up, err := cluster.UpstreamAPI(dir, "", "--disable-admission-plugins=ServiceAccount")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Stop()
	config, err := up.Config()
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{t: t, client: client, url: up.URL}
	r := &recording{Issuer: "https://kubernetes.default.svc.cluster.local"}
	public, err := os.ReadFile(filepath.Join(dir, "pki/service-account.pub"))
	if err != nil {
		t.Fatal(err)
	}
	r.PublicKey = string(public)
	r.Configuration, r.ConfigurationHeader = u.get(OpenIDConfigurationPath)
	r.Keys, r.KeysHeader = u.get(JWKSPath)
	var configuration struct {
		KeysURL string `json:"jwks_uri"`
	}
	if err := json.Unmarshal([]byte(r.Configuration), &configuration); err != nil {
		t.Fatal(err)
	}
	r.Address = strings.TrimSuffix(strings.TrimPrefix(configuration.KeysURL, "https://"), JWKSPath)

	named := metav1.ObjectMeta{Name: "robot"}
	u.post("/api/v1/nodes", &corev1.Node{ObjectMeta: named}, &r.Node)
	u.post("/api/v1/namespaces/default/serviceaccounts", &corev1.ServiceAccount{ObjectMeta: named}, &r.Account)
	u.post("/api/v1/namespaces/default/secrets", &corev1.Secret{ObjectMeta: named}, &r.Secret)
	u.post("/api/v1/namespaces/default/pods", &corev1.Pod{ObjectMeta: named, Spec: corev1.PodSpec{
		ServiceAccountName: "robot", NodeName: "robot", Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}, &r.Pod)
	for _, request := range []struct {
		name, kind string
		audiences  []string
		seconds    int64
	}{
		{name: "plain", seconds: 3600},
		{name: "pod", kind: "Pod", seconds: 3600},
		{name: "mounted", kind: "Pod", seconds: mountedExpiration},
		{name: "mounted for another", kind: "Pod", seconds: mountedExpiration, audiences: []string{"vault", "other"}},
		{name: "node", kind: "Node", seconds: 600},
		{name: "secret", kind: "Secret", seconds: 7200},
		{name: "other audience", audiences: []string{"vault"}, seconds: 600},
	} {
		body := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: request.audiences, ExpirationSeconds: &request.seconds}}
		if request.kind != "" {
			body.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: request.kind, APIVersion: "v1", Name: "robot"}
		}
		token := recordedToken{Name: request.name}
		u.post("/api/v1/namespaces/default/serviceaccounts/robot/token", body, &token.Request)
		var review authenticationv1.TokenReview
		u.post("/apis/authentication.k8s.io/v1/tokenreviews", &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token.Request.Status.Token, Audiences: request.audiences},
		}, &review)
		token.Review = review.Status
		r.Tokens = append(r.Tokens, token)
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recordingFile, append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

type upstream struct {
	t      *testing.T
	client *http.Client
	url    string
}

func (u *upstream) get(path string) (string, map[string]string) {
	u.t.Helper()
	response, err := u.client.Get(u.url + path)
	if err != nil {
		u.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		u.t.Fatalf("%s: %s %v", path, response.Status, err)
	}
	return string(body), map[string]string{"Content-Type": response.Header.Get("Content-Type"), "Cache-Control": response.Header.Get("Cache-Control")}
}

func (u *upstream) post(path string, body, into any) {
	u.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		u.t.Fatal(err)
	}
	response, err := u.client.Post(u.url+path, "application/json", bytes.NewReader(data))
	if err != nil {
		u.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s: %s", response.Status, answer)
	}
	if err == nil {
		err = json.Unmarshal(answer, into)
	}
	if err != nil {
		u.t.Fatalf("%s: %v", path, err)
	}
}
