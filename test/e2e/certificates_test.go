package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/internal/pki"
	"skiff/test/cluster"
)

// runCert runs `skiff cert` on the directory of a cluster.
func runCert(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "bin/skiff"), append([]string{"cert", "--data-dir", filepath.Join(c.Dir, "data")}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("skiff cert %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// Every certificate a cluster needs exists after its first start, is listed, and is renewed on demand.
func TestCertificates(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	shown := runCert(t, c)
	for _, line := range []string{
		"ca CN=skiff-ca CN=skiff-ca", "front-proxy-ca CN=skiff-front-proxy-ca CN=skiff-front-proxy-ca", "etcd-ca CN=skiff-etcd-ca CN=skiff-etcd-ca", "apiserver CN=kube-apiserver CN=skiff-ca",
		"admin CN=admin,O=system:masters CN=skiff-ca", "apiserver-kubelet-client CN=kube-apiserver-kubelet-client,O=system:masters CN=skiff-ca", "front-proxy-client CN=front-proxy-client CN=skiff-front-proxy-ca",
		"etcd-server CN=skiff-etcd CN=skiff-etcd-ca", "etcd-client CN=kube-apiserver-etcd-client CN=skiff-etcd-ca",
	} {
		words := strings.Fields(line)
		found := false
		for row := range strings.SplitSeq(shown, "\n") {
			cells := strings.Fields(row)
			found = found || len(cells) > 2 && cells[0] == words[0] && cells[1] == words[1] && cells[2] == words[2]
		}
		if !found {
			t.Errorf("skiff cert does not show %q:\n%s", line, shown)
		}
	}
	directory := filepath.Join(c.Dir, "data/pki")
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	admin, serving := read("admin.crt"), read("apiserver.crt")
	if out := runCert(t, c, "renew", "admin"); out != "admin renewed\n" || read("admin.crt") == admin || read("apiserver.crt") != serving {
		t.Errorf("renewing one: %q", out)
	}
	if out := runCert(t, c, "renew", "all"); strings.Count(out, "renewed") < 6 || read("apiserver.crt") == serving {
		t.Errorf("renewing all: %q", out)
	}
	c.Stop()
	if c, err = cluster.Skiff(c.Dir); err != nil {
		t.Fatal(err)
	}
	if config, err := c.Config(); err != nil || string(config.CertData) != read("admin.crt") {
		t.Errorf("the kubeconfig does not hold the renewed certificate (%v)", err)
	}
}

// rotationClient trusts a CA pool and has a client certificate.
type rotationClient struct {
	name   string
	client *http.Client
	url    string
}

func newRotationClient(t *testing.T, c *cluster.Cluster, name string, caPEM []byte, pair pki.Pair) rotationClient {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(caPEM)
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }}
	return rotationClient{name, &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: time.Minute}, c.URL}
}

func (r rotationClient) check() error {
	res, err := r.client.Get(r.url + "/api/v1/namespaces")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return &http.ProtocolError{ErrorString: res.Status}
	}
	return nil
}

// The cluster's CA is rotated. Clients of the old CA and clients of the new CA both work until the old CA is dropped.
func TestCARotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, err := cluster.Skiff(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	directory := filepath.Join(dir, "data/pki")
	connect := func(name string) rotationClient {
		a, err := pki.ReadCA(filepath.Join(directory, "ca.crt"), filepath.Join(directory, "ca.key"))
		if err != nil {
			t.Fatal(err)
		}
		pair, err := a.Issue(pki.User(name, "system:masters"), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return newRotationClient(t, c, name, a.Cert, pair)
	}
	restart := func() {
		t.Helper()
		c.Stop()
		if c, err = cluster.Skiff(dir); err != nil {
			t.Fatal(err)
		}
	}
	old := connect("old")
	token := accountToken(t, c)

	if out := runCert(t, c, "rotate-ca", "ca"); !strings.Contains(out, "restart the server") {
		t.Errorf("rotate-ca says %q", out)
	}
	if err := old.check(); err != nil {
		t.Errorf("before the restart the old client: %v", err)
	}
	restart()
	fresh := connect("new")
	for _, r := range []rotationClient{old, fresh} {
		if err := r.check(); err != nil {
			t.Errorf("with both CAs, the %s client: %v", r.name, err)
		}
	}
	shown := runCert(t, c)
	if strings.Count(shown, "old, still trusted") != 2 || !strings.Contains(shown, "CN=skiff-ca@") {
		t.Errorf("skiff cert shows\n%s", shown)
	}
	// The new administrator's kubeconfig works, and so do tokens issued to service accounts before.
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clientset.NewForConfigOrDie(config).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the administrator: %v", err)
	}
	config.CertData, config.KeyData, config.BearerToken = nil, nil, token
	if _, err := clientset.NewForConfigOrDie(config).AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("an account: %v", err)
	}

	runCert(t, c, "forget-ca", "ca")
	restart()
	if err := fresh.check(); err != nil {
		t.Errorf("after the old CA is dropped, the new client: %v", err)
	}
	if err := old.check(); err == nil {
		t.Error("after the old CA is dropped, its clients still work")
	}
}

// Other programs reach the embedded etcd only with a certificate of etcd's own CA.
func TestEtcdCertificates(t *testing.T) {
	t.Parallel()
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := "https://127.0.0.1:" + strconv.Itoa(port)
	c, err := cluster.Skiff(t.TempDir(), "--etcd-listen-client-url="+address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	directory := filepath.Join(c.Dir, "data/pki")
	for _, test := range []struct {
		name, cert string
		good       bool
	}{{"etcd's client", "etcd-client", true}, {"the cluster's administrator", "admin", false}, {"nobody", "", false}} {
		config := &tls.Config{RootCAs: x509.NewCertPool()}
		data, err := os.ReadFile(filepath.Join(directory, "etcd-ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		config.RootCAs.AppendCertsFromPEM(data)
		if test.cert != "" {
			cert, err := tls.LoadX509KeyPair(filepath.Join(directory, test.cert+".crt"), filepath.Join(directory, test.cert+".key"))
			if err != nil {
				t.Fatal(err)
			}
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, TLS: config})
		if err != nil {
			t.Fatal(err)
		}
		timeout := 2 * time.Second // a client that etcd rejects tries again until then
		if test.good {
			timeout = time.Minute
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		_, err = client.Get(ctx, "/registry/namespaces/default")
		cancel()
		_ = client.Close()
		if (err == nil) != test.good {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// accountToken is a token of a service account.
func accountToken(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	must[*corev1.ServiceAccount](t)(k.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}))
	return must[*authenticationv1.TokenRequest](t)(k.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})).Status.Token
}
