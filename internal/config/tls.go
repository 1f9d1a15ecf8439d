package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// TLS configures the certificates and the protocol with which the API is served, with upstream's meanings.
type TLS struct {
	// CertFile and KeyFile replace the certificate that the cluster's CA issues.
	CertFile, KeyFile string
	// SNI are certificates for certain names.
	SNI []NamedCert
	// MinVersion, CipherSuites and Curves are empty for Go's defaults, except that TLS 1.2 is the minimum.
	MinVersion   string
	CipherSuites []string
	Curves       []int32
}

// NamedCert are the files of a certificate, and the names it is for. Without names they are taken from the certificate.
type NamedCert struct {
	CertFile, KeyFile string
	Names             []string
}

// tlsVersions are the names of TLS versions.
var tlsVersions = map[string]uint16{
	"VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11, "VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13,
}

func (c *TLS) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.CertFile, "tls-cert-file", c.CertFile,
		"Path to the serving certificate, followed by its chain if any. Defaults to one of the cluster's CA. It is reloaded when it changes.")
	fs.StringVar(&c.KeyFile, "tls-private-key-file", c.KeyFile, "Path to the private key of --tls-cert-file.")
	fs.Var((*namedCerts)(&c.SNI), "tls-sni-cert-key",
		"Paths to a certificate and its key for clients that request certain names, as cert,key or cert,key:name,*.name. Can be repeated.")
	fs.StringVar(&c.MinVersion, "tls-min-version", c.MinVersion,
		"Minimum version of TLS: "+strings.Join(slices.Sorted(maps.Keys(tlsVersions)), ", ")+". Defaults to VersionTLS12.")
	fs.StringSliceVar(&c.CipherSuites, "tls-cipher-suites", c.CipherSuites, "Cipher suites of TLS 1.2, separated by commas. Defaults to Go's.")
	fs.Int32SliceVar(&c.Curves, "tls-curve-preferences", c.Curves, "Key exchanges to accept, as numbers of Go's tls.CurveID. Defaults to Go's.")
}

func (c *TLS) validate() error {
	var errs []error
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file: certificate and key are needed together"))
	}
	if _, err := c.Version(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.Suites(); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.CurveIDs(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Version is the minimum version of TLS.
func (c *TLS) Version() (uint16, error) {
	if c.MinVersion == "" {
		return tls.VersionTLS12, nil
	}
	version, ok := tlsVersions[c.MinVersion]
	if !ok {
		return 0, fmt.Errorf("unknown tls version %q", c.MinVersion)
	}
	return version, nil
}

// Suites are the cipher suites; nil means Go's default.
func (c *TLS) Suites() ([]uint16, error) {
	known := map[string]uint16{
		"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305":   tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	}
	for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		known[suite.Name] = suite.ID
	}
	var suites []uint16
	for _, name := range c.CipherSuites {
		id, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("--tls-cipher-suites: Cipher suite %s not supported or doesn't exist", name)
		}
		suites = append(suites, id)
	}
	return suites, nil
}

// CurveIDs are the accepted key exchanges; nil means Go's default.
func (c *TLS) CurveIDs() ([]tls.CurveID, error) {
	var curves []tls.CurveID
	for _, id := range c.Curves {
		curve := tls.CurveID(id)
		switch {
		case id <= 0 || id > math.MaxUint16:
			return nil, fmt.Errorf("curve preference %d is out of range (must be 1-%d)", id, math.MaxUint16)
		case slices.Contains(curves, curve):
			return nil, fmt.Errorf("duplicate curve preference %d", id)
		case strings.HasPrefix(curve.String(), "CurveID("):
			return nil, fmt.Errorf("curve preference %d is not supported by the current Go version", id)
		}
		curves = append(curves, curve)
	}
	return curves, nil
}

// InsecureSuites are those of the cipher suites that have known weaknesses.
func (c *TLS) InsecureSuites() []string {
	var insecure []string
	for _, suite := range tls.InsecureCipherSuites() {
		if slices.Contains(c.CipherSuites, suite.Name) {
			insecure = append(insecure, suite.Name)
		}
	}
	return insecure
}

// namedCerts is a flag that can be repeated, each time with one NamedCert.
type namedCerts []NamedCert

// String implements pflag.Value.
func (l *namedCerts) String() string {
	return strings.Join(l.values(), ";")
}

// values are the texts that Set was called with.
func (l *namedCerts) values() []string {
	var texts []string
	for _, cert := range *l {
		text := cert.CertFile + "," + cert.KeyFile
		if len(cert.Names) > 0 {
			text += ":" + strings.Join(cert.Names, ",")
		}
		texts = append(texts, text)
	}
	return texts
}

// Type implements pflag.Value; the help shows it.
func (*namedCerts) Type() string { return "namedCertKey" }

// Set implements pflag.Value.
func (l *namedCerts) Set(text string) error {
	files, names, named := strings.Cut(text, ":")
	if named && strings.TrimSpace(names) == "" {
		return errors.New("empty names list is not allowed")
	}
	certFile, keyFile, ok := strings.Cut(files, ",")
	if !ok || strings.Contains(keyFile, ",") {
		return errors.New("expected comma separated certificate and key file paths")
	}
	cert := NamedCert{CertFile: strings.TrimSpace(certFile), KeyFile: strings.TrimSpace(keyFile)}
	if named {
		for name := range strings.SplitSeq(names, ",") {
			cert.Names = append(cert.Names, strings.TrimSpace(name))
		}
	}
	*l = append(*l, cert)
	return nil
}
