package system

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/internal/atomicfile"
	"skiff/internal/config"
	"skiff/internal/network/hostnet"
	"skiff/internal/pki"
)

// adminKubeconfig is the administrator's kubeconfig, below the data directory.
const adminKubeconfig = "admin.kubeconfig"

// frontProxyName is the common name of the client certificate that the server presents to aggregated API servers.
const frontProxyName = pki.FrontProxyClientName

// certificates are the keys and certificates of the server.
type certificates struct {
	ca *pki.CA
	// rootCAs verify the serving certificate.
	rootCAs []byte
	// clientCAs sign the client certificates of users: the cluster's CA and those of --client-ca-file.
	clientCAs *pki.CABundle
	// frontProxyCAs sign the client certificates of front proxies, which have one of frontProxyNames; without names, any.
	frontProxyCAs   *pki.CABundle
	frontProxyNames []string
	// signingKey signs service account tokens, verifyingKeys verify them.
	signingKey    crypto.Signer
	verifyingKeys []any
	serving       *tls.Config
	// kubelet is the TLS configuration of connections to kubelets.
	kubelet *tls.Config
	// proxyClient is the certificate that the server presents to aggregated API servers.
	proxyClient func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	// renewers renew the certificates while the server runs.
	renewers pki.Renewers
}

// newCertificates loads the keys and certificates in the data directory, creates those that are missing, and writes the admin kubeconfig.
func newCertificates(c config.APIServer, now time.Time, log *slog.Logger) (*certificates, error) {
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
	certs := &certificates{ca: ca, signingKey: signingKey, verifyingKeys: verifyingKeys}
	if err := certs.setClientCAs(c.Authentication, frontProxyCA, log); err != nil {
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
	if err := certs.setServing(c.TLS, serving, log); err != nil {
		return nil, err
	}
	if c.HTTP.DisableHTTP2 {
		certs.serving.NextProtos = []string{"http/1.1"}
	}
	if err := admin.OnRenew(func(pair pki.Pair) error { return writeAdminKubeconfig(c, certs.rootCAs, pair, log) }); err != nil {
		return nil, err
	}
	certs.renewers = append(etcd, serving, admin, kubeletClient, proxyClient)
	if err := certs.setProxyClient(c.Aggregation, proxyClient, log); err != nil {
		return nil, err
	}
	return certs, certs.setKubelet(c.KubeletClient, kubeletClient, log)
}

// setKubelet makes the TLS configuration of connections to kubelets: they present certificates of the cluster's CA or of those in a file, and
// the server its own client certificate or that of a file.
func (s *certificates) setKubelet(c config.KubeletClient, own *pki.Renewer, log *slog.Logger) error {
	cas, err := pki.ReadCABundle(c.CAFile, log, s.ca)
	if err != nil {
		return fmt.Errorf("--kubelet-certificate-authority: %w", err)
	}
	s.kubelet = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cas.Pool(), GetClientCertificate: own.GetClientCertificate}
	if c.CertFile != "" {
		files, err := pki.ReadCertFiles(c.CertFile, c.KeyFile, log)
		if err != nil {
			return fmt.Errorf("--kubelet-client-certificate: %w", err)
		}
		s.kubelet.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return files.GetCertificate(nil) }
	}
	return nil
}

// setProxyClient sets the client certificate for aggregated API servers: the server's own or that of a file.
func (s *certificates) setProxyClient(c config.Aggregation, own *pki.Renewer, log *slog.Logger) error {
	s.proxyClient = own.GetClientCertificate
	if c.CertFile == "" {
		return nil
	}
	files, err := pki.ReadCertFiles(c.CertFile, c.KeyFile, log)
	if err != nil {
		return fmt.Errorf("--proxy-client-cert-file: %w", err)
	}
	s.proxyClient = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return files.GetCertificate(nil) }
	return nil
}

// setClientCAs reads the CAs of client certificates.
func (s *certificates) setClientCAs(c config.Authentication, frontProxyCA *pki.CA, log *slog.Logger) (err error) {
	if s.clientCAs, err = pki.ReadCABundle(c.ClientCAFile, log, s.ca); err != nil {
		return fmt.Errorf("--client-ca-file: %w", err)
	}
	s.frontProxyNames = c.RequestHeader.AllowedNames
	if c.RequestHeader.CAFile == "" {
		if len(s.frontProxyNames) == 0 {
			s.frontProxyNames = []string{frontProxyName}
		}
		s.frontProxyCAs, err = pki.ReadCABundle("", log, frontProxyCA)
		return err
	}
	if s.frontProxyCAs, err = pki.ReadCABundle(c.RequestHeader.CAFile, log); err != nil {
		return fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	if len(s.frontProxyNames) == 0 && s.frontProxyCAs.Overlaps(s.clientCAs) {
		return errors.New("--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; --requestheader-allowed-names must be specified to ensure regular client certificates cannot set authenticating proxy headers for arbitrary users")
	}
	return nil
}

// setServing makes the TLS configuration of the API: with the certificates of the flags, or the one that the cluster's CA issues.
func (s *certificates) setServing(c config.TLS, own *pki.Renewer, log *slog.Logger) error {
	s.rootCAs = s.ca.Cert
	serving := own.GetChain
	if c.CertFile != "" {
		files, err := pki.ReadCertFiles(c.CertFile, c.KeyFile, log)
		if err != nil {
			return fmt.Errorf("--tls-cert-file: %w", err)
		}
		chain, err := files.Chain()
		if err != nil {
			return fmt.Errorf("--tls-cert-file: %w", err)
		}
		serving, s.rootCAs = servingFiles(files, own), appendRoots(s.rootCAs, chain)
	}
	var named []pki.SNICert
	for _, cert := range c.SNI {
		files, err := pki.ReadCertFiles(cert.CertFile, cert.KeyFile, log)
		if err != nil {
			return fmt.Errorf("--tls-sni-cert-key: %w", err)
		}
		named = append(named, pki.SNICert{Names: cert.Names, Files: files})
	}
	s.serving = pki.ServerTLS(pki.SelectCertificate(named, serving), s.clientCAs, s.frontProxyCAs)
	var err error
	if s.serving.MinVersion, err = c.Version(); err != nil {
		return err
	}
	if s.serving.CipherSuites, err = c.Suites(); err != nil {
		return err
	}
	if insecure := c.InsecureSuites(); len(insecure) > 0 {
		log.Warn("insecure cipher suites are enabled", "suites", insecure)
	}
	s.serving.CurvePreferences, err = c.CurveIDs()
	return err
}

// servingFiles serves the certificate of files. Nodes, which have only the cluster's CA, request the server's own by its name.
func servingFiles(files *pki.CertFiles, own *pki.Renewer) pki.GetCertificate {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == serverName {
			return own.GetChain(hello)
		}
		return files.GetCertificate(hello)
	}
}

// appendRoots appends the certificates of a chain that can be roots: CAs, and a certificate that signed itself.
func appendRoots(roots []byte, chain []*x509.Certificate) []byte {
	roots = slices.Clone(roots)
	for _, cert := range chain {
		if cert.IsCA || bytes.Equal(cert.RawIssuer, cert.RawSubject) {
			roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
		}
	}
	return roots
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

// etcdMemberName is the common name of the certificates with which members of etcd authenticate to each other.
const etcdMemberName = "skiff-etcd"

// etcdRenewers create and renew the certificates of etcd. It has a CA of its own, because clients of the cluster must not read its store.
func etcdRenewers(dir pki.Dir, addresses []net.IP, now time.Time) (pki.Renewers, error) {
	ca, err := dir.CA("etcd-ca", "skiff-etcd-ca", now)
	if err != nil {
		return nil, fmt.Errorf("etcd CA: %w", err)
	}
	member, err := dir.Renewer("etcd-server", ca, pki.EtcdMember(etcdMemberName, addresses))
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
	services, _ := c.ServiceCIDRs() // validated before
	if address, err := hostnet.PrimaryAddress(services...); err == nil && address.Is4() {
		return address.AsSlice()
	}
	return net.IPv4(127, 0, 0, 1)
}

// adminKubeconfigOf is the administrator's kubeconfig.
func adminKubeconfigOf(c config.APIServer, rootCAs []byte, admin pki.Pair) *clientcmdapi.Config {
	host := c.BindAddress
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["skiff"] = &clientcmdapi.Cluster{
		Server:                   "https://" + net.JoinHostPort(host, strconv.Itoa(c.SecurePort)),
		CertificateAuthorityData: rootCAs,
	}
	k.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: admin.Cert, ClientKeyData: admin.Key}
	k.Contexts["skiff"] = &clientcmdapi.Context{Cluster: "skiff", AuthInfo: "admin"}
	k.CurrentContext = "skiff"
	return k
}

// writeAdminKubeconfig writes the administrator's kubeconfig, now and when its certificate is renewed.
func writeAdminKubeconfig(c config.APIServer, rootCAs []byte, admin pki.Pair, log *slog.Logger) error {
	k := adminKubeconfigOf(c, rootCAs, admin)
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
	if c.MergeKubeconfig.Path == "" {
		return nil
	}
	// A server must not end because of a user's file.
	if err := mergeKubeconfig(c.MergeKubeconfig, k); err != nil {
		log.Warn("failed to merge the admin kubeconfig", "flag", "--merge-kubeconfig", "error", err)
	}
	return nil
}
