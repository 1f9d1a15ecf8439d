// Package h2spec runs the conformance suite of HTTP/2 servers, github.com/summerwind/h2spec, against internal/http2 on a real TLS
// listener. It is a module of its own, so that the suite is not among the product's dependencies.
package h2spec

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	suite "github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"

	"skiff/internal/http2"
)

// headerLength is the length of a header in cases of large headers. One case sends five of them to exceed the server's largest frame,
// which is 256 KiB here instead of the default of 16 KiB.
const headerLength = 70_000

// minCases is the number of cases of version 2.2.1 that run. It guards against a suite that runs nothing.
const minCases = 146

func TestH2Spec(t *testing.T) {
	c := &config.Config{
		Host: "127.0.0.1", Port: serve(t), Path: "/", Timeout: 5 * time.Second, MaxHeaderLen: headerLength,
		TLS: true, Insecure: true, Strict: true,
	}
	cases := 0
	// The suite prints what it does; there is no exception, so every case must pass.
	for _, group := range []*spec.TestGroup{generic.Spec(), suite.Spec(), hpack.Spec()} {
		group.Test(c)
		cases += check(t, group)
	}
	if cases < minCases {
		t.Errorf("%d cases have run, want %d", cases, minCases)
	}
}

// check reports the failed cases of a group and returns the number of cases.
func check(t *testing.T, group *spec.TestGroup) (cases int) {
	for _, tc := range append(group.Tests, group.StrictTests...) {
		if tc.Result == nil {
			t.Errorf("%s: %q has not run", group.ID(), tc.Desc)
			continue
		}
		cases++
		id := fmt.Sprintf("%s/%d", group.ID(), tc.Result.Sequence)
		if tc.Result.Failed || tc.Result.Skipped {
			t.Errorf("%s: %s: %v", id, tc.Desc, tc.Result.Error)
		}
	}
	for _, below := range group.Groups {
		cases += check(t, below)
	}
	return cases
}

// serve starts a server on a loopback address and returns its port.
func serve(t *testing.T) int {
	// httptest has a certificate.
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	certificate.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "skiff serves HTTP/2")
		}),
		TLSConfig: &tls.Config{Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2"}},
	}
	http2.Configure(server)
	go func() { _ = server.Serve(tls.NewListener(http2.Listener(listener), server.TLSConfig)) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}
