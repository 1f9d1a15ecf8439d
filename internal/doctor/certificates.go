package doctor

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"skiff/internal/client"
	"skiff/internal/pki"
)

const (
	// A certificate is reported as an error when it expires within certificateError, and as a warning within certificateWarning. CAs have to be rotated by hand, with
	// clients that have to be changed one by one, so they are reported earlier.
	certificateError, certificateWarning = 7 * 24 * time.Hour, 30 * 24 * time.Hour
	caError, caWarning                   = 30 * 24 * time.Hour, 180 * 24 * time.Hour
	// renewalGrace is how long after its time a renewal is late.
	renewalGrace = 24 * time.Hour
)

// certificate is one that somebody needs.
type certificate struct {
	// name says where it is, as people know it.
	name     string
	isCA     bool
	notAfter time.Time
	// renewAt is when skiff renews it; zero: it does not.
	renewAt time.Time
	// breaks is what fails without it.
	breaks, fix string
}

// certificateState is certificates at a time.
type certificateState struct {
	now          time.Time
	certificates []certificate
}

// decideCertificates is about certificates that expire.
func decideCertificates(s certificateState) (findings []Finding) {
	for _, c := range s.certificates {
		left := c.notAfter.Sub(s.now)
		errorBefore, warningBefore := certificateError, certificateWarning
		if c.isCA {
			errorBefore, warningBefore = caError, caWarning
		}
		isLate := !c.renewAt.IsZero() && s.now.After(c.renewAt.Add(renewalGrace))
		f := Finding{Severity: Warning, Breaks: c.breaks, When: on(c.notAfter, s.now), Fix: c.fix}
		switch {
		case left <= 0:
			f.Severity, f.Problem = Error, c.name+" has expired"
		case isLate:
			f.Problem = fmt.Sprintf("%s was to be renewed at %s and was not", c.name, timeText(c.renewAt))
			f.Fix = "read the log for \"failed to renew certificate\" and \"failed to obtain certificate\", and start skiff if it does not run; " + c.fix
		case left < warningBefore && c.renewAt.IsZero():
			f.Problem = c.name + " expires soon, and is not renewed by itself"
		default:
			continue
		}
		if left < errorBefore {
			f.Severity = Error
		}
		findings = append(findings, f)
	}
	return findings
}

// readKeys reads the certificates of a server on this host.
func (c Cluster) readKeys(context.Context) (certificateState, error) {
	entries, err := c.Keys.List()
	s := certificateState{now: time.Now()}
	for _, e := range entries {
		if e.IsCA && !e.Signing {
			continue // trusted until it expires, then of no use
		}
		one := certificate{
			name: "certificate " + e.Name, isCA: e.IsCA, notAfter: e.NotAfter, renewAt: e.RenewAt, breaks: "connections of this server that need it fail", fix: "skiff cert renew " + e.Name,
		}
		if e.IsCA {
			one.name, one.breaks, one.fix = "CA "+e.Name, "all certificates that it has signed are refused", "skiff cert rotate-ca "+e.Name+", as docs/certificates.md describes"
		}
		s.certificates = append(s.certificates, one)
	}
	return s, err
}

// latestRenewal is the part of a certificate's life after which every kubelet and server has renewed it.
const latestRenewal = 0.9

// renewedBySelf is when a certificate is renewed at the latest.
func renewedBySelf(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(time.Duration(float64(c.NotAfter.Sub(c.NotBefore)) * latestRenewal))
}

// readNodeKeys reads the certificates of a node that has joined.
func (n Node) readNodeKeys(context.Context) (certificateState, error) {
	s := certificateState{now: time.Now()}
	for _, file := range []struct{ name, breaks string }{
		{"ca.crt", "the node does not trust the API servers"},
		{"kubelet-client-current.pem", "the API servers do not let the node in: it is not ready, and its pods are moved"},
		{"kubelet-server-current.pem", "logs, exec and metrics of the node's pods fail"},
	} {
		path := filepath.Join(n.KeyDir, file.name)
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is requested when the node runs
		}
		if err != nil {
			return s, err
		}
		certs, err := pki.ParseCertificates(data)
		if err != nil {
			return s, fmt.Errorf("parse %s: %w", path, err)
		}
		one := certificate{name: path, isCA: certs[0].IsCA, notAfter: certs[0].NotAfter, breaks: file.breaks, fix: "remove the file and start skiff with a new token: docs/joining.md"}
		if one.isCA {
			one.fix = "rotate the CA on the server, as docs/certificates.md describes, and restart skiff on this host"
		} else {
			one.renewAt = renewedBySelf(certs[0])
		}
		s.certificates = append(s.certificates, one)
	}
	return s, nil
}

// decideServedCertificates is about what the servers present, and the client certificate of the kubeconfig.
func decideServedCertificates(s survey) []Finding {
	state := certificateState{now: s.now}
	for _, one := range s.responding() {
		if one.certificate != nil {
			state.certificates = append(state.certificates, certificate{
				name: "the serving certificate of " + one.address, notAfter: one.certificate.NotAfter, renewAt: renewedBySelf(one.certificate),
				breaks: "clients and nodes refuse to connect to it", fix: "skiff cert renew apiserver on its host; a certificate of --tls-cert-file is renewed by whoever wrote it",
			})
		}
	}
	if s.kubeconfig != nil {
		state.certificates = append(state.certificates, certificate{
			name: "the client certificate of the kubeconfig", notAfter: s.kubeconfig.NotAfter, breaks: "the kubeconfig cannot be used any more",
			fix: "copy admin.kubeconfig from the data directory of a server again: there it is renewed",
		})
	}
	return decideCertificates(state)
}

// request is a CertificateSigningRequest that waits.
type request struct {
	name, signer string
	created      time.Time
}

// requestState is the requests that wait.
type requestState struct {
	now     time.Time
	pending []request
}

// approvalGrace is how long a request waits before it is reported.
const approvalGrace = 5 * time.Minute

func (c Cluster) readRequests(ctx context.Context) (requestState, error) {
	s := requestState{now: time.Now()}
	err := client.For[*certificatesv1.CertificateSigningRequest](c.Client).EachPage(ctx, "", client.Selector{}, pageSize, func(page []*certificatesv1.CertificateSigningRequest) error {
		for _, r := range page {
			if len(r.Status.Conditions) == 0 {
				s.pending = append(s.pending, request{r.Name, r.Spec.SignerName, r.CreationTimestamp.Time})
			}
		}
		return nil
	})
	return s, err
}

// requestBreaks are what fails while requests of a signer wait.
var requestBreaks = map[string]string{
	certificatesv1.KubeAPIServerClientKubeletSignerName: "the nodes cannot join",
	certificatesv1.KubeletServingSignerName:             "logs, exec and metrics of pods on the nodes fail",
}

func decideRequests(s requestState) (findings []Finding) {
	bySigner := map[string][]string{}
	var signers []string
	for _, r := range s.pending {
		if s.now.Sub(r.created) < approvalGrace {
			continue
		}
		if bySigner[r.signer] == nil {
			signers = append(signers, r.signer)
		}
		bySigner[r.signer] = append(bySigner[r.signer], r.name)
	}
	slices.Sort(signers)
	for _, signer := range signers {
		breaks := requestBreaks[signer]
		if breaks == "" {
			breaks = "whoever requested them has no certificate"
		}
		findings = append(findings, Finding{
			Severity: Warning, Problem: fmt.Sprintf("%s for %s: %s", plural(len(bySigner[signer]), "request")+" waiting for approval", signer, some(bySigner[signer])), Breaks: breaks, When: whenNow,
			Fix: "kubectl describe csr says why; kubectl certificate approve NAME, or deny",
		})
	}
	return findings
}
