package e2e

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"skiff/internal/pki"
	"skiff/test/cluster"
)

// TestReplaceControlPlane replaces upstream's API server by skiff's and that by upstream's again, on the same etcd and with the same keys, as
// docs/migration.md describes it for clusters of kubeadm.
func TestReplaceControlPlane(t *testing.T) {
	t.Parallel()
	etcd, url, err := cluster.Etcd(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Stop)
	dir, data := t.TempDir(), t.TempDir()
	keys := filepath.Join(dir, "pki")
	writeKubeadmKeys(t, keys)

	upstream, err := cluster.UpstreamAPI(dir, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	admin, err := upstream.Config()
	if err != nil {
		t.Fatal(err)
	}
	node := nodeConfig(t, keys, admin)
	first := useControlPlane(t, at(admin, upstream), "upstream")
	registerNode(t, at(node, upstream))
	upstream.Stop()

	own := filepath.Join(data, "data/pki")
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "service-account.key", "service-account.pub"} {
		content, err := os.ReadFile(filepath.Join(keys, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(own, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	skiff, err := cluster.Skiff(data, "--etcd-servers="+url, "--tls-cert-file="+filepath.Join(keys, "apiserver.crt"), "--tls-private-key-file="+filepath.Join(keys, "apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(skiff.Stop)
	checkToken(t, at(admin, skiff), first)
	checkConfigMaps(t, at(admin, skiff), "upstream")
	renewLease(t, at(node, skiff))
	second := useControlPlane(t, at(admin, skiff), "skiff")
	skiff.Stop()

	upstream, err = cluster.UpstreamAPI(dir, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)
	checkToken(t, at(admin, upstream), first)
	checkToken(t, at(admin, upstream), second)
	checkConfigMaps(t, at(admin, upstream), "skiff", "upstream")
	renewLease(t, at(node, upstream))
}

// writeKubeadmKeys writes a CA and a service account key as kubeadm makes them: RSA keys in PKCS #1.
func writeKubeadmKeys(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newKey := func() *rsa.PrivateKey {
		t.Helper()
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	ca := newKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(0), Subject: pkix.Name{CommonName: "kubernetes"}, DNSNames: []string{"kubernetes"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10 * 365 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.Public(), ca)
	if err != nil {
		t.Fatal(err)
	}
	write("ca.crt", "CERTIFICATE", der)
	write("ca.key", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(ca))
	accounts := newKey()
	write("service-account.key", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(accounts))
	public, err := x509.MarshalPKIXPublicKey(accounts.Public())
	if err != nil {
		t.Fatal(err)
	}
	write("service-account.pub", "PUBLIC KEY", public)
}

// at is a client's configuration for another API server of the same cluster.
func at(config *rest.Config, c *cluster.Cluster) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = c.URL
	return config
}

const nodeName = "worker"

// nodeConfig is the configuration of a node whose certificate the cluster's CA has signed.
func nodeConfig(t *testing.T, keys string, admin *rest.Config) *rest.Config {
	t.Helper()
	ca, err := pki.Dir(keys).CA("ca", "kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.Leaf{CommonName: "system:node:" + nodeName, Organizations: []string{"system:nodes"}, Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(admin)
	config.CertFile, config.KeyFile = "", ""
	config.CertData, config.KeyData = pair.Cert, pair.Key
	return config
}

func registerNode(t *testing.T, config *rest.Config) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(config)
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The server makes the namespace soon after it has started.
	eventually(t.Context(), t, "the lease is created", func(ctx context.Context) (bool, error) {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
		_, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{})
		return isStarted(err)
	})
}

// isStarted interprets the error of a write, which a server that has not made its namespaces yet returns.
func isStarted(err error) (bool, error) {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	return err == nil, err
}

// renewLease does what a kubelet does every ten seconds, and tries what no node may do.
func renewLease(t *testing.T, config *rest.Config) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(config)
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now := metav1.NowMicro()
	lease.Spec.RenewTime = &now
	if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Errorf("renew the lease of a node: %v", err)
	}
	if _, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node lists secrets: %v", err)
	}
}

// useControlPlane writes a config map and returns a token of a service account.
func useControlPlane(t *testing.T, config *rest.Config, name string) (token string) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(config)
	// The server makes the namespace soon after it has started.
	eventually(t.Context(), t, "a config map is created", func(ctx context.Context) (bool, error) {
		written := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"written": "yes"}}}
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, written, metav1.CreateOptions{})
		return isStarted(err)
	})
	accounts := client.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	request, err := accounts.CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// checkToken checks that a token authenticates its service account.
func checkToken(t *testing.T, config *rest.Config, token string) {
	t.Helper()
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Errorf("%s: the token is of %q, %v", config.Host, review.Status.UserInfo.Username, err)
	}
}

// checkConfigMaps checks what the control planes of a cluster have written.
func checkConfigMaps(t *testing.T, config *rest.Config, want ...string) {
	t.Helper()
	list, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: "written=yes"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, item := range list.Items {
		got = append(got, item.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has the config maps %q, want %q", config.Host, got, want)
	}
}
