package config

import (
	"flag"
	"io"
	"strings"
	"testing"
)

func TestServerValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want string // part of the error; empty: valid
	}{
		{"defaults", nil, ""},
		{"dual stack", []string{"--service-cidr=10.96.0.0/16,fd00::/108"}, ""},
		{"relative directory", []string{"--data-dir=state"}, `--data-dir: "state" is not an absolute path`},
		{"bad address", []string{"--bind-address=everywhere"}, "--bind-address"},
		{"same family twice", []string{"--service-cidr=10.96.0.0/16,10.97.0.0/16"}, "different IP families"},
		{"bits beyond mask", []string{"--service-cidr=10.96.0.1/16"}, "did you mean 10.96.0.0/16?"},
		{"node ports reversed", []string{"--service-node-port-range=9-5"}, "--service-node-port-range"},
		{"key without certificate", []string{"--etcd-keyfile=k"}, "--etcd-certfile"},
		{"unknown part", []string{"--without=kubelet"}, `--without: "kubelet" is not one of controllers, scheduler`},
		{"audit mode", []string{"--audit-log-path=-", "--audit-log-mode=sometimes"}, "--audit-log-mode"},
		{"audit format", []string{"--audit-log-path=-", "--audit-log-format=xml"}, "--audit-log-format"},
		{"audit batches", []string{"--audit-webhook-config-file=f", "--audit-webhook-batch-throttle-qps=0"}, "--audit-webhook-batch-throttle-qps"},
		{"audit settings that are not used", []string{"--audit-log-mode=sometimes"}, ""},
		{"nothing to be fair with", []string{"--max-requests-inflight=0", "--max-mutating-requests-inflight=0"}, "--max-requests-inflight: must add up"},
		{"no limit at all", []string{"--max-requests-inflight=0", "--max-mutating-requests-inflight=0", "--enable-priority-and-fairness=false"}, ""},
		{"HTTP/2 of net/http", []string{"--http2-server=go"}, ""},
		{"unknown HTTP/2 server", []string{"--http2-server=nginx"}, `--http2-server: "nginx" is not one of skiff, go`},
		{"negative limit", []string{"--max-requests-inflight=-1"}, "--max-requests-inflight"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := DefaultServer()
			fs := flag.NewFlagSet("server", flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			c.Flags(fs)
			if err := fs.Parse(append([]string{"--no-node"}, tt.args...)); err != nil {
				t.Fatal(err)
			}
			err := c.Validate()
			if tt.want == "" && err != nil {
				t.Fatalf("unexpected error: %v", err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}
