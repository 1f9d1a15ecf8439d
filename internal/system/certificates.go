package system

import (
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/internal/atomicfile"
	"skiff/internal/config"
	"skiff/internal/pki"
)

// adminKubeconfig is the administrator's kubeconfig, below the data directory.
const adminKubeconfig = "admin.kubeconfig"

// frontProxyName is the common name of the client certificate that the server presents to aggregated API servers.
const frontProxyName = pki.FrontProxyClientName

// certificates are the keys and certificates of the server.
type certificates struct {
	ca           *pki.CA
	frontProxyCA *pki.CA
	// signingKey signs service account tokens, verifyingKeys verify them.
	signingKey    crypto.Signer
	verifyingKeys []any
	serving       *tls.Config
	// kubeletClient is the client certificate that the server presents to kubelets.
	kubeletClient *pki.Renewer
	// renewers renew the certificates while the server runs.
	renewers pki.Renewers
}

// newCertificates loads the keys and certificates in the data directory, creates those that are missing, and writes the admin kubeconfig.
func newCertificates(c config.APIServer, now time.Time) (*certificates, error) {
	dir := pki.Dir(filepath.Join(c.DataDir, "pki"))
	ca, err := dir.CA("ca", "skiff-ca", now)
	if err != nil {
		return nil, fmt.Errorf("cluster CA: %w", err)
	}
	frontProxyCA, err := dir.CA("front-proxy-ca", "skiff-front-proxy-ca", now)
	if err != nil {
		return nil, fmt.Errorf("front-proxy CA: %w", err)
	}
	signingKey, verifyingKeys, err := serviceAccountKeys(c.Authentication.ServiceAccounts, dir)
	if err != nil {
		return nil, err
	}
	leaf, err := servingLeaf(c)
	if err != nil {
		return nil, err
	}
	serving, err := dir.Renewer("apiserver", ca, leaf)
	if err != nil {
		return nil, err
	}
	kubeletClient, err := dir.Renewer("apiserver-kubelet-client", ca, pki.KubeletClient())
	if err != nil {
		return nil, err
	}
	admin, err := dir.Renewer("admin", ca, pki.User("admin", "system:masters"))
	if err != nil {
		return nil, err
	}
	proxyClient, err := dir.Renewer("front-proxy-client", frontProxyCA, pki.FrontProxyClient())
	if err != nil {
		return nil, err
	}
	etcd, err := etcdRenewers(dir, leaf.IPs, now)
	if err != nil {
		return nil, err
	}
	if err := admin.OnRenew(func(pair pki.Pair) error { return writeAdminKubeconfig(c, ca, pair) }); err != nil {
		return nil, err
	}
	return &certificates{
		ca:            ca,
		frontProxyCA:  frontProxyCA,
		signingKey:    signingKey,
		verifyingKeys: verifyingKeys,
		serving:       pki.ServerTLS(serving, ca, frontProxyCA),
		kubeletClient: kubeletClient,
		renewers:      append(etcd, serving, admin, kubeletClient, proxyClient),
	}, nil
}

// serviceAccountKeys are the key that signs service account tokens and the keys that verify them, the signing key first.
func serviceAccountKeys(c config.ServiceAccountTokens, dir pki.Dir) (signing crypto.Signer, verifying []any, err error) {
	if c.SigningKeyFile == "" {
		if signing, err = dir.SigningKey("service-account"); err != nil {
			return nil, nil, fmt.Errorf("service-account key: %w", err)
		}
	} else if signing, err = pki.ReadSigner(c.SigningKeyFile); err != nil {
		return nil, nil, fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	verifying = []any{signing.Public()}
	for _, file := range c.KeyFiles {
		keys, err := pki.ReadPublicKeys(file)
		if err != nil {
			return nil, nil, fmt.Errorf("--service-account-key-file: %w", err)
		}
		for _, key := range keys {
			verifying = append(verifying, key)
		}
	}
	return signing, verifying, nil
}

// etcdRenewers create and renew the certificates of etcd. It has a CA of its own, because clients of the cluster must not read its store.
func etcdRenewers(dir pki.Dir, addresses []net.IP, now time.Time) (pki.Renewers, error) {
	ca, err := dir.CA("etcd-ca", "skiff-etcd-ca", now)
	if err != nil {
		return nil, fmt.Errorf("etcd CA: %w", err)
	}
	member, err := dir.Renewer("etcd-server", ca, pki.EtcdMember("skiff-etcd", addresses))
	if err != nil {
		return nil, err
	}
	client, err := dir.Renewer("etcd-client", ca, pki.EtcdClient())
	return pki.Renewers{member, client}, err
}

// etcdFiles are the CA, certificate and key with which the embedded etcd serves an https URL.
func etcdFiles(c config.APIServer) (ca, cert, key string, err error) {
	if e := &c.Etcd; e.CertFile != "" || e.CAFile != "" {
		if e.CAFile == "" {
			return "", "", "", errors.New("--etcd-cafile: required with --etcd-listen-client-url, because without it any client could read the store")
		}
		return e.CAFile, e.CertFile, e.KeyFile, nil
	}
	dir := filepath.Join(c.DataDir, "pki")
	return filepath.Join(dir, "etcd-ca.crt"), filepath.Join(dir, "etcd-server.crt"), filepath.Join(dir, "etcd-server.key"), nil
}

// servingLeaf is the serving certificate, with every name and address of the API server.
func servingLeaf(c config.APIServer) (pki.Leaf, error) {
	leaf := pki.Leaf{
		CommonName: "kube-apiserver",
		DNSNames:   []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + c.ClusterDomain},
		IPs:        []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		Server:     true,
	}
	if host, err := os.Hostname(); err == nil {
		leaf.DNSNames = append(leaf.DNSNames, host)
	}
	prefixes, err := c.ServiceCIDRs()
	if err != nil {
		return leaf, err
	}
	for _, p := range prefixes {
		leaf.IPs = append(leaf.IPs, net.IP(p.Addr().Next().AsSlice()))
	}
	for _, text := range []string{c.AdvertiseAddress, c.BindAddress} {
		if ip := net.ParseIP(text); ip != nil && !ip.IsUnspecified() {
			leaf.IPs = append(leaf.IPs, ip)
		}
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return leaf, fmt.Errorf("list the host's addresses: %w", err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			leaf.IPs = append(leaf.IPs, n.IP)
		}
	}
	return leaf, nil
}

// serverNames are the names and addresses of the API server.
func serverNames(c config.APIServer) ([]string, error) {
	leaf, err := servingLeaf(c)
	names := leaf.DNSNames
	for _, ip := range leaf.IPs {
		names = append(names, ip.String())
	}
	return names, err
}

// advertisedAddress is the address at which other members of the cluster reach the API.
func advertisedAddress(c config.APIServer) net.IP {
	for _, text := range []string{c.AdvertiseAddress, c.BindAddress} {
		if ip := net.ParseIP(text); ip != nil && !ip.IsUnspecified() {
			return ip
		}
	}
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			return n.IP
		}
	}
	return net.IPv4(127, 0, 0, 1)
}

func writeAdminKubeconfig(c config.APIServer, ca *pki.CA, admin pki.Pair) error {
	host := c.BindAddress
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["skiff"] = &clientcmdapi.Cluster{
		Server:                   "https://" + net.JoinHostPort(host, strconv.Itoa(c.SecurePort)),
		CertificateAuthorityData: ca.Cert,
	}
	k.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: admin.Cert, ClientKeyData: admin.Key}
	k.Contexts["skiff"] = &clientcmdapi.Context{Cluster: "skiff", AuthInfo: "admin"}
	k.CurrentContext = "skiff"
	paths := []string{filepath.Join(c.DataDir, adminKubeconfig)}
	if c.WriteKubeconfig != "" {
		paths = append(paths, c.WriteKubeconfig)
	}
	data, err := clientcmd.Write(*k)
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	for _, path := range paths {
		if err := atomicfile.Write(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
