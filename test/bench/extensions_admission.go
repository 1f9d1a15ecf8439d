package main

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/cert"
)

const (
	webhookCount = 3
	policyCount  = 20
	// admissionRounds alternate between creates with and without webhooks, so that other load on the host affects both.
	admissionRounds = 8
)

// allowing is a webhook that allows everything and counts its calls.
type allowing struct {
	*httptest.Server
	bundle []byte
	calls  atomic.Int64
}

func newAllowing() (*allowing, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	a := &allowing{bundle: certificate}
	a.Server = httptest.NewUnstartedServer(a)
	a.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	a.EnableHTTP2 = true
	a.StartTLS()
	return a, nil
}

func (a *allowing) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	a.calls.Add(1)
	var review struct {
		Request struct{ UID string } `json:"request"`
	}
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", jsonType)
	_, _ = io.WriteString(w, fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`, review.Request.UID))
}

const configMapsPath = "/api/v1/namespaces/default/configmaps"

// createMap creates a config map with a label.
func (e *extensions) createMap(query, name, label string) error {
	_, _, err := e.send(http.MethodPost, configMapsPath+query, fmt.Sprintf(
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{%q:"yes"}},"data":{"config.yaml":"level: info\nlisten: 127.0.0.1:8080\nworkers: 8\n"}}`, name, label))
	return err
}

// until waits until something is in force that the server reads in the background.
func until(what string, holds func() bool) error {
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New(what + ": waited in vain")
		}
	}
	return nil
}

// webhooks measures what three validating webhooks add to a create.
func (e *extensions) webhooks() error {
	hook, err := newAllowing()
	if err != nil {
		return err
	}
	defer hook.Close()
	const path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	for i := range webhookCount {
		if _, _, err := e.send(http.MethodPost, path, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"bench%[1]d"},
			"webhooks":[{"name":"bench%[1]d.example.com","sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{"url":"%[2]s/%[1]d","caBundle":"%[3]s"},
			"objectSelector":{"matchLabels":{"hooked":"yes"}},"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`,
			i, hook.URL, base64.StdEncoding.EncodeToString(hook.bundle))); err != nil {
			return err
		}
	}
	if err := until("all webhooks are called", func() bool {
		before := hook.calls.Load()
		return e.createMap("?dryRun=All", "probe", "hooked") == nil && hook.calls.Load() == before+webhookCount
	}); err != nil {
		return err
	}
	with, without, err := e.alternate("webhooks", "hooked", "plain")
	if err != nil {
		return err
	}
	for i := range webhookCount {
		if _, _, err := e.send(http.MethodDelete, fmt.Sprintf("%s/bench%d", path, i), ""); err != nil {
			return err
		}
	}
	e.add(fmt.Sprintf("create past %d webhooks: server CPU added", webhookCount), float64((with-without).Nanoseconds())/1000, "µs", 1.2)
	return nil
}

// alternate creates config maps with one label and with another in turn, and returns the median CPU time of one create of each.
func (e *extensions) alternate(name, first, second string) (with, without time.Duration, err error) {
	n := max(e.Requests/admissionRounds, 1)
	used := map[string][]time.Duration{}
	for round := range admissionRounds + 1 {
		for _, label := range []string{first, second} {
			cpu, _, err := e.cpu(name+" "+label, func() error {
				return e.parallel(n, func(i int) error { return e.createMap("", fmt.Sprintf("%s-%s-%d-%d", name, label, round, i), label) })
			})
			if err != nil {
				return 0, 0, err
			}
			if round > 0 { // the first warms up
				used[label] = append(used[label], cpu/time.Duration(n))
			}
		}
	}
	median := func(label string) time.Duration {
		slices.Sort(used[label])
		return used[label][len(used[label])/2]
	}
	return median(first), median(second), nil
}

// policies measures a create that twenty policies validate.
func (e *extensions) policies() error {
	const path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
	for i := range policyCount {
		if _, _, err := e.send(http.MethodPost, path+"ies", fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"bench%[1]d"},
			"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]},
			"validations":[{"expression":"!('deny%[1]d' in object.metadata.labels)"},{"expression":"object.data.all(k, size(k) < 100) && object.metadata.name.size() < 200"}]}}`, i)); err != nil {
			return err
		}
		if _, _, err := e.send(http.MethodPost, path+"ybindings", fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"bench%[1]d"},
			"spec":{"policyName":"bench%[1]d","validationActions":["Deny"]}}`, i)); err != nil {
			return err
		}
	}
	for i := range policyCount {
		if err := until("all policies are in force", func() bool {
			err := e.createMap("?dryRun=All", "probe", fmt.Sprint("deny", i))
			return err != nil && strings.Contains(err.Error(), fmt.Sprintf("bench%d", i))
		}); err != nil {
			return err
		}
	}
	used, _, err := e.alternate("policies", "a", "b")
	e.add(fmt.Sprintf("create past %d policies: server CPU", policyCount), float64(used.Nanoseconds())/1000, "µs", 1./2)
	return err
}
